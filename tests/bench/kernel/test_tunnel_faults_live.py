# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``tunnel`` on real packets: a broken path misses its aim, and two working ones meet it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from faults_live import SOUND, UNUSED, misses

from mptcp_bench.experiments import tunnel_judging
from mptcp_bench.experiments.tunnel_bed import Bed, beds, transfers
from mptcp_bench.experiments.tunnel_cells import Cell, PathPair
from mptcp_bench.experiments.tunnel_judging import Measured, aims
from mptcp_bench.experiments.two_paths import dropping

pytestmark = pytest.mark.kernel
SECONDS, LIMIT = 4.0, 8.0
SHARE = 0.7
"""Share of the sum of both paths that a busy machine reaches. One path alone has half."""
CELL = Cell("goodput", PathPair((10, 10)), "cell", ("bbr",))
MISSES = {SOUND: set(), UNUSED: {"cell, bbr: goodput / sum of both paths alone"}}


@pytest.mark.nightly
@pytest.mark.parametrize("fault", MISSES)
def test_goodput(monkeypatch: pytest.MonkeyPatch, require: Callable[..., None], fault: str) -> None:
    require("root", "mptcp", "tbf", "nfqueue", "apache2", "curl", "openvpn", "openssl", "ss", "gcc")
    monkeypatch.setattr(tunnel_judging, "SHARES", {"goodput": SHARE})
    download = Bed.download

    def missed() -> set[str]:
        with ExitStack() as scope, beds(CELL.over, 1, CELL.controls, SECONDS, ()) as found:

            def broken(bed: Bed, pair: Any, file: str, *more: Any) -> Any:
                if fault == UNUSED and file == "sum":
                    scope.enter_context(dropping(bed.testbed["hop2"]))
                return download(bed, pair, file, *more)

            monkeypatch.setattr(Bed, "download", broken)
            measured = [one for each in ("alone", "ours") for one in transfers(found, CELL.name, each, LIMIT)]
            scope.close()
        return {aim.what for aim in aims(Measured(measured), [CELL], ["goodput"], {}) if not aim.met}

    misses(missed, fault, MISSES[fault])
