# SPDX-License-Identifier: GPL-2.0-or-later
"""How a path treats packets in each direction.

Rates are integers in bits per second, as tc-tbf(8) counts them (IP packet plus 14 bytes). Times are integers in
microseconds, probabilities floats from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b

BEHAVIOURS = {
    "nothing": "passes everything on, by the same way as the others",
    "nat": "another source address and port",
    "remove-syn": "MPTCP options removed from SYNs",
    "remove-data": "MPTCP options removed from segments with data",
    "nop-syn": "MPTCP options of SYNs replaced by NOPs",
    "nop-data": "MPTCP options of segments with data replaced by NOPs",
    "sequence": "sequence numbers rewritten",
    "split-both": "segments split, options on both parts",
    "split-first": "segments split, options on the first part",
    "split-second": "segments split, options on the second part",
    "split-second-later": "only the second segment with data split, options on its second part",
    "coalesce": "two segments become one, with the options of the first",
    "alg-longer": "an address in the payload is translated, and becomes longer",
    "alg-shorter": "an address in the payload is translated, and becomes shorter",
    "duplicate": "every segment comes twice",
    "reorder": "one of ten segments is overtaken by three",
}
"""The behaviours of middleboxes, by their names in ``native/middlebox/behaviours.c``: Table 1 and section 4.2 of
Hesmans et al., "Are TCP Extensions Middlebox-proof?" (HotMiddlebox 2013), and duplicated and reordered segments."""
SHORT_ADDRESS, LONG_ADDRESS = "10,77,1,2,", "192,168,100,200,"
"""Addresses in the payload. The ALGs translate one into the other."""
COALESCED_MTU = 3200
"""MTU in bytes that a path needs towards the receiver, so that two full segments can be combined to one segment."""


class PathError(ValueError):
    """A path cannot be emulated. The text has the value and the allowed values."""


@dataclass(frozen=True, slots=True)
class GilbertElliott:
    """Two-state Markov chain of losses, with the parameter names of tc-netem(8) ``loss gemodel``.

    In the good state a packet is lost with probability 1-k, in the bad state with probability 1-h. After each packet
    the chain changes from good to bad with probability p, and from bad to good with probability r.
    """

    p: float
    r: float
    one_minus_h: float = 1.0
    one_minus_k: float = 0.0

    @property
    def mean(self) -> float:
        """Share of lost packets in the long run."""
        bad = self.p / (self.p + self.r)
        return bad * self.one_minus_h + (1 - bad) * self.one_minus_k


UniformLoss = partial(GilbertElliott, 0.0, 1.0, 1.0)
"""``UniformLoss(probability)``: each packet is lost independently, with the same probability."""


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a path. A packet is first delayed or lost, and then waits in a queue with *rate*."""

    rate: int | None = None
    """Rate in bits per second; None for an unshaped direction."""
    delay: int = 0
    """Delay in microseconds."""
    jitter: int = 0
    """Jitter in microseconds. A packet's delay is drawn uniformly from delay ± jitter, but packets keep their order.
    The shorter the time between packets, the nearer their delay is to delay + jitter."""
    loss: GilbertElliott | None = None
    mtu: int = 1500
    """MTU of the device that sends in this direction."""

    def __post_init__(self) -> None:
        if not 0 <= self.delay <= 10_000_000:
            raise PathError(f"delay {self.delay} µs: 0 to 10 seconds is possible")
        if not 0 <= self.jitter <= self.delay:
            raise PathError(f"jitter {self.jitter} µs: 0 to the delay, {self.delay} µs")

    @property
    def impaired(self) -> bool:
        """Whether this direction delays or loses packets, in addition to the limit of its rate."""
        return bool(self.delay or self.loss is not None)


@dataclass(frozen=True, slots=True)
class EmulatedPath:
    """A path between client and core through its own router, which treats packets as *down* and *up* describe."""

    name: str
    down: Direction = field(default_factory=Direction)
    """The direction towards the client; :attr:`up` is the other direction."""
    up: Direction = field(default_factory=Direction)
    middlebox: str | None = field(default=None, kw_only=True)
    """Behaviour of a middlebox on the path's router. It changes TCP segments in both directions, before delay and loss.
    """

    @property
    def rtt(self) -> int:
        """Round-trip time in microseconds, without queueing."""
        return self.down.delay + self.up.delay

    @property
    def mtu(self) -> int:
        """The MTU that the devices at both ends must support."""
        return max(self.down.mtu, self.up.mtu)


def seed_of(seed: int, *names: str) -> int:
    """Return the 64-bit seed of the random generator *names*: path, direction and impairment.

    Each generator has its own seed, so that one path's losses do not depend on another path's packets.
    """
    text = "/".join((str(seed), *names))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
