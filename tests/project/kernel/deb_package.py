# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers of the package tests: they build the package and later versions, and find files that an installation left."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

RELEASES: Final = os.environ.get("MPTCP_PACKAGE_RELEASES", "").split()
"""Debian releases on which the package is to be tested."""
REPOSITORY: Final = Path(__file__).resolve().parents[3]
NAME: Final = "mptcp-steering-proxy"
EARLIER_COMMIT: Final = "4de789fa2d86598304f5cf5d40e37b1c456f41a6"
"""Commit from which the tests upgrade: after each release, the commit of the previous version.

As long as only one version exists, this is the first commit that ran on both releases; its throttler still ran as root.
"""
# Root may test a checkout of another user.
_GIT: Final = ("git", "-c", "safe.directory=*", "-C", str(REPOSITORY))
LOW_PRIORITY: Final = ("nice", "--adjustment=10")
"""Command prefix for slow steps, which lets other programs run first. With idle scheduling, the steps would starve."""
BUILD_TIMEOUT: Final = 1800
"""Maximum number of seconds for a build on a busy machine."""

# Files of dpkg and apt, backups that tools make of the files they change, and the index of manual pages.
FILES_OF_DPKG: Final = (
    "var/lib/dpkg/",
    "var/log/",
    "var/cache/",
    "etc/.pwd.lock",
    "var/lib/systemd/deb-systemd-helper-masked",
)
BACKUPS: Final = ("etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-")


# Build as another user, with other file times, umask, time zone, language and number of processors.
BUILD_DIFFERENTLY: Final = """
cd "$1"
mkdir home tmp output
find source -exec touch --no-dereference --date=2001-01-01 {} +
chown --recursive nobody .
umask 027
exec taskset --cpu-list 0 setpriv --reuid=nobody --regid=nogroup --clear-groups \
    env HOME="$1/home" TMPDIR="$1/tmp" TZ=Pacific/Auckland LC_ALL=C LANGUAGE=de sh source/debian/package "$1/output"
"""
"""Script for sh(1): it builds a package in the folder ``output`` from the folder ``source`` of the directory "$1"."""


def build(directory: Path) -> Path:
    """Build the package as ``./run deb`` does, with lintian if it is installed, and return it.

    If the variable MPTCP_PACKAGE names a package, as before a release, return that one.
    """
    if ready := os.environ.get("MPTCP_PACKAGE"):
        return Path(ready).resolve()
    return build_from(REPOSITORY, directory)


def build_from(sources: Path, directory: Path) -> Path:
    command = [*LOW_PRIORITY, "sh", str(sources / "debian/package"), str(directory)]
    subprocess.run(command, check=True, timeout=BUILD_TIMEOUT)
    (package,) = directory.glob(f"{NAME}_*.deb")
    return package


def has_commit(commit: str) -> bool:
    """Return whether the checkout has *commit*. A shallow clone and a copy without .git lack it."""
    command = [*_GIT, "cat-file", "-e", f"{commit}^{{commit}}"]
    try:
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0
    except FileNotFoundError:
        return False


def copy_sources(directory: Path, commit: str | None = None) -> None:
    """Copy the checkout, without built files, or *commit* if given, into the new folder *directory*."""
    directory.mkdir()
    exclusions = [f"--exclude={name}" for name in ("./.venv", "./dist", "./results")]
    command = ["tar", "--create", "--exclude-vcs", *exclusions, "--directory", str(REPOSITORY), "."]
    if commit is not None:
        command = [*_GIT, "archive", "--format=tar", commit]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as archive:
        extract = ["tar", "--extract", "--no-same-owner", "--directory", str(directory)]
        subprocess.run(extract, stdin=archive.stdout, check=True)
    assert archive.returncode == 0


def contents(package: Path) -> dict[str, tuple[str, int, str, float, str]]:
    """Return the installed files of *package*: owner, mode, link target, time and SHA-256 by file name."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as data:
        files = {}
        with tarfile.open(fileobj=data.stdout, mode="r|") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                digest = hashlib.sha256(file.read()).hexdigest() if file else ""
                files[member.name] = (member.uname, member.mode, member.linkname, member.mtime, digest)
    assert data.returncode == 0
    return files


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def repack(package: Path, directory: Path, version: str, changes: Iterable[tuple[str, str, str]]) -> Path:
    """Return *package* rebuilt as *version*. Each of *changes* replaces one text by another in a file."""
    tree = directory / version
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(tree)], check=True)
    old_version = subprocess.check_output(["dpkg-deb", "--field", str(package), "Version"], text=True).strip()
    for name, old, new in [("DEBIAN/control", f"Version: {old_version}", f"Version: {version}"), *changes]:
        text = (tree / name).read_text()
        assert old in text, f"{name}: {old}"
        (tree / name).write_text(text.replace(old, new))
    target = directory / f"{NAME}_{version}.deb"
    # Use the fastest compression, because the package is unpacked only once.
    subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "--build", str(tree), str(target)], check=True)
    shutil.rmtree(tree)
    return target


def unexpected_files(paths: Sequence[str]) -> list[str]:
    """Return the *paths* that belong to this project, or that are neither files of dpkg nor backups of other tools."""
    return [path for path in paths if "mptcp" in path or not (path.startswith(FILES_OF_DPKG) or path in BACKUPS)]
