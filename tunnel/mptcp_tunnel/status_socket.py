# SPDX-License-Identifier: GPL-2.0-or-later
"""The socket on which the daemon sends its status. A client may first send a request, which is one line of JSON.

The daemon waits for each piece of a request for :data:`REQUEST_SECONDS`, or until the client closes its side.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from mptcp_common.kernel_error import KernelError
from mptcp_common.trust import throttler_uid

log = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 0.1
"""Maximum time for a client to send a piece of its request."""
MAX_REQUEST: Final = 1 << 20
"""Maximum size of a request, bytes."""
ANSWER_SECONDS: Final = 5.0
"""Maximum time for a client to read a piece of the answer."""
_INVALID_REQUEST: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
Request = dict[str, Any]


class StatusSocket:
    """The socket. Only root and the throttler's user, which sets the paths' classes, may connect to it."""

    def __init__(
        self, path: Path, selector: selectors.BaseSelector, apply: Callable[[Request], None], status: Callable[[], Any]
    ) -> None:
        """Listen at *path*; create its directory if it is missing. *apply* is called with each request, and may raise
        an exception if the JSON has an unexpected form; *status* returns the answer. Raises KernelError."""
        self._path, self._selector, self._apply, self._status = path, selector, apply, status
        self._created_directory = not path.parent.exists()
        self._waiting: dict[socket.socket, tuple[float, bytearray]] = {}
        """For each client: until when to wait for more of its request, and the bytes received so far."""
        self._answered: dict[socket.socket, tuple[float, memoryview]] = {}
        """For each client: until when it must read more, and the part of its answer that was not sent yet."""
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            path.parent.mkdir(mode=0o755, exist_ok=True)
            path.unlink(missing_ok=True)
            self._listener.bind(str(path))
            path.chmod(0o600)
            self._listener.listen(8)
        except OSError as error:
            self._listener.close()
            raise KernelError(f"listen at {path}: {error.strerror}") from error
        try:
            os.chown(path, throttler_uid(), -1)
        except OSError as error:
            log.warning(
                "give %s to the throttler's user: %s; the policy does not apply to tunnels", path, error.strerror
            )
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        for client in (*self._waiting, *self._answered):
            client.close()
        self._listener.close()
        self._path.unlink(missing_ok=True)
        if self._created_directory:
            with suppress(OSError):
                self._path.parent.rmdir()

    @property
    def next_deadline(self) -> int | None:
        """When to call :meth:`answer_waiting`, nanoseconds; None means never."""
        times = (until for until, _ in (*self._waiting.values(), *self._answered.values()))
        return min((round(until * 1e9) for until in times), default=None)

    def answer_waiting(self) -> None:
        """Answer clients that have sent nothing more in time, and disconnect clients that do not read."""
        now = time.monotonic()
        for client in [each for each, (until, _) in self._waiting.items() if until <= now]:
            self._read(client)  # the client may have sent more while the daemon was busy
        for client in [each for each, (until, _) in self._answered.items() if until <= now]:
            self._disconnect(client)

    def _accept(self) -> None:
        with suppress(OSError):
            client, _ = self._listener.accept()
            client.setblocking(False)
            self._waiting[client] = time.monotonic() + REQUEST_SECONDS, bytearray()
            self._selector.register(client, selectors.EVENT_READ, partial(self._read, client))

    def _read(self, client: socket.socket) -> None:
        request = self._waiting[client][1]
        try:
            received = client.recv(1 << 16)
        except OSError:  # counts as the end of the request
            received = b""
        request += received
        if not received or received.endswith(b"\n") or len(request) > MAX_REQUEST:
            self._answer(client)
        else:
            self._waiting[client] = time.monotonic() + REQUEST_SECONDS, request

    def _answer(self, client: socket.socket) -> None:
        _, request = self._waiting.pop(client)
        if request.strip():
            try:
                self._apply(json.loads(request))
            except _INVALID_REQUEST as error:
                log.warning("a request is invalid: %s", error)
        answer = json.dumps(self._status()).encode() + b"\n"
        self._answered[client] = time.monotonic() + ANSWER_SECONDS, memoryview(answer)
        self._selector.modify(client, selectors.EVENT_WRITE, partial(self._write, client))

    def _write(self, client: socket.socket) -> None:
        _, unsent = self._answered[client]
        try:
            unsent = unsent[client.send(unsent) :]
        except BlockingIOError:
            return
        except OSError:
            unsent = unsent[:0]
        if unsent:
            self._answered[client] = time.monotonic() + ANSWER_SECONDS, unsent
        else:
            self._disconnect(client)

    def _disconnect(self, client: socket.socket) -> None:
        del self._answered[client]
        self._selector.unregister(client)
        client.close()
