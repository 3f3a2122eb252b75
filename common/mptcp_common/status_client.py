# SPDX-License-Identifier: GPL-2.0-or-later
"""Sends requests to a running daemon over its Unix socket: a request is a line of JSON, and the answer is a JSON
document (docs/status.md).

If the daemon refuses a request, its answer has the reason as ``error``, and is returned like any other answer.

An old throttler, which does not support requests, sends its whole status, and closes the socket without reading the
request. This resets the connection (unix(7)), but only after the answer, which contains the version.
"""

from __future__ import annotations

import errno
import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

PAUSE_SECONDS = 5.0
"""Maximum pause within the answer. The daemon ends an answer after 30 s, even if the client has not read all of it."""
_RETRY_SECONDS = 0.05
"""Seconds until the next attempt when the daemon's backlog is full."""
MAX_BYTES = 64 << 20
"""Maximum size of an answer to :func:`ask_async`. The whole status with 10,000 connections has some 15 MB."""
_PIECE_BYTES = 1 << 16
"""For larger pieces, malloc maps memory each time: reading ten megabytes would take 20 ms instead of 9 ms."""


def ask(path: Path, request: Mapping[str, object], timeout: float = PAUSE_SECONDS) -> dict[str, Any]:
    """Return the answer of the daemon at *path* to *request*, for example ``{"query": "summary"}``.

    *timeout*: maximum pause within the answer, in seconds. Raises OSError if no daemon listens or the answer ends too
    early, and TimeoutError (an OSError) if the daemon does not answer in time.
    """
    return _document(ask_text(path, request, timeout))


def ask_text(path: Path, request: Mapping[str, object], timeout: float = PAUSE_SECONDS) -> bytes:
    """Like :func:`ask`, but return the raw answer: JSON, unless it ended too early."""
    return b"".join(ask_pieces(path, request, timeout))


def ask_pieces(path: Path, request: Mapping[str, object], timeout: float = PAUSE_SECONDS) -> Iterator[bytes]:
    """Like :func:`ask_text`, but yield each piece when it arrives."""
    has_answered = False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout)
        deadline = time.monotonic() + timeout
        while not _try_connect(client, path):
            if time.monotonic() >= deadline:
                raise TimeoutError
            time.sleep(_RETRY_SECONDS)
        try:
            with suppress(BrokenPipeError):  # if the daemon stops reading a long request, its answer has the reason
                client.sendall(_request_line(request))
            while piece := client.recv(_PIECE_BYTES):
                has_answered = True
                yield piece
        except (BrokenPipeError, ConnectionResetError):
            if not has_answered:
                raise


async def ask_async(
    path: Path,
    request: Mapping[str, object],
    timeout: float = PAUSE_SECONDS,  # noqa: ASYNC109 -- it limits pauses; callers limit the whole by asyncio.timeout
) -> dict[str, Any]:
    """Like :func:`ask`, without blocking the event loop."""
    import asyncio  # a caller with an event loop has imported it already; for other callers, the import would take long

    pieces: list[bytes] = []
    remaining_bytes = MAX_BYTES
    async with asyncio.timeout(timeout) as deadline:
        # open_unix_connection(path) is not used: with a full backlog, asyncio would treat the socket as connected.
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            client.setblocking(False)
            while not _try_connect(client, path):  # noqa: ASYNC110 -- the kernel does not announce when the backlog has room
                await asyncio.sleep(_RETRY_SECONDS)
            reader, writer = await asyncio.open_unix_connection(sock=client)
        except BaseException:
            client.close()
            raise
        try:
            writer.write(_request_line(request))
            while piece := await reader.read(_PIECE_BYTES):
                pieces.append(piece)
                remaining_bytes -= len(piece)
                if remaining_bytes < 0:
                    raise OSError(errno.EMSGSIZE, f"the answer is longer than {MAX_BYTES} bytes")
                deadline.reschedule(asyncio.get_running_loop().time() + timeout)
        except (BrokenPipeError, ConnectionResetError):
            if not pieces:
                raise
        finally:
            writer.close()
    return _document(b"".join(pieces))


def _try_connect(client: socket.socket, path: Path) -> bool:
    """Connect *client*; return False if the daemon's backlog is full (connect(2), EAGAIN)."""
    try:
        client.connect(str(path))
    except BlockingIOError:
        return False
    return True


def _request_line(request: Mapping[str, object]) -> bytes:
    """Return *request* as a line of UTF-8. ASCII is not used, because the daemon limits the line's bytes, and an escape
    such as ``\\u00e4`` takes six."""
    return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"


def _document(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: nested brackets
        document = None
    if not isinstance(document, dict):
        raise ConnectionResetError("the answer ended too early")
    return document
