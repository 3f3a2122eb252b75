# SPDX-License-Identifier: GPL-2.0-or-later
"""What each path carried beside capped paths, from byte counters over one download, and the aims. Pure.

Rates are on the wire, in bits/s, as links and caps count; times are seconds since the download's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mptcp_lab.testbed.recorder import Sample, mean_rate

from .aims import Aim

FREE, CAPPED = 0.95, 0.97
"""Least rate of an uncapped path, as a share of its link, and of a capped path, as a share of its cap."""
RESTS = 16
"""If the uncapped paths carry this multiple of its cap, a capped path may be idle."""
MOST = 1.05
"""Most rate of any path, as a share of its link or cap. A link that carries more was not emulated."""
UNDER_POLICY = "cap"
RECOVERY = 1.0
"""Seconds over which the rate of the capped path is measured to tell whether it has recovered."""


@dataclass(frozen=True, slots=True)
class PathLoad:
    """One path of a layout, with its rates in bits/s."""

    name: str
    address: str
    """The client's address on this path, which distinguishes the path's packets."""
    link: int
    cap: int | None = None

    @property
    def due(self) -> int:
        """The rate that the path must carry."""
        return self.link if self.cap is None else min(self.link, self.cap)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The rate that one path carried."""

    path: PathLoad
    share: float
    """Rate of the path as a share of its link or cap."""

    def aim(self, layout: str, others: int) -> Aim:
        """Return the path's aim. *others* is the rate that all uncapped paths must carry, in bits/s."""
        what, least = ("link", FREE) if self.path.cap is None else ("cap", CAPPED)
        if self.path.cap is not None and others >= RESTS * self.path.cap:
            least = 0.0
        return Aim(f"{layout}: {self.path.name}, of its {what}", self.share, least=least, most=MOST)


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one run."""

    layout: str
    variant: str
    outcomes: tuple[Outcome, ...]
    whole_again: float | None
    """Seconds from the vanishing of the others until the capped path carries its cap; None if never, or without
    others."""


def aims(measured: Sequence[Measured], planned: Sequence[tuple[str, str]], runs: int) -> list[Aim]:
    """Return the aims of the *planned* layouts and variants, for means over *runs*; with links only *runs* count."""
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
    """Return what each path carried, as the mean over the *runs* of one layout."""
    by_path = zip(*(each.outcomes for each in runs), strict=True)
    return [Outcome(same[0].path, sum(each.share for each in same) / len(same)) for same in by_path]


def judge(samples: Sequence[Sample], paths: Sequence[PathLoad], start: float, end: float) -> list[Outcome]:
    """Return what each path carried from *start* to *end*. Raises ValueError if there are too few samples."""
    return [Outcome(path, mean_rate(samples, path.name, start, end) / path.due) for path in paths]


def together(outcomes: Sequence[Outcome]) -> float:
    """Return what all paths carried together, as a share of what they must carry."""
    return sum(each.share * each.path.due for each in outcomes) / sum(each.path.due for each in outcomes)


def recovered(samples: Sequence[Sample], path: PathLoad, since: float) -> float | None:
    """Return the seconds from *since* until the path begins to carry what it must; None if it never does."""
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
