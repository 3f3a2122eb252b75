# SPDX-License-Identifier: GPL-2.0-or-later
"""A time that has an upper limit, on a machine that others may keep busy."""

from __future__ import annotations

import os
from collections.abc import Callable

from mptcp_lab.agent import processors

BUSY = 5
"""So many times as long something may take for who shares the processors with others all the time."""


def slowness(waiting: float | None) -> float:
    """Return how many times as long something may take where somebody waited for a processor in this share of the time.

    None: nobody knows.
    """
    return 1 + (BUSY - 1) * (1.0 if waiting is None else min(1.0, waiting))


def least_time(measure: Callable[[], float], limit: float) -> float:
    """Return the seconds that *measure* took: the less of two, where the first took *limit* and others had the time."""
    before = processors.read(own=os.getpid())
    took = measure()
    if took >= limit and processors.usage(before, processors.read(own=os.getpid())).busy:
        took = min(took, measure())
    return took
