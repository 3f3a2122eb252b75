"""Asks a running throttler over its Unix socket: one line of JSON there, one JSON document back (docs/status.md).

What may be asked is the daemon's to say. An answer that has ``error`` says why the request was refused; it is
returned like any other.

A daemon that is too old to read requests sends its whole status, and its end finds the request unread: that resets the
connection (unix(7)), but after an answer from which the caller can tell the version.
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
"""How long a pause in the answer may be. The daemon ends an answer after 30 s, read or not."""
_AGAIN = 0.05
"""Seconds until the next attempt where so many wait for the daemon that the kernel takes no further one."""
MOST_BYTES = 64 << 20
"""Of an answer to :func:`ask_async`. The longest, the whole status with 10,000 connections, has some 15 MB."""
_PIECE_BYTES = 1 << 16
"""More is mapped anew for each piece: ten megabytes cost 20 ms so, and 9 in these."""


def ask(path: Path, request: Mapping[str, object], timeout: float = PAUSE_SECONDS) -> dict[str, Any]:
    """Return what the daemon that listens at *path* answers to *request*, ``{"query": "summary"}`` say.

    *timeout*: how many seconds a pause in the answer may be. Raises OSError where nobody listens or the answer
    ends too early, TimeoutError (an OSError) where it does not come.
    """
    return _document(ask_text(path, request, timeout))


def ask_text(path: Path, request: Mapping[str, object], timeout: float = PAUSE_SECONDS) -> bytes:
    """As :func:`ask`, and return the answer as it came: JSON, unless it ended too early."""
    return b"".join(ask_pieces(path, request, timeout))


def ask_pieces(path: Path, request: Mapping[str, object], timeout: float = PAUSE_SECONDS) -> Iterator[bytes]:
    """As :func:`ask_text`, and yield what comes when it comes."""
    begun = False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout)
        deadline = time.monotonic() + timeout
        while not _connects(client, path):
            if time.monotonic() >= deadline:
                raise TimeoutError
            time.sleep(_AGAIN)
        try:
            with suppress(BrokenPipeError):  # a daemon that reads no more of a long request has said why
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
    """As :func:`ask`, without blocking the event loop."""
    import asyncio  # who has an event loop has it already; to others it is a tenth of what they do

    pieces: list[bytes] = []
    room = MOST_BYTES
    async with asyncio.timeout(timeout) as patience:
        # Not open_unix_connection(path): where too many wait already, asyncio takes it for connected.
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
    """Connect *client*, which does not block; False where as many wait for the daemon as may: connect(2), EAGAIN."""
    try:
        client.connect(str(path))
    except BlockingIOError:
        return False
    return True


def _line(request: Mapping[str, object]) -> bytes:
    """Return *request* as a line of UTF-8: the daemon bounds its bytes, of which ``\\u00e4`` would take six."""
    return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"


def _document(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):  # the second: of brackets within each other
        document = None
    if not isinstance(document, dict):
        raise ConnectionResetError("the answer ended too early")
    return document
