"""The daemon as a process: its priority, and the signals that stop it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

NICE = -20
"""Little work, but at once."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def ignore_further_stops(loop: asyncio.AbstractEventLoop) -> None:
    """Whoever asks once more is asking for what is being done.

    The loop leaves each signal to its default action, which would end us: none must come in that moment.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    for number in STOP_SIGNALS:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def take_priority() -> None:
    """A new subflow must not wait behind the transfers of the proxy beside us."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
