"""Which capped sockets get a larger send buffer, and how large: bounded in total. Pure.

The scheduler assigns data in pieces of 64 KB, and what a subflow with a low cap was assigned takes half a second to
leave. Until then the connection keeps whatever the other paths sent meanwhile: its send buffer, small where congestion
windows are small, is full before that, and the other paths wait. The connection's buffer is the sum of its subflows',
so that a larger one on the capped subflow is enough (docs/soft-start.md).

The kernel no longer fits the buffer of such a socket to its window, not even after the cap. So it gets the most then
that the kernel would have given it, and counts until it is gone. Sockets are known by their cookies.
"""

from __future__ import annotations

from mptcp_throttler.shaping.rate_transition import ASSIGNMENT_BYTES

LOW_RATE = 5_000_000
"""Bits/s. From here on one assignment leaves within 0.1 s, and the kernel's own buffer is enough."""
BESIDE_RATE = 96_000_000
"""Bits/s that the buffer lets the other paths send while one assignment leaves. The kernel counts more than the data:
beside a path of 30 Mbit/s, 64 were not always enough."""
MAX_BYTES = 4 << 20
"""Of one socket: what the kernel itself gives one at the most (net.ipv4.tcp_wmem, its default)."""
STEP = 0.75
"""A buffer of at least that share of what is needed is not made larger."""
MAX_SOCKETS = 128
"""How many may have one: 512 MB, if all of them were full."""
MAX_IDLE_SOCKETS = MAX_SOCKETS // 2
"""How many there may be when one gets it that has no data waiting: thousands of connections that hardly send leave the
rest to downloads."""


def send_buffer(rate: int) -> int:
    """Return how large the send buffer of a socket is to be that is capped at *rate* bits/s; 0: as it is."""
    return 0 if rate >= LOW_RATE else min(MAX_BYTES, BESIDE_RATE * ASSIGNMENT_BYTES // max(1, rate))


class SendBuffers:
    """Who has a larger send buffer."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def of(self, cookie: int) -> int | None:
        """Return how large a socket's buffer is to be at least; None where it was given none."""
        return self._bytes.get(cookie)

    def grant(self, cookie: int, rate: int, *, backlogged: bool) -> bool:
        """Give a socket that is capped at *rate* bits/s the buffer that it needs, if there is room.

        Return whether it is larger than before.
        """
        wanted, before = send_buffer(rate), self._bytes.get(cookie)
        if before is not None and not wanted:
            wanted = MAX_BYTES  # the cap is higher now, and the kernel gives it no more by itself
        if before is None:
            refused = not wanted or len(self._bytes) >= (MAX_SOCKETS if backlogged else MAX_IDLE_SOCKETS)
        else:
            refused = before >= STEP * wanted
        if not refused:
            self._bytes[cookie] = wanted
        return not refused

    def uncapped(self, cookie: int) -> int | None:
        """Return how large the buffer of a socket is to be whose cap has gone; None where it was given none."""
        if cookie not in self._bytes:
            return None
        self._bytes[cookie] = MAX_BYTES
        return MAX_BYTES

    def gone(self, cookie: int) -> None:
        """The socket is closed; unknown ones are fine."""
        self._bytes.pop(cookie, None)
