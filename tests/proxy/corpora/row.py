# SPDX-License-Identifier: GPL-2.0-or-later
"""One row of a corpus."""

from __future__ import annotations

from dataclasses import dataclass

ORIGIN, ORIGIN6, PROXY, PROXY6 = "10.77.9.2", "fd77:9::2", "10.77.8.2", "fd77:8::2"
WEB, TUNNEL, INNER = 8080, 443, 2000
"""Ports: of the origin's web server; its goal of tunnels; something on the proxy's host that no client may reach."""
CLOSED = 0
"""The proxy closes the connection, or says nothing, instead of giving a status."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a client sends, and what it must get."""

    id: str
    sent: bytes
    """As it is, but for ``{id}``: the row's own name, by which the origin's record is searched."""
    status: frozenset[int]
    """Any of these, of the first final answer."""
    reaches: int | None = 0
    """How many requests with this id the origin gets; None where either is sound."""
    answers: int = 1
    """How many final answers come."""
    has: bytes = b""
    """In what the client gets."""
    lacks: bytes = b""
    """Not in what the client gets."""
    origin_has: bytes = b""
    """In what the origin gets, in the request with this id."""
    origin_lacks: bytes = b""
    ends: bool = False
    """The client sends no more, and says so (FIN)."""

    @property
    def data(self) -> bytes:
        return self.sent.replace(b"{id}", self.id.encode())

    @property
    def most(self) -> int:
        """Final answers at the most: more are to what nobody asked for. ``/next`` may be a request or of a body."""
        return max(self.answers, 1 + self.sent.count(b"/next "))


def head(first: str, *fields: str, end: str = "\r\n") -> bytes:
    """Return the lines of a request's head."""
    return (end.join([first, *fields, "", ""])).encode("latin-1", "strict")


def get(
    target: str = f"http://{ORIGIN}:{WEB}/{{id}}",
    *fields: str,
    method: str = "GET",
    version: str = "HTTP/1.1",
    body: bytes = b"",
) -> bytes:
    host = target.partition("//")[2].partition("/")[0] or "origin.example"
    return head(f"{method} {target} {version}", f"Host: {host}", *fields) + body


def statuses(*those: int) -> frozenset[int]:
    return frozenset(those)
