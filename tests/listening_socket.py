# SPDX-License-Identifier: GPL-2.0-or-later
"""A server that holds one connection at a time, from a thread of the test: what it says to each, a test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def serving(listener: socket.socket, talk: Callable[[socket.socket], object]) -> Iterator[None]:
    """Have *talk* held with each connection that *listener* takes, and then closed; at the exit *listener* is closed.

    A client that goes ends its talk; *talk* must end by itself where a client stays.
    """

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(ConnectionError):
                talk(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # close(2) alone would not end an accept(2) that waits.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)
