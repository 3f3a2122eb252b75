# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment overshoot: what it reads from byte counters."""

from __future__ import annotations

import pytest
from mutants import constant, series
from mutants_of_overshoot import CAPPED, PHASE, outcome, until

from mptcp_bench.experiments.overshoot import first_packet, judge


def test_what_passes_beyond_a_cap_is_read_from_the_counters() -> None:
    found = outcome(CAPPED)
    assert (found.mean, found.rate / 1e6, found.other / 1e6) == pytest.approx((1, 5, 20), rel=0.01)
    assert found.ahead < 100_000, "an interval of the samples"
    assert found.excess < 18_000, "a burst of the class, and an initial window"
    assert found.above == 0
    polled = outcome(until(PHASE))
    assert polled.ahead == pytest.approx((48 - 5) / 8 * 1e6 * PHASE, rel=0.02)
    assert polled.above == pytest.approx(PHASE, abs=0.2)


def test_a_transfer_begins_with_its_first_packet_not_with_what_was_there_before() -> None:
    samples = series({"eth0": lambda t: 0.0005 if t < 2 else 5, "wlan0": constant(20)}, 12)
    assert first_packet(samples) == pytest.approx(2.0, abs=0.11)
    with pytest.raises(ValueError, match="is over after"):
        judge(samples, 5_000_000, 4.0)
