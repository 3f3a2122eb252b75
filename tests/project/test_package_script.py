# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for ``debian/package``: it leaves no temporary files, and writes the package into the given directory.

A small stub replaces the real build tool.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "debian/package"
TIMEOUT = 60
PACKAGE = "mptcp-steering-proxy_0_all.deb"
UNPRIVILEGED = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
"""Command prefix that makes root subject to file permissions. It can still read its own files."""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Create a working copy with the script and some of the files that it packs."""
    copy = tmp_path / "sources"
    for folder in ("debian", "conf", "docs", "systemd", "proxy/mptcp_proxy"):
        (copy / folder).mkdir(parents=True)
    for file in ("pyproject.toml", "CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md"):
        (copy / file).touch()
    shutil.copy(SCRIPT, copy / "debian")
    for name, text in (("dpkg-buildpackage", f"echo x >../{PACKAGE}; touch {tmp_path}/built"), ("lintian", "exit 0")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    return copy


def build(sources: Path, *arguments: str | Path, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run the script after the command *prefix*, and return the result."""
    directory = sources.parent
    return subprocess.run(
        [*prefix, "sh", "debian/package", *map(str, arguments)],
        cwd=sources,
        env={"PATH": f"{directory}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": f"{directory}/tmp", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def test_package_is_written_into_the_given_directory(sources: Path) -> None:
    for target in ("dist", "dist", sources.parent / "new/new"):
        # Without an argument, the directory is dist.
        assert build(sources, *(() if target == "dist" else (target,))).returncode == 0
        assert [each.name for each in (sources / target).iterdir()] == [PACKAGE]
    assert list((sources.parent / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("target", "named_in_message"), [("dist", "dist"), ("dist/new/new", "dist"), ("LICENSE/new", "LICENSE")]
)
def test_unwritable_directory_is_refused_before_the_build(sources: Path, target: str, named_in_message: str) -> None:
    """Defect: after a build by root, a build without root failed at its last step, after minutes, without a package."""
    (sources / "dist").mkdir(mode=0o555)
    result = build(sources, target, prefix=UNPRIVILEGED if os.geteuid() == 0 else ())
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"deb: cannot write the package to {sources / target}: {sources / named_in_message} is ")
    assert not (sources.parent / "built").exists()
    assert list((sources.parent / "tmp").iterdir()) == []


def test_files_of_a_build_by_root_get_the_owner_of_the_sources(sources: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can change the owner of a directory")
    os.chown(sources, 65534, 65533)
    existing = sources.parent / "existing"
    existing.mkdir()
    (sources / "link").symlink_to(sources.parent / "linked")
    for arguments, target, owner in (
        ([], sources / "dist", (65534, 65533)),
        # A directory that was given by name or that existed before keeps its owner.
        (["new"], sources / "new", (0, 0)),
        (["link"], sources.parent / "linked", (0, 0)),
        ([existing], existing, (0, 0)),
    ):
        assert build(sources, *arguments).returncode == 0
        assert (target.stat().st_uid, target.stat().st_gid) == owner, target
        assert (target / PACKAGE).exists()


@pytest.mark.nightly(except_for=("[INT]", "[TERM]"))
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGHUP, 143), (signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["HUP", "INT", "TERM"]
)
def test_interrupted_build_leaves_no_files(tmp_path: Path, number: int, code: int) -> None:
    """Defect: each interrupted build left some hundred megabytes in /tmp."""
    work, programs = tmp_path / "tmp", tmp_path / "bin"
    work.mkdir()
    programs.mkdir()
    builder = programs / "dpkg-buildpackage"
    builder.write_text(f"#!/bin/sh\ntouch {tmp_path / 'builds'}\nexec sleep {TIMEOUT}\n")
    builder.chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "TMPDIR": str(work)}
    # All processes get the signal, as on a terminal.
    process = subprocess.Popen(
        ["env", "--default-signal", "sh", str(SCRIPT), str(tmp_path / "new")],
        env=environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + TIMEOUT
    while not (tmp_path / "builds").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(list(work.iterdir())) == 1
    os.killpg(process.pid, number)
    assert process.wait(TIMEOUT) == code
    assert list(work.iterdir()) == []
    assert not (tmp_path / "new").exists()
