# SPDX-License-Identifier: GPL-2.0-or-later
"""Measurements that a busy machine may make void, and that experiments make again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from mptcp_lab.testbed import TestbedError

TRIES = 3
VOID = (TestbedError, ValueError)
"""What a void run raises: as it is made, or as it is judged."""
T = TypeVar("T")


def valid(measured: Callable[[], T]) -> T:
    """Return what is *measured*, made again where it is void. Raises one of `VOID` where it is void each time."""
    for _ in range(TRIES - 1):
        with suppress(*VOID):
            return measured()
    return measured()
