"""What each path carries beside capped ones, from byte counters over one download. Pure.

All rates are of the wire, in bits/s, as links and caps count them; times in seconds since the download's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mptcp_lab.testbed.recorder import Sample, mean_rate

FREE, CAPPED = 0.95, 0.97
"""What a path is to carry, as a share of its link, and a capped one of its cap."""
MOST = 1.05
"""A capped one is not to carry more than that share of its cap."""
RECOVERY = 1.0
"""Seconds over which the rate is taken that tells when a share came back."""


@dataclass(frozen=True, slots=True)
class PathLoad:
    """One path of a scene. Rates in bits/s."""

    name: str
    address: str
    """The client's, by which its packets are told from others."""
    link: int
    cap: int | None = None

    @property
    def due(self) -> int:
        """What it is to carry."""
        return self.link if self.cap is None else min(self.link, self.cap)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one path carried."""

    path: PathLoad
    share: float
    """As a share of its link or cap."""

    @property
    def complaint(self) -> str | None:
        """What is wrong with it."""
        what, least = ("link", FREE) if self.path.cap is None else ("cap", CAPPED)
        if self.share < least:
            return f"{self.path.name} carries {self.share:.2f} of its {what}, wanted ≥ {least}"
        if self.path.cap is not None and self.share > MOST:
            return f"{self.path.name} carries {self.share:.2f} of its cap, wanted ≤ {MOST}"
        return None


def judge(samples: Sequence[Sample], paths: Sequence[PathLoad], start: float, end: float) -> list[Outcome]:
    """Return what each path carried from *start* to *end*. Raises ValueError where there are too few samples."""
    return [Outcome(path, mean_rate(samples, path.name, start, end) / path.due) for path in paths]


def together(outcomes: Sequence[Outcome]) -> float:
    """Return what all paths carried, as a share of what they are to carry."""
    return sum(each.share * each.path.due for each in outcomes) / sum(each.path.due for each in outcomes)


def recovered(samples: Sequence[Sample], path: PathLoad, since: float) -> float | None:
    """Return how long after *since* the path begins to carry what it is to; None if never."""
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
