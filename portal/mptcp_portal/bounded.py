# SPDX-License-Identifier: GPL-2.0-or-later
"""A web server that no client can monopolize: uvicorn, with bounds on connections and on their time.

uvicorn bounds only a connection's idle time between two requests, and asyncio reports a TLS connection only after
the handshake. So this module accepts connections itself, and counts them from the start.
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

MAX_CONNECTIONS = 512
"""Maximum number of connections per server, so that no server takes the descriptors of another."""
MAX_PER_CLIENT = 32
"""Maximum number of connections per client (:mod:`mptcp_common.clients`), if clients connect directly. A browser opens
six."""
REQUEST_SECONDS = 20.0
"""Time limit for receiving a request, answering it, and the client reading the answer; includes the TLS handshake."""
_RECEIVE_BUFFER, _SEND_BUFFER, _WRITE_BUFFER = 16 << 10, 64 << 10, 16 << 10
"""Bytes that the kernel buffers per connection and direction (socket(7)), and bytes of answers that wait in this
process. With the defaults, a client that sends without end and reads nothing would occupy megabytes."""
_RETRY_SECONDS = 0.5
"""Seconds until the next attempt after a failed accept."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one server."""

    per_client: int = MAX_PER_CLIENT
    """Connections per client."""
    keep_alive: int = 5
    """Seconds for which a connection may be idle after an answer."""


class _Protocol(BoundedHttp):
    """HTTP/1.1 with a time limit for each request and its answer. *on_end* is called at the connection's end."""

    def __init__(self, *args: Any, config: uvicorn.Config, on_end: Callable[[], object], **options: Any) -> None:
        # max_waiting is None because connections are bounded on accept.
        super().__init__(
            *args,
            request_seconds=REQUEST_SECONDS,
            with_answers=True,
            idle_seconds=config.timeout_keep_alive,
            max_waiting=None,
            config=config,
            **options,
        )
        self._on_end = on_end

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_end()
        super().connection_lost(exc)


class BoundedServer(uvicorn.Server):
    """A server that keeps within *bounds*."""

    def __init__(self, config: uvicorn.Config, bounds: Bounds) -> None:
        super().__init__(config)
        self._bounds = bounds
        self._clients: dict[object, bytes] = {}
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
            except OSError:  # the client has closed already, or descriptors or memory ran out
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            client = client_of(ip_address(peer[0]).packed)
            client_connections = sum(each == client for each in self._clients.values())
            if len(self._clients) >= MAX_CONNECTIONS or client_connections >= self._bounds.per_client:
                connection.close()
            else:
                key = object()
                self._clients[key] = client
                self._start(self._serve_connection(connection, partial(self._clients.pop, key, None)))
            # sock_accept() does not yield to the loop if the next connection is already waiting.
            await asyncio.sleep(0)

    async def _serve_connection(self, connection: socket.socket, on_end: Callable[[], object]) -> None:
        config = self.config

        def protocol() -> _Protocol:
            state = self.lifespan.state
            return _Protocol(config=config, server_state=self.server_state, app_state=state, on_end=on_end)

        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        seconds = REQUEST_SECONDS if config.ssl is not None else None
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                protocol, connection, ssl=config.ssl, ssl_handshake_timeout=seconds, ssl_shutdown_timeout=seconds
            )
        except OSError:  # the TLS handshake failed or timed out
            on_end()
        except BaseException:
            on_end()
            raise
