# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the experiment ``guard`` does not take data from before a fault for a recovery."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from mutants import MBIT
from mutants_of_caps import FAULT_AT, recorded

from mptcp_bench.experiments import guard
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.guard import Outcome


def test_what_comes_before_the_fault_is_there_is_no_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: on a loaded machine, the fault's command took longer than the experiment waits for a recovery.

    A guard that did nothing then seemed to have recovered before anything was lost.
    """
    recorder = SimpleNamespace(now=FAULT_AT - 1, samples=recorded(None), wait=lambda until: None)

    @contextmanager
    def silent(*_: object) -> Iterator[None]:
        recorder.now = FAULT_AT
        yield

    lab: Any = SimpleNamespace(testbed=None, load_between=lambda *_: None)
    lab.transferring = lambda: nullcontext((None, recorder))
    monkeypatch.setattr(guard, "_relaxations", lambda _: 0)
    monkeypatch.setitem(guard.FAULTS, "silence", silent)
    measured = guard.measure(lab, Turn(guard.Cell("down", 20, "silence"), guard.ON, 1))
    assert isinstance(measured, Outcome)
    assert measured.fault_at == FAULT_AT
    assert measured.recovered == math.inf
    assert measured.before == pytest.approx(30 * MBIT)
