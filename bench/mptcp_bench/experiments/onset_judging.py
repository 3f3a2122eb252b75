# SPDX-License-Identifier: GPL-2.0-or-later
"""What the onset of a cap costs the other path, from byte counters sampled over one transfer, and the aims. Pure.

Rates are on the wire, in bits/s; times are seconds since the transfer's start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isclose

from mptcp_lab.testbed.recorder import Sample, mean_rate

from ..statistics import fmean
from .aims import Aim

BEFORE = 2.0
"""Seconds before the onset with which the other path is compared."""
STALLED = 0.5
"""A sample below this share of the earlier rate is a stall."""
WITHIN = 0.05
"""Share by which a rate may miss its cap."""
KEPT, STALL, STEADY = 0.95, 0.1, 0.98
"""What the other path must keep, the seconds that it may stall, and what both paths must carry in the end."""
QUEUED = 0.1
"""Seconds that the cap may add to the RTT of the capped path."""
EMULATED = 0.9
"""Share of a path's RTT below which it was not emulated."""
UNCAPPED = 3.0
"""Multiple of the cap that the capped path must carry before the onset; otherwise its link does the cap's work."""
WINDOW = 1.0
"""Seconds over which the capped path's rate is compared with the cap: at 1 Mbit/s 82 full packets."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The periods of a transfer that are judged, in seconds after the onset."""

    onset: float
    """Until when the other path may be slower."""
    steady: tuple[float, float]
    """When the other path must have recovered."""
    in_force: float
    """When the cap must be kept."""
    dips: float = 0.0
    """Seconds within ``onset`` that BBR itself may stall a path: it measures the RTT for 0.2 s once in ten seconds."""

    @property
    def end(self) -> float:
        return self.steady[1]


DOWN = Windows(onset=3.0, steady=(3.0, 5.5), in_force=1.0)
UP = Windows(onset=20.0, steady=(15.0, 20.0), in_force=15.0, dips=0.4)
"""The whole transfer: the client's backlog may stall the other path long after the cap."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run; shares are of the other path's rate before the onset."""

    before: float
    """The other path's rate, bits/s."""
    kept: float
    """The other path's share over :attr:`Windows.onset`."""
    worst: float
    stalled: float
    uncapped: float
    """Rate of the capped path before the onset, as a multiple of the cap."""
    in_force: float
    """Seconds from the onset until the capped path exceeds its cap by at most ``WITHIN``; infinite if never."""
    off: float
    """Greatest difference from the cap after :attr:`Windows.in_force`, as a share."""
    steady: float
    """Both paths together over :attr:`Windows.steady`, as a share of cap plus other link."""
    rtt: float
    """Smoothed RTT of the capped subflow in the steady state, seconds."""
    stalls: tuple[tuple[float, float], ...] = ()
    """Begin and end of each stall, in seconds after the onset; adjacent samples are one."""


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
    """Judge a transfer in which a cap of *cap* bits/s began on the path *capped* at *onset*.

    Raises ValueError if there are too few samples, or if the other path carried nothing before.
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
    )


def aims(outcomes: Sequence[Outcome], runs: int, windows: Windows, control: str, rtt: float) -> dict[str, Aim]:
    """Return the aims of a soft cap, by measure, for the means of its *outcomes* of *runs* planned runs.

    *rtt* is that of the capped path, in seconds; *control* the sender's congestion control.
    """
    found = {"runs": Aim("runs", len(outcomes), least=runs)}
    if not outcomes:
        return found
    dips = windows.dips if control == "bbr" else 0.0

    def mean(measure: str) -> float:
        return fmean(getattr(each, measure) for each in outcomes)

    return found | {
        "uncapped": Aim("capped path before, × its cap", mean("uncapped"), least=UNCAPPED),
        "kept": Aim("kept", mean("kept"), least=KEPT),
        "worst": Aim("worst sample", mean("worst"), least=None if dips else STALLED),
        "stalled": Aim("stalled", mean("stalled"), " s", most=STALL + dips),
        "in_force": Aim("in force after", mean("in_force"), " s", most=windows.in_force),
        "off": Aim("from then on off by", mean("off"), most=WITHIN),
        "steady": Aim("steady state", mean("steady"), least=STEADY),
        "rtt": Aim("RTT", 1e3 * mean("rtt"), " ms", least=1e3 * EMULATED * rtt, most=1e3 * (rtt + QUEUED)),
    }


def _joined(spans: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    found: list[tuple[float, float]] = []
    for begin, end in spans:
        if found and isclose(found[-1][1], begin):
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return tuple(found)


def _rates(samples: Sequence[Sample], path: str, start: float, end: float) -> Iterator[tuple[float, float, float]]:
    """Yield begin, end and rate of each interval between samples within *start* and *end*."""
    for first, last in pairwise(samples):
        if start <= first.time and last.time <= end:
            yield first.time, last.time, 8 * (last.octets[path] - first.octets[path]) / (last.time - first.time)


def _windows(samples: Sequence[Sample], path: str, start: float) -> Iterator[tuple[float, float]]:
    """Yield begin and mean rate of each ``WINDOW`` that begins at a sample from *start* on."""
    for first in samples:
        if first.time < start:
            continue
        last = next((s for s in samples if s.time >= first.time + WINDOW or isclose(s.time, first.time + WINDOW)), None)
        if last is None:
            return
        yield first.time, 8 * (last.octets[path] - first.octets[path]) / (last.time - first.time)
