# SPDX-License-Identifier: GPL-2.0-or-later
"""The package for a release of Debian that is not this machine's: built in a container of that release."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from containers import Container
from deb_package import copy_sources

BUILD: Final = """
apt-get update --quiet
apt-get install --yes --quiet --no-install-recommends dpkg-dev lintian
cd "$1/source"
apt-get build-dep --yes --quiet --no-install-recommends .
PIP_CERT=/shared/trusted.pem sh debian/package "$1/made"
"""
"""For sh(1) in a container, with a directory as argument: of what its folder ``source`` has, a package in ``made``."""


def built_in(builder: Container, name: str, commit: str | None = None) -> Path:
    """Return the package of *commit*, or of the checkout as it is, built in the folder *name* of the container."""
    directory = builder.shared / name
    directory.mkdir()
    copy_sources(directory / "source", commit)
    builder.outside(f"set -- /shared/{name}; {BUILD}")
    (made,) = (directory / "made").glob("*.deb")
    return made
