# SPDX-License-Identifier: GPL-2.0-or-later
"""A server in a thread of the test. It calls a function of the test for one connection at a time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def serving(listener: socket.socket, talk: Callable[[socket.socket], object]) -> Iterator[None]:
    """Call *talk* with each connection that *listener* accepts, then close the connection. Close *listener* at the end.

    If a client disconnects, *talk* ends with a ConnectionError; otherwise *talk* must return by itself.
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
