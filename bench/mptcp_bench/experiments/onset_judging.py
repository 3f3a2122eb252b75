# SPDX-License-Identifier: GPL-2.0-or-later
"""What the onset of a cap costs the other path, judged by byte counters sampled over one transfer. Pure.

Rates are on the wire, in bits/s; times are seconds since the transfer's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan

from mptcp_lab.testbed.recorder import Sample, mean_rate, rates
from mptcp_lab.testbed.recorder import windows as seconds_of

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
    stalls_from: float = nan
    stalls_to: float = nan
    """Begin of the first stall and end of the last one, in seconds after the onset; NaN without one."""
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
    watched = [sample for sample in samples if onset <= sample.time <= onset + windows.onset]
    shares = [(rate.time - onset, rate.bits[other] / before) for rate in rates(watched)]
    begins = [0.0, *(time for time, _ in shares)]
    stalls = [(begin, end) for begin, (end, share) in zip(begins, shares, strict=False) if share < STALLED]
    seconds = seconds_of(samples, (capped,), WINDOW, onset)
    begin, end = (onset + each for each in windows.steady)
    return Outcome(
        before=before,
        kept=mean_rate(samples, other, onset, onset + windows.onset) / before,
        worst=min(share for _, share in shares),
        stalled=sum(end - begin for begin, end in stalls),
        uncapped=mean_rate(samples, capped, onset - BEFORE, onset) / cap,
        in_force=next((start - onset for start, rate in seconds if rate <= cap * (1 + WITHIN)), inf),
        off=max(abs(rate / cap - 1) for start, rate in seconds if start >= onset + windows.in_force),
        steady=sum(mean_rate(samples, path, begin, end) for path in (capped, other)) / (cap + other_link),
        rtt=rtt,
        stalls_from=stalls[0][0] if stalls else nan,
        stalls_to=stalls[-1][1] if stalls else nan,
        onset=onset,
        samples=tuple(samples),
    )
