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


class FailingHost:
    """A host on which programs start, but each wait for them fails. *ends* records how they were ended."""

    name = "proxy"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ends: list[str] = []
        self.run: Callable[..., Any] = lambda *of, **options: []
        self.agent = self.run

    def popen(self, argv: object, *, name: str) -> Any:
        ways = {way: lambda way=way: self.ends.append(way) for way in ("stop", "kill")}
        return SimpleNamespace(name=name, running=True, output=failing, wait=failing, **ways)

    def address(self, device: str) -> str:
        return "192.0.2.1"

    def write(self, name: str, text: str) -> Path:
        return self.directory / name


def capture(host: Any) -> None:
    with captured(host, ["wan0"], "tcp"):
        pass


def fetch(host: Any) -> None:
    [cell, *_] = SCENARIO.cells(SCENARIO.chosen({}, quick=True))
    origin: Any = SimpleNamespace(host=SimpleNamespace(service_address=lambda: "192.0.2.2"))
    lab: Any = type("Lab", (dict,), {"directory": host.directory})(client=host)
    Bed(lab, origin, "192.0.2.1")._by_agent(cell)


@pytest.mark.parametrize(("measure", "ended"), [(capture, "stop"), (fetch, "kill")])
def test_what_a_measurement_started_ends_with_it(tmp_path: Path, measure: Callable[[Any], None], ended: str) -> None:
    """Defect: tcpdump and the client of many files kept running after a failure."""
    host = FailingHost(tmp_path)
    with pytest.raises(TestbedError, match=r"^no end$"):
        measure(host)
    assert host.ends == [ended]
