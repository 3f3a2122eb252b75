# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the function that reads the status socket's path without parsing the whole settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptcp_common.problems import DocumentError
from mptcp_throttler.config import files, status_socket
from mptcp_throttler.config.settings import load_settings

SETTINGS = "interfaces: [w0]\npolicy: p.yaml\n"


@pytest.mark.parametrize(
    "line",
    ["", "status_socket: /run/x/s.sock\n", 'status_socket: "/run/x/s.sock"  # here\n', "status_socket: '/run/a-b.s'\n"],
)
def test_plain_line_yields_the_same_path_as_the_settings_parser(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "throttler.yaml"
    file.write_text(SETTINGS + line)
    monkeypatch.delattr(files, "read_settings")
    assert status_socket(file) == load_settings(SETTINGS + line, "s").status_socket


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("status_socket: &anchor /run/s\n", "/run/s"),
        ("# status_socket: /run/a\n", "/run/mptcp-throttler/status.sock"),
        ("status_socket: >-\n  /run/a\n", "/run/a"),
    ],
)
def test_other_forms_are_parsed_by_the_settings_parser(line: str, path: str, tmp_path: Path) -> None:
    file = tmp_path / "throttler.yaml"
    file.write_text(SETTINGS + line)
    assert status_socket(file) == Path(path)


@pytest.mark.parametrize("line", ["status_socket: relative.sock\n", "status_socket: /run/a\nstatus_socket: /run/b\n"])
def test_invalid_line_is_refused(line: str, tmp_path: Path) -> None:
    file = tmp_path / "throttler.yaml"
    file.write_text(SETTINGS + line)
    with pytest.raises(DocumentError, match="status_socket"):
        status_socket(file)


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot be read"):
        status_socket(tmp_path / "none.yaml")
