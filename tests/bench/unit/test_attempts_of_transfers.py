# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for experiments that judge each transfer by its own paths, and repeat only that one if they were late."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fake_testbed import FakeTestbed
from mutants import constant, series
from mutants_of_steering import END, GOOD
from rich.console import Console

from mptcp_bench.experiments import guard, steering, steering_outages
from mptcp_bench.experiments.findings import Findings
from mptcp_bench.experiments.guard_judging import Outcome as Guarded
from mptcp_bench.experiments.steering_modes_judging import WARM

SAMPLES = tuple(series({"eth0": constant(60), "wlan0": constant(30)}, END))
RECORDER = SimpleNamespace(
    now=WARM, samples=SAMPLES, flags=[(0.0, {"ethernet": False, "wifi": False})], wait=lambda until: None
)
MADE_AGAIN = "repeated for the emulated paths: %s: late"


def faked(monkeypatch: pytest.MonkeyPatch, module: ModuleType, testbeds: Any, **more: object) -> None:
    """Let the experiment of *module* run over *testbeds*, with fakes for everything that takes time."""
    fakes = {
        "need": lambda *features: None,
        "Testbed": testbeds,
        "time": SimpleNamespace(sleep=lambda seconds: None),
        "wait_until": lambda *of, **how: None,
        "start_origin": lambda *of: SimpleNamespace(url=lambda name: "http://origin/", digests={"file": ""}),
        "start_proxy": lambda *of, **how: SimpleNamespace(url=lambda: "http://proxy/"),
        "start_throttler": lambda *of: SimpleNamespace(),
        "write_throttler_config": lambda *of: Path("config.yaml"),
        **more,
    }
    for name, fake in fakes.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, fake)


def run_guard(monkeypatch: pytest.MonkeyPatch, testbeds: Any) -> Findings:
    def built(testbed: FakeTestbed, *of: object, **how: object) -> guard.GuardSetup:
        throttler: Any = SimpleNamespace()
        lab: Any = testbed
        return guard.GuardSetup(lab, throttler, Path("policy.yaml"), "http://proxy/", ["curl"])

    monkeypatch.setattr(guard.GuardSetup, "built", built)
    monkeypatch.setattr(guard.GuardSetup, "load_between", lambda *of: None)
    monkeypatch.setattr(guard.GuardSetup, "controls", lambda setup: [guard.Control("nothing happens")])
    faked(
        monkeypatch, guard, testbeds,
        Recorder=lambda *of: nullcontext(RECORDER),
        judge=lambda *of: Guarded(30e6, 1.0, 2.0, 1.0, 5.0, 1, 1.0),
        mean_rate=lambda *of: 30e6,
        _relaxations=lambda setup: 0,
    )  # fmt: skip
    return guard.run(CONSOLE, 1, True, {"direction": "down", "fault": "silence"})


def run_modes(monkeypatch: pytest.MonkeyPatch, testbeds: Any) -> Findings:
    faked(
        monkeypatch, steering, testbeds,
        Setup=SimpleNamespace(built=setup_of),
        Recorder=lambda *of: nullcontext(RECORDER),
    )  # fmt: skip
    kinds = "active-standby|load-balancing 70/30|no rule"
    return steering.run(CONSOLE, 1, True, {"part": "modes", "kind": kinds})


def run_outages(monkeypatch: pytest.MonkeyPatch, testbeds: Any) -> Findings:
    faked(monkeypatch, steering, testbeds)
    faked(
        monkeypatch, steering_outages, testbeds,
        Setup=SimpleNamespace(built=setup_of),
        OutageRecorder=lambda *of: nullcontext(RECORDER),
        outcome=lambda watched: GOOD,
    )  # fmt: skip
    options = {"part": "outages", "mode": "none,smallest-delay,load-balancing", "fault": "silent", "outage": "8"}
    return steering.run(CONSOLE, 1, True, {**options, "load": "full"})


def setup_of(testbed: FakeTestbed, *of: object, **how: object) -> Any:
    return SimpleNamespace(
        testbed=testbed, client=testbed, proxy=testbed, download=["curl"], load_between=lambda *of: None
    )


CONSOLE = Console(file=io.StringIO())
EACH: Mapping[str, tuple[Callable[..., Findings], str, str]] = {
    "guard": (run_guard, "runs", "down, 20 ms, silence, 1 of 1, guard off"),
    "steering": (run_modes, "runs", "20/20 ms, load-balancing 70/30, 1 of 1"),
    "steering, outages": (run_outages, "outages", "smallest-delay, silent, 8 s, full"),
}
"""For each experiment: a function that runs three transfers, the key of its data, and the name of the second one."""


@pytest.mark.parametrize("name", EACH)
def test_a_transfer_over_late_paths_is_made_again_and_no_other_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: transfers were judged over the whole life of the testbed, so that one late transfer hardly counted."""
    run, key, second = EACH[name]
    testbed = FakeTestbed([False, True])
    findings = run(monkeypatch, lambda *topology, seed: nullcontext(testbed))
    assert findings.notes == (MADE_AGAIN % second,)
    assert findings.failures == ()
    assert findings.aims[-1].value == 0, "the product is not at fault"
    measured = len(findings.data[key]) + len(findings.data.get("controls", ()))
    assert (measured, testbed.transfers) == (3, 4)


def test_a_transfer_of_guard_without_a_fault_is_made_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: this transfer was also judged over the whole life of the testbed."""
    findings = run_guard(monkeypatch, lambda *topology, seed: nullcontext(FakeTestbed([False, False, True])))
    assert findings.notes == (MADE_AGAIN % "down, 20 ms, nothing happens",)
    assert list(findings.data["controls"]) == ["down, 20 ms, nothing happens"]
