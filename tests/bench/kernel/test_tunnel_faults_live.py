# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``tunnel`` on real packets: a broken path misses its aim, and two working ones meet it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from faults_live import SOUND, UNUSED, misses

from mptcp_bench.experiments import tunnel
from mptcp_bench.experiments.columns import Run, Turn
from mptcp_bench.experiments.tunnel import SCENARIO
from mptcp_bench.experiments.tunnel_bed import Bed, built
from mptcp_bench.experiments.tunnel_cells import Cell
from mptcp_bench.experiments.two_paths import dropping

pytestmark = pytest.mark.kernel
SHARE = 0.7
"""Share of the sum of both paths that a busy machine reaches. One path alone has half."""
CELL = Cell("goodput", "cell", controls=("bbr",))
TURNS = [Turn(CELL, variant, 1) for variant in ("alone", "ours")]
MISSES = {SOUND: set(), UNUSED: {"cell, bbr: goodput / sum of both paths alone"}}


@pytest.mark.nightly
@pytest.mark.parametrize("fault", MISSES)
def test_goodput(monkeypatch: pytest.MonkeyPatch, require: Callable[..., None], fault: str) -> None:
    require("root", "mptcp", "tbf", "nfqueue", "apache2", "curl", "openvpn", "openssl", "ss", "gcc")
    monkeypatch.setattr(tunnel, "SHARES", {"goodput": SHARE})
    chosen = SCENARIO.chosen({"seconds": "4"})
    download = Bed.download

    def missed() -> set[str]:
        with ExitStack() as scope, built(chosen, [CELL], 1) as beds:

            def broken(bed: Bed, pair: Any, file: str, *more: Any) -> Any:
                if fault == UNUSED and file == "sum":
                    scope.enter_context(dropping(bed.testbed["hop2"]))
                return download(bed, pair, file, *more)

            monkeypatch.setattr(Bed, "download", broken)
            runs = [Run(turn, each, part) for turn in TURNS for part, each in SCENARIO.measure(beds, turn).items()]
            scope.close()
        return {aim.what for aim in SCENARIO.aims(SCENARIO.results(TURNS, runs)) if not aim.met}

    misses(missed, fault, MISSES[fault])
