"""The experiment ``overshoot`` on real packets, with a throttler that does not throttle: its aims are missed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mptcp_bench.experiments import overshoot
from mptcp_bench.experiments.overshoot_judging import TRANSFERS, aims
from mptcp_bench.experiments.pages_bed import Bed
from mptcp_bench.experiments.pages_cells import Cell
from mptcp_bench.experiments.two_paths import two_paths
from mptcp_lab.testbed import Testbed, paths

pytestmark = pytest.mark.kernel
SECONDS = 4.5
"""Of a transfer: more than it takes to be judged."""


def test_a_throttler_that_died_misses_the_aims(
    make_testbed: Callable[..., Testbed], require: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    require("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "curl", "mptcpize", "ss")
    start = Bed.start_throttler

    def dying(bed: Bed, cell: Cell) -> None:
        start(bed, cell)
        assert bed.throttler is not None
        bed.throttler.process.stop()
        # Nobody can ask it for its connections any more.
        bed.throttler = None

    monkeypatch.setattr(Bed, "start_throttler", dying)
    monkeypatch.setattr(overshoot, "REPEATED", SECONDS)
    size = round(sum(overshoot.RATES) * 1e6 / 8 * (SECONDS + 5))
    bed = Bed.built(make_testbed(paths(two_paths(overshoot.RATES, overshoot.RTTS))), [size])
    work = overshoot.Work(bed, bed, size, 5, SECONDS)
    measured = work.measure(overshoot.PlannedRun("ours"))
    missed = {aim.what for aim in aims(measured, work.rates, {"ours": 1}) if aim.verdict == "missed"}
    for transfer in TRANSFERS:
        for what in ("bytes beyond 1.05 × cap × time", "ahead of cap × time", "above the cap for"):
            assert f"ours, {transfer}: {what}" in missed
