# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks for the end of the throttler's kernel tests: no object of the throttler remains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.services import wait_until
from mptcp_lab.testbed.system_state import FILES, PROCESSES, State, differences, without_dumps

KEEPER_PARTS = (PROCESSES, FILES)
"""Parts of the state in which the keeper (``mptcp_pm/keeper.py``) appears. It ends with the last MPTCP connection, not
with the throttler."""


def assert_nothing_left(before: State, state: Callable[[], State], *, keeper: bool = False) -> None:
    """Check that *state* equals *before*: kernel and BPF immediately, processes and files when the keeper has ended.

    *keeper*: remaining connections still need the keeper, so it may still run.
    """
    after = state()
    assert_same(without_dumps(before, *KEEPER_PARTS), without_dumps(after, *KEEPER_PARTS))

    def is_same() -> bool:
        nonlocal after
        after = state()
        return not differences(before, after)

    if not keeper and differences(before, after):
        with suppress(TestbedError):
            wait_until(is_same, "the keeper has ended")
        assert_same(before, after)


def assert_same(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise AssertionError with the differences, if there are any."""
    found = differences(before, after)
    assert not found, "\n".join(found)
