# SPDX-License-Identifier: GPL-2.0-or-later
"""Functions for time limits in tests. Other programs may use the processors at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable

from mptcp_lab.agent import processors

MAX_SLOWNESS = 5
"""Maximum factor for a time limit, if programs always wait for a processor."""


def slowness(waiting: float | None) -> float:
    """Return the factor for a time limit. *waiting*: the share of the time in which programs waited for a processor
    (None: unknown).
    """
    return 1 + (MAX_SLOWNESS - 1) * (1.0 if waiting is None else min(1.0, waiting))


def shortest_time(measure: Callable[[], float], limit: float) -> float:
    """Return the result of *measure* in seconds. If it is *limit* or more and the machine was busy, measure a second
    time and return the smaller value."""
    before = processors.read(own=os.getpid())
    seconds = measure()
    if seconds >= limit and processors.usage(before, processors.read(own=os.getpid())).busy:
        seconds = min(seconds, measure())
    return seconds
