# SPDX-License-Identifier: GPL-2.0-or-later
"""What each path carries beside capped ones, from byte counters over one download. Pure.

Rates are on the wire, in bits/s, as links and caps count; times are seconds since the download's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mptcp_lab.testbed.recorder import Sample, mean_rate

from .aims import Aim

FREE, CAPPED = 0.95, 0.97
"""Least share of its link that a path must carry, and of its cap that a capped path must carry."""
RESTS = 16
"""A capped path may rest beside uncapped ones that carry so many times its cap."""
MOST = 1.05
"""Most share that a path may carry: a cap holds, and a link that carries more was not emulated."""
UNDER_POLICY = "cap"
RECOVERY = 1.0
"""Seconds over which a rate shows that a share came back."""


@dataclass(frozen=True, slots=True)
class PathLoad:
    """One path of a layout. Rates in bits/s."""

    name: str
    address: str
    """The client's, which distinguishes its packets from others."""
    link: int
    cap: int | None = None

    @property
    def due(self) -> int:
        """What it must carry."""
        return self.link if self.cap is None else min(self.link, self.cap)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one path carried."""

    path: PathLoad
    share: float
    """Share of its link or cap."""

    def aim(self, layout: str, others: int) -> Aim:
        """Return the aim; *others*: what the uncapped paths must carry, bits/s."""
        what, least = ("link", FREE) if self.path.cap is None else ("cap", CAPPED)
        if self.path.cap is not None and others >= RESTS * self.path.cap:
            least = 0.0
        return Aim(f"{layout}: {self.path.name}, of its {what}", self.share, least=least, most=MOST)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    layout: str
    variant: str
    outcomes: tuple[Outcome, ...]
    whole_again: float | None
    """Seconds after the others vanished until the capped path carries its cap; None if never, or if nobody vanished."""


def aims(measured: Sequence[Measured], planned: Sequence[tuple[str, str]], runs: int) -> list[Aim]:
    """Return the aims of the *planned* layouts and variants, by the mean of *runs*; real links need only have run."""
    found = []
    for layout, variant in planned:
        there = [m for m in measured if (m.layout, m.variant) == (layout, variant)]
        found.append(Aim(f"{layout}, {variant}: runs", len(there), least=runs))
        if variant == UNDER_POLICY:
            outcomes = mean_outcomes(there)
            others = sum(each.path.due for each in outcomes if each.path.cap is None)
            found += [each.aim(layout, others) for each in outcomes]
    return found


def mean_outcomes(runs: Sequence[Measured]) -> list[Outcome]:
    """Return what each path carried, as the mean over *runs* of one layout."""
    by_path = zip(*(each.outcomes for each in runs), strict=True)
    return [Outcome(same[0].path, sum(each.share for each in same) / len(same)) for same in by_path]


def judge(samples: Sequence[Sample], paths: Sequence[PathLoad], start: float, end: float) -> list[Outcome]:
    """Return what each path carried from *start* to *end*. Raises ValueError for too few samples."""
    return [Outcome(path, mean_rate(samples, path.name, start, end) / path.due) for path in paths]


def together(outcomes: Sequence[Outcome]) -> float:
    """Return what all paths carried, as a share of what they must carry."""
    return sum(each.share * each.path.due for each in outcomes) / sum(each.path.due for each in outcomes)


def recovered(samples: Sequence[Sample], path: PathLoad, since: float) -> float | None:
    """Return how long after *since* the path begins to carry what it must; None if never."""
    for sample in samples:
        if sample.time < since:
            continue
        later = [each for each in samples if each.time >= sample.time + RECOVERY - 1e-6]
        if not later:
            return None
        octets = later[0].octets[path.name] - sample.octets[path.name]
        if 8 * octets / (later[0].time - sample.time) >= FREE * path.due:
            return sample.time - since
    return None
