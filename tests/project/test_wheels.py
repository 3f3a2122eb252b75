# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the content of the built wheels: the product's wheel contains neither bench nor tests."""

from __future__ import annotations

import re
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

REPOSITORY = Path(__file__).resolve().parents[2]
PRODUCT = {
    "mptcp_common",
    "mptcp_console",
    "mptcp_gateway",
    "mptcp_portal",
    "mptcp_proxy",
    "mptcp_throttler",
    "mptcp_tunnel",
}
BENCH = {"mptcp_bench", "mptcp_lab"}


@pytest.mark.parametrize(("directory", "packages"), [(".", PRODUCT), ("bench", BENCH)], ids=["product", "bench"])
def test_wheel_contains_only_its_packages(directory: str, packages: set[str], tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(REPOSITORY / directory)).build(directory=str(tmp_path), versions=["standard"])
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        code = {name: archive.read(name).decode() for name in names if name.endswith(".py")}
    (information,) = {name.split("/")[0] for name in names} - packages
    assert re.fullmatch(r"mptcp_steering_(proxy|bench)-[0-9.]+\.dist-info", information)
    assert {name.split("/")[0] for name in code} == packages
    if packages == PRODUCT:
        programs = {name.rpartition(".")[0] for name in names if name.endswith(".c") and "/sockets/programs/" in name}
        assert {f"{name}.o" for name in programs} <= set(names), "the wheel lacks compiled BPF programs"
        # The packages do not contain bench or tests in a subdirectory either, and no module imports them.
        assert [name for name in names if any(word in name.split("/") for word in (*BENCH, "bench", "tests"))] == []
        imports = re.compile(r"^\s*(from|import) mptcp_(bench|lab)\b", re.MULTILINE)
        assert [name for name, text in code.items() if imports.search(text)] == []
