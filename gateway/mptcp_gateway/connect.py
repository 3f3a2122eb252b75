# SPDX-License-Identifier: GPL-2.0-or-later
"""The CONNECT request for a tunnel through a proxy, and its answer (RFC 9110, 9.3.6). Pure."""

from __future__ import annotations

import base64
from typing import Final, NamedTuple

from mptcp_gateway.model import Address

MAX_HEAD: Final = 8192
CHECK_ADDRESS: Final = "192.0.2.80"
"""An unused address (RFC 5737). Devices get the proxy's check page at this address, also without a name server."""
CHECK_NAME: Final = "check.mptcp.internal"
_PASSED_FIELDS: Final = (b"accept", b"accept-language", b"user-agent")
"""Header fields that are passed on in a request for the check page."""
_END: Final = b"\r\n\r\n"


class Answer(NamedTuple):
    status: int
    after_head: bytes


def _authorization(login: str) -> str:
    return f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}\r\n" if login else ""


def request(address: Address, port: int, login: str) -> bytes:
    """Return the request. *login* is NAME:PASSWORD, or empty."""
    host = f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
    return f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n{_authorization(login)}\r\n".encode()


def answer(received: bytes) -> Answer | None:
    """Return the proxy's answer; None while it is incomplete. Raises ValueError if it is not HTTP."""
    head, end, after_head = received.partition(_END)
    if not end:
        if len(received) > MAX_HEAD:
            raise ValueError("the parent's answer does not end")
        return None
    words = head.split(b"\r\n", 1)[0].split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or len(words[1]) != 3 or not words[1].isdigit():
        raise ValueError("the parent's answer is not HTTP")
    return Answer(int(words[1]), after_head)


def check_request(received: bytes, login: str) -> bytes | None:
    """Return a browser's request as a proxy request for the check page; None while incomplete. Raises ValueError."""
    head, end, after_head = received.partition(_END)
    if not end:
        if len(received) > MAX_HEAD:
            raise ValueError("the request does not end")
        return None
    lines = head.split(b"\r\n")
    words = lines[0].split(b" ")
    # The proxy must not read a part of this request as a second request, which would not have been checked here.
    if len(words) != 3 or words[0] not in (b"GET", b"HEAD") or not words[1].startswith(b"/"):
        raise ValueError("not a request for a page")
    if any(b"\n" in each or b"\r" in each for each in lines) or after_head:
        raise ValueError("more than one request for a page")
    passed_fields = [each for each in lines[1:] if each.split(b":")[0].strip().lower() in _PASSED_FIELDS]
    request_line = b"%s http://%s%s HTTP/1.1" % (words[0], CHECK_NAME.encode(), words[1])
    added_fields = f"Host: {CHECK_NAME}\r\nVia: 1.1 mptcp-forwarder\r\nConnection: close\r\n{_authorization(login)}"
    return b"\r\n".join([request_line, *passed_fields, added_fields.encode()]) + b"\r\n"
