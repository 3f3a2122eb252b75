# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``overshoot`` on real packets, with throttlers that do not cap Ethernet: aims are missed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from faults_live import DEAD, NEVER, SOUND, WRONG, broken_policy, misses

from mptcp_bench.experiments import overshoot
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Run
from mptcp_bench.experiments.overshoot import AGAIN, FIRST, SCENARIO
from mptcp_bench.experiments.pages_bed import Bed
from mptcp_bench.experiments.pages_cells import Cell
from mptcp_bench.experiments.two_paths import two_paths
from mptcp_lab.testbed import Testbed, paths

pytestmark = pytest.mark.kernel
CAP = 5
"""Cap in Mbit/s."""
SECONDS, SLOW_START = 3.0, 1.5
"""Seconds of a transfer, long enough to be judged, and seconds until both paths are full."""
LATE, LEAST_OTHER = 2.0, 0.5
"""Seconds of the cap that a busy machine may let pass, and smallest share of the other link.

A fault lets 20 s pass, or leaves a fourth of the link.
"""
BOUNDS = {
    "bytes beyond 1.05 × cap × time": (None, LATE * CAP * 1e6 / 8),
    "ahead of cap × time": (None, LATE),
    "above the cap for": (None, LATE),
    "other path, × its link": (LEAST_OTHER, 1.05),
}
"""The bounds that are judged here, in place of those of the experiment, whose transfers are longer."""
OTHER = {f"ours, {transfer}: other path, × its link" for transfer in (FIRST, AGAIN)}
BEYOND = {f"ours, {transfer}: {what}" for transfer in (FIRST, AGAIN) for what in BOUNDS} - OTHER
MISSES = {SOUND: set(), DEAD: BEYOND, NEVER: BEYOND, WRONG: BEYOND | OTHER}


@pytest.fixture(scope="module")
def work(make_module_testbed: Callable[..., Testbed], require: Callable[..., None]) -> overshoot.Work:
    require("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "curl", "mptcpize", "ss")
    size = round(sum(overshoot.RATES) * 1e6 / 8 * (SECONDS + 5))
    bed = Bed.built(make_module_testbed(paths(two_paths(overshoot.RATES, overshoot.RTTS))), [size])
    return overshoot.Work(bed, bed, size, SECONDS)


def sockets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only for the sockets to close, not for the throttler to forget the connection, up to 10 s later."""
    wait = Bed.wait_until_quiet

    def waiting(bed: Bed) -> None:
        throttler, bed.throttler = bed.throttler, None
        try:
            wait(bed)
        finally:
            bed.throttler = throttler

    monkeypatch.setattr(Bed, "wait_until_quiet", waiting)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", MISSES)
def test_overshoot(work: overshoot.Work, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(overshoot, "REPEATED", SECONDS)
    monkeypatch.setattr(overshoot, "SLOW_START", SLOW_START)
    sockets_alone(monkeypatch)
    start, text = Bed.start_throttler, Cell.policy_text
    monkeypatch.setattr(Cell, "policy_text", lambda cell: broken_policy(text(cell), fault))
    if fault == DEAD:

        def dying(bed: Bed, cell: Cell) -> None:
            start(bed, cell)
            assert bed.throttler is not None
            bed.throttler.process.stop()
            # The stopped throttler cannot be asked for its connections.
            bed.throttler = None

        monkeypatch.setattr(Bed, "start_throttler", dying)
    [turn, *_] = SCENARIO.plan(SCENARIO.chosen({"variant": "ours", "cap": str(CAP)}))

    def missed() -> set[str]:
        results = SCENARIO.results([turn], [Run(turn, each, part) for part, each in work.measure(turn).items()])
        judged = [(aim, BOUNDS.get(aim.what.partition(": ")[2])) for aim in SCENARIO.aims(results)]
        return {aim.what for aim, bounds in judged if bounds and not Aim(aim.what, aim.value, "", *bounds).met}

    misses(missed, fault, MISSES[fault])
