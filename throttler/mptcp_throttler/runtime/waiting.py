"""Waiting for an event for a limited time.

``asyncio.wait_for`` of Python 3.11 loses a cancellation that comes together with the event; a task that waits in a loop
would then never end.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait until *event* is set, *seconds* at the most."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
