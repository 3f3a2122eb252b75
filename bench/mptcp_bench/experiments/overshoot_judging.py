# SPDX-License-Identifier: GPL-2.0-or-later
"""How much a transfer carried beyond a cap, by byte counters. Pure.

Bytes count IP packets towards the client; times are seconds since the transfer's first packet. The cap is compared with
all bytes from then on, even those before any tool could have set a cap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mptcp_lab.testbed.recorder import Sample

from .columns import for_pictures
from .pages_judging import Octets

PERIOD = 30.0
"""Seconds between two readings of the poller."""
EXCESS = 1.05
"""Most that a capped rate may be, as a multiple of the cap."""
WINDOW = 1.0
"""Seconds over which a rate is measured."""
SLOW_START = 3.0
"""Seconds that both paths need to reach their full rate."""
EARLY = 10.0
"""Seconds from the first packet over which first and repeated transfers are compared. Both last longer."""
FIRST_FLOOR = 200
"""If the path has carried more than this many bytes, a transfer has begun. Address resolution needs fewer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The judged values of one transfer."""

    seconds: float
    """Duration from the first packet to the end."""
    mean: float
    """Mean rate of the capped path, as a multiple of the cap."""
    early: float
    """The same over the first ``EARLY`` seconds."""
    ahead: float
    """Most bytes by which the transfer was ahead of cap × time."""
    excess: float
    """Most bytes by which it was ahead of ``EXCESS`` × cap × time."""
    above: float
    """Seconds until the rate stays below ``EXCESS`` × cap in every ``WINDOW``; infinite if the last window exceeds
    it."""
    rate: float
    """Rate of the capped path in bits/s, from ``SLOW_START`` to the end, or until a poller capped it."""
    other: float
    """Rate of the other path in bits/s, from ``SLOW_START`` to the end."""
    begin: float = 0.0
    """When the first packet came, on the samples' clock."""
    samples: tuple[Sample, ...] = for_pictures()


def first_packet(samples: Sequence[Sample], device: str) -> float:
    """Return when the first packet of a transfer came. Raises ValueError if none came."""
    for before, after in pairwise(samples):
        if after.octets[device] - samples[0].octets[device] > FIRST_FLOOR:
            return before.time
    raise ValueError(f"nothing came over {device}")


def judge(samples: Sequence[Sample], capped: str, other: str, cap: int, end: float, until: float | None) -> Outcome:
    """Judge the transfer in *samples* against a cap of *cap* bits/s. It ended at *end* on the samples' clock.

    *until* is when a poller set the cap, or None. Raises ValueError if the samples contain no transfer.
    """
    begin = first_packet(samples, capped)
    inside = [s.time for s in samples if begin <= s.time <= end]
    if len(inside) < 2 or inside[-1] - begin < SLOW_START + WINDOW:
        raise ValueError(f"the transfer is over after {(inside or [begin])[-1] - begin:.1f} s")
    total, second = Octets(samples, capped), Octets(samples, other)
    at_begin, last, allowed = total(begin), inside[-1], cap / 8
    ramped, stop = begin + SLOW_START, last if until is None else min(until, last)
    start = ramped if stop > ramped + WINDOW else begin
    windows = [t for t in inside if t + WINDOW <= last]
    exceeds = [total(t + WINDOW) - total(t) > EXCESS * allowed * WINDOW for t in windows]
    # below: number of the first window after the last one that exceeds the cap.
    early = min(begin + EARLY, last)
    below = len(windows) - next((n for n, over in enumerate(reversed(exceeds)) if over), len(windows))
    return Outcome(
        seconds=last - begin,
        mean=(total(last) - at_begin) / (allowed * (last - begin)),
        early=(total(early) - at_begin) / (allowed * (early - begin)),
        ahead=max(0.0, *(total(t) - at_begin - allowed * (t - begin) for t in inside)),
        excess=max(0.0, *(total(t) - at_begin - EXCESS * allowed * (t - begin) for t in inside)),
        above=windows[below] - begin if below < len(windows) else math.inf,
        rate=8 * (total(stop) - total(start)) / (stop - start),
        other=8 * (second(last) - second(ramped)) / (last - ramped),
        begin=begin,
        samples=tuple(samples),
    )


def expected(transfers: Sequence[tuple[float, Outcome]]) -> float:
    """Return a poller's mean overshoot of a first transfer in bytes, over all phases; NaN for no transfer.

    The overshoot is proportional to the phase, which each of *transfers* has in seconds. The measured transfers give
    the factor; the mean phase is half a period.
    """
    phases = sum(phase for phase, _ in transfers)
    return sum(outcome.ahead for _, outcome in transfers) / phases * PERIOD / 2 if phases else math.nan
