# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a squid.conf that several versions of Squid use."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_proxy.configuration.by_version import AdaptedConfiguration, adapt, removed_directive_problems
from mptcp_proxy.configuration.source import PhysicalLine, read, statements

SHIPPED = Path(__file__).parents[3] / "conf/squid.conf"


def adapt_lines(version: str, *texts: str) -> AdaptedConfiguration:
    lines = [PhysicalLine("squid.conf", n, text) for n, text in enumerate(texts, 1)]
    return adapt(lines, list(statements(lines, "n")), version)


def texts(answer: AdaptedConfiguration) -> list[str]:
    return [line.text for line in answer.lines]


@pytest.mark.parametrize("version", ["5.7", "4.13", "unknown", ""])
def test_version_with_the_directive_gets_it(version: str) -> None:
    lines = ("via on", "request_entities on", "request_entities off")
    answer = adapt_lines(version, *lines)
    assert (texts(answer), answer.notes, answer.problems) == (list(lines), (), ())


@pytest.mark.parametrize("version", ["6.13", "6.0.1", "7.1", "10.2"])
def test_version_with_a_fixed_value_does_not_get_the_directive(version: str) -> None:
    answer = adapt_lines(version, "via on", "request_entities \\", "", "  on # why", "cache deny all")
    assert texts(answer) == ["via on", "", "", "", "cache deny all"]
    assert [str(note) for note in answer.notes] == [
        f"squid.conf:4: request_entities on: left out, Squid {version} always does this"
    ]
    assert answer.problems == ()


@pytest.mark.parametrize("text", ["request_entities off", "request_entities", "request_entities on off"])
def test_impossible_value_for_a_version_is_a_mistake(text: str) -> None:
    answer = adapt_lines("6.13", text)
    assert texts(answer) == [""], "the statement is not left out, so Squid reports it, too"
    (problem,) = answer.problems
    assert str(problem) == (
        f"squid.conf:1: {text}: Squid 6.13 cannot do this; it always behaves as with request_entities on"
        " (allowed: request_entities on; or omit the line)"
    )
    assert answer.notes == ()


def test_shipped_file_has_one_statement_to_leave_out() -> None:
    lines, _ = read(SHIPPED, "n")
    configuration = list(statements(lines, "n"))
    answer = adapt(lines, configuration, "6.13")
    assert len(answer.lines) == len(lines)
    assert len(answer.notes) == 1
    assert not any("request_entities" in line.text for line in answer.lines if not line.text.startswith("#"))


@pytest.mark.parametrize(
    ("text", "version", "words"),
    [
        ("acl who ident joe", "5.7", "Squid 7 and later have no acl ident"),
        ("ident_timeout 10 seconds", "6.13", "Squid 7 and later have no ident_timeout"),
        ("acl as src_as 1241", "7.1", "Squid 8 and later have no acl src_as"),
        ("acl who ident joe", "7.1", None),
        ("acl ident src 10.0.0.0/8", "5.7", None),
    ],
)
def test_directive_that_a_later_version_lacks_gives_a_warning(text: str, version: str, words: str | None) -> None:
    lines = [PhysicalLine("squid.conf", 1, text)]
    found = list(removed_directive_problems(list(statements(lines, "n")), version))
    assert [str(each) for each in found] == (
        [f"squid.conf:1: warning: {text}: {words}, and do not start"] if words else []
    )
