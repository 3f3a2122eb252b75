# SPDX-License-Identifier: GPL-2.0-or-later
"""The captive portal API, RFC 8908: no client is captive, and each gets its own remaining volume.

The client is the peer's address. If the peer is the web server in front (setting ``behind``), the client is
the address in its X-Forwarded-For.
``bytes-remaining`` is the smallest number of bytes until the next step of a budget that counts this address, even
if it has no connection. It is omitted if there is no such budget, or if the throttler does not run. If there are too
many requests at once, or the throttler does not answer in time, the client must retry: an answer without the volume
would mean that no budget limits the client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from random import randrange
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from mptcp_portal.check_report import ThrottlerOutcome
from mptcp_portal.netlink import Address, unmap_ipv4
from mptcp_portal.pages import SecureHeaders, application
from mptcp_portal.settings import Captive, Network
from mptcp_portal.throttler_client import MAX_ADDRESSES, PAUSE_SECONDS, ThrottlerClient

MEDIA_TYPE = "application/captive+json"
_RETRY_SECONDS = round(MAX_ADDRESSES * PAUSE_SECONDS)
"""Seconds until all waiting clients have their answer. A client that is refused retries after this time plus a random
part of it, so that clients do not all retry at once."""
_RETRY_ERRORS = {
    ThrottlerOutcome.BUSY: "too many requests at the moment",
    ThrottlerOutcome.SILENT: "the volume is unknown at the moment",
}
"""The error messages for clients that must retry."""


def client_address(peer: str, forwarded: Sequence[str], behind: Sequence[Network]) -> Address | None:
    """Return the client of a request from *peer*; None if it is unknown.

    *forwarded*: the values of X-Forwarded-For. Only the last one counts, and only from *behind*.
    """
    try:
        address = unmap_ipv4(ip_address(peer))
        if not behind:
            return address
        if not any(address in network for network in behind):
            return None
        client = ",".join(forwarded).rpartition(",")[2].strip()
        return unmap_ipv4(ip_address(client))
    except ValueError:
        return None


def _bytes_until_next_step(budget: Mapping[str, Any]) -> int:
    """Return the bytes until the next step; 0 after the last step."""
    step = budget.get("next_step")
    return 0 if step is None else max(0, int(step) - int(budget["used"]))


def captive_app(captive: Captive, throttler_client: ThrottlerClient) -> ASGIApp:
    """Return the application."""

    async def answer(request: Request) -> Response:
        peer = request.client.host if request.client else ""
        client = client_address(peer, request.headers.getlist("x-forwarded-for"), captive.behind)
        if client is None:
            return JSONResponse({"error": "the client is unknown"}, 403)
        outcome, found = await throttler_client.budgets_of(str(client))
        if outcome in _RETRY_ERRORS:
            retry = str(_RETRY_SECONDS + randrange(_RETRY_SECONDS))
            return JSONResponse({"error": _RETRY_ERRORS[outcome]}, 503, headers={"retry-after": retry})
        document: dict[str, Any] = {"captive": False}
        if captive.user_portal_url is not None:
            document["user-portal-url"] = captive.user_portal_url
        remaining = [_bytes_until_next_step(each) for each in found.get("budgets", ())]
        if remaining:
            document["bytes-remaining"] = min(remaining)
        return JSONResponse(document, media_type=MEDIA_TYPE, headers={"cache-control": "private, no-store"})

    return SecureHeaders(application([Route("/captive-portal", answer)]))
