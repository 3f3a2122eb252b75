# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for readings at a steady pace, and for what remains after a failed reading."""

from __future__ import annotations

import threading
import time

from mptcp_lab.agent.pacing import Paced


def test_first_reading_may_be_asked_for_later() -> None:
    times: list[float] = []
    enough = threading.Event()

    def take() -> None:
        times.append(time.monotonic())
        if len(times) == 2:
            enough.set()

    paced = Paced(take, 0.02)
    first = time.monotonic() + 0.1
    paced.start(first)
    assert enough.wait(30)
    paced.stop()
    assert times[0] >= first
    assert times[1] >= first + 0.02


def test_error_of_a_later_reading_is_kept_and_ends_the_readings() -> None:
    failed = threading.Event()
    count = 0

    def take() -> None:
        nonlocal count
        count += 1
        if count > 1:
            failed.set()
            raise KeyError("eth0")

    paced = Paced(take, 0.001)
    paced.start()
    assert failed.wait(30)
    paced.stop()
    assert isinstance(paced.error, KeyError)
    assert count == 2
