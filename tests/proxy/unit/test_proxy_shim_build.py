"""Building the library."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mptcp_proxy import shim


def test_the_library_is_built_when_its_source_is_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler here writes down that it was called; the real one is used by the kernel tests."""
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\necho called >> "$0.log"\nwhile [ "$1" != -o ]; do shift; done\necho built > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    target = tmp_path / "new" / "mptcp_listen.so"

    assert shim.build(target) == target
    assert target.read_text() == "built\n"
    shim.build(target)
    assert (tmp_path / "cc.log").read_text() == "called\n"
    os.utime(target, (1, 1))
    shim.build(target)
    assert (tmp_path / "cc.log").read_text() == "called\ncalled\n"
    assert list(target.parent.iterdir()) == [target]


def test_what_can_go_wrong_with_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "cc"
    failing.write_text("#!/bin/sh\necho 'no stdio.h' >&2; exit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CC", str(failing))
    with pytest.raises(shim.ShimError, match=r"cannot compile the library in .*shim:\nno stdio.h"):
        shim.build(tmp_path / "x.so")
    monkeypatch.setenv("CC", "/nonexistent/cc")
    with pytest.raises(shim.ShimError, match="apt install gcc"):
        shim.build(tmp_path / "x.so")
    monkeypatch.setenv(shim.PACKAGED, "/nonexistent/y.so")
    with pytest.raises(shim.ShimError, match=r"MPTCP_LISTEN_SHIM=/nonexistent/y\.so"):
        shim.library()
    packaged = tmp_path / "y.so"
    packaged.touch()
    monkeypatch.setenv(shim.PACKAGED, str(packaged))
    assert shim.library() == packaged
