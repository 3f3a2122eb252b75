# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the additions of debian/man to the manual pages, and for the Documentation= of the units."""

from __future__ import annotations

import importlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = REPOSITORY / "debian/man"
COMMANDS = sorted(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"])
DOCUMENTS = "/usr/share/doc/mptcp-steering-proxy/docs/"
UNITS = sorted((REPOSITORY / "systemd").glob("*.service"))


def text_of(page: str) -> str:
    return (PAGES / page).read_text().replace("\\-", "-")


@pytest.mark.parametrize("page", [*COMMANDS, "mptcp-relay"])
def test_page_has_valid_examples_and_existing_files(page: str) -> None:
    text = text_of(page)
    assert {"[EXAMPLES]", "[FILES]"} <= set(text.splitlines())
    examples = [each for block in re.findall(r"^\.EX\n(.*?)^\.EE$", text, re.M | re.S) for each in block.splitlines()]
    ours = [part for line in examples for part in line.split("&&") if part.split()[0] in COMMANDS]
    assert ours
    for example in ours:
        program, *arguments = shlex.split(example)
        parser = importlib.import_module(f"{program.replace('-', '_')}.cli")._parser()
        parser.parse_args(arguments)  # an unknown argument would end the process
    for file in re.findall(r"/etc/(mptcp-[\w-]+/[\w.-]+\.(?:conf|yaml))", text):
        assert (REPOSITORY / "conf" / Path(file).name).is_file(), file
    for document in re.findall(rf"{DOCUMENTS}([\w-]+\.md)", text):
        assert (REPOSITORY / "docs" / document).is_file(), document


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_documentation_of_a_unit_exists(unit: Path) -> None:
    (documentation,) = re.findall(r"^Documentation=(.*)$", unit.read_text(), re.M)
    pages = re.findall(r"man:(mptcp-\w+)\(8\)", documentation)
    documents = re.findall(rf"file:{DOCUMENTS}([\w-]+\.md)", documentation)
    assert pages
    assert documents
    assert all((PAGES / page).is_file() for page in pages)
    assert all((REPOSITORY / "docs" / document).is_file() for document in documents)
