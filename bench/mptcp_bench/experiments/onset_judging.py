"""What the other path suffers when a cap falls, from byte counters sampled over one download. Pure.

All rates are of the wire, in bits/s; all times in seconds since the download's start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isclose

from ..recorder import Sample, mean_rate

BEFORE = 2.0
"""Of the transfer before the onset: what the other path is compared with."""
ONSET = 3.0
"""After it: where the other path may suffer."""
STEADY = (3.0, 5.5)
"""After the onset: by then nothing may be left of it."""
STALLED = 0.5
"""A sample below this share of the rate before is a stall."""
IN_FORCE, WITHIN = 1.0, 0.05
"""The cap is to be in force after that time, and to be kept that closely from then on."""
WINDOW = 1.0
"""Over which the capped path's rate is compared with the cap: at 1 Mbit/s 82 full packets."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run; shares are of the other path's rate before the onset."""

    before: float
    """The other path's rate, bits/s."""
    kept: float
    """What of it the other path has over ``ONSET``."""
    worst: float
    """Its worst sample."""
    stalled: float
    """Seconds of samples below ``STALLED``."""
    in_force: float
    """Seconds from the onset until the capped path no longer exceeds its cap by more than ``WITHIN``."""
    off: float
    """By how much it differs from its cap after ``IN_FORCE``, at the most, as a share."""
    steady: float
    """Both paths together over ``STEADY``, as a share of the cap and the other link."""
    rtt: float
    """Smoothed RTT of the capped subflow in the steady state, seconds."""


def judge(
    samples: Sequence[Sample], capped: str, other: str, onset: float, cap: int, other_link: int, rtt: float
) -> Outcome:
    """Judge a download of which a cap of *cap* bits/s fell on the path *capped* at *onset*.

    Raises ValueError where there are too few samples.
    """
    before = mean_rate(samples, other, onset - BEFORE, onset)
    if before <= 0:
        raise ValueError("nothing came over the other path before the cap")
    after = [(span, rate / before) for span, rate in _rates(samples, other, onset, onset + ONSET)]
    late = [rate for _, rate in _windows(samples, capped, onset + IN_FORCE)]
    begin, end = (onset + each for each in STEADY)
    return Outcome(
        before=before,
        kept=mean_rate(samples, other, onset, onset + ONSET) / before,
        worst=min(share for _, share in after),
        stalled=sum(span for span, share in after if share < STALLED),
        in_force=next(
            (start - onset for start, rate in _windows(samples, capped, onset) if rate <= cap * (1 + WITHIN)),
            samples[-1].time - onset,
        ),
        off=max(abs(rate / cap - 1) for rate in late),
        steady=sum(mean_rate(samples, path, begin, end) for path in (capped, other)) / (cap + other_link),
        rtt=rtt,
    )


def _rates(samples: Sequence[Sample], path: str, start: float, end: float) -> Iterator[tuple[float, float]]:
    """Yield length and rate of each interval between samples that lies within *start* and *end*."""
    for first, last in pairwise(samples):
        if start <= first.time and last.time <= end:
            span = last.time - first.time
            yield span, 8 * (last.octets[path] - first.octets[path]) / span


def _windows(samples: Sequence[Sample], path: str, start: float) -> Iterator[tuple[float, float]]:
    """Yield begin and mean rate of each window of ``WINDOW`` that begins at a sample from *start* on."""
    for first in samples:
        if first.time < start:
            continue
        last = next((s for s in samples if s.time >= first.time + WINDOW or isclose(s.time, first.time + WINDOW)), None)
        if last is None:
            return
        yield first.time, 8 * (last.octets[path] - first.octets[path]) / (last.time - first.time)
