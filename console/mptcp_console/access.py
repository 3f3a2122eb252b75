# SPDX-License-Identifier: GPL-2.0-or-later
"""Access to the console: its token, and its host names. Pure: no clock, no files.

A browser sends the token once, in a form, and gets a cookie with a signed expiry time. So the console has no session
state, and a new token invalidates all cookies. Programs send the token itself (RFC 6750).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

COOKIE: Final = "mptcp_console"
COOKIE_SECONDS: Final = 12 * 3600
MIN_TOKEN_CHARACTERS: Final = 20
MAX_TOKEN_CHARACTERS: Final = 512
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")


def token_problem(text: str) -> str | None:
    """Return why *text*, the content of a file without its last newline, cannot be a token; None if it can be one."""
    if not text:
        return "is empty; write a token into it: openssl rand -hex 32"
    if not _TOKEN.fullmatch(text):
        return "has spaces, several lines or characters that are not ASCII; write one line of letters and digits"
    if not MIN_TOKEN_CHARACTERS <= len(text) <= MAX_TOKEN_CHARACTERS:
        return f"has a token of {len(text)} characters; {MIN_TOKEN_CHARACTERS} to {MAX_TOKEN_CHARACTERS} are allowed"
    return None


class Token:
    """The token, and its cookies."""

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        self._key = hashlib.sha256(b"mptcp-console cookie\0" + self._text).digest()

    def matches(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(errors="replace"), self._text)

    def is_in_header(self, authorization: str) -> bool:
        """Return whether *authorization*, an ``Authorization`` header, has the token."""
        scheme, _, text = authorization.partition(" ")
        return scheme.lower() == "bearer" and self.matches(text.strip())

    def cookie(self, now: float) -> str:
        """Return the value of a cookie that is valid for ``COOKIE_SECONDS`` from *now*."""
        expiry = str(int(now) + COOKIE_SECONDS)
        return f"{expiry}.{self._signature(expiry)}"

    def is_valid_cookie(self, value: str, now: float) -> bool:
        expiry, _, signature = value.partition(".")
        if not hmac.compare_digest(signature.encode(errors="replace"), self._signature(expiry).encode()):
            return False
        return now < int(expiry)

    def _signature(self, expiry: str) -> str:
        return hmac.new(self._key, expiry.encode(errors="replace"), hashlib.sha256).hexdigest()


class HostNames:
    """The host names with which a browser may address the console.

    An attacker can let a host name resolve to the console's address (DNS rebinding), so that the attacker's page has
    the same origin as the console. But the browser sends that name as Host, and a name that is not allowed is refused.
    An IP address as Host is safe, because then no DNS name was resolved.
    """

    def __init__(self, address: str, names: Iterable[str] = ()) -> None:
        """*address*: the address on which the console listens."""
        self._address = ip_address(address)
        self._names = {name.lower().rstrip(".") for name in names}
        # Browsers resolve "localhost" to loopback themselves, and listening on every address includes loopback.
        if self._address.is_loopback or self._address.is_unspecified:
            self._names.add("localhost")

    def accepts(self, host: str) -> bool:
        """Return whether *host*, a ``Host`` header, names this console."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        text = (found[1] or found[2]).lower().rstrip(".")
        try:
            address: IPv4Address | IPv6Address = ip_address(text)
        except ValueError:
            return found[1] is None and text in self._names
        if self._address.is_loopback:
            return address.is_loopback
        return self._address.is_unspecified or address == self._address


def is_loopback(address: str) -> bool:
    return ip_address(address).is_loopback
