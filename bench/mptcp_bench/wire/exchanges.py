# SPDX-License-Identifier: GPL-2.0-or-later
"""Compute the time that the proxy takes to convert MPTCP to TCP and back, from the connections of both sides. Pure.

The target in the first line (RFC 9112, 3.2) connects a client's request with the proxy's request to the origin. So each
request needs its own target, and its own connection on both sides. The header sections of the two sides differ, but a
byte of the body has the same distance from the end of the stream on both sides. The delay of a byte begins when this
byte and all bytes before it have arrived, so that the proxy can read it. The delay ends when the byte is first sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .capture import CaptureError
from .streams import Connection, Stream

NANOSECOND = 1e-9
REQUEST_LINE = re.compile(rb"[A-Z]+ (?:http://[!-.0-~]+)?(/[!-~]*) HTTP/[0-9.]+\r\n")
"""The group is the request's target, without scheme and host."""
MAX_HEADER_SIZE = 16_384
"""Maximum bytes of a header section. If more bytes precede the body, the stream is not one response to one request."""


@dataclass(frozen=True, slots=True)
class Body:
    """Body bytes of a request and of its response."""

    up: int
    down: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request on its way through the proxy and back. All times are in seconds."""

    target: str
    subflows: int
    """Number of subflows of the client's connection."""
    answer: float
    """Seconds from the client's SYN to the SYN+ACK, in which only the proxy's kernel works."""
    syn: float
    """Seconds from the client's third ACK to the SYN to the origin: the paper's conversion of a SYN."""
    syn_after_syn: float
    """Seconds from the client's SYN to the SYN to the origin."""
    syn_after_request: float
    """Seconds from the request's header section to the SYN to the origin: the proxy's own time."""
    request: float
    """Seconds from the client's header section to the header section that the proxy sends to the origin, including the
    handshake of proxy and origin."""
    up: tuple[float, ...]
    """For each segment of the request's body, the time from its arrival until its last byte is sent."""
    down: tuple[float, ...]
    """For each segment of the response's body, the time from its arrival until its last byte is sent."""


def exchanges(
    clients: Iterable[Connection], origins: Iterable[Connection], bodies: Mapping[str, Body]
) -> tuple[Exchange, ...]:
    """Return the exchange of each target in *bodies*, in the order of *bodies*.

    *clients* and *origins* are the connections on the two sides of the proxy; other targets are ignored. Raises
    CaptureError if a request is missing on one side, occurs twice, or its connection has gaps.
    """
    sides = _by_target(clients, bodies, "clients"), _by_target(origins, bodies, "the origin")
    return tuple(_exchange(name, sides[0][name], sides[1][name], body) for name, body in bodies.items())


def _by_target(connections: Iterable[Connection], bodies: Mapping[str, Body], side: str) -> dict[str, Connection]:
    found: dict[str, Connection] = {}
    for connection in connections:
        line = REQUEST_LINE.match(connection.head)
        name = line[1].decode() if line else None
        if name in found:
            raise CaptureError(f"request {name}: on two connections with {side}")
        if name is not None and name in bodies:
            found[name] = connection
    if missing := [name for name in bodies if name not in found]:
        raise CaptureError(
            f"{len(missing)} of {len(bodies)} requests, such as {missing[0]}, have no connection of their own with "
            f"{side}: connections are persistent, or the capture has gaps"
        )
    return found


def _exchange(name: str, client: Connection, origin: Connection, body: Body) -> Exchange:
    if client.fell_back:
        raise CaptureError(f"request {name}: the client's connection fell back to plain TCP in mid-transfer")
    if client.syn_ack is None or client.ack is None or origin.syn_ack is None:
        raise CaptureError(f"request {name}: a handshake is missing")
    complete, sent, up = _relay_delays(f"request {name}", client.up, origin.up, body.up)
    _, _, down = _relay_delays(f"response to {name}", origin.down, client.down, body.down)
    exchange = Exchange(
        target=name,
        subflows=client.subflows,
        answer=NANOSECOND * (client.syn_ack - client.syn),
        syn=NANOSECOND * (origin.syn - client.ack),
        syn_after_syn=NANOSECOND * (origin.syn - client.syn),
        syn_after_request=NANOSECOND * (origin.syn - complete),
        request=NANOSECOND * (sent - complete),
        up=up,
        down=down,
    )
    shortest = min(exchange.answer, exchange.syn, exchange.syn_after_request, exchange.request, *up, *down)
    if shortest < 0:
        raise CaptureError(f"request {name}: a segment was sent {-shortest:.9f} s before it arrived")
    return exchange


def _relay_delays(name: str, arrivals: Stream, departures: Stream, body: int) -> tuple[int, int, tuple[float, ...]]:
    """Return when the header section arrived and was sent, and the delay of each segment that has body bytes.

    The streams *arrivals* and *departures* end with the same *body*, a number of bytes. Raises CaptureError.
    """
    for side, stream in (("in", arrivals), ("out", departures)):
        if not body < stream.total <= body + MAX_HEADER_SIZE:
            raise CaptureError(f"{name}: {stream.total} bytes {side} are not a header section and {body} bytes")
    header, shift = arrivals.total - body, departures.total - arrivals.total
    try:
        departures.readable_time(departures.total - 1)
        times = [
            (arrivals.readable_time(end - 1), departures.first_time(end - 1 + shift))
            for end in (header, *arrivals.segment_ends(header))
        ]
    except CaptureError as error:
        raise CaptureError(f"{name}: {error}") from None
    return *times[0], tuple(NANOSECOND * (sent - arrived) for arrived, sent in times[1:])
