# SPDX-License-Identifier: GPL-2.0-or-later
"""How a path treats packets, one direction at a time: as data, checked when made.

Rates are integer bits per second as tc-tbf(8) counts them (IP packet plus 14 bytes), times integer microseconds,
probabilities floats from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from .behaviours import BEHAVIOURS

QUEUE_LENGTH = 65_536
"""Packets in flight in one direction, not counting those queued for the rate."""


class PathError(ValueError):
    """A path that cannot be emulated: the text names the value and what is allowed."""


def _probability(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise PathError(f"{name} {value!r}: a probability is 0 to 1")


@dataclass(frozen=True, slots=True)
class UniformLoss:
    """Independent loss of each packet with the same probability."""

    probability: float

    def __post_init__(self) -> None:
        _probability("loss", self.probability)

    @property
    def mean(self) -> float:
        return self.probability


@dataclass(frozen=True, slots=True)
class GilbertElliott:
    """Two-state Markov chain, with the parameter names of tc-netem(8) ``loss gemodel``.

    In the good state a packet is lost with probability 1-k, in the bad state with 1-h. After each packet the chain
    goes from good to bad with probability p, from bad to good with r.
    """

    p: float
    r: float
    one_minus_h: float = 1.0
    one_minus_k: float = 0.0

    def __post_init__(self) -> None:
        for name in ("p", "r", "one_minus_h", "one_minus_k"):
            _probability(name, getattr(self, name))
        if self.p + self.r == 0:
            raise PathError("p and r are both 0: the chain would never leave the state it is in")

    @property
    def mean(self) -> float:
        """Long-run share of lost packets."""
        bad = self.p / (self.p + self.r)
        return bad * self.one_minus_h + (1 - bad) * self.one_minus_k


Loss = UniformLoss | GilbertElliott


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a path. A packet is first delayed or lost, then queued for *rate*."""

    rate: int | None = None
    """Bits per second; None: unshaped."""
    delay: int = 0
    """Microseconds."""
    jitter: int = 0
    """Microseconds: the delay is drawn evenly from delay ± jitter; packets keep their order.

    A packet waits for the one before it: the closer they follow each other, the nearer is the delay to delay + jitter.
    """
    loss: Loss | None = None
    queue_ms: int = 50
    """Longest time in the drop-tail queue for *rate*."""
    mtu: int = 1500
    """Of the device that sends in this direction."""

    def __post_init__(self) -> None:
        if self.rate is not None and self.rate < 8_000:
            raise PathError(f"rate {self.rate} bit/s: at least 8000 is needed")
        if not 0 <= self.delay <= 10_000_000:
            raise PathError(f"delay {self.delay} µs: 0 to 10 seconds is possible")
        if not 0 <= self.jitter <= self.delay:
            raise PathError(f"jitter {self.jitter} µs: 0 to the delay, {self.delay} µs")
        if not 576 <= self.mtu <= 9000:
            raise PathError(f"mtu {self.mtu}: 576 to 9000 is possible")

    @property
    def impaired(self) -> bool:
        """Whether it does more than limit the rate."""
        return bool(self.delay or self.loss is not None)


@dataclass(frozen=True, slots=True)
class EmulatedPath:
    """A path between client and core through its own router, which treats packets as *down* and *up* say."""

    name: str
    down: Direction = field(default_factory=Direction)
    """Towards the client."""
    up: Direction = field(default_factory=Direction)
    middlebox: str | None = field(default=None, kw_only=True)
    """Behaviour of a middlebox at the hop on TCP segments, both ways, before delay and loss:
    ``behaviours.BEHAVIOURS``."""

    def __post_init__(self) -> None:
        if self.middlebox is not None and self.middlebox not in BEHAVIOURS:
            raise PathError(f"middlebox {self.middlebox!r}: there are {', '.join(BEHAVIOURS)}")

    @property
    def rtt(self) -> int:
        """Microseconds, without queueing."""
        return self.down.delay + self.up.delay

    @property
    def mtu(self) -> int:
        """What the devices at both ends must support."""
        return max(self.down.mtu, self.up.mtu)


def seed_of(seed: int, *names: str) -> int:
    """Return the 64-bit seed of one generator; *names* are its path, direction and impairment.

    Each has its own, so that one path's losses do not depend on another's packets.
    """
    text = "/".join((str(seed), *names))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
