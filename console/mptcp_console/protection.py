# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks every request: the host name, the token, and the origin of the page that sends it. Adds headers that restrict
what browsers do with the answer.

ASGI middleware around the whole application, so that it also covers routes mounted later.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mptcp_console.access import COOKIE, HostNames, Token

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; manifest-src 'none'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_PUBLIC: Final = re.compile(r"/login|/static/.*", re.DOTALL)
"""The login form, and files of the public source."""
_FORMS: Final = ("/login", "/logout")
"""Paths of forms, for which the origin is not checked: with the console's Referrer-Policy, browsers send ``Origin:
null``. These forms need the token, or only delete a cookie."""


class Protection:
    """Passes permitted requests to *app*."""

    def __init__(
        self, app: ASGIApp, names: HostNames, token: Token | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._app = app
        self._names = names
        self._token = token
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._names.accepts(hosts[0]):
            return PlainTextResponse(
                "This is not a name of the console. Use its address, or add the name to hosts in console.yaml.\n", 421
            )
        if (
            scope["method"] not in ("GET", "HEAD")
            and scope["path"] not in _FORMS
            and not _is_from_own_page(headers, hosts[0])
        ):
            return PlainTextResponse("Another site's page may not do this.\n", 403)
        if self._token is None or _PUBLIC.fullmatch(scope["path"]) or self._has_token(self._token, headers):
            return None
        if scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            return RedirectResponse("/login", 303)
        return JSONResponse(
            {"error": "a token is needed: Authorization: Bearer TOKEN"}, 401, {"WWW-Authenticate": "Bearer"}
        )

    def _has_token(self, token: Token, headers: Headers) -> bool:
        if token.is_in_header(headers.get("authorization", "")):
            return True
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        return token.is_valid_cookie(cookie, self._clock())


def _is_from_own_page(headers: Headers, host: str) -> bool:
    """Return whether the console's own page sends the request. Programs other than browsers send neither header."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    return origin is None or origin.partition("://")[2].lower() == host.lower()
