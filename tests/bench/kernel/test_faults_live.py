# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for experiments on real packets with one fault: they must miss a given aim, or refuse the run.

This module has ``goodput`` (caps) and ``steering`` (modes), with short downloads, ``test_guard_faults_live.py`` has
``guard``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from faults_live import DEAD, FALLBACK, NEVER, SOUND, UNUSED, WRONG, broken_policy, dead, dying_after_load, misses

from mptcp_bench.experiments import (
    devices,
    goodput,
    steering_modes,
    two_paths,
)
from mptcp_bench.experiments.columns import Run, Turn
from mptcp_bench.experiments.goodput import CELLS
from mptcp_bench.experiments.setup import Setup
from mptcp_bench.experiments.steering import SCENARIO
from mptcp_bench.shipped import POLICY, ethernet_cap
from mptcp_lab.testbed import Testbed, TestbedError
from mptcp_lab.testbed.plan import tbf
from mptcp_lab.testbed.services import (
    Origin,
    Proxy,
    mptcp_command,
    start_origin,
    start_proxy,
    start_throttler,
    write_throttler_config,
)
from mptcp_lab.testbed.topologies import WIFI_RATE

pytestmark = pytest.mark.kernel
Require = Callable[..., None]
UNSHAPED = "link not shaped as asked"
FAULTS = (SOUND, DEAD, WRONG, UNUSED, FALLBACK)

CELL = next(cell for cell in CELLS if cell.policy)
CAPPED, FILLED = "Ethernet / its cap", "Wi-Fi / its link"
SIZE, SETTLE, SETTLE_BROKEN = 32_000_000, 4.0, 1.0
"""Bytes of a download (2 s without a cap, 8 s with one), and seconds after which the shares of the paths are measured.

With a cap, both paths are in use by then even on a loaded machine. Without one, the download ends in half of that time.
"""
LEAST, MOST = 0.5, 2.0
"""Bounds as a share of the link or the cap.

A busy machine may stall a path for a while; a fault leaves a fifth, or twenty times as much.
"""
GOODPUT_MISSES = {
    SOUND: set(),
    DEAD: {CAPPED},
    WRONG: {CAPPED, FILLED},
    NEVER: {CAPPED},
    UNUSED: {FILLED},
    UNSHAPED: {FILLED},
}
TIMES = 6
"""Factor by which Wi-Fi's link is faster than asked in the fault ``UNSHAPED``."""

LONG, LONG_SIZE = "long", 100_000_000
"""Name and bytes of a file that takes longer than the seconds below."""
KIND, RTT = "active-standby", "20/20"
STANDBY = f"{RTT} ms, {KIND}: standby's share before"
BEGUN, WARM, REST = 3.0, 4.5, 0.2
"""Seconds until both paths are in use even on a loaded machine, before the path would fail, and after that.

In this test the path does not fail, because outages are tested elsewhere.
"""


def second_path_is_backup(stack: ExitStack, testbed: Testbed) -> None:
    """Join the client's second subflow as backup, so that it carries nothing while another subflow exists."""
    client = testbed["client"]
    change = ["ip", "mptcp", "endpoint", "change", client.address("wlan0", 4)]
    stack.enter_context(client.changed([*change, "backup"], [*change, "nobackup"]))


def wifi_is_faster(stack: ExitStack, testbed: Testbed) -> None:
    """Shape Wi-Fi's link to a higher rate than asked for."""
    (link,) = (link for link in testbed.topology.links if link.a.device == "wlan0")
    fast, asked = (
        ["tc", "qdisc", "replace", "dev", link.b.device, "root", *tbf(rate, link.queue_ms)]
        for rate in (TIMES * WIFI_RATE, WIFI_RATE)
    )
    stack.enter_context(testbed[link.b.node].changed(fast, asked))


