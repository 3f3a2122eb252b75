# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for rates computed from counters, and for counters that can no longer be read."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from mptcp_lab.testbed.recorder import Recorder, Sample, greatest_rate, longest_gap, mean_rate


def samples(*octets: int) -> list[Sample]:
    """Return samples of ``eth0``, one each 0.1 seconds."""
    return [Sample(round(i * 0.1, 6), {"eth0": value, "wlan0": 0}) for i, value in enumerate(octets)]


def test_mean_rate_uses_only_samples_within_the_time() -> None:
    recorded = samples(0, 1_000_000, 1_100_000, 1_200_000, 9_000_000)
    assert mean_rate(recorded, "eth0", 0.1, 0.35) == pytest.approx(8e6)
    with pytest.raises(ValueError, match="no two samples"):
        mean_rate(recorded, "eth0", 0.11, 0.25)


def test_longest_gap_is_not_the_sum_of_gaps() -> None:
    recorded = samples(0, 100, 100, 200, 200, 200, 300, 400)
    assert longest_gap(recorded, ["eth0", "wlan0"], 1.0, 0.0, 1.0) == pytest.approx(0.2)


def test_greatest_rate_finds_a_burst() -> None:
    recorded = samples(0, 100, 200, 1_200, 1_300, 1_400, 1_500)
    assert greatest_rate(recorded, "eth0", 0.2, 0.0, 1.0) == pytest.approx(8 * 1100 / 0.2)
    assert greatest_rate(recorded, "eth0", 0.2, 0.3, 1.0) == pytest.approx(8 * 200 / 0.2)
    with pytest.raises(ValueError, match="no 2 s of samples"):
        greatest_rate(recorded, "eth0", 2, 0.0, 1.0)


def test_error_of_a_later_reading_ends_the_recording_with_this_error() -> None:
    failed = threading.Event()
    readings = iter([{"eth0": 0}])

    def read() -> Mapping[str, int]:
        for reading in readings:
            return reading
        failed.set()
        raise KeyError("eth0")

    node: Any = None
    with pytest.raises(KeyError, match="eth0"), Recorder(node, ["eth0"], interval=0.001, read=read):
        assert failed.wait(30)
