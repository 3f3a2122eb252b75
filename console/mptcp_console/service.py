# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs the console: its listening socket, its server (uvicorn), and notifications to systemd."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import suppress
from types import FrameType
from typing import Any, Final

import uvicorn
from starlette.routing import Route

from mptcp_common import journal
from mptcp_common.exit_status import DONE, FAILED
from mptcp_common.http_bounds import REQUEST_SECONDS, BoundedHttp
from mptcp_common.listeners import open_listener
from mptcp_common.renewal import Renewal, keep_checking
from mptcp_common.service_manager import READY, WATCHDOG, notify, notify_or_warn, status
from mptcp_console.application import Console
from mptcp_console.metrics import ProxyHealth, Scraper, Sources
from mptcp_console.query_queue import QueryQueue
from mptcp_console.saved_volumes import SavedVolumes
from mptcp_console.settings import Settings
from mptcp_console.watch import Watch, make_query

MAX_CONNECTIONS: Final = 256
"""Maximum number of concurrent HTTP connections. Requests on further connections are answered with an error."""
BACKLOG: Final = 64
STOP_SECONDS: Final = 2
"""Seconds for which the console, when it stops, waits for answers that are being sent."""


class _Loop(asyncio.SelectorEventLoop):
    """Limits a TLS handshake to the time of a request, because asyncio's default is a minute, and uvicorn sets no other
    limit."""

    async def create_server(self, *arguments: Any, **named: Any) -> asyncio.Server:
        if named.get("ssl") is not None:
            named["ssl_handshake_timeout"] = REQUEST_SECONDS
        return await super().create_server(*arguments, **named)


class _Server(uvicorn.Server):
    """Reports when it is ready, and exits with status 0 on request."""

    def __init__(self, config: uvicorn.Config, watch: Watch, ready_text: str) -> None:
        super().__init__(config)
        self._watch = watch
        self._ready_text = ready_text

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        notify_or_warn("mptcp-console", READY, status(self._ready_text))
        journal.say(f"mptcp-console: {self._ready_text}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Streams end with the watch; uvicorn waits for them.
        await self._watch.close()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    try:
        listener = open_listener(settings.address, settings.port, BACKLOG)
    except OSError as error:
        _log_error(f"listen on {settings.address} port {settings.port}: {error.strerror}")
        return FAILED
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(_serve(settings, listener))


async def _serve(settings: Settings, listener: socket.socket) -> int:
    last_text: list[str] = []

    def report(text: str) -> None:
        with suppress(OSError):
            notify(WATCHDOG, status(f"{settings.url}: {text}"))
        # Log the text only if it has changed.
        if last_text != [text]:
            last_text[:] = [text]
            journal.say(f"mptcp-console: {text}")

    query = make_query(settings.status_socket)
    query_queue = QueryQueue(query)
    saved_volumes = SavedVolumes(os.environ.get("STATE_DIRECTORY"))
    watch = Watch(query, settings.status_socket, report, query_queue.invalidate, volumes=saved_volumes.read())
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        Console(watch, query_queue, settings).application(metrics(settings), proxy_health(settings)),
        loop="asyncio",
        http=BoundedHttp,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # clients' addresses do not belong in the journal
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        backlog=BACKLOG,
        timeout_graceful_shutdown=STOP_SECONDS,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
    )
    config.load()
    background_tasks = [asyncio.create_task(saved_volumes.keep_writing(watch.volumes.serialize))]
    if config.ssl is not None:
        renewal = Renewal("mptcp-console", config.ssl, str(settings.certificate), str(settings.key))
        config.ssl = renewal.context
        background_tasks.append(asyncio.create_task(keep_checking(renewal)))
    try:
        await _Server(config, watch, f"serving {settings.url}").serve(sockets=[listener])
    finally:
        for task in background_tasks:
            task.cancel()
        await asyncio.gather(*background_tasks, return_exceptions=True)
    return DONE


def metrics(settings: Settings) -> Route:
    """Return the route of the metrics."""
    # A Mount would redirect Prometheus to /metrics/.
    return Route("/metrics", Scraper(Sources(settings.status_socket, settings.squid)))


def proxy_health(settings: Settings) -> Route:
    """Return the route of the proxy's state, for the page."""
    return Route("/api/proxy", ProxyHealth(Sources(settings.status_socket, settings.squid)).answer)


def _log_error(text: object) -> None:
    journal.say(f"mptcp-console: {text}", journal.ERROR)
