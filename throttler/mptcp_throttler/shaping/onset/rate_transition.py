# SPDX-License-Identifier: GPL-2.0-or-later
"""The rate transition of one subflow from full rate to its cap. Pure.

docs/soft-start.md has the reasons and the phases: *drain*, *ramp*, *settle* and *done*. During the ramp, the bound on
unsent data falls in bytes, because unsent bytes weight the scheduler's average rate. As time to send them, it grows:
the scheduler uses no other path while this one would be free sooner, so a path with a longer RTT would run out of data.

A cap of at least ``NO_TRANSITION_SHARE`` of the subflow's rate needs no transition.

All transitions of a cap share an *allowance* of bits in excess of it, sized for the first transition. When it is used
up, all are capped immediately; the next one is granted after ``ALLOWANCE_PAUSE_SECONDS`` without its use.

Times are monotonic seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mptcp_throttler.mptcp.model import TcpInfo
from mptcp_throttler.shaping.cap import LiveCap
from mptcp_throttler.shaping.model import NO_TRANSITION_SHARE, SocketLimit

UNSENT_SECONDS = 0.02  # bound on unsent data when the ramp begins, as time to send them
UNSENT_GROWTH_SECONDS, UNSENT_GROWTH_RATE = 0.15, 5_000_000
"""By this many seconds the bound on unsent data grows during the ramp, for targets of at least this rate (bits/s). For
lower targets, proportionally less: there, sending one assignment takes longer than the other paths' buffers last."""
RAMP_SECONDS = 0.6
MAX_DRAIN_SECONDS = 0.3  # a cap must be in force within 1 s; drain and ramp leave 0.1 s for the round trip
DRAINED_FACTOR = 1.1  # the ramp begins when the unsent data are at most this multiple of the bound
ASSIGNMENT_BYTES = 65_536  # one assignment of the scheduler (MPTCP_SEND_BURST_SIZE, net/mptcp/protocol.c)
SETTLE_ASSIGNMENTS = 4  # duration of *settle*, as time to send this many assignments at the cap's rate
MAX_SETTLE_SECONDS = 3.0
MIN_UNSENT_BYTES = 2 * 1448  # minimum bound on unsent data: two segments

ALLOWANCE_PAUSE_SECONDS = 10.0
ALLOWANCE_FACTOR = 1.5  # multiple of the computed bits of a transition: rates are estimates, and samples are late


def needs_transition(tcp: TcpInfo, rate: int) -> bool:
    """Return whether a subflow sends so much more than *rate* bits/s that a cap needs a transition."""
    return max(tcp.delivery_rate, tcp.pacing_rate) * NO_TRANSITION_SHARE > rate and (
        tcp.not_sent > 0 or tcp.unacked * tcp.mss > MIN_UNSENT_BYTES
    )


@dataclass(slots=True)
class RateTransition:
    """The transition of one subflow. Rates in bits/s, times in monotonic seconds."""

    start: int
    target: int
    began: float
    previous_rate: int | None = None  # rate of the previous cap, if any, which stays in force until the ramp begins
    ramp_began: float | None = None  # None during drain
    is_capped: bool = False  # whether the HTB class may enforce the cap: during settle, and when done
    is_done: bool = False

    @classmethod
    def begin(cls, tcp: TcpInfo, target: int, now: float, previous_rate: int | None = None) -> RateTransition:
        """Begin at *now*, from the state *tcp* of the socket, whose previous cap has *previous_rate*."""
        start = tcp.pacing_rate if tcp.delivery_rate < target else min(tcp.pacing_rate, tcp.delivery_rate)
        return cls(max(start, target), target, now, previous_rate)

    def step(self, now: float, not_sent: int) -> SocketLimit:
        """Advance the transition to *now*, with *not_sent* bytes unsent; return the new limits of the socket."""
        if self.ramp_began is None:
            unsent = self._unsent(self.start, 0.0)
            if not_sent > DRAINED_FACTOR * unsent and now - self.began < MAX_DRAIN_SECONDS:
                return SocketLimit(self.previous_rate, unsent)
            self.ramp_began = now
        elapsed = now - self.ramp_began
        if elapsed < RAMP_SECONDS:
            rate = round(self.start * (self.target / self.start) ** (elapsed / RAMP_SECONDS))
            return SocketLimit(rate, self._unsent(rate, elapsed / RAMP_SECONDS))
        settle_seconds = min(MAX_SETTLE_SECONDS, SETTLE_ASSIGNMENTS * ASSIGNMENT_BYTES * 8 / self.target)
        self.is_capped, self.is_done = True, elapsed >= RAMP_SECONDS + settle_seconds
        return SocketLimit(self.target, None if self.is_done else self._unsent(self.target, 1.0))

    def _unsent(self, rate: int, ramp_share: float) -> int:
        """Return the bound on unsent bytes at *rate* after this *ramp_share*, from 0 to 1."""
        growth = UNSENT_GROWTH_SECONDS * min(1.0, self.target / UNSENT_GROWTH_RATE)
        seconds = UNSENT_SECONDS + ramp_share * growth
        return max(MIN_UNSENT_BYTES, int(rate / 8 * seconds))


def begin_allowance(cap: LiveCap, start: int, target: int, now: float) -> bool:
    """Grant a new allowance if one is due, for *start* to *target* bits/s; return whether any allowance is left."""
    if cap.allowance_used_at is None or now - cap.allowance_used_at > ALLOWANCE_PAUSE_SECONDS:
        # Drain at the start rate, then a geometric ramp.
        ramp = (start - target) / math.log(start / target) if start > target else start
        cap.allowance = ALLOWANCE_FACTOR * (start * MAX_DRAIN_SECONDS + ramp * RAMP_SECONDS)
    cap.allowance_used_at = now
    return cap.allowance > 0


def spend_allowance(cap: LiveCap, octets: float, now: float) -> bool:
    """Charge bytes of a transition to the allowance; return whether any is left."""
    if cap.allowance_used_at is None:
        return True  # a new policy has reset the allowance
    cap.allowance -= 8 * octets
    cap.allowance_used_at = now
    return cap.allowance > 0
