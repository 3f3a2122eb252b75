# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures for each Debian release on which the package is tested; the package is built once for each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import Container, exclusive_cache
from deb_package import RELEASES, build
from release_builds import build_in


@pytest.fixture(scope="session")
def _one_run_at_a_time() -> Iterator[None]:
    with exclusive_cache():
        yield


@pytest.fixture(scope="session", params=RELEASES)
def release(request: pytest.FixtureRequest, _one_run_at_a_time: None) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def builder(release: str, tmp_path_factory: pytest.TempPathFactory) -> Container | None:
    """Return the container in which the package for *release* is built, or None if this machine has that release."""
    if f"VERSION_CODENAME={release}\n" in Path("/etc/os-release").read_text():
        return None
    container = Container(release, tmp_path_factory.mktemp(f"{release}-builder"))
    # These are the certificates that this machine trusts, including that of a private package index.
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", container.shared / "trusted.pem")
    return container


@pytest.fixture(scope="session")
def package(builder: Container | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package for *release*, built on that release or given by the environment."""
    if builder is None or "MPTCP_PACKAGE" in os.environ:
        return build(tmp_path_factory.mktemp("package"))
    return build_in(builder, "present")
