# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for experiments on real packets with one fault: they must miss a given aim, or refuse the run.

This module has ``goodput``, with short downloads, ``test_guard_faults_live.py`` has ``guard``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from faults_live import DEAD, FALLBACK, NEVER, SOUND, UNUSED, WRONG, broken_policy, dead, misses

from mptcp_bench.experiments import goodput
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.goodput import CELLS
from mptcp_bench.shipped import POLICY, ethernet_cap
from mptcp_lab.testbed import Testbed, TestbedError
from mptcp_lab.testbed.plan import tbf
from mptcp_lab.testbed.services import Origin, Proxy, start_origin, start_proxy
from mptcp_lab.testbed.topologies import WIFI_RATE

pytestmark = pytest.mark.kernel
Require = Callable[..., None]
UNSHAPED = "link not shaped as asked"
FAULTS = (SOUND, DEAD, WRONG, UNUSED, FALLBACK, NEVER, UNSHAPED)
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
"""Name and bytes of a file that takes longer than the seconds above."""


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
@pytest.mark.parametrize("fault", FAULTS)
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
