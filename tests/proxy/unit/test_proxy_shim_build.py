# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the build of the preload libraries, and for the choice of the libraries to load."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mptcp_proxy import shim


def test_library_is_built_if_its_source_is_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stub replaces the compiler and records its calls; the kernel tests use the real compiler."""
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


def test_failed_build_of_the_library_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "cc"
    failing.write_text("#!/bin/sh\necho 'no stdio.h' >&2; exit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CC", str(failing))
    with pytest.raises(shim.ShimError, match=r"cannot compile the library in .*shim:\nno stdio.h"):
        shim.build(tmp_path / shim.TURNS)
    monkeypatch.setenv("CC", "/nonexistent/cc")
    with pytest.raises(shim.ShimError, match="apt install gcc"):
        shim.build(tmp_path / shim.TURNS)


def test_packaged_library_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shim.PACKAGED, "/nonexistent/y.so")
    with pytest.raises(shim.ShimError, match=r"MPTCP_LISTEN_SHIM=/nonexistent/y\.so"):
        shim.library()
    packaged = tmp_path / "y.so"
    packaged.touch(0o644)
    monkeypatch.setenv(shim.PACKAGED, str(packaged))
    assert shim.library() == packaged
    with pytest.raises(shim.ShimError, match=f"there is no such file as {tmp_path}/{shim.TURNS}"):
        shim.library(shim.TURNS)
    (tmp_path / shim.TURNS).touch(0o644)
    assert shim.library(shim.TURNS) == tmp_path / shim.TURNS


@pytest.mark.parametrize("kind", ["library", "compiler"])
def test_library_or_compiler_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Defect: root loaded any library, and ran any compiler, that an environment variable named."""
    directory = tmp_path / "bin"
    directory.mkdir(0o755)
    file = directory / "file"
    file.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho built > "$2"\n')
    file.chmod(0o755)

    def use(name: str) -> None:
        monkeypatch.setenv(shim.PACKAGED if kind == "library" else "CC", name)
        if kind == "library":
            shim.library()
        else:
            shim.build(tmp_path / shim.TURNS).unlink()

    use(str(file))
    monkeypatch.chdir(directory)
    with pytest.raises(shim.ShimError, match="not an absolute name"):
        use("./file")
    file.chmod(0o775)
    with pytest.raises(shim.ShimError, match=r"bin/file can be written by others \(mode 0775\)"):
        use(str(file))
    file.chmod(0o755)
    directory.chmod(0o777)
    with pytest.raises(shim.ShimError, match=r"bin can be written by others \(mode 0777\)"):
        use(str(file))
    # Other users cannot replace a file in a directory with this mode, which /tmp has.
    directory.chmod(0o1777)
    use(f"{directory}/../bin/file")
    # A link is followed. Here, only this user can replace the link and its target.
    (directory / "link").symlink_to(file)
    directory.chmod(0o755)
    use(str(directory / "link"))
    uid = os.geteuid()
    if uid == 0:
        os.chown(file, 54321, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(shim.ShimError, match=r"belongs to user \d+; it must belong to root"):
        use(str(file))


@pytest.mark.parametrize(
    ("turns", "without", "names"),
    [
        ("fair", set(), [shim.TURNS, shim.LISTEN]),
        ("fair", set(shim.FEATURES), [shim.TURNS, shim.LISTEN]),
        # The feature zero-read, which corrects uploads, is in the library TURNS, too.
        ("kernel", set(), [shim.TURNS, shim.LISTEN]),
        ("kernel", {"zero-read"}, [shim.LISTEN]),
    ],
)
def test_event_loop_library_is_not_loaded_if_all_its_features_are_disabled(
    turns: str, without: set[str], names: list[str]
) -> None:
    assert list(shim.needed_libraries(shim.switched_off(turns, without))) == names
