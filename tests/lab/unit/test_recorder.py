# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for gaps in recorded traffic, and for counters that can no longer be read."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from mptcp_lab.testbed.recorder import Recorder, Sample, longest_gap


def test_longest_gap_is_not_the_sum_of_gaps() -> None:
    counts = (0, 100, 100, 200, 200, 200, 300, 400)
    samples = [Sample(i * 0.1, {"eth0": value, "wlan0": 0}) for i, value in enumerate(counts)]
    assert longest_gap(samples, ["eth0", "wlan0"], 1.0, 0.0, 1.0) == pytest.approx(0.2)


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
