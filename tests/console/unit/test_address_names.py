# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for names of addresses from the operator's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_console.address_names import MAX_BYTES, AddressNames, parse_names, read_names


def test_names_file_has_the_format_of_a_hosts_file() -> None:
    text = "# phones\n10.77.1.2 phone other # mine\n\nFD77::0:2\ttablet\n10.77.1.2 later\n"
    assert parse_names(text) == {"10.77.1.2": "phone", "fd77::2": "tablet"}


@pytest.mark.parametrize("text", ["phone 10.77.1.2", "10.77.1.2", "10.77.1.0/24 office", f"10.77.1.2 {'x' * 65}"])
def test_wrong_line_is_reported_with_its_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line 2: "):
        parse_names(f"10.77.1.1 a\n{text}\n")


def test_too_large_or_binary_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "names"
    for content in (b"#" * (MAX_BYTES + 1), b"10.77.1.2 \xff"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"more than|not UTF-8"):
            read_names(file)


def test_changed_file_is_read_and_a_wrong_one_keeps_the_old_names(tmp_path: Path) -> None:
    file, warnings = tmp_path / "names", list[str]()
    file.write_text("10.77.1.2 phone\n")
    names = AddressNames(file, warnings.append)
    before = names.version
    names.refresh()
    first = names.version
    assert names.names == {"10.77.1.2": "phone"}
    assert first != before
    file.write_text("10.77.1.2\n")
    for _ in range(3):
        names.refresh()
    assert (names.names, names.version, len(warnings)) == ({"10.77.1.2": "phone"}, first, 1)
    file.unlink()
    for _ in range(3):
        names.refresh()
    assert (names.version, len(warnings)) == (first, 2)
    file.write_text("10.77.1.2 tablet of mine\n")
    names.refresh()
    assert names.names == {"10.77.1.2": "tablet"}
    assert names.version != first
    without_file = AddressNames(None)
    without_file.refresh()
    assert without_file.names == {}
