# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for RecordedSignals, a queue of received signals that the program handles later."""

from __future__ import annotations

import os
import signal

from mptcp_proxy.recorded_signals import RecordedSignals


def test_signals_are_queued_in_the_order_of_receipt() -> None:
    before = signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGUSR2)
    try:
        recorded = RecordedSignals([signal.SIGHUP])
        recorded.record([signal.SIGUSR2])
        assert not recorded
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGHUP)
        assert [recorded.pop(), recorded.pop()] == [signal.SIGUSR2, signal.SIGHUP]
        assert not recorded
    finally:
        for number, action in zip((signal.SIGHUP, signal.SIGUSR2), before, strict=True):
            signal.signal(number, action)
