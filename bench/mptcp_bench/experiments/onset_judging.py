"""What the other path suffers when a cap falls, from byte counters sampled over one transfer. Pure.

All rates are of the wire, in bits/s; all times in seconds since the transfer's start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isclose

from mptcp_lab.testbed.recorder import Sample, mean_rate

BEFORE = 2.0
"""Of the transfer before the onset: what the other path is compared with."""
STALLED = 0.5
"""A sample below this share of the rate before is a stall."""
WITHIN = 0.05
"""As a share: how closely a cap is to be kept."""
WINDOW = 1.0
"""Over which the capped path's rate is compared with the cap: at 1 Mbit/s 82 full packets."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Where a transfer is looked at, in seconds after the onset."""

    onset: float
    """Until when the other path may suffer."""
    steady: tuple[float, float]
    """By then nothing may be left of it."""
    in_force: float
    """From when on the cap is to be kept."""
    dips: float = 0.0
    """Seconds within ``onset`` that BBR itself may stall a path: it measures the RTT for 0.2 s once in ten seconds."""

    @property
    def end(self) -> float:
        return self.steady[1]


DOWN = Windows(onset=3.0, steady=(3.0, 5.5), in_force=1.0)
UP = Windows(onset=20.0, steady=(15.0, 20.0), in_force=15.0, dips=0.4)
"""The whole transfer: what waits at the client may stall the other path long after the cap."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run; shares are of the other path's rate before the onset."""

    before: float
    """The other path's rate, bits/s."""
    kept: float
    """What of it the other path has over :attr:`Windows.onset`."""
    worst: float
    """Its worst sample."""
    stalled: float
    """Seconds of samples below ``STALLED``."""
    in_force: float
    """Seconds from the onset until the capped path no longer exceeds its cap by more than ``WITHIN``."""
    off: float
    """By how much it differs from its cap after :attr:`Windows.in_force`, at the most, as a share."""
    steady: float
    """Both paths together over :attr:`Windows.steady`, as a share of the cap and the other link."""
    rtt: float
    """Smoothed RTT of the capped subflow in the steady state, seconds."""
    stalls: tuple[tuple[float, float], ...] = ()
    """Begin and end, in seconds after the onset, of what ``stalled`` counts; samples next to each other are one."""


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
    """Judge a transfer of which a cap of *cap* bits/s fell on the path *capped* at *onset*.

    Raises ValueError where there are too few samples.
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
        in_force=next(
            (start - onset for start, rate in _windows(samples, capped, onset) if rate <= cap * (1 + WITHIN)),
            samples[-1].time - onset,
        ),
        off=max(abs(rate / cap - 1) for rate in late),
        steady=sum(mean_rate(samples, path, begin, end) for path in (capped, other)) / (cap + other_link),
        rtt=rtt,
        stalls=_joined(below),
    )


def _joined(spans: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return *spans* with those that touch each other made one."""
    found: list[tuple[float, float]] = []
    for begin, end in spans:
        if found and isclose(found[-1][1], begin):
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return tuple(found)


def _rates(samples: Sequence[Sample], path: str, start: float, end: float) -> Iterator[tuple[float, float, float]]:
    """Yield begin, end and rate of each interval between samples that lies within *start* and *end*."""
    for first, last in pairwise(samples):
        if start <= first.time and last.time <= end:
            yield first.time, last.time, 8 * (last.octets[path] - first.octets[path]) / (last.time - first.time)


def _windows(samples: Sequence[Sample], path: str, start: float) -> Iterator[tuple[float, float]]:
    """Yield begin and mean rate of each window of ``WINDOW`` that begins at a sample from *start* on."""
    for first in samples:
        if first.time < start:
            continue
        last = next((s for s in samples if s.time >= first.time + WINDOW or isclose(s.time, first.time + WINDOW)), None)
        if last is None:
            return
        yield first.time, 8 * (last.octets[path] - first.octets[path]) / (last.time - first.time)
