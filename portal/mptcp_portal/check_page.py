# SPDX-License-Identifier: GPL-2.0-or-later
"""The check page: it shows a client its own connection through the proxy, and no other client's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mptcp_common import journal
from mptcp_portal.check_report import OLD_CONFIGURATION, Report, Transport, details, remaining_text, report
from mptcp_portal.own_connection import KernelLookup, SingleRequestConnections, kernel_view
from mptcp_portal.pages import SecureHeaders, application, common_files, page, static
from mptcp_portal.squid_socket import SQUID_CONF_LINE, OldHeaderError, client_ends, endpoint, has_body, is_relayed
from mptcp_portal.throttler_client import ThrottlerClient

FromSquid = Callable[[tuple[str, int], tuple[str, int]], bool]
"""Returns whether Squid opened a connection. Arguments: the portal's end, the other end."""
USE: Final = "/use/"
"""The path of the page for new clients, below the check page."""
_RETRY_SECONDS: Final = "3"
"""Seconds until the next request. The page's script uses the same interval."""
_REFUSED = "Only clients of the proxy get this page, through the proxy.\n"
_BODY_REFUSED = "A request for this page must not have a body.\n"
_OLD_CONFIGURATION_WARNING = (
    "the check page cannot show clients their connection: squid.conf sends only their end; the shipped squid.conf "
    f"has {SQUID_CONF_LINE}"
)


class OnlyForSquid:
    """Refuses every request that does not come from Squid on this host."""

    def __init__(self, app: ASGIApp, from_squid: FromSquid) -> None:
        self._app = app
        self._from_squid = from_squid

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours, theirs = scope.get("server"), scope.get("client")
        if not (scope["type"] == "http" and ours and theirs and self._from_squid(ours, theirs)):
            await PlainTextResponse(_REFUSED, 403)(scope, receive, send)
        elif has_body(scope["headers"]):
            # Squid uses one connection for several clients, so no byte of a client's body may remain in it.
            await PlainTextResponse(_BODY_REFUSED, 400, headers={"connection": "close"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class _OldConfigurationWarning:
    def __init__(self) -> None:
        self._is_logged = False

    def log_once(self) -> None:
        if not self._is_logged:
            journal.say(f"mptcp-portal: {_OLD_CONFIGURATION_WARNING}", journal.WARNING)
        self._is_logged = True


def check_app(
    throttler_client: ThrottlerClient,
    from_squid: FromSquid,
    onboarding: ASGIApp | None,
    kernel_view: KernelLookup = kernel_view,
) -> ASGIApp:
    """Return the application. *onboarding*: the page for new clients, which is also served below this page.

    Clients of the proxy can reach it only there, because the proxy denies them all other addresses of this host
    (own_addresses in squid.conf).
    """

    single_request_connections = SingleRequestConnections(kernel_view)
    warning = _OldConfigurationWarning()

    async def make_report(request: Request) -> Report | None:
        try:
            ends = client_ends(request.scope["headers"])
        except OldHeaderError:
            warning.log_once()
            return OLD_CONFIGURATION
        if ends is None:
            return None
        relayed = is_relayed(request.scope["headers"])
        kernel = await single_request_connections.view(ends) if relayed else kernel_view(ends)
        token = kernel.token if kernel else None
        outcome, answer = await throttler_client.client(endpoint(ends.client), endpoint(ends.proxy), token)
        return report(kernel, answer, outcome, relayed=relayed, user_agent=request.headers.get("user-agent", ""))

    async def as_html(request: Request) -> Response:
        found = await make_report(request)
        if found is None:
            return PlainTextResponse(_REFUSED, 403)
        values: dict[str, Any] = {"report": found, "Transport": Transport}
        values |= {each.__name__: each for each in (details, remaining_text)}
        return page("check.html.jinja", use=None if onboarding is None else USE[1:], **values)

    async def as_json(request: Request) -> Response:
        found = await make_report(request)
        if found is None:
            return JSONResponse({"error": _REFUSED.strip()}, 403)
        if found.is_complete:
            return JSONResponse(found.as_json(time.time()))
        # The document has the kernel's part of the report.
        return JSONResponse(found.as_json(time.time()), 503, headers={"retry-after": _RETRY_SECONDS})

    routes: list[BaseRoute] = [
        Route("/", as_html),
        Route("/check.json", as_json),
        *common_files(static("check.js", "text/javascript")),
    ]
    if onboarding is not None:
        routes.append(Mount(USE, app=onboarding))
        # Some users type the address without the slash. The redirect never uses the request's host.
        routes.append(Route(USE[:-1], lambda _: Response(status_code=308, headers={"location": USE})))
    return SecureHeaders(OnlyForSquid(application(routes), from_squid))
