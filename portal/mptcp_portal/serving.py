# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs a server (uvicorn) for each listening address, in one process with one event loop."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from mptcp_common.certificates import certificate_problem
from mptcp_common.listeners import open_listener
from mptcp_common.problems import DocumentError, Problem
from mptcp_common.renewal import Renewal, keep_checking
from mptcp_common.service_manager import READY, WATCHDOG, notify, notify_or_warn, status, watchdog_seconds
from mptcp_portal.bounded import MAX_CONNECTIONS, BoundedServer, Bounds
from mptcp_portal.captive_page import captive_app
from mptcp_portal.check_page import check_app
from mptcp_portal.onboarding_page import onboarding_app
from mptcp_portal.settings import ListenAddress, Settings
from mptcp_portal.squid_probe import make_squid_probe
from mptcp_portal.squid_socket import is_squid
from mptcp_portal.throttler_client import START_SECONDS, ThrottlerClient

_BOUNDS_FOR_A_PROXY = Bounds(per_client=MAX_CONNECTIONS, keep_alive=75)
"""The limits of a server to which another server passes the requests of all its clients. The idle time is longer than
Squid's (server_idle_pconn_timeout), so that no request is sent on a connection that is being closed."""
_STOP_SECONDS = 2
_BACKLOG = 256


@dataclass(frozen=True, slots=True)
class Service:
    """An application, and the address on which one server serves it."""

    listen: ListenAddress
    app: ASGIApp
    bounds: Bounds
    certificate: tuple[str, str] | None = None
    """The files of the certificate and its key."""


def services(settings: Settings, throttler_client: ThrottlerClient) -> dict[str, Service]:
    """Return the services by name. Raises DocumentError if *settings* do not fit the host."""
    try:
        uid = pwd.getpwnam(settings.squid_user).pw_uid
    except KeyError:
        message = f'there is no user "{settings.squid_user}"; write the cache_effective_user of squid.conf'
        raise DocumentError(
            [Problem(settings.source, 0, 0, "check.squid_user", settings.squid_user, message)]
        ) from None
    onboarding = settings.onboarding
    page = onboarding_app(onboarding) if onboarding else None
    check = check_app(throttler_client, partial(is_squid, uid), page)
    found = {"the check page": Service(settings.check, check, _BOUNDS_FOR_A_PROXY)}
    if onboarding is not None and page is not None:
        found["the page for new clients"] = Service(onboarding.listen, page, Bounds())
    if captive := settings.captive:
        files = (str(captive.certificate), str(captive.key)) if captive.certificate and captive.key else None
        if files is not None:
            _try_certificate(settings, *files)
        bounds = _BOUNDS_FOR_A_PROXY if captive.behind else Bounds()
        found["the captive portal API"] = Service(captive.listen, captive_app(captive, throttler_client), bounds, files)
    return found


def _try_certificate(settings: Settings, certificate: str, key: str) -> None:
    if message := certificate_problem(certificate, key):
        raise DocumentError([Problem(settings.source, 0, 0, "captive_portal.certificate", certificate, message)])


def _listener(listen: ListenAddress) -> socket.socket:
    """Return a listening socket; its address may appear later. Raises OSError."""
    try:
        return open_listener(listen.address, listen.port, _BACKLOG)
    except OSError as error:
        raise OSError(error.errno, f"listen on {listen}: {os.strerror(error.errno or 0)}") from None


def _server(service: Service) -> uvicorn.Server:
    certificate, key = service.certificate or (None, None)
    config = uvicorn.Config(
        service.app,
        http="h11",
        ws="none",
        lifespan="off",
        loop="asyncio",
        # The client is the connection's peer; headers that name another client are ignored.
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        # Clients' data can cause warnings, so any client could fill the journal.
        log_level="error",
        timeout_keep_alive=service.bounds.keep_alive,
        timeout_graceful_shutdown=_STOP_SECONDS,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    # This creates the TLS context.
    config.load()
    return BoundedServer(config, service.bounds)


def _renewals(services_by_name: dict[str, Service], servers: dict[str, uvicorn.Server]) -> Iterator[Renewal]:
    """Set up renewal of each server's certificate; yield the renewals."""
    for name, service in services_by_name.items():
        config = servers[name].config
        if service.certificate is not None and config.ssl is not None:
            renewal = Renewal("mptcp-portal", config.ssl, *service.certificate)
            config.ssl = renewal.context
            yield renewal


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises DocumentError or OSError."""
    throttler_client = ThrottlerClient(settings.status_socket, start=START_SECONDS)
    services_by_name = services(settings, throttler_client)
    listeners = {name: _listener(service.listen) for name, service in services_by_name.items()}
    servers = {name: _server(service) for name, service in services_by_name.items()}
    renewals = list(_renewals(services_by_name, servers))

    def stop() -> None:
        # Otherwise, waiting requests would be aborted after _STOP_SECONDS, each with a traceback.
        throttler_client.close()
        for server in servers.values():
            server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    # The listeners queue connections from now on. This call is not in the task group, which would wrap an error in an
    # ExceptionGroup.
    await make_squid_probe(settings.squid_port, settings.check)
    listening = ", ".join(f"{name} on {service.listen}" for name, service in services_by_name.items())
    print(f"mptcp-portal: {listening}", flush=True)
    notify_or_warn("mptcp-portal", READY, status(listening))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(server.serve([listeners[name]])) for name, server in servers.items()]
        background = [group.create_task(each) for each in (_report_alive(), *map(keep_checking, renewals))]
        await asyncio.wait(tasks)
        for each in background:
            each.cancel()


async def _report_alive() -> None:
    """Report to systemd that the loop is alive."""
    seconds = watchdog_seconds(os.environ)
    while seconds is not None:
        with suppress(OSError):
            notify(WATCHDOG)
        await asyncio.sleep(seconds / 3)
