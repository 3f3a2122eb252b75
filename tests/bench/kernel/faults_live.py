# SPDX-License-Identifier: GPL-2.0-or-later
"""What is broken in experiments on real packets, and how it is told that their aims see it.

What is broken leaves no rate near its bound, and is judged once. What is sound is tried again, for a busy machine may
miss a rate; so is a void run of either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from void_runs import valid

from mptcp_bench.experiments.setup import Setup
from mptcp_lab.testbed.services import Throttler, start_throttler

TRIES = 3
"""Of what is sound."""
SOUND, DEAD, WRONG, NEVER, UNUSED, FALLBACK = (
    "sound",
    "throttler dead",
    "wrong path",
    "cap never comes",
    "second path unused",
    "client without MPTCP",
)


def misses(measured: Callable[[], set[str]], fault: str, expected: set[str]) -> None:
    """Assert that what is *measured* misses the aims *expected* at least, and none where none is."""
    for _ in range(TRIES if fault == SOUND else 1):
        missed = valid(measured)
        if missed >= expected and bool(missed) is bool(expected):
            return
    raise AssertionError(f"{fault}: misses {missed or 'nothing'}")


def dead(*arguments: Any) -> Throttler:
    """Return a throttler that ended as soon as it had started."""
    throttler = start_throttler(*arguments)
    throttler.process.stop()
    return throttler


def dying_after_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the throttler of a setup end when the policy of a transfer is in force, before that begins."""
    load = Setup.load_between

    def dying(self: Setup, policy: str, rules: Sequence[str]) -> None:
        load(self, policy, rules)
        self.throttler.process.stop()

    monkeypatch.setattr(Setup, "load_between", dying)


def broken_policy(policy: str, fault: str) -> str:
    """Return the text of *policy*, whose cap is on Ethernet, as *fault* has it."""
    if fault == NEVER:
        return f"{policy}dry_run: true\n"
    if fault == WRONG:
        assert policy.count("paths: [ethernet]") == 1
        return policy.replace("paths: [ethernet]", "paths: [wifi]")
    return policy
