# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers for faults in experiments on real packets, and for checking that their aims notice them.

A fault keeps every rate far from its bound, so one run is judged. A sound setup may miss a rate on a busy machine, so
it is tried again, as is a void run of either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from void_runs import valid

from mptcp_bench.experiments.setup import Setup
from mptcp_lab.testbed.services import Throttler, start_throttler

TRIES = 3
"""Attempts for a sound setup."""
SOUND, DEAD, WRONG, NEVER, UNUSED, FALLBACK = (
    "sound",
    "throttler dead",
    "wrong path",
    "cap never comes",
    "second path unused",
    "client without MPTCP",
)


def misses(measured: Callable[[], set[str]], fault: str, expected: set[str]) -> None:
    """Assert that *measured* misses at least the aims *expected*, or no aim if none is expected."""
    for _ in range(TRIES if fault == SOUND else 1):
        missed = valid(measured)
        if missed >= expected and bool(missed) is bool(expected):
            return
    raise AssertionError(f"{fault}: misses {missed or 'nothing'}")


def dead(*arguments: Any) -> Throttler:
    """Return a throttler that was stopped directly after its start."""
    throttler = start_throttler(*arguments)
    throttler.process.stop()
    return throttler


def dying_after_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the throttler of a setup stop when a transfer's policy is in force, before the transfer begins."""
    load = Setup.load_between

    def dying(self: Setup, policy: str, rules: Sequence[str]) -> None:
        load(self, policy, rules)
        self.throttler.process.stop()

    monkeypatch.setattr(Setup, "load_between", dying)


def broken_policy(policy: str, fault: str) -> str:
    """Return the text of *policy*, which caps Ethernet, with *fault*."""
    if fault == NEVER:
        return f"{policy}dry_run: true\n"
    if fault == WRONG:
        assert policy.count("paths: [ethernet]") == 1
        return policy.replace("paths: [ethernet]", "paths: [wifi]")
    return policy
