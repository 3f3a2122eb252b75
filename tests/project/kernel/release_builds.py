# SPDX-License-Identifier: GPL-2.0-or-later
"""Builds the package for another release of Debian in a container of that release."""

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
PIP_CERT=/shared/trusted.pem sh debian/package "$1/output"
"""
"""Script for sh(1) in a container: it builds a package in ``output`` from ``source`` of the directory "$1"."""


def build_in(builder: Container, name: str, commit: str | None = None) -> Path:
    """Return the package of *commit*, or of the checkout as it is, built in the container's folder *name*."""
    directory = builder.shared / name
    directory.mkdir()
    copy_sources(directory / "source", commit)
    builder.run_with_host_network(f"set -- /shared/{name}; {BUILD}")
    (package,) = (directory / "output").glob("*.deb")
    return package
