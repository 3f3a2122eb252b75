"""What the socket of each user of a cap is given: its part of the rate, and a larger send buffer. Pure.

The parts are by max-min fairness, as HTB's leaf queue would give.
The pacing rate of every user of a cap is set to one *level*. Were it the whole cap, the MPTCP scheduler would take each
subflow for that fast and give all of them too much; a plain n-th part would leave unused what idle ones do not take.

A part belongs to a subflow that makes progress: to one whose data arrive. Data wait for a phone that vanished too, for
as long as TCP goes on trying, a quarter of an hour; its part is given up when nothing arrived for a while.

A larger *send buffer* is for low caps. What a subflow with one was assigned, in pieces of 64 KB, takes half a second to
leave. Until then the connection keeps whatever the other paths sent meanwhile: its send buffer, small where congestion
windows are small, is full before that, and the other paths wait. The connection's buffer is the sum of its subflows',
so that a larger one on the capped subflow is enough (docs/soft-start.md). The kernel no longer fits the buffer of such
a socket to its window, not even after the cap. So it gets the most then that the kernel would have given it, and counts
until it is gone: their number is bounded. Sockets are known by their cookies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mptcp_throttler.mptcp.model import KernelSubflow
from mptcp_throttler.shaping.cap import Level
from mptcp_throttler.shaping.onset.rate_transition import ASSIGNMENT_BYTES

SHARE_SECONDS = 0.5
"""Between two samples of those that share a cap."""
COUNT_SECONDS = 0.25
"""Over which the rate of a subflow is counted, at least."""
SILENT_SECONDS = 0.5
"""Without a byte that arrives, after which a subflow is taken for vanished: with samples every half a second it has
given its part up within one."""
SILENT_ROUND_TRIPS = 2
SILENT_TURNS = 2
"""The same where that takes longer: in round trips, and in the times that the cap takes to send a segment of each."""
HEADROOM = 1.1
"""A subflow that takes less than its level may want more any moment, and HTB holds the cap in any case."""

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


def max_min_level(ceil: int, demands: Iterable[int | None]) -> int:
    """Return the level, bits/s, of a cap of *ceil* bits/s. O(n log n) for n users.

    *demands* has an item for each user: the bits/s that it takes while nothing waits, or None while it is backlogged.
    """
    satisfied, backlogged = [], 0
    for demand in demands:
        if demand is None:
            backlogged += 1
        else:
            satisfied.append(demand)
    satisfied.sort()
    left, users = float(ceil), len(satisfied) + backlogged
    for demand in satisfied:
        if demand * users >= left:
            break
        left -= demand
        users -= 1
    return ceil if users == 0 else min(ceil, round(left / users * HEADROOM))


def is_due(last: Level | None, users: int, now: float) -> bool:
    """Tell whether the level of a cap with so many *users* is to be computed anew: with many not for every new one."""
    return last is None or now - last.computed >= SHARE_SECONDS / 2 or abs(users - last.users) * 10 > last.users


@dataclass(slots=True)
class Demand:
    """What one subflow demands of a shared cap, from samples of its socket."""

    rate: int | None = 0
    """Bits/s that it takes while nothing waits, or nothing arrives; None while it is backlogged."""
    waits: bool = False
    """It has data that did not arrive yet."""
    acked: int = 0
    """Bytes, when last counted."""
    counted: float | None = None
    delivered: int = 0
    progressed: float = 0.0
    """When it was last seen that more had been delivered."""

    def count(self, sample: KernelSubflow, now: float, turn: float) -> None:
        """Take a sample; *turn*: seconds in which the cap sends a segment of each subflow that waits."""
        tcp = sample.tcp
        if self.counted is None or sample.delivered != self.delivered:
            self.delivered, self.progressed = sample.delivered, now
        if self.counted is None or now - self.counted >= COUNT_SECONDS:
            if self.counted is not None:
                self.rate = round(8 * max(0, sample.bytes_acked - self.acked) / (now - self.counted))
            self.acked, self.counted = sample.bytes_acked, now
        self.waits = tcp.not_sent > 0 or tcp.unacked > 0
        patience = max(SILENT_SECONDS, SILENT_ROUND_TRIPS * 1e-6 * tcp.rtt, SILENT_TURNS * turn)
        if tcp.not_sent and now - self.progressed < patience:
            self.rate = None
        elif self.rate is None:
            self.rate = 0


def turn_seconds(ceil: int, waiting: int, segment: int) -> float:
    """Return how long a cap of *ceil* bits/s takes to send a segment, bytes, of each of so many that wait."""
    return 8 * segment * waiting / ceil


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
