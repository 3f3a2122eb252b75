# SPDX-License-Identifier: GPL-2.0-or-later
"""Test for a defect: if others may not enter root's TMPDIR, Apache and Squid could not use a testbed's directory.

The TMPDIR is below the test's directory, which pytest creates for one user only.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from mptcp_lab.agent.directories import parent_directory


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """Return a directory that other users can enter, below a directory that they cannot enter."""
    above = tmp_path / "user"
    (above / "open").mkdir(parents=True)
    above.chmod(0o700)
    return above / "open"


def test_parent_directory_is_tmp_when_others_cannot_enter_tmpdir(
    closed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(closed)
    for given in (closed, closed.parent, link):
        monkeypatch.setattr(tempfile, "tempdir", str(given))
        assert parent_directory() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/usr/..")
    assert parent_directory() == "/"
