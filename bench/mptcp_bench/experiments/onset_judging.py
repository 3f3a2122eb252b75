# SPDX-License-Identifier: GPL-2.0-or-later
"""What the onset of a cap costs the other path, judged by byte counters sampled over one transfer. Pure.

Rates are on the wire, in bits/s; times are seconds since the transfer's start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isclose

from mptcp_lab.testbed.recorder import Sample, mean_rate

from .columns import for_pictures

BEFORE = 2.0
"""Seconds before the onset in which the other path's earlier rate is measured."""
STALLED = 0.5
"""The other path stalls while its rate is below this share of its earlier rate."""
WITHIN = 0.05
"""Share by which the capped path's rate may differ from its cap."""
WINDOW = 1.0
"""Seconds over which the capped path's rate is compared with the cap. At 1 Mbit/s these are 82 full packets."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The periods of a transfer that are judged, in seconds after the onset of the cap."""

    onset: float
    """End of the period in which the other path may be slower."""
    steady: tuple[float, float]
    """Begin and end of the period in which both paths must be in the steady state."""
    in_force: float
    """Latest moment at which the capped path must keep to its cap."""
    dips: float = 0.0
    """Seconds within ``onset`` for which BBR itself may stall a path: it measures the RTT for 0.2 s every ten
    seconds."""

    @property
    def end(self) -> float:
        return self.steady[1]


DOWN = Windows(onset=3.0, steady=(3.0, 5.5), in_force=1.0)
UP = Windows(onset=20.0, steady=(15.0, 20.0), in_force=15.0, dips=0.4)
"""Windows of an upload. They cover all of it, since the client's backlog may stall the other path long after the
cap."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The judged values of one run. Shares are of the other path's rate before the onset."""

    before: float
    """Rate of the other path before the onset, bits/s."""
    kept: float
    """Share of its rate that the other path kept until :attr:`Windows.onset`."""
    worst: float
    stalled: float
    uncapped: float
    """Rate of the capped path before the onset, as a multiple of the cap."""
    in_force: float
    """Seconds from the onset until the capped path exceeds its cap by at most ``WITHIN``; infinite if never."""
    off: float
    """Greatest difference between rate and cap after :attr:`Windows.in_force`, as a share of the cap."""
    steady: float
    """Rate of both paths together in :attr:`Windows.steady`, as a share of the cap plus the other link."""
    rtt: float
    """Smoothed RTT of the capped subflow in the steady state, in seconds."""
    stalls: tuple[tuple[float, float], ...] = ()
    """Begin and end of each stall, in seconds after the onset. Adjacent samples are joined to one stall."""
    onset: float = 0.0
    samples: tuple[Sample, ...] = for_pictures()


def judge(
    samples: Sequence[Sample],
    capped: str,
    other: str,
    onset: float,
    cap: int,
    other_link: int,
    rtt: float,
    windows: Windows = DOWN,
) -> Outcome:
    """Judge a transfer on whose path *capped* a cap of *cap* bits/s began at *onset*.

    Raises ValueError if there are too few samples, or if the other path carried nothing before the onset.
    """
    before = mean_rate(samples, other, onset - BEFORE, onset)
    if before <= 0:
        raise ValueError("nothing came over the other path before the cap")
    after = [(s, e, rate / before) for s, e, rate in _rates(samples, other, onset, onset + windows.onset)]
    below = [(begin - onset, end - onset) for begin, end, share in after if share < STALLED]
    late = [rate for _, rate in _windows(samples, capped, onset + windows.in_force)]
    begin, end = (onset + each for each in windows.steady)
    return Outcome(
        before=before,
        kept=mean_rate(samples, other, onset, onset + windows.onset) / before,
        worst=min(share for *_, share in after),
        stalled=sum(end - begin for begin, end in below),
        uncapped=mean_rate(samples, capped, onset - BEFORE, onset) / cap,
        in_force=next(
            (start - onset for start, rate in _windows(samples, capped, onset) if rate <= cap * (1 + WITHIN)), inf
        ),
        off=max(abs(rate / cap - 1) for rate in late),
        steady=sum(mean_rate(samples, path, begin, end) for path in (capped, other)) / (cap + other_link),
        rtt=rtt,
        stalls=_joined(below),
        onset=onset,
        samples=tuple(samples),
    )


def _joined(spans: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    found: list[tuple[float, float]] = []
    for begin, end in spans:
        if found and isclose(found[-1][1], begin):
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return tuple(found)


def _rates(samples: Sequence[Sample], path: str, start: float, end: float) -> Iterator[tuple[float, float, float]]:
    """Yield begin, end and rate of each interval between two samples that lies between *start* and *end*."""
    for first, last in pairwise(samples):
        if start <= first.time and last.time <= end:
            yield first.time, last.time, 8 * (last.octets[path] - first.octets[path]) / (last.time - first.time)


def _windows(samples: Sequence[Sample], path: str, start: float) -> Iterator[tuple[float, float]]:
    """Yield the begin of each ``WINDOW`` that begins at a sample after *start*, with its mean rate."""
    for first in samples:
        if first.time < start:
            continue
        last = next((s for s in samples if s.time >= first.time + WINDOW or isclose(s.time, first.time + WINDOW)), None)
        if last is None:
            return
        yield first.time, 8 * (last.octets[path] - first.octets[path]) / (last.time - first.time)
