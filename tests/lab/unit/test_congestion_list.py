# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for congestion controls that the kernel lacks, that the host does not allow, or that another run allowed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mptcp_lab.testbed import TestbedError, congestion, ownership
from mptcp_lab.testbed.ownership import Cleaned


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in place of the host's list, with notes of its own."""
    lists = tmp_path / "allowed"
    lists.write_text("reno bbr\n")
    monkeypatch.setattr(congestion, "ALLOWED", lists)
    monkeypatch.setattr(ownership, "RUN_DIRECTORY", tmp_path / "runs")
    return lists


KILLED = """
import sys
from pathlib import Path
from mptcp_lab.testbed import congestion, ownership
congestion.ALLOWED, ownership.RUN_DIRECTORY = map(Path, sys.argv[1:])
with congestion.allowed("cubic"):
    print("extended", flush=True)
    sys.stdin.read()
"""


def kill_with_an_extended_list(lists: Path) -> None:
    argv = [sys.executable, "-c", KILLED, str(lists), str(ownership.RUN_DIRECTORY)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"extended\n"
        child.kill()
    assert lists.read_text().split() == ["reno", "bbr", "cubic"]


def test_cleanup_puts_back_the_list_that_a_killed_run_extended(lists: Path) -> None:
    """Defect: the extended list stayed, and nothing had noted the change."""
    kill_with_an_extended_list(lists)
    assert congestion.put_back() == Cleaned(
        ("set net.ipv4.tcp_allowed_congestion_control to what it was: reno bbr",), ()
    )
    assert lists.read_text().split() == ["reno", "bbr"]
    assert congestion.put_back() == Cleaned((), ())


def test_list_stays_when_somebody_has_changed_it_since(lists: Path) -> None:
    kill_with_an_extended_list(lists)
    lists.write_text("reno bbr dctcp\n")
    assert congestion.put_back() == Cleaned((), ())
    assert lists.read_text().split() == ["reno", "bbr", "dctcp"]


def test_list_that_cannot_be_put_back_is_named(lists: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example is a congestion control on the list whose module has been unloaded."""
    kill_with_an_extended_list(lists)
    write_text = Path.write_text

    def refused(self: Path, text: str) -> int:
        if self == lists:
            raise FileNotFoundError(2, "No such file or directory")
        return write_text(self, text)

    monkeypatch.setattr(Path, "write_text", refused)
    note = ownership.RUN_DIRECTORY / congestion.NOTE
    said = f"{lists}: No such file or directory; it was: reno bbr; put it back, then remove {note}"
    assert congestion.put_back() == Cleaned((), (said,))
    with pytest.raises(TestbedError, match="it was: reno bbr"):
        congestion.select("cubic", ["a"])


def test_lacking_control_is_reported_with_those_that_the_kernel_has() -> None:
    assert congestion.lacking("bbr", "reno cubic\n") == "the kernel has no congestion control bbr; it has reno, cubic"
    assert congestion.lacking("cubic", "reno cubic\n") is None
    assert congestion.lacking(congestion.KEEP, "reno cubic\n") is None
