# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for waiting for an event with a time limit, and with a cancellation at the time of the event."""

from __future__ import annotations

import asyncio

import pytest

from mptcp_throttler.runtime.event_loop import wait_at_most


def test_cancellation_at_the_same_time_as_the_event_ends_the_task() -> None:
    async def scenario() -> None:
        event = asyncio.Event()
        task = asyncio.create_task(wait_at_most(event, 10))
        await asyncio.sleep(0)
        event.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())


def test_waiting_ends_after_the_given_time() -> None:
    asyncio.run(wait_at_most(asyncio.Event(), 0.001))
