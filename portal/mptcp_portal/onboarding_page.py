# SPDX-License-Identifier: GPL-2.0-or-later
"""The page for new clients, and the files that configure them. It depends only on the operator's settings.

The page contains nothing from the request, such as its Host header or address. Its links are relative, because it is
also served below another path (``check_page``).
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from mptcp_portal import profile, proxy_pac
from mptcp_portal.pages import SecureHeaders, application, common_files, page
from mptcp_portal.qr_code import qr_svg
from mptcp_portal.settings import CHECK_NAME, Onboarding


def onboarding_app(onboarding: Onboarding) -> ASGIApp:
    """Return the application."""
    pac = proxy_pac.proxy_pac(onboarding).encode()
    qr = qr_svg(onboarding.url)
    has_profile = profile.has_profile(onboarding)

    async def as_html(_: Request) -> Response:
        return page("onboarding.html.jinja", onboarding=onboarding, has_profile=has_profile, check_name=CHECK_NAME)

    async def script(_: Request) -> Response:
        return Response(pac, media_type=proxy_pac.MEDIA_TYPE)

    async def picture(_: Request) -> Response:
        return Response(qr, media_type="image/svg+xml")

    async def apple(_: Request) -> Response:
        return Response(
            profile.profile(onboarding),
            media_type=profile.MEDIA_TYPE,
            headers={"content-disposition": 'attachment; filename="proxy.mobileconfig"'},
        )

    routes = [
        Route("/", as_html),
        Route("/proxy.pac", script),
        Route("/wpad.dat", script),
        Route("/qr.svg", picture),
        *common_files(),
    ]
    if has_profile:
        routes.append(Route("/proxy.mobileconfig", apple))
    return SecureHeaders(application(routes))
