# SPDX-License-Identifier: GPL-2.0-or-later
"""Copies bytes between two connected sockets in both directions, until both have ended. All pumps share one buffer."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

BUFFER_BYTES: Final = 262_144
"""Maximum bytes per read. Bytes that a slow receiver does not accept immediately are copied again."""
_BUFFER: Final = memoryview(bytearray(BUFFER_BYTES))
_RESET: Final = struct.pack("ii", 1, 0)


def abort(connection: socket.socket) -> None:
    """Close a connection with a reset (SO_LINGER of socket(7))."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


class Pump:
    """Copies between two non-blocking sockets, and closes them at the end, with a reset if one failed."""

    def __init__(
        self, first_socket: socket.socket, second_socket: socket.socket, on_end: Callable[[int], None]
    ) -> None:
        """*on_end* is called once, with the number of bytes copied in both directions."""
        self._sockets = first_socket, second_socket
        self._on_end = on_end
        self._directions = (
            _Direction(first_socket, second_socket, self._on_direction_end, self.fail),
            _Direction(second_socket, first_socket, self._on_direction_end, self.fail),
        )

    def start(self, initial_bytes: bytes = b"") -> None:
        """Start. *first_socket* gets *initial_bytes* before all others."""
        self._directions[0].start()
        self._directions[1].start(initial_bytes)

    def fail(self) -> None:
        self._close(abort)

    def _on_direction_end(self) -> None:
        if all(each.is_done for each in self._directions):
            self._close(socket.socket.close)

    def _close(self, close_socket: Callable[[socket.socket], None]) -> None:
        if self._sockets[0].fileno() < 0:
            return
        for each in self._directions:
            each.stop()
        for end in self._sockets:
            close_socket(end)
        self._on_end(sum(each.byte_count for each in self._directions))


class _Direction:
    """One direction. It reads more bytes only after the sink has accepted all previous ones."""

    def __init__(
        self, source: socket.socket, sink: socket.socket, on_end: Callable[[], None], on_failure: Callable[[], None]
    ) -> None:
        self._source, self._sink = source, sink
        self._on_end, self._on_failure = on_end, on_failure
        self._loop = asyncio.get_running_loop()
        self._pending: bytes | memoryview = b""
        self.byte_count = 0
        self.is_done = False

    def start(self, initial_bytes: bytes = b"") -> None:
        self._loop.add_reader(self._source, self._on_readable)
        if initial_bytes:
            self._write(initial_bytes)

    def stop(self) -> None:
        if not self.is_done:
            self._loop.remove_reader(self._source)
        if self._pending:
            self._loop.remove_writer(self._sink)

    def _on_readable(self) -> None:
        try:
            count = self._source.recv_into(_BUFFER)
            if count:
                self._write(_BUFFER[:count])
                return
            self._loop.remove_reader(self._source)
            self.is_done = True
            self._sink.shutdown(socket.SHUT_WR)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._on_failure()
            return
        self._on_end()

    def _write(self, data: bytes | memoryview) -> None:
        sent = self._send(data)
        if 0 <= sent < len(data):
            self._pending = bytes(data[sent:])
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._on_writable)

    def _on_writable(self) -> None:
        sent = self._send(self._pending)
        if sent < 0:
            return
        self._pending = self._pending[sent:]
        if not self._pending:
            self._loop.remove_writer(self._sink)
            self._loop.add_reader(self._source, self._on_readable)

    def _send(self, data: bytes | memoryview) -> int:
        """Return how many bytes the sink accepted. If it failed, close both sockets and return -1."""
        try:
            sent = self._sink.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self._on_failure()
            return -1
        self.byte_count += sent
        return sent
