# SPDX-License-Identifier: GPL-2.0-or-later
"""The aims of the experiment ``datapath``: ratios of goodput within a round. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..statistics import median
from .aims import Aim, no_less

COUNTS: tuple[int | None, ...] = (None, 0, 1_000, 50_000)
"""Entries in the kernel set; None: no kernel object of the throttler is installed."""
LEAST = 0.98
"""Least goodput, by the median, as a share of the goodput without entries."""
MARGIN = 0.05
"""Non-inferiority margin: the largest accepted loss of goodput, as a share. Rounds vary too much to detect a smaller
loss."""
THROUGH = (0.95, 1.05)
"""Least and most bytes through our class, as a share of the device's. Both counters count bytes on the wire."""


class SentBytes(NamedTuple):
    """Bytes that were sent up to a moment."""

    ours: int
    """Bytes sent by our class for uncapped traffic."""
    device: int


def judge(
    goodput: Mapping[str, Mapping[str, Sequence[float]]],
    carried: Mapping[str, float],
    offered: Sequence[str],
    rounds: int,
) -> list[Aim]:
    """Return the aims for goodput in bits/s, by adapter, number of entries and round.

    *carried* is the bytes through our class, as a multiple of the bytes that the device sent: if packets bypassed our
    objects, these would seem to cost nothing. A ratio compares two values of one round, so the mean ratio is one
    sample, which is tested for non-inferiority to 1. The total cost of HTB and the rule is shown without an aim,
    because shaping cannot be had without it.
    """
    aims = []
    for backend in offered:
        there = goodput.get(backend, {})
        whole = min((len(there.get(label(count), ())) for count in COUNTS), default=0)
        aims.append(Aim(f"{backend}: rounds", whole, least=rounds))
        if whole:
            through, (least, most) = carried.get(backend, 0.0), THROUGH
            aims.append(Aim(f"{backend}: through our class, × what the device sent", through, least=least, most=most))
            for what, values in compared(backend, there).items():
                judged = "nothing" not in what
                aims.append(Aim(what, median(values), least=LEAST if judged else None))
                aims += [no_less(f"{what}, mean", values, 1.0, MARGIN)] if judged else []
    return aims


def through_class(spans: Iterable[tuple[SentBytes, SentBytes]]) -> float:
    """Return the bytes through our class divided by the device's, for the span whose ratio is farthest from 1."""
    shares = []
    for before, after in spans:
        device = after.device - before.device
        shares.append((after.ours - before.ours) / device if device > 0 else 0.0)
    return max(shares, key=lambda share: abs(share - 1), default=0.0)


def compared(backend: str, goodput: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return the ratios of all rounds, by the name of the comparison."""
    return {
        f"{backend}: {label(count)} / {label(base)}": within_rounds(goodput, count, base)
        for count, base in ((0, None), (1_000, 0), (50_000, 0))
    }


def within_rounds(goodput: Mapping[str, Sequence[float]], count: int | None, base: int | None) -> list[float]:
    """Return goodput with *count* entries divided by goodput with *base* entries, for each round."""
    pairs = zip(goodput[label(count)], goodput[label(base)], strict=True)
    return [rate / other for rate, other in pairs]


def label(count: int | None) -> str:
    return "nothing" if count is None else f"{count:,} entries"
