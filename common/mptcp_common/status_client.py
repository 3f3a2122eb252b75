# SPDX-License-Identifier: GPL-2.0-or-later
"""Asks a running throttler over its Unix socket: sends a line of JSON, gets a JSON document (docs/status.md).

The daemon decides which requests it answers. An answer with ``error`` has the reason for a refusal; it is returned like
any other.

A daemon too old for requests sends its whole status and closes the socket with the request unread. That resets the
connection (unix(7)), but only after an answer that tells the version.
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
"""The longest pause in the answer. The daemon ends an answer after 30 s, read or not."""
_AGAIN = 0.05
"""Seconds until the next attempt when the daemon's backlog is full."""
MOST_BYTES = 64 << 20
"""Limit of an answer to :func:`ask_async`. The longest, the whole status with 10,000 connections, has some 15 MB."""
_PIECE_BYTES = 1 << 16
"""A larger buffer is mapped anew for each piece: then ten megabytes cost 20 ms instead of 9."""


def ask(path: Path, request: Mapping[str, object], timeout: float = PAUSE_SECONDS) -> dict[str, Any]:
    """Return the answer of the daemon at *path* to *request*, for example ``{"query": "summary"}``.

    *timeout*: the longest pause in the answer, in seconds. Raises OSError if no daemon listens or the answer ends too
    early, and TimeoutError (an OSError) if it does not come.
    """
    return _document(ask_text(path, request, timeout))


def ask_text(path: Path, request: Mapping[str, object], timeout: float = PAUSE_SECONDS) -> bytes:
    """Like :func:`ask`, but return the raw answer: JSON, unless it ended too early."""
    return b"".join(ask_pieces(path, request, timeout))


def ask_pieces(path: Path, request: Mapping[str, object], timeout: float = PAUSE_SECONDS) -> Iterator[bytes]:
    """Like :func:`ask_text`, but yield the pieces as they come."""
    begun = False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout)
        deadline = time.monotonic() + timeout
        while not _connects(client, path):
            if time.monotonic() >= deadline:
                raise TimeoutError
            time.sleep(_AGAIN)
        try:
            with suppress(BrokenPipeError):  # a daemon that stops reading a long request has answered why
                client.sendall(_line(request))
            while piece := client.recv(_PIECE_BYTES):
                begun = True
                yield piece
        except (BrokenPipeError, ConnectionResetError):
            if not begun:
                raise


async def ask_async(
    path: Path,
    request: Mapping[str, object],
    timeout: float = PAUSE_SECONDS,  # noqa: ASYNC109 -- of a pause: asyncio.timeout around the call bounds the whole
) -> dict[str, Any]:
    """Like :func:`ask`, without blocking the event loop."""
    import asyncio  # a caller with an event loop has it already; for others the import is a tenth of the work

    pieces: list[bytes] = []
    room = MOST_BYTES
    async with asyncio.timeout(timeout) as patience:
        # Not open_unix_connection(path): with a full backlog, asyncio takes the socket for connected.
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            client.setblocking(False)
            while not _connects(client, path):  # noqa: ASYNC110 -- the kernel tells nobody when there is room
                await asyncio.sleep(_AGAIN)
            reader, writer = await asyncio.open_unix_connection(sock=client)
        except BaseException:
            client.close()
            raise
        try:
            writer.write(_line(request))
            while piece := await reader.read(_PIECE_BYTES):
                pieces.append(piece)
                room -= len(piece)
                if room < 0:
                    raise OSError(errno.EMSGSIZE, f"the answer is longer than {MOST_BYTES} bytes")
                patience.reschedule(asyncio.get_running_loop().time() + timeout)
        except (BrokenPipeError, ConnectionResetError):
            if not pieces:
                raise
        finally:
            writer.close()
    return _document(b"".join(pieces))


def _connects(client: socket.socket, path: Path) -> bool:
    """Connect *client*, which does not block; False if the daemon's backlog is full: connect(2), EAGAIN."""
    try:
        client.connect(str(path))
    except BlockingIOError:
        return False
    return True


def _line(request: Mapping[str, object]) -> bytes:
    """Return *request* as a line of UTF-8: the daemon bounds its bytes, and ``\\u00e4`` would take six."""
    return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"


def _document(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: nested brackets
        document = None
    if not isinstance(document, dict):
        raise ConnectionResetError("the answer ended too early")
    return document
