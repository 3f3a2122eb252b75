# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for parsing YAML documents: the messages for invalid documents are exact and complete."""

from __future__ import annotations

import time

import pytest

from mptcp_common.yaml_document import parse_document


def problems(text: str) -> list[str]:
    return [str(problem) for problem in parse_document(text, "file.yaml").problems]


BROKEN = {
    "empty": ("", ["file.yaml:1: the file is empty"]),
    "only comments": ("# to do\n", ["file.yaml:1: the file is empty"]),
    "a list": (
        "\n- name: a\n",
        ['file.yaml:2: not a mapping; the file must consist of "key: value" lines'],
    ),
    "a word": ("policy\n", ['file.yaml:1: not a mapping; the file must consist of "key: value" lines']),
    "tab": (
        "version: 1\nrules:\n\t- name: a\n",
        ["file.yaml:3: not valid YAML: a tab cannot indent a line; use spaces"],
    ),
    "two colons": (
        "version: 1\nrules: name: a\n",
        ['file.yaml:2: not valid YAML: a second ": " on the line, or a line with wrong indentation'],
    ),
    "open bracket": (
        "version: 1\npaths: [a, b\nrules: []\n",
        ['file.yaml:3: not valid YAML: a list or mapping in brackets is not closed; a "," or "]" is missing'],
    ),
    "open quote": (
        "version: 1\nrules: 'a\n",
        ["file.yaml:3: not valid YAML: the text ends in the middle of a value; is a quote left open?"],
    ),
    "indentation": (
        "rules:\n  - name: a\n   paths: [b]\n",
        ["file.yaml:3: not valid YAML: the indentation differs from that of the lines it belongs to"],
    ),
    "unquoted at-sign": (
        "version: @1\n",
        ['file.yaml:1: not valid YAML: text that starts with "@" must be in quotes'],
    ),
    "undefined alias": (
        "version: 1\nrules: *usual\n",
        ['file.yaml:2: not valid YAML: "*usual" refers to an anchor "&usual" that is not defined above it'],
    ),
    "two documents": (
        "version: 1\nrules: []\n---\nversion: 1\n",
        ['file.yaml:3: not valid YAML: only one document is allowed; remove the second "---"'],
    ),
    "YAML 1.1": (
        "%YAML 1.1\n---\nversion: 1\nrules: []\n",
        ["file.yaml:1: YAML 1.1 is not supported; remove this line (YAML 1.2 is used)"],
    ),
    "control character": ("version: 1\nrules: \x07\n", ["file.yaml:2: not valid YAML: a control character (U+0007)"]),
    "escape of no character": (
        'version: 1\nrules: "\\UFFFFFFFF"\n',
        ['file.yaml:1: not valid YAML: a "\\U" in quotes names no character; 0010FFFF is the highest'],
    ),
    "too deep for the parser": (
        "[" * 1000,
        ["file.yaml:1: not valid YAML: nested too deeply; at most 32 levels are read"],
    ),
    "too large": (
        "#" * 200_000,
        ["file.yaml:1: 200000 characters are too many; at most 131072 are read"],
    ),
    "key given twice": (
        "version: 1\nrules: []\nrules: []\n",
        ["file.yaml:3: rules: given twice; the first is on line 2, keep one"],
    ),
    "alias of a node that contains it": (
        "version: 1\nrules: &a [*a]\n",
        ["file.yaml:2: rules[0]: an alias refers to a value that it is itself part of"],
    ),
    "merge of a node that contains it": (
        "version: 1\nrules: []\npaths: &a {<<: *a}\n",
        ["file.yaml:3: paths: an alias refers to a value that it is itself part of"],
    ),
    "merge of a word": (
        "version: 1\nrules: []\npaths: {<<: a}\n",
        ['file.yaml:3: paths: "<<" takes an alias of a mapping, or a list of such aliases'],
    ),
    "tag": (
        "version: 1\nrules: !!python/object:os.system []\n",
        ['file.yaml:2: rules: the YAML tag "!!python/object:os.system" is not supported; remove it'],
    ),
    "list as a key": (
        "version: 1\nrules: []\n? [a, b]\n: c\n",
        ["file.yaml:3: a key must be plain text"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_invalid_document_has_exact_problems(case: str) -> None:
    text, expected = BROKEN[case]
    assert problems(text) == expected


def test_valid_document_is_read_with_positions() -> None:
    document = parse_document("version: 1\nrules:\n  - {name: on, rate: 010}\n", "file.yaml")
    assert document.problems == ()
    assert document.data == {"version": 1, "rules": [{"name": "on", "rate": 10}]}
    assert (document.key_position(("rules",)).line, document.value_position(("rules", 0, "rate")).line) == (2, 3)


def test_expansion_of_aliases_is_bounded() -> None:
    lines = ["a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]"]
    for before, after in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]")
    # Measure the CPU time, because other programs may delay the test.
    start = time.process_time()
    assert problems("\n".join(lines)) == [
        "file.yaml:1: too many values with all aliases expanded; at most 50000 are read"
    ]
    assert time.process_time() - start < 10


def test_expansion_of_merges_is_bounded() -> None:
    lines = ["a: &a {x: 1}"]
    for before, after in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{after}: &{after} {{<<: [{', '.join([f'*{before}'] * 10)}]}}")
    assert problems("\n".join(lines)) == [
        "file.yaml:1: too many values with all aliases expanded; at most 50000 are read"
    ]


def test_depth_of_nested_merges_is_bounded() -> None:
    """Defect: a thousand nested merges raised an exception.

    Because the key "a" is a duplicate, the parser does not read the merges one by one before the last line.
    """
    merges = (f"a: &m{number} {{<<: *m{number - 1}}}" for number in range(1, 2000))
    lines = ["a: &m0 {x: 1}", *merges, "<<: *m1999"]
    assert any("nested too deeply; at most 32 levels are read" in line for line in problems("\n".join(lines)))


def test_invalid_boolean_is_not_read_as_false() -> None:
    """Defect: ``dry_run: !!bool yes`` was read as false without a message."""
    document = parse_document("a: !!bool yes\nb: !!bool True\nc: !!bool false\n", "file.yaml")
    assert document.data == {"a": "yes", "b": True, "c": False}
