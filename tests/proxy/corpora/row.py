# SPDX-License-Identifier: GPL-2.0-or-later
"""A row of a corpus: a request and its required result."""

from __future__ import annotations

from dataclasses import dataclass

ORIGIN, ORIGIN6, PROXY, PROXY6 = "10.77.9.2", "fd77:9::2", "10.77.8.2", "fd77:8::2"
WEB, TUNNEL, INNER = 8080, 443, 2000
"""Ports of the origin's web server, of its target for tunnels, and of a forbidden service on the proxy's host."""
CLOSED = 0
"""Pseudo status: the proxy closes the connection or sends nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """Data that a client sends, and the required result."""

    id: str
    sent: bytes
    """Bytes to send. The test replaces ``{id}`` with the row's id, and finds the request in the origin's record by this
    id."""
    status: frozenset[int]
    """Allowed statuses of the first final answer."""
    reaches: int | None = 0
    """Number of requests with this id that the origin must get; None if both none and one are acceptable."""
    answers: int = 1
    """Number of final answers that must arrive."""
    has: bytes = b""
    """Bytes that the client must receive."""
    lacks: bytes = b""
    """Bytes that the client must not receive."""
    origin_has: bytes = b""
    """Bytes that the origin must receive in the request with this id."""
    origin_lacks: bytes = b""
    """Bytes that the origin must not receive in the request with this id."""
    ends: bool = False
    """Whether the client closes its half of the connection (FIN) after sending."""

    @property
    def data(self) -> bytes:
        return self.sent.replace(b"{id}", self.id.encode())

    @property
    def max_answers(self) -> int:
        """Return the maximum number of final answers; a further answer would belong to a request that no client sent.

        ``/next`` may be a separate request or part of a body.
        """
        return max(self.answers, 1 + self.sent.count(b"/next "))


def head(first: str, *fields: str, end: str = "\r\n") -> bytes:
    """Return the lines of a request's header."""
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


def statuses(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)
