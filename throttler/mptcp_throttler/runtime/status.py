"""Answers the status socket: what the daemon knows and does, as JSON over a Unix socket, for people and for monitoring.

A client connects and reads one JSON document until the end. Keys are stable; new ones may be added. The document is
made piece by piece, so that an answer about ten thousand connections delays nobody.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

from mptcp_throttler.kernel.ports import KernelError

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""How long a client may take to read a piece."""
SLICE_SECONDS = 0.003
"""How long the answer is worked on before the loop has its turn."""
PIECE_BYTES = 1 << 16


class StatusServer:
    """Answers each connection to the socket at *path* with the pieces of text that *document* yields."""

    def __init__(
        self, path: Path, refresh: Callable[[], Awaitable[None]], document: Callable[[], Iterator[str]]
    ) -> None:
        """*refresh* brings what is shown up to date."""
        self._path = path
        self._refresh = refresh
        self._document = document
        self.answering = 0
        """How many answers are under way."""
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen; a socket left by a crashed daemon is replaced. Raises KernelError where the path cannot be used."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and not self._path.is_socket():
                raise KernelError(f"status socket {self._path}: there is something else of that name")
            self._path.unlink(missing_ok=True)
            old_mask = os.umask(0o117)  # readable and writable for owner and group only
            try:
                self._server = await asyncio.start_unix_server(self._answer, path=str(self._path))
            finally:
                os.umask(old_mask)
        except OSError as error:
            raise KernelError(f"status socket {self._path}: {error.strerror or error}") from error

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _answer(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.answering += 1
        try:
            with suppress(OSError, TimeoutError):
                await self._write(writer)
        finally:
            writer.close()
            self.answering -= 1

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        waiting: list[str] = []
        try:
            await self._refresh()
        except KernelError as error:
            log.error("%s; the status shows older byte counts", error)
        size, began = 0, time.monotonic()
        for text in self._document():
            waiting.append(text)
            size += len(text)
            if size >= PIECE_BYTES:
                writer.write("".join(waiting).encode())
                waiting.clear()
                size = 0
                await asyncio.wait_for(writer.drain(), ANSWER_SECONDS)
            if time.monotonic() - began > SLICE_SECONDS:
                await asyncio.sleep(0)
                began = time.monotonic()
        writer.write("".join(waiting).encode())
        await asyncio.wait_for(writer.drain(), ANSWER_SECONDS)
