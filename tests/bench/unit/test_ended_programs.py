# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that a measurement's program is ended after a failure, so that it does not disturb the next measurement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from mptcp_bench.experiments.pages import SCENARIO, Bed
from mptcp_bench.wire.capture import captured
from mptcp_lab.testbed import TestbedError


def failing(*_: object, **__: object) -> NoReturn:
    raise TestbedError("no end")


def capture(host: Any) -> None:
    with captured(host, ["wan0"], "tcp"):
        pass


def fetch(host: Any) -> None:
    [cell, *_] = SCENARIO.cells(SCENARIO.chosen({}, quick=True))
    origin: Any = SimpleNamespace(host=SimpleNamespace(service_address=lambda: "192.0.2.2"))
    lab: Any = type("Lab", (dict,), {"directory": host.directory})(client=host)
    Bed(lab, origin, "192.0.2.1")._run_agent(cell)


@pytest.mark.parametrize(("measure", "end"), [(capture, "stop"), (fetch, "kill")])
def test_program_of_a_failed_measurement_is_ended(tmp_path: Path, measure: Callable[[Any], None], end: str) -> None:
    """Defect: tcpdump and the client of many files kept running after a failure."""
    ends: list[str] = []
    ways = {way: lambda way=way: ends.append(way) for way in ("stop", "kill")}
    host = SimpleNamespace(
        name="proxy",
        directory=tmp_path,
        run=lambda *_, **__: [],
        agent=lambda *_: [],
        popen=lambda argv, name: SimpleNamespace(name=name, running=True, output=failing, wait=failing, **ways),
        address=lambda device: "192.0.2.1",
        write=lambda name, text: tmp_path / name,
    )
    with pytest.raises(TestbedError, match=r"^no end$"):
        measure(host)
    assert ends == [end]
