# SPDX-License-Identifier: GPL-2.0-or-later
"""How much a transfer carried beyond a cap, from byte counters, and whether that is little enough. Pure.

Bytes count IP packets towards the client; times are seconds since the transfer's first packet. All bytes count against
the cap from then on, even those that came before any cap could be set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mptcp_lab.testbed.recorder import Sample

from .aims import Aim, no_less
from .pages_judging import Octets

PERIOD = 30.0
"""Seconds between two readings of the poller."""
EXCESS = 1.05
"""Multiple of the cap that a rate may have."""
WINDOW = 1.0
"""Seconds over which a rate is taken."""
SECONDS = 1.0
"""How far ours may be ahead of the cap, and how long above it."""
LEAST_CAPPED, LEAST_OTHER = 0.85, 0.9
"""What must be carried at least: of the cap over the whole transfer, of the other link from ``SLOW_START`` on."""
SLOW_START = 3.0
"""Seconds for both paths to fill."""
UNCAPPED = 3.0
"""Multiple of the cap that the path must carry without one; otherwise there is nothing to cap."""
LINK = 1.05
"""Multiple of its link's rate that a path cannot carry, because the link is emulated."""
PREDICTED = 0.25
"""Share by which a poller's overshoot may differ from what its phase predicts."""
APART = 10.0
"""Least expected ratio of the poller's overshoot to ours."""
PACKET = 1500
"""Bytes: the least overshoot assumed for ours, because a ratio to nothing says nothing."""
EARLY = 10.0
"""Seconds from the first packet in which a first and a repeated transfer are compared; neither is over then."""
NO_MORE = 0.05
"""Share by which a first transfer may carry more in these seconds."""
FIRST_FLOOR = 200
"""Bytes on the path that mark the begin of a transfer: more than address resolution takes."""
CAPPED = ("ours", "budget", "static")
"""Variants that are under the cap from the first packet on."""
TRANSFERS = ("first", "repeated")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One transfer."""

    seconds: float
    """From its first packet to its end."""
    mean: float
    """Of the capped path, as a multiple of the cap."""
    early: float
    """The same over its first ``EARLY`` seconds."""
    ahead: float
    """Most bytes beyond cap × time."""
    excess: float
    """Most bytes beyond ``EXCESS`` × cap × time."""
    above: float
    """Seconds after which no ``WINDOW`` exceeds the cap by more than ``EXCESS``; infinite if the last one does."""
    rate: float
    """Bits/s of the capped path from ``SLOW_START`` until a poller capped it, or to the end."""
    other: float
    """Bits/s of the other path from ``SLOW_START`` on."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One transfer of one variant, with its samples for the picture. Times are on the samples' clock."""

    variant: str
    transfer: str
    phase: float | None
    """For a poller: seconds from the first packet of the first transfer to its reading."""
    outcome: Outcome
    begin: float
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """What the transfers run over, bits/s."""

    cap: int
    link: int
    """Of the capped path."""
    other: int
    burst: int
    """Bytes: one burst of a class of that rate, and an initial window."""


def first_packet(samples: Sequence[Sample], device: str) -> float:
    """Return when the first packet of a transfer came. Raises ValueError if none did."""
    for before, after in pairwise(samples):
        if after.octets[device] - samples[0].octets[device] > FIRST_FLOOR:
            return before.time
    raise ValueError(f"nothing came over {device}")


def judge(samples: Sequence[Sample], capped: str, other: str, cap: int, end: float, until: float | None) -> Outcome:
    """Judge the transfer in *samples*, which ended at *end* on their clock, against a cap of *cap* bits/s.

    *until* is when a poller set the cap. Raises ValueError if the samples hold no transfer.
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
    # The first window after the last one that exceeds the cap.
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
    )


def expected(measured: Sequence[Measured]) -> float:
    """Return the mean bytes that a poller lets through of a first transfer, over all its phases; NaN for no transfer.

    The overshoot grows with the phase. The measured phases give the rate of growth; the mean phase is half a period.
    """
    there = [(m.outcome.ahead, m.phase) for m in measured if m.transfer == "first" and m.phase]
    octets, phases = (sum(each) for each in zip(*there, strict=True)) if there else (math.nan, 1.0)
    return octets / phases * PERIOD / 2


def aims(measured: Sequence[Measured], over: Rates, planned: Mapping[str, int]) -> list[Aim]:
    """Return the aims of the variants, with *planned* first and as many repeated transfers of each.

    Every transfer must keep to the cap. On average, repeated transfers must carry no less than 1 - ``NO_MORE`` of what
    first ones carry in the same time.
    """

    def of(variant: str, transfer: str) -> list[Measured]:
        return [m for m in measured if (m.variant, m.transfer) == (variant, transfer)]

    found = []
    for variant, runs in planned.items():
        for transfer in TRANSFERS:
            name, there = f"{variant}, {transfer}", of(variant, transfer)
            found.append(Aim(f"{name}: transfers", len(there), least=runs))
            outcomes = [m.outcome for m in there]
            if variant in CAPPED and outcomes:
                found += _capped(name, outcomes, over)
        if variant in CAPPED:
            first, repeated = ([m.outcome.early for m in of(variant, transfer)] for transfer in TRANSFERS)
            found.append(no_less(f"{variant}: capped path in {EARLY:g} s, repeated / first", repeated, first, NO_MORE))
    links = [("none", each) for each in of("none", "first")] + [("poller", each) for each in of("poller", "first")]
    for variant in dict.fromkeys(variant for variant, _ in links):
        rates = [each.outcome.rate for v, each in links if v == variant]
        found += [
            Aim(f"{variant}: uncapped, × the cap", min(rates) / over.cap, least=UNCAPPED),
            Aim(f"{variant}: uncapped, × its link", max(rates) / over.link, most=LINK),
        ]
    found += _poller(of("poller", "first"), of("ours", "first"), over)
    return found


def _capped(name: str, outcomes: Sequence[Outcome], over: Rates) -> list[Aim]:
    ahead = max(each.ahead for each in outcomes)
    return [
        Aim(f"{name}: bytes beyond {EXCESS:g} × cap × time", max(e.excess for e in outcomes), " B", most=over.burst),
        Aim(f"{name}: ahead of cap × time", ahead / (over.cap / 8), " s", most=SECONDS),
        Aim(f"{name}: above the cap for", max(each.above for each in outcomes), " s", most=SECONDS),
        Aim(f"{name}: capped path, × the cap", min(each.mean for each in outcomes), least=LEAST_CAPPED, most=EXCESS),
        Aim(
            f"{name}: other path, × its link",
            min(e.other for e in outcomes) / over.other,
            least=LEAST_OTHER,
            most=LINK,
        ),
    ]


def _poller(poller: Sequence[Measured], ours: Sequence[Measured], over: Rates) -> list[Aim]:
    found = []
    for each in poller:
        assert each.phase is not None
        predicted = (each.outcome.rate - over.cap) / 8 * each.phase
        ratio = each.outcome.ahead / predicted if predicted > 0 else math.nan
        name = f"poller, reading after {each.phase:.1f} s: overshoot, × what its phase predicts"
        found.append(Aim(name, ratio, least=1 - PREDICTED, most=1 + PREDICTED))
    if poller and ours:
        least = max(PACKET, *(each.outcome.ahead for each in ours))
        what = f"poller: expected overshoot, × the most of ours, but {PACKET} B at the least"
        found.append(Aim(what, expected(poller) / least, least=APART))
    return found
