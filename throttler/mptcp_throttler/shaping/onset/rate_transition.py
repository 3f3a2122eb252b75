"""The rate transition of one subflow: from full flight to its cap, in steps. Pure: samples in, limits on a socket out.

The MPTCP scheduler assigns data to a subflow by what it takes for its rate, the pacing rate averaged over past
assignments, and what is assigned it does not take back. So at the moment a cap begins, a few megabytes wait on that
subflow that would leave in 0.2 s at the old rate and take seconds at the new one; more follow until the average has
adapted. All other paths wait for these data at the head of the line. Hence, in this order (docs/soft-start.md has the
comparison):

1. *drain*: no cap yet, but the kernel assigns no more than the old rate sends in ``UNSENT_SECONDS``
   (TCP_NOTSENT_LOWAT), until no more than that waits;
2. *ramp*: the pacing rate falls geometrically to the cap while what may wait shrinks in step, so that the scheduler's
   average follows, being weighed by what waits. What may wait grows in time meanwhile: the scheduler leaves
   another path alone while this one would be free sooner, so that a path with a longer RTT would run dry;
3. *settle*: the pacing rate is at the cap, which gives the scheduler the true rate, and the HTB class holds it there.
   What may wait stays bounded for as long as a few assignments take, of 64 KB each: by then the average has followed;
4. *done*: nothing but the pacing rate is bounded.

A fall to no less than ``GENTLE_FALL`` of the rate needs none of this, nor does a subflow that sends less than its cap.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mptcp_throttler.mptcp.model import TcpInfo
from mptcp_throttler.shaping.model import GENTLE_FALL, SocketLimit

UNSENT_SECONDS = 0.02
UNSENT_GROWTH_SECONDS = 0.15
"""By how much what may wait grows in time over the ramp, at ``UNSENT_GROWTH_RATE`` and above; below it less in
proportion, for there one assignment alone takes longer than another path can bridge."""
UNSENT_GROWTH_RATE = 5_000_000
"""Bits/s."""
RAMP_SECONDS = 0.6
MAX_DRAIN_SECONDS = 0.3
"""With the ramp it leaves a tenth of the second within which a cap is to be in force, for the round trip."""
DRAINED = 1.1
"""What may be left of what may wait, as a share, when the ramp begins."""
ASSIGNMENT_BYTES = 65_536
"""What the scheduler hands over at once (MPTCP_SEND_BURST_SIZE, net/mptcp/protocol.c)."""
SETTLE_ASSIGNMENTS = 4
MAX_SETTLE_SECONDS = 3.0
MIN_UNSENT_BYTES = 2 * 1448
"""Two segments."""


class Phase(enum.Enum):
    DRAIN = "drain"
    RAMP = "ramp"
    SETTLE = "settle"
    DONE = "done"


def needs_transition(tcp: TcpInfo, rate: int) -> bool:
    """Tell whether a cap of *rate* bits/s would begin on a subflow that sends more."""
    return max(tcp.delivery_rate, tcp.pacing_rate) * GENTLE_FALL > rate and (
        tcp.not_sent > 0 or tcp.unacked * tcp.mss > MIN_UNSENT_BYTES
    )


@dataclass(slots=True)
class RateTransition:
    """One subflow on its way to its cap. Rates in bits/s, times in monotonic seconds."""

    start: int
    """Rate at the beginning."""
    target: int
    began: float
    held: int | None = None
    """The rate at which another cap holds the subflow until the ramp begins; None without."""
    phase: Phase = Phase.DRAIN
    ramp_began: float = 0.0

    @classmethod
    def of(cls, tcp: TcpInfo, target: int, now: float, held: int | None = None) -> RateTransition:
        """Begin at *now* with a socket that is doing as *tcp* says and is *held* at that rate."""
        start = tcp.pacing_rate if tcp.delivery_rate < target else min(tcp.pacing_rate, tcp.delivery_rate)
        return cls(max(start, target), target, now, held)

    @property
    def capped(self) -> bool:
        """The HTB class may hold the subflow from here on."""
        return self.phase in (Phase.SETTLE, Phase.DONE)

    def step(self, now: float, not_sent: int) -> SocketLimit:
        """Go on at *now* with *not_sent* bytes waiting; return what the socket may do from here."""
        if self.phase is Phase.DRAIN:
            most = self._unsent(self.start, 0.0)
            if not_sent > DRAINED * most and now - self.began < MAX_DRAIN_SECONDS:
                return SocketLimit(self.held, most)
            self.phase, self.ramp_began = Phase.RAMP, now
        done = (now - self.ramp_began) / RAMP_SECONDS
        if done >= 1:
            settled = RAMP_SECONDS + min(MAX_SETTLE_SECONDS, SETTLE_ASSIGNMENTS * ASSIGNMENT_BYTES * 8 / self.target)
            self.phase = Phase.SETTLE if now - self.ramp_began < settled else Phase.DONE
            return SocketLimit(self.target, self._unsent(self.target, 1.0) if self.phase is Phase.SETTLE else None)
        rate = round(self.start * (self.target / self.start) ** done)
        return SocketLimit(rate, self._unsent(rate, done))

    def _unsent(self, rate: int, done: float) -> int:
        """Return how many bytes may wait at *rate* when *done* of the ramp, as a share, is behind."""
        growth = UNSENT_GROWTH_SECONDS * min(1.0, self.target / UNSENT_GROWTH_RATE)
        seconds = UNSENT_SECONDS + done * growth
        return max(MIN_UNSENT_BYTES, int(rate / 8 * seconds))
