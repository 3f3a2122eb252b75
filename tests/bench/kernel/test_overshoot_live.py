# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``overshoot`` on real packets, with throttlers that do not cap Ethernet: aims are missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from faults_live import DEAD, NEVER, SOUND, WRONG, broken_policy, misses

from mptcp_bench.experiments import overshoot, overshoot_judging
from mptcp_bench.experiments.overshoot_judging import TRANSFERS, aims
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
BEYOND = {
    f"ours, {transfer}: {what}"
    for transfer in TRANSFERS
    for what in ("bytes beyond 1.05 × cap × time", "ahead of cap × time", "above the cap for")
}
OTHER = {f"ours, {transfer}: other path, × its link" for transfer in TRANSFERS}
MISSES = {SOUND: set(), DEAD: BEYOND, NEVER: BEYOND, WRONG: BEYOND | OTHER}


@pytest.fixture(scope="module")
def work(make_module_testbed: Callable[..., Testbed], require: Callable[..., None]) -> overshoot.Work:
    require("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "curl", "mptcpize", "ss")
    size = round(sum(overshoot.RATES) * 1e6 / 8 * (SECONDS + 5))
    bed = Bed.built(make_module_testbed(paths(two_paths(overshoot.RATES, overshoot.RTTS))), [size])
    return overshoot.Work(bed, bed, size, CAP, SECONDS)


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
    for name, value in {"SLOW_START": SLOW_START, "SECONDS": LATE, "LEAST_OTHER": LEAST_OTHER}.items():
        monkeypatch.setattr(overshoot_judging, name, value)
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
    rates = replace(work.rates, burst=round(LATE * CAP * 1e6 / 8))

    def missed() -> set[str]:
        found = aims(work.measure(overshoot.PlannedRun("ours")), rates, {"ours": 1})
        # The transfers are too few to be compared, and too short for a mean below the cap.
        return {aim.what for aim in found if not aim.met} & (BEYOND | OTHER)

    misses(missed, fault, MISSES[fault])