@pytest.fixture(scope="module")
def services(make_module_testbed: Callable[..., Testbed], require: Require) -> tuple[Testbed, Origin, Proxy]:
    require("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "curl", "mptcpize")
    testbed = make_module_testbed()
    return testbed, start_origin(testbed["origin"], {CELL.file: SIZE, LONG: LONG_SIZE}), start_proxy(testbed["proxy"])


@pytest.mark.nightly(besides=("throttler dead", "wrong path"))
@pytest.mark.parametrize("fault", [*FAULTS, NEVER, UNSHAPED])
def test_goodput(
    services: tuple[Testbed, Origin, Proxy], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str
) -> None:
    testbed, origin, proxy = services
    # Over the faster link the short download would end before anything can be measured.
    file = LONG if fault == UNSHAPED else CELL.file
    monkeypatch.setattr(goodput, "SETTLE", SETTLE if fault == SOUND else SETTLE_BROKEN)
    with ExitStack() as stack:
        if fault == DEAD:
            monkeypatch.setattr(goodput, "start_throttler", dead)
        if fault in (WRONG, NEVER):
            policy = tmp_path / "broken.yaml"
            policy.write_text(broken_policy(POLICY.read_text(), fault))
            monkeypatch.setattr(goodput, "POLICY", policy)
        if fault == UNSHAPED:
            wifi_is_faster(stack, testbed)
        if fault == UNUSED:
            second_path_is_backup(stack, testbed)

        def missed() -> set[str]:
            with goodput.throttled(testbed):
                turn = Turn(replace(CELL, file=file), "", 1)
                measured = goodput.measure(goodput.Bed(testbed, origin, proxy), turn)
            shares = {CAPPED: measured.ethernet / ethernet_cap(), FILLED: measured.wifi / WIFI_RATE}
            return {name for name, share in shares.items() if not LEAST <= share <= MOST}

        if fault == FALLBACK:
            monkeypatch.setattr(goodput, "mptcp_command", list)
            with pytest.raises(TestbedError, match="the client asked for 0 MPTCP connections"):
                missed()
        else:
            misses(missed, fault, GOODPUT_MISSES[fault])


@pytest.fixture
def setup(services: tuple[Testbed, Origin, Proxy]) -> Iterator[Setup]:
    """Yield a setup of ``steering`` with a new throttler for each test."""
    testbed, origin, proxy = services
    policy = testbed.directory / "steering.yaml"
    policy.write_text(devices.policy("[]"))
    throttler = start_throttler(testbed["proxy"], write_throttler_config(testbed["proxy"], policy))
    curl = ["curl", "-s", "-m", "60", "-o", "/dev/null", "-x", proxy.url()]
    yield Setup(testbed, throttler, policy, proxy.url(), mptcp_command([*curl, origin.url(LONG)]))
    throttler.process.stop()


@pytest.mark.nightly(besides=("throttler dead",))
@pytest.mark.parametrize("fault", FAULTS)
def test_steering(setup: Setup, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    for name, value in {"WARM": WARM, "EVENT": REST, "AFTER": REST}.items():
        monkeypatch.setattr(steering_modes, name, value)
    monkeypatch.setattr(steering_modes, "BEGUN", BEGUN)
    steer, _ = steering_modes.KINDS[KIND]
    assert steer is not None
    if fault == WRONG:
        steer = steer.replace("active: wifi, standby: ethernet", "active: ethernet, standby: wifi")
    monkeypatch.setitem(steering_modes.KINDS, KIND, (steer, None))
    if fault == FALLBACK:
        setup = replace(setup, download=setup.download[len(mptcp_command([])) :])
    with ExitStack() as stack:
        if fault == UNUSED:
            # A backup subflow would be steered like any other one, so leave the second subflow out.
            stack.enter_context(two_paths.one_subflow(setup.testbed))
        if fault == DEAD:
            dying_after_load(monkeypatch)

        def missed() -> set[str]:
            [turn] = SCENARIO.plan(SCENARIO.chosen({"part": "modes", "rtt": RTT, "kind": KIND, "runs": "1"}))
            runs = [Run(turn, each, part) for part, each in SCENARIO.measure(setup, turn).items()]
            found = SCENARIO.aims(SCENARIO.results([turn], runs))
            return {aim.what for aim in found if not aim.met and aim.what == STANDBY}

        misses(missed, fault, set() if fault == SOUND else {STANDBY})
