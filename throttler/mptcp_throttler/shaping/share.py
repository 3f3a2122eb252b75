"""How much of a shared cap each of its subflows may take. Pure: max-min fairness, as HTB's leaf queue would give.

The pacing rate of every user of a cap is set to one *level*. Were it the whole cap, the MPTCP scheduler would take each
subflow for that fast and give all of them too much; a plain n-th part would leave unused what idle ones do not take.

A part belongs to a subflow that makes progress: to one whose data arrive. Data wait for a phone that vanished too, for
as long as TCP goes on trying, a quarter of an hour; its part is given up when nothing arrived for a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mptcp_throttler.mptcp.model import KernelSubflow

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


class Level(NamedTuple):
    """What each user of one cap may have."""

    computed: float
    """When."""
    users: int
    rate: int
    """Bits/s of each user."""
    turn: float
    """Seconds in which the cap sends a segment of each user that has data waiting."""


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
        if tcp is None:
            return
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
