"""What the samples of a download say of its steady state, and of its last seconds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mptcp_lab.testbed.recorder import Sample, mean_rate

from .judging import CLOSING, SHORT
from .parts import PATHS, Part

ENDING = 0.3
"""Seconds before a download's end that are not of its steady state: one path may be done before the other."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Rates of a download."""

    rates: Mapping[str, float]
    """Bits per second of each device in the steady state; of the whole download where that was too short for one."""
    seconds: float
    """How long the steady state lasted."""
    closing: float | None
    """Bits per second of the capped device in the last :data:`CLOSING` seconds; None where there is neither."""


def steady(part: Part, samples: Sequence[Sample], start: float, duration: float) -> Steady:
    """Return what *samples* say of the download of *part* that began at *start*, on their clock, and took *duration*.

    The last seconds are looked at however short the steady state: a download whose cap comes late is soon over.
    """
    end = duration - ENDING
    seconds = end - part.settle
    begin, until = (part.settle, end) if seconds >= SHORT else (0.0, duration)
    rates = {path.device: mean_rate(samples, path.device, start + begin, start + until) for path in PATHS}
    closing = None
    if part.capped is not None and end >= CLOSING:
        closing = mean_rate(samples, part.capped, start + end - CLOSING, start + end)
    return Steady(rates, seconds, closing)
