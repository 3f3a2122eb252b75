# SPDX-License-Identifier: GPL-2.0-or-later
"""Each subflow's share of a cap: its part of the rate, and a larger send buffer (docs/soft-start.md). Pure.

By max-min fairness, as in HTB's leaf queue, all subflows under a cap get the same pacing rate, the *level*. If each
were paced at the whole cap, the MPTCP scheduler would assign too much data to all of them; equal parts of the cap would
waste the parts of idle subflows. A subflow without progress loses its part, because data for a vanished phone would
otherwise keep it for a quarter of an hour.

Under a low cap, a socket gets a larger *send buffer*, which the kernel then no longer adapts to the window. So after
the end of the cap the socket gets the kernel's maximum, and counts towards ``MAX_SOCKETS`` until it closes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mptcp_throttler.mptcp.model import KernelSubflow, compute_rate
from mptcp_throttler.shaping.cap import Level
from mptcp_throttler.shaping.onset.rate_transition import ASSIGNMENT_BYTES

SHARE_SECONDS = 0.5  # seconds between two samples of the subflows under a shared cap
COUNT_SECONDS = 0.25  # minimum interval over which the rate of a subflow is computed
SILENT_SECONDS = 0.5  # a subflow loses its part if no byte is delivered for this long; samples show it within 1 s
SILENT_ROUND_TRIPS = 2
SILENT_ROUNDS = 2  # a subflow also keeps its part for these round trips, and rounds of the cap (``Level``)
HEADROOM = 1.1  # factor on the level: a subflow below it may want more at any moment, and HTB enforces the cap

LOW_RATE = 5_000_000  # bits/s; from this rate on, an assignment leaves in 0.1 s, and the kernel's buffer suffices
OTHER_PATHS_RATE = 96_000_000
"""Rate at which the other paths can send while one assignment leaves, bits/s. The kernel also counts overhead: with
another path of 30 Mbit/s, 64 Mbit/s were not always enough."""
MAX_BYTES = 4 << 20  # maximum send buffer per socket: the kernel's own maximum (default of net.ipv4.tcp_wmem)
MIN_GROWTH_SHARE = 0.75  # a buffer is not enlarged if it has at least this share of the needed size
MAX_SOCKETS = 128  # maximum number of sockets with a larger buffer: 512 MB if all are full
MAX_IDLE_SOCKETS = MAX_SOCKETS // 2  # the same for sockets without waiting data, to leave some buffers for downloads


def send_buffer(rate: int) -> int:
    """Return the send buffer, bytes, that a socket capped at *rate* bits/s needs; 0 for the kernel's default."""
    return 0 if rate >= LOW_RATE else min(MAX_BYTES, OTHER_PATHS_RATE * ASSIGNMENT_BYTES // max(1, rate))


def max_min_level(ceil: int, demands: Iterable[int | None]) -> int:
    """Return the level, bits/s, of a cap of *ceil* bits/s. *demands*: ``Demand.rate`` of each user."""
    rates = list(demands)
    remaining, users = float(ceil), len(rates)
    for demand in sorted(demand for demand in rates if demand is not None):
        if demand * users >= remaining:
            break
        remaining -= demand
        users -= 1
    return ceil if users == 0 else min(ceil, round(remaining / users * HEADROOM))


def is_outdated(level: Level | None, users: int, now: float) -> bool:
    """Return whether the level of a cap must be recomputed. With many *users*, one more does not matter."""
    return level is None or now - level.computed_at >= SHARE_SECONDS / 2 or abs(users - level.users) * 10 > level.users


@dataclass(slots=True)
class Demand:
    """The demand of one subflow on a shared cap, from samples of its socket."""

    rate: int | None = 0  # bits/s that the subflow takes; None while it is backlogged and makes progress
    has_outstanding: bool = False  # whether the subflow has data that has not arrived yet
    acked: int = 0
    rate_time: float | None = None
    delivered: int = 0
    progress_time: float = 0.0

    def count(self, sample: KernelSubflow, now: float, round_seconds: float) -> None:
        """Process a sample; *round_seconds* is that of the cap's :class:`Level`."""
        tcp = sample.tcp
        if self.rate_time is None or sample.delivered != self.delivered:
            self.delivered, self.progress_time = sample.delivered, now
        if self.rate_time is None or now - self.rate_time >= COUNT_SECONDS:
            if self.rate_time is not None:
                self.rate = round(compute_rate(self.acked, sample.bytes_acked, now - self.rate_time))
            self.acked, self.rate_time = sample.bytes_acked, now
        self.has_outstanding = tcp.not_sent > 0 or tcp.unacked > 0
        timeout = max(SILENT_SECONDS, SILENT_ROUND_TRIPS * 1e-6 * tcp.rtt, SILENT_ROUNDS * round_seconds)
        if tcp.not_sent and now - self.progress_time < timeout:
            self.rate = None
        elif self.rate is None:
            self.rate = 0


class SendBuffers(dict[int, int]):
    """The minimum size of each larger send buffer, by the cookie of its socket."""

    def grant(self, cookie: int, rate: int, *, backlogged: bool) -> bool:
        """Give a socket capped at *rate* bits/s its buffer, if any is left; return whether the buffer grew."""
        size, previous = send_buffer(rate), self.get(cookie)
        if previous is None:
            grows = bool(size) and len(self) < (MAX_SOCKETS if backlogged else MAX_IDLE_SOCKETS)
        else:
            size = size or MAX_BYTES  # the higher cap needs no buffer, but the kernel no longer adapts this buffer
            grows = previous < MIN_GROWTH_SHARE * size
        if grows:
            self[cookie] = size
        return grows

    def final_size(self, cookie: int) -> int | None:
        """Return the final buffer size of a socket that lost its cap; None if it got no larger buffer."""
        if cookie in self:
            self[cookie] = MAX_BYTES
        return self.get(cookie)
