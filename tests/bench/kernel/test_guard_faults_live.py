# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``guard`` on real packets, a download whose Wi-Fi fails, with one thing broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from faults_live import NEVER, SOUND, broken_policy, dying_after_load, misses

from mptcp_bench.experiments import guard
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Run, Turn
from mptcp_bench.experiments.guard import ETHERNET, OFF, ON, SCENARIO, WIFI, Cell
from mptcp_bench.experiments.two_paths import two_paths
from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.services import (
    mptcp_command,
    start_origin,
    start_proxy,
    start_throttler,
    write_throttler_config,
)

pytestmark = pytest.mark.kernel
IDLE = "a guard that does nothing"
CELL = Cell("down", 20, "silence")
TURNS = [Turn(CELL, arm, 1) for arm in (ON, OFF)]
CAPPED, RECOVERS = (
    f"down, 20 ms, loses everything: {what}" for what in ("Ethernet before, × its cap", "recovers after")
)
MISSES: dict[str, set[str]] = {SOUND: set(), NEVER: {CAPPED}, IDLE: {RECOVERS}}
WARM, FAULT, AFTER, LONGEST = 5.0, 3.7, 1.5, 3.2
"""Seconds of the phases.

They are shorter than the experiment's, but long enough for the cap and for the guard's reaction on a busy machine.
"""


SIZE = 100_000_000
"""Bytes: more than arrive before the fault without a cap, and during the whole run with one."""


@pytest.fixture(scope="module")
def testbed(make_module_testbed: Callable[..., Testbed], require: Callable[..., None]) -> Testbed:
    require("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize")
    return make_module_testbed(paths(two_paths((ETHERNET, WIFI), (CELL.rtt, CELL.rtt))))


@pytest.fixture(scope="module")
def download(testbed: Testbed) -> list[str]:
    """Return the client's command."""
    url = start_origin(testbed["origin"], {"big": SIZE}).url("big")
    return mptcp_command(["curl", "-s", "-m", "60", "-o", "/dev/null", "-x", start_proxy(testbed["proxy"]).url(), url])


@pytest.fixture
def setup(testbed: Testbed, download: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[guard.GuardSetup]:
    """Yield the setup of ``guard`` with a new throttler for each test."""
    for name, value in {"WARM": WARM, "FAULT": FAULT, "AFTER": AFTER, "LONGEST": LONGEST}.items():
        monkeypatch.setattr(guard, name, value)
    policy = testbed.directory / "policy.yaml"
    policy.write_text(guard._POLICY % ("true", ""))
    throttler = start_throttler(testbed["proxy"], write_throttler_config(testbed["proxy"], policy))
    yield guard.GuardSetup(testbed, throttler, policy, "", download)
    throttler.process.stop()


@pytest.mark.nightly
@pytest.mark.parametrize("fault", MISSES)
def test_guard(setup: guard.GuardSetup, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    sound = guard._policy
    monkeypatch.setattr(
        guard, "_policy", lambda guarded, *others: broken_policy(sound(guarded and fault != IDLE, *others), fault)
    )

    def missed() -> set[str]:
        measured = guard.measure(setup, TURNS[0])
        # No download without the guard is made; its aims say nothing here.
        results = SCENARIO.results(TURNS, [Run(turn, measured) for turn in TURNS])
        judged = {aim.what: aim for aim in SCENARIO.aims(results)}
        slowly = Aim(RECOVERS, judged[RECOVERS].value, most=LONGEST)
        return {aim.what for aim in (judged[CAPPED], slowly) if not aim.met}

    misses(missed, fault, MISSES[fault])


@pytest.mark.nightly
def test_guard_of_a_dead_throttler_is_refused(setup: guard.GuardSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    dying_after_load(monkeypatch)
    with pytest.raises(TestbedError, match=r"^\[proxy\] ask .*status\.sock"):
        guard.measure(setup, TURNS[0])
