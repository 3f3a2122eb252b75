"""The signals that stop the daemon."""

from __future__ import annotations

import asyncio
import signal

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
