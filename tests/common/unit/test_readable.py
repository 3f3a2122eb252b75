"""Which files a daemon's user cannot read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mptcp_common.readable import unreadable


def test_a_file_system_that_does_not_answer_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hangs(command: list[str], **named: object) -> None:
        raise subprocess.TimeoutExpired(command, 10)

    monkeypatch.setattr(subprocess, "run", hangs)
    # An OSError, which every command of ours says in one line.
    with pytest.raises(OSError, match="its file system does not answer within 10 s"):
        list(unreadable([tmp_path], os.getuid(), os.getgid(), []))
