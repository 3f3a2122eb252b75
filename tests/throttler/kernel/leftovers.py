# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel tests of the throttler ask at its end: that nothing of it is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.services import wait_until
from mptcp_lab.testbed.system_state import FILES, PROCESSES, State, differences, without

KEEPERS = (PROCESSES, FILES)
"""Where the keeper shows, which goes with the last connection and not with the throttler."""


def nothing_left(before: State, state: Callable[[], State], *, keeper: bool = False) -> None:
    """Compare *state* with *before*: the kernel and what is held of BPF at once, the rest when the keeper has gone.

    With *keeper*, connections go on that need one, and it is not waited for.
    """
    the_same(without(before, *KEEPERS), without(state(), *KEEPERS))
    if keeper:
        return
    with suppress(TestbedError):
        wait_until(lambda: not differences(before, state()), "the keeper has gone")
    the_same(before, state())


def the_same(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise AssertionError, with what differs."""
    found = differences(before, after)
    assert not found, "\n".join(found)
