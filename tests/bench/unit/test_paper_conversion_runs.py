# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for Table 1's runs: a workload that is no data point is repeated, and does not void other runs."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from paper_conversion_mutants import PAPER

from mptcp_bench.paper import conversion, session
from mptcp_bench.paper.conversion_metrics import MPTCP, PROTOCOLS, TCP
from mptcp_bench.paper.parameters import Parameters
from mptcp_bench.wire.workload import Conversions, Workload
from mptcp_lab.testbed import EmulationError


class FakePaths:
    """Emulated paths that are late once, in the first workload of one protocol, and report it at the next check."""

    def __init__(self, late_in: str) -> None:
        self._late_in: str | None = late_in
        self._late = False

    def measure(self, lab: object, proxy: str, origin: object, workload: Workload, *, multipath: bool) -> Conversions:
        protocol = MPTCP if multipath else TCP
        if protocol == self._late_in:
            self._late_in, self._late = None, True
        return PAPER.conversions(random.Random(1), multipath=multipath)[workload.key]

    def check(self) -> None:
        late, self._late = self._late, False
        if late:
            raise EmulationError("late")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("late_in", PROTOCOLS)
def test_a_workload_over_late_paths_is_measured_again_and_voids_no_other_run(
    monkeypatch: pytest.MonkeyPatch, late_in: str, seed: int
) -> None:
    """Defect: the paths were checked only after a repetition, so its first run was void, whichever one was late."""
    paths = FakePaths(late_in)
    proxy = SimpleNamespace(url=lambda: "http://proxy")
    monkeypatch.setattr(conversion, "start_origin", lambda *of, **options: None)
    monkeypatch.setattr(conversion, "start_proxy", lambda *of, **options: proxy)
    monkeypatch.setattr(conversion, "squid_configuration", lambda host: None)
    monkeypatch.setattr(conversion, "measure", paths.measure)
    lab: Any = SimpleNamespace(origin=None, proxy=None, emulated=True)
    order: Any = SimpleNamespace(parameters=Parameters.of(["repetitions=2"]), seed=seed, quick=True, hosts=None)
    rerun = session.prepare("table1", order)
    found = list(rerun.runs(session.CheckedLab(lab, paths.check), lambda seconds: None))
    assert [(run.case, run.repetition, run.reason) for run in found if not run.valid] == [(late_in, 1, "late")]
    valid = [(run.case, run.repetition) for run in found if run.valid]
    assert valid == [(protocol, number) for number in (1, 2) for protocol in PROTOCOLS]
