# SPDX-License-Identifier: GPL-2.0-or-later
"""Test that Apache's workers can read the files of ``mptcp-bench``, whatever the umask of its caller."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mptcp_bench import cli
from mptcp_lab.agent import files


@pytest.mark.parametrize("umask", [0o027, 0o077], ids=["027", "077"])
def test_others_can_read_what_an_origin_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int) -> None:
    """Defect: Apache could not enter these directories, so that the demo failed."""
    served = tmp_path / "origin-apache/htdocs"
    monkeypatch.setattr(cli, "_list", lambda _: files.main([str(served), "file=3"]))
    before = os.umask(umask)
    try:
        assert cli.main(["list"]) == 0
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (served.parent, served, served / "file")}
    assert modes == {"origin-apache": "0o755", "htdocs": "0o755", "file": "0o644"}
