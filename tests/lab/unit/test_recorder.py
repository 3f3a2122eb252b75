# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for computing rates from counters."""

from __future__ import annotations

import pytest

from mptcp_lab.testbed.recorder import Sample, greatest_rate, longest_gap, mean_rate, rates


def samples(*octets: int, step: float = 0.1) -> list[Sample]:
    return [Sample(round(i * step, 6), {"eth0": value, "wlan0": 0}) for i, value in enumerate(octets)]


def test_rate_is_the_difference_over_the_real_interval() -> None:
    late = [Sample(0.0, {"eth0": 0}), Sample(0.25, {"eth0": 1000})]
    assert [(r.time, r.bits) for r in rates(late)] == [(0.25, {"eth0": 32000.0})]


def test_mean_rate_uses_only_samples_within_the_time() -> None:
    recorded = samples(0, 1_000_000, 1_100_000, 1_200_000, 9_000_000)
    assert mean_rate(recorded, "eth0", 0.1, 0.35) == pytest.approx(8e6)
    with pytest.raises(ValueError, match="no two samples"):
        mean_rate(recorded, "eth0", 0.11, 0.25)


def test_longest_gap_is_not_the_sum_of_gaps() -> None:
    recorded = samples(0, 100, 100, 200, 200, 200, 300, 400)
    assert longest_gap(recorded, ["eth0", "wlan0"], 1.0, 0.0, 1.0) == pytest.approx(0.2)
    assert longest_gap(samples(0, 1, 2, 3), ["eth0"], 1.0, 0.0, 1.0) == 0.0


def test_greatest_rate_finds_a_burst() -> None:
    recorded = samples(0, 100, 200, 1_200, 1_300, 1_400, 1_500)
    assert mean_rate(recorded, "eth0", 0.0, 1.0) == pytest.approx(8 * 1500 / 0.6)
    assert greatest_rate(recorded, "eth0", 0.2, 0.0, 1.0) == pytest.approx(8 * 1100 / 0.2)
    assert greatest_rate(recorded, "eth0", 0.2, 0.3, 1.0) == pytest.approx(8 * 200 / 0.2)
    with pytest.raises(ValueError, match="no 2 s of samples"):
        greatest_rate(recorded, "eth0", 2, 0.0, 1.0)
