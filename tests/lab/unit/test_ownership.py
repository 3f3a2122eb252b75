# SPDX-License-Identifier: GPL-2.0-or-later
"""Test for a run whose directory cannot be removed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mptcp_lab.testbed import TestbedError, ownership


@contextmanager
def immutable(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """Make the removal of files named *name* fail like that of an immutable file, see chattr(1), for root too."""

    def refusing(remove: Callable[..., None]) -> Callable[..., None]:
        def refuse(path: Any, **options: Any) -> None:
            if Path(path).name == name:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), os.fspath(path))
            remove(path, **options)

        return refuse

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refusing(os.unlink))
        patched.setattr(os, "rmdir", refusing(os.rmdir))
        yield


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep runs and namespaces below *tmp_path*."""
    for attribute, name in (("RUN_DIRECTORY", "runs"), ("NAMESPACES", "netns")):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(ownership, attribute, tmp_path / name)


@pytest.mark.usefixtures("own")
def test_directory_that_cannot_be_removed_is_named_and_stays_owned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "parent_directory", lambda: str(tmp_path))
    claiming = ownership.claimed_run()
    claimed = claiming.__enter__()
    (claimed.directory / "logs").mkdir()
    (claimed.directory / "logs" / "stuck").touch()
    with (
        immutable(monkeypatch, "stuck"),
        pytest.raises(TestbedError, match=r"/logs/stuck: Operation not permitted; mptcp-bench cleanup tries again$"),
    ):
        claiming.__exit__(None, None, None)
    assert [(run.id, run.alive, run.directory) for run in ownership.runs()] == [(claimed.id, False, claimed.directory)]
    name = f"testbed {claimed.id} of process {os.getpid()}"
    with immutable(monkeypatch, "stuck"):
        failure = f"{name}: remove {claimed.directory}/logs/stuck: Operation not permitted"
        assert ownership.remove_stale() == ([], [failure])
    assert ownership.remove_stale() == ([f"removed {name}"], [])
    assert not claimed.directory.exists()
    assert ownership.runs() == ()
