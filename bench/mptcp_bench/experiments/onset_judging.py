"""What the onset of a cap costs the other path, from byte counters sampled over one transfer, and the aims. Pure.

All rates are of the wire, in bits/s; all times in seconds since the transfer's start.
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
"""Of the transfer before the onset: what the other path is compared with."""
STALLED = 0.5
"""A sample below this share of the rate before is a stall."""
WITHIN = 0.05
"""As a share: how closely a cap is to be kept."""
KEPT, STALL, STEADY = 0.95, 0.1, 0.98
"""What the other path is to keep, the seconds that it may stall, and what both paths are to carry in the end."""
QUEUED = 0.1
"""Seconds that the cap may add to the RTT of the capped path."""
EMULATED = 0.9
"""Part of a path's RTT below which it was not emulated."""
UNCAPPED = 3.0
"""Multiples of the cap that the capped path must carry before the onset: else its link does what the cap should."""
WINDOW = 1.0
"""Over which the capped path's rate is compared with the cap: at 1 Mbit/s 82 full packets."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Where a transfer is looked at, in seconds after the onset."""

    onset: float
    """Until when the other path may be slower."""
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
    uncapped: float
    """What the capped path carried before the onset, as a multiple of the cap."""
    in_force: float
    """Seconds from the onset until the capped path exceeds its cap by ``WITHIN`` at the most; infinite if never."""
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

    Raises ValueError where there are too few samples, and where the other path carried nothing before.
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
    """Return the aims of a cap that lands softly, by measure, for the means of its *outcomes*; *runs* were to be made.

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
