# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers for time limits in tests, on a machine that other programs may keep busy."""

from __future__ import annotations

import os
from collections.abc import Callable

from mptcp_lab.agent import processors

MAX_SLOWNESS = 5
"""Factor for a time limit if programs wait for a processor all the time."""


def slowness(waiting: float | None) -> float:
    """Return the factor for a time limit if programs waited for a processor in the share *waiting* of the time. None
    means that the share is unknown.
    """
    return 1 + (MAX_SLOWNESS - 1) * (1.0 if waiting is None else min(1.0, waiting))


def least_time(measure: Callable[[], float], limit: float) -> float:
    """Return the seconds that *measure* took. If they reached *limit* while the machine was busy, measure again and
    return the smaller value."""
    before = processors.read(own=os.getpid())
    took = measure()
    if took >= limit and processors.usage(before, processors.read(own=os.getpid())).busy:
        took = min(took, measure())
    return took
