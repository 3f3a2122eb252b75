# SPDX-License-Identifier: GPL-2.0-or-later
"""Records arriving signals, so that the main loop can handle them later."""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


class RecordedSignals:
    """Queue of the signals that have arrived and are not handled yet, oldest first."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._arrived: list[signal.Signals] = []
        self.record(numbers)

    def record(self, numbers: Iterable[signal.Signals]) -> None:
        """From now on, also record these signals, instead of their default actions."""
        for number in numbers:
            signal.signal(number, self._add)

    def _add(self, number: int, _frame: FrameType | None) -> None:
        self._arrived.append(signal.Signals(number))

    def __bool__(self) -> bool:
        return bool(self._arrived)

    def has(self, numbers: Iterable[signal.Signals]) -> bool:
        """Return whether any signal of *numbers* is pending."""
        return any(number in self._arrived for number in numbers)

    def pop(self) -> signal.Signals:
        return self._arrived.pop(0)

    def wait(self, seconds: float, wakeup: socket.socket, numbers: Iterable[signal.Signals] = signal.Signals) -> None:
        """Wait for *seconds*, or until a signal of *numbers* is pending. *wakeup* becomes readable at any signal."""
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0 and not self.has(numbers):
            if select.select([wakeup], [], [], remaining)[0]:
                wakeup.recv(4096)


@contextmanager
def wakeup_socket() -> Iterator[socket.socket]:
    """Provide a socket that becomes readable with each signal (signal.set_wakeup_fd)."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno())
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(-1)
