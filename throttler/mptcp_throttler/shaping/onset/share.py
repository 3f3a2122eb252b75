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
COUNT_SECONDS = 0.25  # minimum interval over which the rate of a subflow is counted
SILENT_SECONDS = 0.5  # a subflow loses its part if no byte is delivered for this long; samples show it within 1 s
SILENT_ROUND_TRIPS = 2
SILENT_TURNS = 2  # the same time in round trips and in turns of the cap (``Level``), if these are longer
HEADROOM = 1.1  # factor on the level: a subflow below it may want more at any moment, and HTB enforces the cap

LOW_RATE = 5_000_000  # bits/s; from this rate on, an assignment leaves in 0.1 s, and the kernel's buffer suffices
BESIDE_RATE = 96_000_000
"""Rate at which the other paths can send while one assignment leaves, bits/s. The kernel also counts overhead: with
another path of 30 Mbit/s, 64 Mbit/s were not always enough."""
MAX_BYTES = 4 << 20  # maximum send buffer per socket: the kernel's own maximum (default of net.ipv4.tcp_wmem)
STEP = 0.75  # a buffer is not enlarged if it has at least this share of the needed size
MAX_SOCKETS = 128  # maximum number of sockets with a larger buffer: 512 MB if all are full
MAX_IDLE_SOCKETS = MAX_SOCKETS // 2  # the same for sockets without waiting data, so that they leave some for downloads


def send_buffer(rate: int) -> int:
    """Return the send buffer, bytes, that a socket capped at *rate* bits/s needs; 0 for the kernel's default."""
    return 0 if rate >= LOW_RATE else min(MAX_BYTES, BESIDE_RATE * ASSIGNMENT_BYTES // max(1, rate))


def max_min_level(ceil: int, demands: Iterable[int | None]) -> int:
    """Return the level, bits/s, of a cap of *ceil* bits/s. *demands*: ``Demand.rate`` of each user."""
    every = list(demands)
    left, users = float(ceil), len(every)
    for demand in sorted(demand for demand in every if demand is not None):
        if demand * users >= left:
            break
        left -= demand
        users -= 1
    return ceil if users == 0 else min(ceil, round(left / users * HEADROOM))


def is_due(last: Level | None, users: int, now: float) -> bool:
    """Return whether the level of a cap must be recomputed. With many *users*, a further user is not a reason."""
    return last is None or now - last.computed >= SHARE_SECONDS / 2 or abs(users - last.users) * 10 > last.users


@dataclass(slots=True)
class Demand:
    """The demand of one subflow on a shared cap, from samples of its socket."""

    rate: int | None = 0  # bits/s that the subflow takes; None while it is backlogged and makes progress
    waits: bool = False  # whether the subflow has data that has not arrived yet
    acked: int = 0
    counted: float | None = None
    delivered: int = 0
    progressed: float = 0.0

    def count(self, sample: KernelSubflow, now: float, turn: float) -> None:
        """Process a sample; *turn* is that of the cap's :class:`Level`."""
        tcp = sample.tcp
        if self.counted is None or sample.delivered != self.delivered:
            self.delivered, self.progressed = sample.delivered, now
        if self.counted is None or now - self.counted >= COUNT_SECONDS:
            if self.counted is not None:
                self.rate = round(compute_rate(self.acked, sample.bytes_acked, now - self.counted))
            self.acked, self.counted = sample.bytes_acked, now
        self.waits = tcp.not_sent > 0 or tcp.unacked > 0
        patience = max(SILENT_SECONDS, SILENT_ROUND_TRIPS * 1e-6 * tcp.rtt, SILENT_TURNS * turn)
        if tcp.not_sent and now - self.progressed < patience:
            self.rate = None
        elif self.rate is None:
            self.rate = 0


class SendBuffers(dict[int, int]):
    """The minimum size of each larger send buffer, by the cookie of its socket."""

    def grant(self, cookie: int, rate: int, *, backlogged: bool) -> bool:
        """Give a socket capped at *rate* bits/s its buffer, if any is left; return whether the buffer grew."""
        wanted, before = send_buffer(rate), self.get(cookie)
        if before is None:
            grows = bool(wanted) and len(self) < (MAX_SOCKETS if backlogged else MAX_IDLE_SOCKETS)
        else:
            wanted = wanted or MAX_BYTES  # the higher cap needs no buffer, but the kernel no longer adapts this one
            grows = before < STEP * wanted
        if grows:
            self[cookie] = wanted
        return grows

    def uncapped(self, cookie: int) -> int | None:
        """Return the final buffer size of a socket that lost its cap; None if it got no larger buffer."""
        if cookie in self:
            self[cookie] = MAX_BYTES
        return self.get(cookie)
