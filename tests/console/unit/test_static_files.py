# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for static files: they load nothing from other sites, have no inline scripts or styles, and the libraries are
unmodified."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

import mptcp_console
from mptcp_lab.testbed.features import fails_when_missing

STATIC = Path(mptcp_console.__file__).parent / "static"
OWN_FILES = [file for file in STATIC.rglob("*") if file.is_file() and "vendor" not in file.parts]
PAGES = sorted(STATIC.glob("*.html"))
SCRIPT_TESTS = sorted((Path(__file__).parents[1] / "js").glob("*.test.mjs"))


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open_tags: list[str] = []
        self.text_of: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open_tags.append(tag)

    def handle_data(self, data: str) -> None:
        tag = self.open_tags[-1] if self.open_tags else ""
        self.text_of[tag] = self.text_of.get(tag, "") + data

    def handle_endtag(self, tag: str) -> None:
        while self.open_tags and self.open_tags.pop() != tag:
            pass


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_page_has_no_inline_script_or_style(file: Path) -> None:
    page = Page(file.read_text())
    assert page.text_of.get("script", "").strip() == ""
    assert "style" not in page.text_of
    for tag, attributes in page.tags:
        assert not {name for name in attributes if name == "style" or name.startswith("on")}, tag


@pytest.mark.parametrize("file", OWN_FILES, ids=lambda file: file.name)
def test_file_loads_nothing_from_other_sites(file: Path) -> None:
    addresses = re.findall(r"(?:https?:)?//[A-Za-z0-9.-]+\.[a-z]{2,}[^\s\"')]*", file.read_text())
    assert [address for address in addresses if "www.w3.org/2000/svg" not in address] == []


@pytest.mark.parametrize(
    "file", [file for file in OWN_FILES if file.suffix in (".mjs", ".js")], ids=lambda file: file.name
)
def test_script_never_turns_text_into_markup_or_code(file: Path) -> None:
    text = file.read_text()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in text


def test_ids_that_scripts_use_are_in_the_page() -> None:
    page = Page((STATIC / "index.html").read_text())
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    used_ids = set()
    for file in (STATIC / "js").glob("*.mjs"):
        if file.name != "login.mjs":
            used_ids |= set(re.findall(r'byId\("([^"]+)"\)', file.read_text()))
    assert used_ids - ids == set()
    assert len(used_ids) > 20


def test_ids_are_unique_and_labels_have_their_fields() -> None:
    for file in PAGES:
        page = Page(file.read_text())
        ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        for _, attributes in page.tags:
            for name in ("for", "aria-labelledby", "aria-describedby"):
                assert name not in attributes or attributes[name] in ids, (file.name, attributes)


@pytest.mark.parametrize(
    "folder", [STATIC / "vendor/uplot", Path(__file__).parents[1] / "vendor/axe-core"], ids=lambda folder: folder.name
)
def test_library_is_unmodified_and_has_its_licence(folder: Path) -> None:
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    sums = {name: found for found, name in (line.split(maxsplit=1) for line in lines)}
    files = {file.name for file in folder.iterdir()} - {"SHA256SUMS", "ORIGIN"}
    assert files == set(sums)
    assert any(name.startswith("LICENSE") for name in files)
    assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files} == sums
    assert re.fullmatch(r"npm [a-z-]+@[0-9.]+ sha512-[A-Za-z0-9+/=]{88}\n", (folder / "ORIGIN").read_text())


def test_script_tests_exist() -> None:
    assert len(SCRIPT_TESTS) >= 4


@pytest.mark.parametrize("file", SCRIPT_TESTS, ids=lambda file: file.name)
def test_script_tests_pass(file: Path) -> None:
    if shutil.which("node") is None:
        why = "the program node (Debian's nodejs) is not installed"
        if fails_when_missing():
            pytest.fail(f"CI may not skip: {why}", pytrace=False)
        pytest.skip(f"NOT TESTED: {why}")
    # The option "--test" is not used, because it would start another node process for the file.
    result = subprocess.run(["node", str(file)], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^# pass [1-9]", result.stdout, re.MULTILINE) or "pass" in result.stdout, result.stdout
