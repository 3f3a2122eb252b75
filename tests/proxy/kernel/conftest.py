# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures: the preload libraries, a program that runs under them, and a Squid with this project's patches."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from preloading import BUILDS, NAMES, Preloaded, build_parameter, build_preloaded, scene_runner

from mptcp_lab.testbed.services import REPOSITORY
from mptcp_proxy import shim
from mptcp_proxy.squid import find_squid


@pytest.fixture(scope="module")
def squid_with_patches(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]
) -> Iterator[None]:
    """Unpack the Squid package that ``./run squid`` has built in dist, and put this Squid first in PATH."""
    require("squid", "apache2", "curl", "mptcpize", "gcc")
    if (squid := find_squid()) is not None and squid.has_mptcp_option:
        yield
        return
    with (REPOSITORY / "run").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        packages = sorted(REPOSITORY.glob("dist/squid_*+mptcp*.deb"))
        if not packages and request.config.getoption("--all"):
            # Do not start ./run, which would wait for the lock that this test holds. The build ends with the tests,
            # even if they are interrupted.
            build = ["setpriv", "--pdeathsig", "TERM", str(REPOSITORY / "proxy/squid/build")]
            subprocess.run(build, cwd=REPOSITORY, check=True, timeout=7200)
            packages = sorted(REPOSITORY.glob("dist/squid_*+mptcp*.deb"))
    if not packages:
        pytest.skip(
            "NOT TESTED: dist has no Squid with the project's patches; sudo ./run squid builds one, as --all does"
        )
    unpacked = tmp_path_factory.mktemp("squid")
    subprocess.run(["dpkg-deb", "-x", str(packages[-1]), str(unpacked)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{unpacked}/usr/sbin:{os.environ['PATH']}")
        yield


@pytest.fixture(scope="module")
def libraries(require: Callable[..., None]) -> list[Path]:
    """Return both libraries, in the order of LD_PRELOAD."""
    require("root", "namespaces", "mptcp", "gcc")
    return [shim.library(name) for name in NAMES]


@pytest.fixture
def preloaded(libraries: list[Path]) -> Preloaded:
    return Preloaded(libraries)


@pytest.fixture(scope="module", params=map(build_parameter, BUILDS))
def preloaded_with_each_build(request: pytest.FixtureRequest, require: Callable[..., None]) -> Preloaded:
    """Return the libraries as shipped, or built with a sanitizer."""
    require("root", "namespaces", "mptcp", "gcc")
    return build_preloaded(request.param)


@pytest.fixture
def run_scene(request: pytest.FixtureRequest, preloaded_with_each_build: Preloaded) -> Callable[..., Any]:
    """Return a function that runs code after the ``SCENE`` of the test's module."""
    return scene_runner(preloaded_with_each_build, request.module.SCENE)
