"""The preload library, built once for each module, and a program under it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preloading import WAYS, Preloaded, playing, preloaded_as

from mptcp_proxy import shim


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]) -> Path:
    require("root", "namespaces", "mptcp", "gcc")
    return shim.build(tmp_path_factory.mktemp("shim") / "mptcp_listen.so")


@pytest.fixture
def preloaded(library: Path) -> Preloaded:
    return Preloaded(library)


@pytest.fixture(scope="module", params=WAYS)
def preloaded_each_way(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]
) -> Preloaded:
    """The library as it is shipped, and as sanitizers watch it."""
    require("root", "namespaces", "mptcp", "gcc")
    return preloaded_as(request.param, tmp_path_factory.mktemp("shim"))


@pytest.fixture
def play(request: pytest.FixtureRequest, preloaded_each_way: Preloaded) -> Callable[..., Any]:
    """Runs code after the ``SCENE`` of the test's module."""
    return playing(preloaded_each_way, request.module.SCENE)
