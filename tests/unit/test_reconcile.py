"""The reconciler against fakes: order, retry, repair."""

from __future__ import annotations

import asyncio
from zoneinfo import ZoneInfo

import pytest
from fakes import FakeNetfilter, FakeTrafficControl

from mptcp_throttler import reconcile
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Policy, Rule, ScopeKey, Share, Throttle, Verdict
from mptcp_throttler.reconcile import Reconciler
from mptcp_throttler.shaping.model import Ownership, Target
from mptcp_throttler.shaping.plan import IDLE_SECONDS, Planner

CAP = Rule("cap", None, Throttle(5_000_000, 5_000_000, None, Share.CONNECTION))
NOW = 1_700_000_000.0


def verdict(port: int, token: int = 1) -> Verdict:
    four_tuple = FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\2", port)
    return Verdict(four_tuple, None, CAP, ScopeKey("cap", Share.CONNECTION, token), CAP.throttle, "")


class Bench:
    """A planner, a reconciler and fakes that write one log."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.tc = FakeTrafficControl(self.log)
        self.netfilter = FakeNetfilter(self.log)
        self.planner = Planner(Ownership())
        self.planner.set_policy(Policy((), (CAP,), ZoneInfo("UTC")))
        self.reconciler = Reconciler(self.planner, self.tc, self.netfilter)


def test_a_class_comes_before_its_entries_and_goes_after_them() -> None:
    async def scenario() -> list[str]:
        bench = Bench()
        await bench.reconciler.prepare()
        bench.planner.set_verdicts(1, [verdict(1000)], NOW)
        await bench.reconciler.apply()
        bench.planner.forget(1, NOW)
        bench.planner.expire(NOW + IDLE_SECONDS)
        await bench.reconciler.apply()
        await bench.reconciler.close()
        return bench.log

    assert asyncio.run(scenario()) == [
        "take root",
        "make sets",
        "class 10 5000000",
        "1000 to 10",
        "not 1000",
        "no class 10",
        "remove sets",
        "give root back",
    ]


def test_nothing_is_done_twice() -> None:
    async def scenario() -> list[str]:
        bench = Bench()
        bench.planner.set_verdicts(1, [verdict(1000)], NOW)
        await bench.reconciler.apply()
        bench.log.clear()
        bench.planner.set_verdicts(1, [verdict(1000)], NOW)
        await bench.reconciler.apply()
        return bench.log

    assert asyncio.run(scenario()) == []


def test_what_the_kernel_refuses_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "_FIRST_PAUSE", 0.0)

    async def scenario() -> Bench:
        bench = Bench()
        bench.tc.refusals = 2
        bench.planner.set_verdicts(1, [verdict(1000)], NOW)
        task = asyncio.create_task(bench.reconciler.run())
        bench.reconciler.wake()
        async with asyncio.timeout(5):
            while not bench.netfilter.entries:  # noqa: ASYNC110 - the fake has no event to wait for
                await asyncio.sleep(0)
        task.cancel()
        return bench

    bench = asyncio.run(scenario())
    assert bench.reconciler.counters.failures == 2
    assert bench.log == [*["take root", "make sets"] * 2, "class 10 5000000", "1000 to 10"]


def test_apply_raises_what_the_kernel_refused() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.tc.refusals = 1
        bench.planner.set_verdicts(1, [verdict(1000)], NOW)
        await bench.reconciler.apply()

    with pytest.raises(KernelError, match="set class 10: refused"):
        asyncio.run(scenario())


def test_verify_mends_what_somebody_else_changed_and_removes_strays() -> None:
    async def scenario() -> Bench:
        bench = Bench()
        bench.planner.set_verdicts(1, [verdict(1000)], NOW)
        await bench.reconciler.apply()
        stray = verdict(6666).four_tuple
        bench.netfilter.entries = {stray: Target(0x99, 0)}
        bench.tc.classes.clear()
        await bench.reconciler.verify()
        return bench

    bench = asyncio.run(scenario())
    assert bench.netfilter.entries == {verdict(1000).four_tuple: Target(0x10, 0x10000)}
    assert bench.tc.classes.keys() == {0x10}
    assert bench.reconciler.counters.repairs == 3


def test_a_full_set_does_not_keep_stale_entries_in_it() -> None:
    async def scenario() -> Bench:
        bench = Bench()
        bench.netfilter.room = 4
        bench.planner.set_verdicts(1, [verdict(port) for port in range(1000, 1004)], NOW)
        await bench.reconciler.apply()
        bench.planner.set_verdicts(1, [verdict(port) for port in range(2000, 2004)], NOW)
        await bench.reconciler.apply()
        return bench

    bench = asyncio.run(scenario())
    assert {four_tuple.remote_port for four_tuple in bench.netfilter.entries} == {2000, 2001, 2002, 2003}


def test_what_cannot_be_removed_does_not_keep_the_rest() -> None:
    async def scenario() -> Bench:
        bench = Bench()
        bench.netfilter.refuses_removal = True
        with pytest.raises(KernelError, match="sets: in use"):
            await bench.reconciler.close()
        return bench

    assert asyncio.run(scenario()).log == ["give root back"]


def test_changes_that_wait_are_not_counted_as_repairs() -> None:
    async def scenario() -> Bench:
        bench = Bench()
        bench.planner.set_verdicts(1, [verdict(1000)], NOW)
        await bench.reconciler.verify()
        return bench

    assert asyncio.run(scenario()).reconciler.counters.repairs == 0
