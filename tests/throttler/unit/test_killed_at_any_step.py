# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests with a kill after each change to the kernel: the state is consistent, and a successor adopts it.

The contract: a class is created before its first entry, and deleted after its last. So an entry never names a missing
class, neither between two changes nor in a transition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from zoneinfo import ZoneInfo

import pytest
from fakes import FakeNetfilter, FakeTrafficControl
from policy_values import a_policy
from test_reconcile import CAP, NOW, uncapped, verdict

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.verdict import Verdict
from mptcp_throttler.runtime.reconcile import Reconciler
from mptcp_throttler.shaping.model import ClassSpec, Ownership, Target
from mptcp_throttler.shaping.plan import IDLE_SECONDS, Planner


class Killed(BaseException):
    """Simulates SIGKILL: no code of the throttler runs afterwards."""


class Kernel:
    """A fake kernel that kills the throttler after a number of changes."""

    def __init__(self, changes: int) -> None:
        self.changes_until_kill = changes
        self.tc = _TrafficControl(self)
        self.netfilter = _Netfilter(self)

    def count_change(self) -> None:
        if self.changes_until_kill == 0:
            raise Killed
        self.changes_until_kill -= 1

    def check_entries(self) -> None:
        for target in self.netfilter.entries.values():
            assert target.minor in self.tc.classes, "an entry names a missing class"


class _TrafficControl(FakeTrafficControl):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._kernel = kernel

    async def upsert_classes(self, specs: Iterable[ClassSpec]) -> None:
        for spec in specs:
            self._kernel.count_change()
            await super().upsert_classes([spec])
            self._kernel.check_entries()

    async def delete_classes(self, minors: Iterable[int]) -> None:
        for minor in minors:
            self._kernel.count_change()
            await super().delete_classes([minor])
            self._kernel.check_entries()


class _Netfilter(FakeNetfilter):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._kernel = kernel

    async def upsert_entries(self, entries: Mapping[FourTuple, Target]) -> None:
        for four_tuple, target in entries.items():
            self._kernel.count_change()
            await super().upsert_entries({four_tuple: target})
            self._kernel.check_entries()

    def upsert_at_once(self, entries: Mapping[FourTuple, Target]) -> bool:
        for four_tuple, target in entries.items():
            self._kernel.count_change()
            super().upsert_at_once({four_tuple: target})
            self._kernel.check_entries()
        return True

    async def delete_entries(self, four_tuples: Iterable[FourTuple]) -> None:
        for four_tuple in four_tuples:
            self._kernel.count_change()
            await super().delete_entries([four_tuple])
            self._kernel.check_entries()


def planner_and_reconciler(kernel: Kernel) -> tuple[Planner, Reconciler]:
    planner = Planner(Ownership())
    planner.set_policy(a_policy((), (CAP,), ZoneInfo("UTC")))
    return planner, Reconciler(planner, kernel.tc, kernel.netfilter)


async def run_throttler(kernel: Kernel) -> None:
    """Connections begin, are capped, change and end. Each connection has its own class."""
    planner, reconciler = planner_and_reconciler(kernel)
    await reconciler.prepare()
    for token in (1, 2, 3):
        planner.set_verdicts(token, verdicts_for_two_subflows(token), NOW)
        reconciler.wake()
        await reconciler.apply()
    planner.set_verdicts(2, [uncapped(2000), verdict(2001, 2)], NOW)
    reconciler.wake()
    await reconciler.apply()
    planner.set_verdicts(1, (), NOW)
    await reconciler.apply()
    planner.expire(NOW + IDLE_SECONDS)
    await reconciler.apply()


def verdicts_for_two_subflows(token: int) -> list[Verdict]:
    return [verdict(1000 * token, token), verdict(1000 * token + 1, token)]


def number_of_changes() -> int:
    kernel = Kernel(10_000)
    asyncio.run(run_throttler(kernel))
    return 10_000 - kernel.changes_until_kill


@pytest.mark.parametrize("changes", range(number_of_changes()))
def test_successor_adopts_the_state_after_a_kill_at_each_change(changes: int) -> None:
    async def scenario() -> Kernel:
        kernel = Kernel(changes)
        with suppress(Killed):
            await run_throttler(kernel)
        kernel.check_entries()
        kernel.changes_until_kill = 10_000
        planner, reconciler = planner_and_reconciler(kernel)
        await reconciler.prepare()
        planner.set_verdicts(2, verdicts_for_two_subflows(2), NOW)
        await reconciler.apply()
        planner.expire(NOW + IDLE_SECONDS)
        await reconciler.apply()
        return kernel

    kernel = asyncio.run(scenario())
    assert {each.remote_port for each in kernel.netfilter.entries} == {2000, 2001}
    assert {target.minor for target in kernel.netfilter.entries.values()} == set(kernel.tc.classes)
