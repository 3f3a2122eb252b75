"""One process, one event loop, and a server for each address: uvicorn, without anything that it does not need."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import ip_address

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from mptcp_common.problems import DocumentError, Problem
from mptcp_common.reasons import reason
from mptcp_common.service_manager import READY, WATCHDOG, notify, status, watchdog_seconds
from mptcp_portal.asking import Asker
from mptcp_portal.captive_page import captive_app
from mptcp_portal.check_page import check_app
from mptcp_portal.onboarding_page import onboarding_app
from mptcp_portal.settings import End, Settings
from mptcp_portal.squid_socket import is_squid

MOST_CONNECTIONS = 512
"""Of each server: none takes the descriptors of another."""
FIRST_REQUEST_SECONDS = 20.0
"""Within which a client that has connected asks for something."""
KEEP_ALIVE_SECONDS = 75
"""Longer than Squid keeps an idle connection to its peer (pconn_timeout), or a request might meet its end."""
_STOP_SECONDS = 2
_IP_FREEBIND, _IPV6_FREEBIND = 15, 78
"""linux/in.h, linux/in6.h."""


class _Protocol(H11Protocol):
    """HTTP/1.1 with bounds: on the connections, and on the time until the first request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self.loop.call_later(FIRST_REQUEST_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None:
            self.transport.abort()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to serve(): there are several servers."""
        yield


def apps(settings: Settings) -> dict[str, tuple[End, ASGIApp, tuple[str, str] | None]]:
    """Return each server's name with its end, what it serves, and its certificate and key.

    Raises DocumentError where this host is not as *settings* say.
    """
    try:
        uid = pwd.getpwnam(settings.squid_user).pw_uid
    except KeyError:
        message = f'there is no user "{settings.squid_user}"; write what squid.conf has as cache_effective_user'
        raise DocumentError(
            [Problem(settings.source, 0, 0, "check.squid_user", settings.squid_user, message)]
        ) from None
    asker = Asker(settings.status_socket)
    onboarding = settings.onboarding
    url = onboarding.url if onboarding else None
    found: dict[str, tuple[End, ASGIApp, tuple[str, str] | None]] = {
        "the check page": (settings.check, check_app(asker, partial(is_squid, uid), url), None)
    }
    if onboarding is not None:
        found["the page for new clients"] = (onboarding.listen, onboarding_app(onboarding), None)
    if captive := settings.captive:
        files = (captive.certificate, captive.key) if captive.certificate and captive.key else None
        if files is not None:
            _try_certificate(settings, *files)
        found["the captive portal API"] = (captive.listen, captive_app(captive, asker), files)
    return found


def _try_certificate(settings: Settings, certificate: str, key: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        message = f"{certificate} with {key} cannot be used: {reason(error)}"
        raise DocumentError(
            [Problem(settings.source, 0, 0, "captive_portal.certificate", certificate, message)]
        ) from None


def _listener(end: End) -> socket.socket:
    """Return a listening socket, on an address that may come later. Raises OSError."""
    address = ip_address(end.address)
    listener = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.version == 4:
            listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        else:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        listener.bind((end.address, end.port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"listen on {end}: {os.strerror(error.errno or 0)}") from None
    return listener


def _server(app: ASGIApp, files: tuple[str, str] | None) -> uvicorn.Server:
    certificate, key = files or (None, None)
    return _Server(
        uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            # Who asks is whom the connection comes from, not whom a header names.
            proxy_headers=False,
            server_header=False,
            access_log=False,
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
    )


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises DocumentError or OSError where that cannot be."""
    found = apps(settings)
    listeners = {name: _listener(end) for name, (end, _, _) in found.items()}
    servers = {name: _server(app, files) for name, (_, app, files) in found.items()}

    def stop() -> None:
        for server in servers.values():
            server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(server.serve([listeners[name]])) for name, server in servers.items()]
        said = ", ".join(f"{name} on {end}" for name, (end, _, _) in found.items())
        print(f"mptcp-portal: {said}", flush=True)
        notify(READY, status(said))
        living = group.create_task(_live())
        await asyncio.wait(tasks)
        living.cancel()


async def _live() -> None:
    """Tell systemd that the loop turns."""
    seconds = watchdog_seconds(os.environ)
    while seconds is not None:
        with suppress(OSError):
            notify(WATCHDOG)
        await asyncio.sleep(seconds / 3)
