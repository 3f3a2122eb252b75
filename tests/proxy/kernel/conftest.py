"""The preload library, built once for each module, and a program under it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from preloading import Preloaded

from mptcp_proxy import shim


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]) -> Path:
    require("root", "namespaces", "mptcp", "gcc")
    return shim.build(tmp_path_factory.mktemp("shim") / "mptcp_listen.so")


@pytest.fixture
def preloaded(library: Path) -> Preloaded:
    return Preloaded(library)
