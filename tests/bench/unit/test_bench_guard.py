"""What the experiment ``guard`` makes of what it recorded."""

from __future__ import annotations

import pytest

from mptcp_bench.experiments.guard_judging import CAP, ILL, WELL, Measured, Outcome, judge, judged
from mptcp_lab.testbed.recorder import Sample

MBIT = 1e6
FAULT_AT = 4.0


def recorded(relaxed_after: float | None, capped_after: float) -> list[Sample]:
    """Wi-Fi gives 30 Mbit/s, nothing while it is ill; Ethernet 5, or 90 while its cap is relaxed."""
    samples, octets = [], {"eth0": 0.0, "wlan0": 0.0}
    for step in range(round((FAULT_AT + ILL + WELL) * 10)):
        now = step / 10
        ill = FAULT_AT <= now < FAULT_AT + ILL
        relaxed = relaxed_after is not None and FAULT_AT + relaxed_after <= now < FAULT_AT + ILL + capped_after
        octets["eth0"] += (90 if relaxed else CAP) * MBIT / 80
        octets["wlan0"] += 0 if ill else 30 * MBIT / 80
        samples.append(Sample(now, {name: round(value) for name, value in octets.items()}))
    return samples


def test_what_a_fault_costs() -> None:
    guarded = judge(recorded(1.0, 3.0), FAULT_AT, 1)
    assert guarded.before == pytest.approx(30 * MBIT)
    assert guarded.recovered == pytest.approx(1.2, abs=0.3)
    assert guarded.during == pytest.approx(3, rel=0.02)
    assert 3.0 <= guarded.in_force <= 4.1, "the last second in which Ethernet had more than its cap"
    alone = judge(recorded(None, 0.0), FAULT_AT, 0)
    assert alone.recovered == ILL
    assert alone.during == pytest.approx(CAP / 30, rel=0.02)
    assert alone.in_force == 0


@pytest.mark.parametrize("direction", ["down", "up"])
def test_what_misses_an_aim_is_said_with_its_direction(direction: str) -> None:
    def measured(recovered: float, in_force: float) -> list[Measured]:
        outcome = Outcome(30e6, 1.0, recovered, in_force, 1)
        return [Measured(direction, 20, "rate", guarded, outcome, FAULT_AT, ()) for guarded in (True, False)]

    table, failures = judged(measured(1.5, 5.0))
    assert table.row_count == 2
    assert not failures
    _, failures = judged(measured(2.5, 11.0))
    assert failures[0] == f"{direction}, 20 ms, slows to 5 Mbit/s: recovers within 2.0 s, was 2.50"
    assert len(failures) == (2 if direction == "down" else 1), "a cap on uploads falls slowly"
