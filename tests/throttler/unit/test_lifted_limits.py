# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for lifting limits from sockets: immediately if the kernel can, otherwise from busy sockets in bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from zoneinfo import ZoneInfo

import pytest
from fake_kernel import FakePacing, FakeSockets, four_tuple
from policy_values import a_policy, a_rule, a_throttle

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.policy.model import Share
from mptcp_throttler.policy.verdict import ScopeKey, Verdict
from mptcp_throttler.runtime.pacing import SocketLimiter, lift_all
from mptcp_throttler.shaping.model import NO_LIMIT, Ownership, SocketLimit
from mptcp_throttler.shaping.plan import Planner


class Pacing(FakePacing):
    """Fake pacing. Unless *at_once*, sockets apply a limit when they send, and *idle* sockets never send."""

    at_once = True
    idle: frozenset[int] = frozenset()

    def limit(self, limits: Mapping[int, SocketLimit]) -> None:
        applied = limits if self.at_once else {each: limit for each, limit in limits.items() if each not in self.idle}
        super().limit(applied)
        self.limits.update(limits)

    def limit_at_once(self) -> bool:
        return self.at_once


@pytest.fixture
def sockets() -> FakeSockets:
    sockets = FakeSockets()
    sockets.connect(1, "10.1.0.1", "10.2.0.1")
    sockets.connect(2, "10.1.0.2")
    return sockets


@pytest.fixture
def pacing(sockets: FakeSockets) -> Pacing:
    pacing = Pacing(sockets)
    pacing.limit({1: SocketLimit(2_000_000, 250), 3: SocketLimit(1_000_000)})
    return pacing


def test_all_limits_are_lifted_and_limited_sockets_counted(sockets: FakeSockets, pacing: Pacing) -> None:
    count, still_limited = asyncio.run(lift_all(pacing, sockets, 1.0))
    assert (count, list(still_limited)) == (2, [])
    assert pacing.limits == dict.fromkeys((1, 2, 3), NO_LIMIT), (
        "not exactly the limits of all listed sockets were lifted"
    )


def test_sockets_that_keep_their_limit_are_returned_after_the_timeout(sockets: FakeSockets, pacing: Pacing) -> None:
    pacing.at_once, pacing.idle = False, frozenset({3})
    count, still_limited = asyncio.run(lift_all(pacing, sockets, 0.0))
    assert count == 2
    assert [(each.token, each.four_tuple) for each in still_limited] == [(2, four_tuple("10.1.0.2"))]


def test_lifting_does_not_wait_for_closed_sockets(sockets: FakeSockets, pacing: Pacing) -> None:
    class SocketsWithOneClosed(FakeSockets):
        def look_up(self, four_tuples: Sequence[FourTuple]) -> Mapping[FourTuple, KernelSubflow]:
            return super().look_up([each for each in four_tuples if each != four_tuple("10.1.0.2")])

    pacing.at_once, pacing.idle = False, frozenset({3})
    closing = SocketsWithOneClosed()
    closing.by_four_tuple = sockets.by_four_tuple
    count, still_limited = asyncio.run(lift_all(pacing, closing, 60.0))
    assert (count, list(still_limited)) == (2, [])


@pytest.mark.parametrize("at_once", [True, False])
def test_limits_of_a_killed_daemon_are_lifted_unless_a_cap_needs_them(
    sockets: FakeSockets, pacing: Pacing, at_once: bool
) -> None:
    rule = a_rule("cap", None, a_throttle(5_000_000))
    policy = a_policy((), (rule,), ZoneInfo("UTC"))
    planner = Planner(Ownership())
    limiter = SocketLimiter(planner, lambda: pacing, sockets, lambda: None)
    planner.set_policy(policy)
    pacing.at_once = at_once
    before = dict(pacing.limits)

    async def start() -> None:
        await limiter.prepare(policy)
        capped = Verdict(four_tuple("10.1.0.1"), None, rule, ScopeKey("cap", Share.PATH), rule.throttle, "")
        planner.set_verdicts(1, [capped], 0.0)
        await limiter.adopt(list(sockets.by_four_tuple.values()))

    asyncio.run(start())
    # Without immediate lifting, the request stays until the socket sends.
    assert pacing.limits == {1: before[1]} | ({} if at_once else {2: NO_LIMIT, 3: NO_LIMIT}), (
        "the limits were not lifted from exactly the uncapped sockets"
    )
