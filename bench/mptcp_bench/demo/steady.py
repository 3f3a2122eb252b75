# SPDX-License-Identifier: GPL-2.0-or-later
"""Steady state and last seconds of a download, from its samples. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mptcp_lab.testbed.recorder import Sample, mean_rate

from .judging import CLOSING, SHORT
from .parts import PATHS, Part

ENDING = 0.3
"""Last seconds that do not belong to the steady state: one path may finish before the other."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Rates of a download."""

    rates: Mapping[str, float]
    """Bits per second by device in the steady state; if that was too short, over the whole download."""
    seconds: float
    closing: float | None
    """Bits per second of the capped device in the last :data:`CLOSING` seconds; None without cap or such an end."""


def steady(part: Part, samples: Sequence[Sample], start: float, duration: float) -> Steady:
    """Return the rates of the download of *part* that began at *start*, on the samples' clock, and took *duration*.

    The last seconds count however short the steady state: a download whose cap comes late is soon over.
    """
    end = duration - ENDING
    seconds = end - part.settle
    begin, until = (part.settle, end) if seconds >= SHORT else (0.0, duration)
    rates = {path.device: mean_rate(samples, path.device, start + begin, start + until) for path in PATHS}
    closing = None
    if part.capped is not None and end >= CLOSING:
        closing = mean_rate(samples, part.capped, start + end - CLOSING, start + end)
    return Steady(rates, seconds, closing)
