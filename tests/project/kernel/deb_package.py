# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tests of the package share: it is built once, has a successor, and leaves nothing where it was installed."""

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
"""Of Debian, on which the package is to be tried."""
REPOSITORY: Final = Path(__file__).resolve().parents[3]
NAME: Final = "mptcp-steering-proxy"
EARLIER: Final = "4de789fa2d86598304f5cf5d40e37b1c456f41a6"
"""The commit of the package from which an upgrade is tried: with every new version, that of the version before.

While there is one version only: the first that ran on both releases, proxy and a throttler that still was root.
"""
# Root may well test somebody else's checkout.
_GIT: Final = ("git", "-c", "safe.directory=*", "-C", str(REPOSITORY))
KINDLY: Final = ("nice", "--adjustment=10")
"""Before what takes long, on a machine that has other things to do; idle scheduling would starve it beside them."""
BUILD_PATIENCE: Final = 1800
"""Seconds for a build on a machine that has other things to do."""

# dpkg's and apt's own books, what tools keep of the files that they change, and the index of manual pages.
NOT_OURS: Final = (
    "var/lib/dpkg/",
    "var/log/",
    "var/cache/",
    "etc/.pwd.lock",
    "var/lib/systemd/deb-systemd-helper-masked",
)
BACKUPS: Final = ("etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-")


# By another user, from sources of another age, with another umask, time zone, language and number of processors.
BUILD_DIFFERENTLY: Final = """
cd "$1"
mkdir home tmp made
find source -exec touch --no-dereference --date=2001-01-01 {} +
chown --recursive nobody .
umask 027
exec taskset --cpu-list 0 setpriv --reuid=nobody --regid=nogroup --clear-groups \
    env HOME="$1/home" TMPDIR="$1/tmp" TZ=Pacific/Auckland LC_ALL=C LANGUAGE=de sh source/debian/package "$1/made"
"""
"""For sh(1), with a directory as argument: of what its folder ``source`` has, a package in its folder ``made``."""


def build(directory: Path) -> Path:
    """Build the package as ``./run deb`` does, which includes lintian, and return it.

    Where the variable MPTCP_PACKAGE names a package, as before a release, that one is tested.
    """
    if ready := os.environ.get("MPTCP_PACKAGE"):
        return Path(ready).resolve()
    return build_from(REPOSITORY, directory)


def build_from(sources: Path, directory: Path) -> Path:
    command = [*KINDLY, "sh", str(sources / "debian/package"), str(directory)]
    subprocess.run(command, check=True, timeout=BUILD_PATIENCE)
    (package,) = directory.glob(f"{NAME}_*.deb")
    return package


def has_commit(commit: str) -> bool:
    """Whether the checkout has *commit*: a shallow one, or no checkout at all, has not; without git nobody can say."""
    command = [*_GIT, "cat-file", "-e", f"{commit}^{{commit}}"]
    try:
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0
    except FileNotFoundError:
        return False


def copy_sources(directory: Path, commit: str | None = None) -> None:
    """Copy the checkout into the new folder *directory*, without what was made from it; or that of *commit*."""
    directory.mkdir()
    left_out = [f"--exclude={name}" for name in ("./.venv", "./dist", "./results")]
    command = ["tar", "--create", "--exclude-vcs", *left_out, "--directory", str(REPOSITORY), "."]
    if commit is not None:
        command = [*_GIT, "archive", "--format=tar", commit]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as archive:
        extract = ["tar", "--extract", "--no-same-owner", "--directory", str(directory)]
        subprocess.run(extract, stdin=archive.stdout, check=True)
    assert archive.returncode == 0


def contents(package: Path) -> dict[str, tuple[str, int, str, float, str]]:
    """Return what *package* installs: of each name owner, mode, target of the link, time and SHA-256."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as data:
        found = {}
        with tarfile.open(fileobj=data.stdout, mode="r|") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                digest = hashlib.sha256(file.read()).hexdigest() if file else ""
                found[member.name] = (member.uname, member.mode, member.linkname, member.mtime, digest)
    assert data.returncode == 0
    return found


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def repacked(package: Path, directory: Path, version: str, changes: Iterable[tuple[str, str, str]]) -> Path:
    """Return *package* as *version*, with *changes*: in a file, one text in place of another."""
    tree = directory / version
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(tree)], check=True)
    was = subprocess.check_output(["dpkg-deb", "--field", str(package), "Version"], text=True).strip()
    for name, old, new in [("DEBIAN/control", f"Version: {was}", f"Version: {version}"), *changes]:
        text = (tree / name).read_text()
        assert old in text, f"{name}: {old}"
        (tree / name).write_text(text.replace(old, new))
    target = directory / f"{NAME}_{version}.deb"
    # One thread of its fastest compression: it is unpacked once.
    subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "--build", str(tree), str(target)], check=True)
    shutil.rmtree(tree)
    return target


def foreign(paths: Sequence[str]) -> list[str]:
    """Return those of *paths* that are ours, or that neither dpkg nor tools keep for themselves."""
    return [path for path in paths if "mptcp" in path or not (path.startswith(NOT_OURS) or path in BACKUPS)]
