# SPDX-License-Identifier: GPL-2.0-or-later
"""Rates of a download in its steady state and in its last seconds, from its samples. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mptcp_lab.testbed.recorder import Sample, mean_rate

from .judging import CLOSING, SHORT
from .parts import PATHS, Part

ENDING = 0.3
"""Last seconds that do not belong to the steady state, because one path may finish before the other."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Rates of a download, and the length of its steady state."""

    rates: Mapping[str, float]
    """Rate of each device in the steady state, bits per second; over the whole download if that was too short."""
    seconds: float
    closing: float | None
    """Rate of the capped device in the last :data:`CLOSING` seconds, bits per second. None if the path has no cap, or
    the download was shorter than that."""


def steady(part: Part, samples: Sequence[Sample], start: float, duration: float) -> Steady:
    """Return the rates of a download of *part*; it began at *start* on the samples' clock and took *duration*.

    The last seconds are measured even if the steady state is too short, as it is when the cap comes late.
    """
    end = duration - ENDING
    seconds = end - part.settle
    begin, until = (part.settle, end) if seconds >= SHORT else (0.0, duration)
    rates = {path.device: mean_rate(samples, path.device, start + begin, start + until) for path in PATHS}
    closing = None
    if part.capped is not None and end >= CLOSING:
        closing = mean_rate(samples, part.capped, start + end - CLOSING, start + end)
    return Steady(rates, seconds, closing)
