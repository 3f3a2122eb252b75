# SPDX-License-Identifier: GPL-2.0-or-later
"""The common parts of all pages: templates, the style sheet, security headers, and routing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECURITY_HEADERS: Final = {
    # Load nothing from other sites, and no inline script or style.
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # No other site may embed the portal's answers, for example as an image or a script.
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
"""Default headers of every answer."""


class SecureHeaders:
    """Adds SECURITY_HEADERS to every answer of *app*."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)


def application(routes: Sequence[BaseRoute]) -> Starlette:
    """Return the application with *routes*; other paths give 404."""
    app = Starlette(routes=routes)
    # Starlette would redirect from /x/ to /x on the host that the Host header names.
    app.router.redirect_slashes = False
    return app


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("mptcp_portal"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page(template: str, **values: Any) -> HTMLResponse:
    """Return *template* filled with *values*."""
    return HTMLResponse(_environment().get_template(template).render(**values))


def static(name: str, media_type: str) -> Route:
    """Return the route of a packaged file."""
    content = files("mptcp_portal").joinpath("static", name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(content, media_type=media_type)

    return Route(f"/{name}", answer)


def common_files(*routes: Route) -> list[Route]:
    """Return the routes of the files that all pages use, and *routes*."""
    return [static("portal.css", "text/css"), static("icon.svg", "image/svg+xml"), *routes]
