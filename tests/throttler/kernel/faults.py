"""What the kernel tests of faults share: traffic that must go on all the while, and how long until all is as it was."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from throttler_site import until

GENEROUS = 60.0
"""Seconds: what has to happen within two takes longer on a busy machine."""
NEVER = 300
"""Seconds between two comparisons: what is put right in a test was noticed."""


class Pulse:
    """A byte there and back over a connection, over and over: traffic that a fault must not stop."""

    def __init__(self, client: socket.socket, proxy: socket.socket) -> None:
        self.count = 0
        self.longest = 0.0
        """Seconds of the slowest round."""
        self._ends = (client, proxy)
        self._over = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        client, proxy = self._ends
        try:
            while not self._over.wait(0.01):
                began = time.monotonic()
                client.sendall(b"?")
                proxy.sendall(proxy.recv(1))
                client.recv(1)
                self.longest = max(self.longest, time.monotonic() - began)
                self.count += 1
        except OSError as error:
            self._error = error

    def stop(self) -> None:
        """End; raises AssertionError where traffic had stopped."""
        self._over.set()
        self._thread.join()
        assert self._error is None, self._error
        assert self.count > 0


@contextmanager
def traffic(ends: tuple[socket.socket, socket.socket]) -> Iterator[Pulse]:
    """Traffic over the connection with these *ends*, which must not stop within."""
    pulse = Pulse(*ends)
    try:
        yield pulse
    finally:
        pulse.stop()


def seconds_until(holds: Callable[[], bool], timeout: float = GENEROUS) -> float:
    """Wait until *holds* and return how long that took."""
    began = time.monotonic()
    until(holds, timeout)
    return time.monotonic() - began
