# SPDX-License-Identifier: GPL-2.0-or-later
"""Repeats measurements that a busy machine may make void, as experiments do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from mptcp_lab.testbed import TestbedError

TRIES = 3
VOID = (TestbedError, ValueError)
"""Exceptions that a void run raises, while it runs or is judged."""
T = TypeVar("T")


def valid(measured: Callable[[], T]) -> T:
    """Return the result of *measured*. Repeat a void run, and raise one of `VOID` if every run is void."""
    for _ in range(TRIES - 1):
        with suppress(*VOID):
            return measured()
    return measured()
