# SPDX-License-Identifier: GPL-2.0-or-later
"""A web server that no client can monopolize: uvicorn, with bounds on connections and on their time.

uvicorn bounds only a connection's idle time between two requests, and asyncio hands over a TLS connection only after
the handshake. So connections are accepted here, and count from their first moment.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any

import uvicorn

from mptcp_common.clients import client_of
from mptcp_common.http_bounds import BoundedHttp

MOST_CONNECTIONS = 512
"""Maximum number of connections per server, so that no server takes the descriptors of another."""
MOST_OF_ONE = 32
"""Maximum number of connections per client (:mod:`mptcp_common.clients`), if clients connect directly. A browser opens
six."""
REQUEST_SECONDS = 20.0
"""Limit for a request to come and its answer to be made and read; includes the TLS handshake."""
_RECEIVED, _SENT, _WRITTEN = 16 << 10, 64 << 10, 16 << 10
"""Bytes that the kernel buffers for a connection (socket(7)), and that wait here beside one answer, for clients that
send without end and read nothing: by default asyncio reads 256 KiB at once, and the kernel holds megabytes."""
_AGAIN = 0.5
"""Seconds until the next attempt after a failed accept."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one server."""

    of_one: int = MOST_OF_ONE
    """Connections per client."""
    keep_alive: int = 5
    """Seconds for which a connection may be idle after an answer."""


class _Protocol(BoundedHttp):
    """HTTP/1.1 with a time limit for each request and its answer. *ended* is called at the connection's end."""

    def __init__(self, *args: Any, config: uvicorn.Config, ended: Callable[[], object], **more: Any) -> None:
        # most_waiting is None because connections are bounded on accept.
        super().__init__(
            *args,
            request_seconds=REQUEST_SECONDS,
            with_answers=True,
            idle_seconds=config.timeout_keep_alive,
            most_waiting=None,
            config=config,
            **more,
        )
        self._ended = ended

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITTEN)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
        super().connection_lost(exc)


class BoundedServer(uvicorn.Server):
    """Serves on the sockets given to serve(), within *bounds*."""

    def __init__(self, config: uvicorn.Config, bounds: Bounds) -> None:
        super().__init__(config)
        self._bounds = bounds
        self._held: dict[object, bytes] = {}
        """Each connection's client."""
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the caller, which starts several servers."""
        yield

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        for listener in sockets or ():
            listener.setblocking(False)
            self._start(self._accept(listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._tasks:
            task.cancel()
        await super().shutdown(sockets)

    def _start(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, peer = await asyncio.get_running_loop().sock_accept(listener)
            except OSError:  # the client is gone again, or descriptors or memory ran out
                await asyncio.sleep(_AGAIN)
                continue
            client = client_of(ip_address(peer[0]).packed)
            of_one = sum(each == client for each in self._held.values())
            if len(self._held) >= MOST_CONNECTIONS or of_one >= self._bounds.of_one:
                connection.close()
            else:
                key = object()
                self._held[key] = client
                self._start(self._take(connection, partial(self._held.pop, key, None)))
            # If the next connection waits already, sock_accept() does not yield to the loop.
            await asyncio.sleep(0)

    async def _take(self, connection: socket.socket, ended: Callable[[], object]) -> None:
        config = self.config

        def protocol() -> _Protocol:
            return _Protocol(config=config, server_state=self.server_state, app_state=self.lifespan.state, ended=ended)

        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT)
        seconds = REQUEST_SECONDS if config.ssl is not None else None
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                protocol, connection, ssl=config.ssl, ssl_handshake_timeout=seconds, ssl_shutdown_timeout=seconds
            )
        except OSError:  # no TLS, or not in time
            ended()
        except BaseException:
            ended()
            raise
