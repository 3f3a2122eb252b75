# SPDX-License-Identifier: GPL-2.0-or-later
"""A server in a thread. It calls a function of the test for each connection, one connection at a time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def serving(listener: socket.socket, handle_connection: Callable[[socket.socket], object]) -> Iterator[None]:
    """Call *handle_connection* with each connection that *listener* accepts, and close the connection afterwards.

    At the end, close *listener*. If a client disconnects, *handle_connection* may raise a ConnectionError. Otherwise it
    must return.
    """

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(ConnectionError):
                handle_connection(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # close(2) does not end a blocked accept(2), but shutdown(2) does.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)
