# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the rotation of log files, and for the detection of a full disk."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from mptcp_proxy import log_files


def test_logs_larger_than_the_limit_are_renamed(tmp_path: Path) -> None:
    def contents() -> dict[str, str]:
        return {path.name: path.read_text() for path in tmp_path.iterdir()}

    (tmp_path / "access.log").write_text("first")
    (tmp_path / "cache.log").write_text("c")
    (tmp_path / "other.txt").write_text("much too long")
    assert not log_files.rotate(tmp_path, max_bytes=5, old_files=2)
    assert log_files.rotate(tmp_path, max_bytes=4, old_files=2)
    assert contents() == {"access.log.1": "first", "cache.log": "c", "other.txt": "much too long"}
    for text in ("second", "third", "fourth"):
        (tmp_path / "access.log").write_text(text)
        assert log_files.rotate(tmp_path, max_bytes=4, old_files=2)
        assert contents()["access.log.1"] == text
    assert contents() == {"access.log.1": "fourth", "access.log.2": "third", "cache.log": "c", "other.txt": "much too long"}  # fmt: skip  # noqa: E501


def test_no_log_is_renamed_if_a_new_log_cannot_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "access.log").write_text("kept")

    def fail_without_space(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkstemp", fail_without_space)
    with pytest.raises(OSError, match="No space"):
        log_files.rotate(tmp_path, max_bytes=1)
    assert [path.name for path in tmp_path.iterdir()] == ["access.log"]


def test_full_disk_of_the_logs_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = log_files.Logs(tmp_path)
    for free_bytes in (1 << 20, 0, 0, 1 << 20, 1 << 20):
        found = SimpleNamespace(f_bavail=free_bytes // 4096, f_frsize=4096)
        monkeypatch.setattr(os, "statvfs", lambda _, found=found: found)
        assert not logs.rotate_and_report()
    assert capsys.readouterr().err.splitlines() == [
        f"mptcp-proxy: {tmp_path}: the disk of the logs is full; with on-error=drop requests are served without a log"
        " line",
        f"mptcp-proxy: {tmp_path}: the disk has space again, requests are logged",
    ]


def test_lasting_error_is_reported_once_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defect: the supervisor logged the error every ten seconds, and reported a failed statvfs as a problem of a
    log."""

    def make_failing(number: int) -> Callable[..., None]:
        def fail(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        return fail

    logs = log_files.Logs(tmp_path)
    (tmp_path / "access.log").write_bytes(b"x" * (log_files.MAX_BYTES + 1))
    for number in (errno.ENOSPC, errno.ENOSPC, errno.EROFS):
        monkeypatch.setattr(tempfile, "mkstemp", make_failing(number))
        assert not logs.rotate_and_report()
    with monkeypatch.context() as patch:
        patch.setattr(log_files, "is_full", make_failing(errno.EIO))
        assert not logs.rotate_and_report()
        assert not logs.rotate_and_report()
    monkeypatch.undo()
    assert logs.rotate_and_report()
    monkeypatch.setattr(log_files, "is_full", make_failing(errno.EIO))
    assert not logs.rotate_and_report()
    assert capsys.readouterr().err.splitlines() == [
        "mptcp-proxy: cannot begin a new log: No space left on device",
        "mptcp-proxy: cannot begin a new log: Read-only file system",
        "mptcp-proxy: cannot determine the free space for the logs: Input/output error",
        "mptcp-proxy: cannot determine the free space for the logs: Input/output error",
    ]
