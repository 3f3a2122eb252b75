# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for how the experiment ``guard`` judges its recordings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from mutants import rehearsed

from mptcp_bench.experiments import guard
from mptcp_bench.experiments.aims import missed
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.guard import AFTER, CAP, FAULT, Outcome, judge
from mptcp_lab.testbed.recorder import Sample

MBIT = 1e6
FAULT_AT = 4.0


def recorded(relaxed_after: float | None, capped_after: float) -> list[Sample]:
    """Return samples: Wi-Fi 30 Mbit/s, nothing during the fault; Ethernet 5, or 90 while its cap is relaxed."""
    samples, octets = [], {"eth0": 0.0, "wlan0": 0.0}
    for step in range(round((FAULT_AT + FAULT + AFTER) * 10)):
        now = step / 10
        fault = FAULT_AT <= now < FAULT_AT + FAULT
        relaxed = relaxed_after is not None and FAULT_AT + relaxed_after <= now < FAULT_AT + FAULT + capped_after
        octets["eth0"] += (90 if relaxed else CAP) * MBIT / 80
        octets["wlan0"] += 0 if fault else 30 * MBIT / 80
        samples.append(Sample(now, {name: round(value) for name, value in octets.items()}))
    return samples


def test_what_a_fault_costs() -> None:
    guarded = judge(recorded(1.0, 3.0), FAULT_AT, 1)
    assert guarded.before == pytest.approx(30 * MBIT)
    assert guarded.recovered == pytest.approx(1.2, abs=0.3)
    assert guarded.during == pytest.approx(3, rel=0.02)
    assert 3.0 <= guarded.in_force <= 4.1, "the last second in which Ethernet had more than its cap"
    alone = judge(recorded(None, 0.0), FAULT_AT, 0)
    assert alone.recovered == math.inf
    assert alone.during == pytest.approx(CAP / 30, rel=0.02)
    assert alone.in_force == 0


def test_what_comes_before_the_fault_is_there_is_no_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: on a loaded machine the fault's command took longer than a recovery is waited for.

    A guard that did nothing then seemed to have recovered before anything was lost.
    """
    asked = FAULT_AT - 1
    recorder = SimpleNamespace(now=asked, samples=recorded(None, 0.0), wait=lambda until: None)

    @contextmanager
    def silent(*_: object) -> Iterator[None]:
        recorder.now = FAULT_AT
        yield

    lab: Any = SimpleNamespace(testbed=None, load_between=lambda *_: None)
    lab.transferring = lambda *_: nullcontext((None, recorder))
    monkeypatch.setattr(guard, "_relaxations", lambda _: 0)
    monkeypatch.setitem(guard.FAULTS, "silence", silent)
    measured = guard.measure(lab, Turn(guard.Cell("down", 20, "silence"), guard.ON, 1))
    assert isinstance(measured, Outcome)
    assert measured.fault_at == FAULT_AT
    assert measured.recovered == math.inf
    assert measured.before == pytest.approx(30 * MBIT)
    assert judge(recorded(None, 0.0), asked, 0).recovered < 1, "what it was"


def missed_by(direction: str, *recovered: float, lifted: float = 0.2, in_force: float = 5.0) -> tuple[str, ...]:
    """Return the missed aims if the connections with the guard recover after *recovered* seconds."""

    def measure(turn: Turn[guard.Cell]) -> Outcome | guard.Unharmed:
        match turn.variant:
            case guard.ON:
                return Outcome(30e6, 1.0, 2.0, recovered[turn.number - 1], in_force, 1, 1.0)
            case guard.OFF:
                return Outcome(30e6, 1.0, 0.3, math.inf, 0.0, 0, 1.0)
            case guard.LIFTED:
                return Outcome(30e6, 1.0, 3.0, lifted, math.inf, 0, 1.0)
        return guard.Unharmed(0, 30e6)

    options = {"direction": direction, "rtt": "20", "fault": "rate", "runs": str(len(recovered))}
    return missed(guard.SCENARIO.aims(rehearsed(guard.SCENARIO, options, measure)))


def test_a_download_recovers_within_two_seconds_and_one_that_never_does_is_in_no_mean() -> None:
    assert missed_by("down", 1.5) == ()
    assert missed_by("down", 2.5) == ("down, 20 ms, slows to 5 Mbit/s: recovers after: 2.5 s, wanted ≤ 2",)
    # If infinity counted as the length of the fault, it would be part of a mean of 2.0 s.
    assert "inf" in missed_by("down", 0.5, 0.5, 0.5, 0.5, math.inf)[0]
    assert len(missed_by("down", 1.5, in_force=11.0)) == 1
    assert missed_by("up", 1.5, in_force=11.0) == (), "a cap on uploads falls slowly"


def test_an_upload_recovers_hardly_later_than_with_the_cap_lifted_by_hand() -> None:
    assert missed_by("up", 7.0, lifted=5.5) == ()
    assert "later than with the cap lifted by hand by: 2.5 s" in missed_by("up", 8.0, lifted=5.5)[0]
    assert "later than" in missed_by("up", math.inf, lifted=math.inf)[0], "the guard never acted"


def test_of_several_uploads_the_upper_bound_of_the_difference_is_judged() -> None:
    assert missed_by("up", 1.7, 1.8, 1.8) == ()
    [late] = missed_by("up", 0.5, 3.0)
    assert "lifted by hand by, upper bound: 9.4" in late, "1.55 s by the mean"
