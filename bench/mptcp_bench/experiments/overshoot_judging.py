# SPDX-License-Identifier: GPL-2.0-or-later
"""How much a transfer carried beyond a cap, by byte counters, and the aims. Pure.

Bytes count IP packets towards the client; times are seconds since the transfer's first packet. The cap is compared with
all bytes from then on, even those before any tool could have set a cap.
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
"""Most that a capped rate may be, as a multiple of the cap."""
WINDOW = 1.0
"""Seconds over which a rate is measured."""
SECONDS = 1.0
"""Our cap's limits: most seconds of the cap's rate that a transfer may be ahead, and most seconds above the cap."""
LEAST_CAPPED, LEAST_OTHER = 0.85, 0.9
"""Least rates: of the capped path over the whole transfer, as a share of the cap; of the other path after
``SLOW_START``, as a share of its link."""
SLOW_START = 3.0
"""Seconds that both paths need to reach their full rate."""
UNCAPPED = 3.0
"""Least rate of the path without a cap, as a multiple of the cap. With less, the cap would have nothing to do."""
LINK = 1.05
"""Most rate of a path, as a multiple of its link's rate. More means that the link was not emulated."""
PREDICTED = 0.25
"""Share by which a poller's overshoot may differ from the one that its phase predicts."""
APART = 10.0
"""Least ratio of the poller's expected overshoot to ours."""
PACKET = 1500
"""Bytes: the least overshoot that is assumed for ours, because a ratio to zero would mean nothing."""
EARLY = 10.0
"""Seconds from the first packet over which first and repeated transfers are compared. Both last longer."""
NO_MORE = 0.05
"""Share by which a first transfer may carry more than a repeated one in these seconds."""
FIRST_FLOOR = 200
"""If the path has carried more than this many bytes, a transfer has begun. Address resolution needs fewer."""
CAPPED = ("ours", "budget", "static")
"""Variants whose transfers are capped from the first packet on."""
TRANSFERS = ("first", "repeated")


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


@dataclass(frozen=True, slots=True)
class Measured:
    """One transfer of one variant, with its samples for the picture. Times are on the samples' clock."""

    variant: str
    transfer: str
    phase: float | None
    """For a poller: seconds from the first packet of the first transfer to the poller's reading."""
    outcome: Outcome
    begin: float
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates in bits/s of the cap and of both links."""

    cap: int
    link: int
    """Rate of the capped path's link."""
    other: int
    burst: int
    """Bytes that may pass at once: one burst of a class with the cap's rate, and an initial window."""


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
    )


def expected(measured: Sequence[Measured]) -> float:
    """Return a poller's mean overshoot of a first transfer in bytes, over all phases; NaN for no transfer.

    The overshoot is proportional to the phase. The measured transfers give the factor; the mean phase is half a period.
    """
    there = [(m.outcome.ahead, m.phase) for m in measured if m.transfer == "first" and m.phase]
    octets, phases = (sum(each) for each in zip(*there, strict=True)) if there else (math.nan, 1.0)
    return octets / phases * PERIOD / 2


def aims(measured: Sequence[Measured], over: Rates, planned: Mapping[str, int]) -> list[Aim]:
    """Return the aims of the variants, with *planned* first transfers and as many repeated ones of each.

    Every transfer must keep to the cap. On average, repeated transfers must carry at least 1 - ``NO_MORE`` of what
    first transfers carry in the same time.
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
