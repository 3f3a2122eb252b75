# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``tunnel`` on real packets: a broken path misses its aim, and two working ones meet it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
from faults_live import SOUND, UNUSED, misses

from mptcp_bench.experiments import tunnel, vpn_bed
from mptcp_bench.experiments.columns import Run, Turn
from mptcp_bench.experiments.tunnel import SCENARIO
from mptcp_bench.experiments.tunnel_cells import Cell
from mptcp_bench.experiments.two_paths import dropping
from mptcp_bench.experiments.vpn_bed import Bed
from mptcp_bench.experiments.vpn_cells import Point
from mptcp_lab.testbed.transfer import Added

pytestmark = pytest.mark.kernel
SHARE = 0.7
"""Share of the sum of both paths that a busy machine reaches. One path alone has half."""
CELL = Cell("goodput", "cell", controls=("bbr",))
TURNS = [Turn(CELL, variant, 1) for variant in ("a alone", "b alone", "ours")]
MISSES = {SOUND: set(), UNUSED: {"cell, bbr: goodput / sum of both paths alone"}}


@pytest.mark.nightly
@pytest.mark.parametrize("fault", MISSES)
def test_goodput(monkeypatch: pytest.MonkeyPatch, require: Callable[..., None], fault: str) -> None:
    require(*SCENARIO.needs)
    monkeypatch.setattr(tunnel, "SHARES", {"goodput": SHARE})
    download = vpn_bed.downloaded

    def missed() -> set[str]:
        runs = []
        with SCENARIO.bed(SCENARIO.chosen({"seconds": "4"}), [CELL], 1) as beds:
            for turn in TURNS:
                is_broken = fault == UNUSED and turn.variant == "ours"

                def broken(bed: Bed, added: Added, warm: float, is_broken: bool = is_broken) -> Point:
                    with dropping(bed.testbed["hop2"]) if is_broken else nullcontext():
                        return download(bed, added, warm)

                monkeypatch.setattr(vpn_bed, "downloaded", broken)
                runs += [Run(turn, each, part) for part, each in SCENARIO.measure(beds, turn).items()]
        return {aim.what for aim in SCENARIO.aims(SCENARIO.results(TURNS, runs)) if not aim.met}

    misses(missed, fault, MISSES[fault])
