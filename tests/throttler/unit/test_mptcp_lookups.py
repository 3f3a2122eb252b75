# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for look-ups in the kernel that packets trigger: their frequency, and the effect of the answers."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_kernel import FakeKernel, four_tuple
from hypothesis import given
from hypothesis import strategies as st
from mptcp_dialogue import (
    ACK,
    ACTIVE,
    CHANGED,
    CLOSED,
    ENDED,
    PORT,
    RST,
    Host,
    feed,
    kinds,
    kinds_of_events,
    open_connection,
)
from test_daemon import CAPPED, running, until

from mptcp_throttler.mptcp.lookups import MAX_BURST, MAX_RATE, MAX_WAITING, SocketLookupQueue
from mptcp_throttler.mptcp.model import FourTuple, Segment
from mptcp_throttler.mptcp.options import MpFastclose
from mptcp_throttler.mptcp.tracker import Tracker


def four_tuples(count: int) -> list[FourTuple]:
    return [FourTuple(bytes(4), PORT, bytes(4), port) for port in range(count)]


class TestLookupQueue:
    def test_each_subflow_is_looked_up_at_most_twice_a_second(self) -> None:
        lookups, (subflow,) = SocketLookupQueue(), four_tuples(1)
        requested = []
        for step in range(2000):
            if step < 900:
                lookups.add(subflow, step / 1000)
            requested += [step for _ in lookups.pop_due(step / 1000)]
        assert requested == [500, 1001]
        assert lookups.pause(2.0) is None

    def test_look_ups_are_limited_to_the_rate(self) -> None:
        lookups, flood = SocketLookupQueue(), four_tuples(MAX_WAITING + 100)
        requested = 0
        for step in range(2000):
            for each in flood:
                lookups.add(each, step / 1000)
            assert len(lookups) <= MAX_WAITING
            requested += len(lookups.pop_due(step / 1000))
        assert requested <= MAX_BURST + 2 * MAX_RATE
        assert requested >= 1.5 * MAX_RATE

    def test_pause_is_the_time_until_the_next_look_up(self) -> None:
        lookups = SocketLookupQueue()
        assert lookups.pause(5.0) is None
        for each in four_tuples(2 * MAX_BURST):
            lookups.add(each, 5.0)
        assert lookups.pause(5.0) == pytest.approx(0.5)
        assert len(lookups.pop_due(5.6)) == MAX_BURST
        pause = lookups.pause(5.6)
        assert pause is not None
        assert pause == pytest.approx(1 / MAX_RATE)
        assert len(lookups.pop_due(5.6 + pause + 1e-6)) == 1

    @given(
        actions=st.lists(
            st.tuples(st.sampled_from(["add", "drop", "take"]), st.integers(0, 9), st.sampled_from((0.03, 0.1, 0.5)))
        )
    )
    def test_look_ups_are_due_at_the_times_of_a_simple_model(self, actions: list[tuple[str, int, float]]) -> None:
        """Ten subflows are too few for the limit to delay a look-up."""
        lookups, subflows = SocketLookupQueue(), four_tuples(10)
        now, waiting = 0.0, dict[FourTuple, float]()
        for action, index, seconds in actions:
            now += seconds
            if action == "take":
                due = [subflow for subflow, lookup_time in waiting.items() if lookup_time <= now]
                assert sorted(lookups.pop_due(now)) == sorted(due)
                waiting = {subflow: lookup_time for subflow, lookup_time in waiting.items() if lookup_time > now}
            elif action == "add":
                lookups.add(subflows[index], now)
                waiting.setdefault(subflows[index], now + 0.5)
            else:
                lookups.pop(subflows[index], None)
                waiting.pop(subflows[index], None)
            assert len(lookups) == len(waiting)
            assert lookups.pause(now) == (max(0.0, min(waiting.values()) - now) if waiting else None)

    def test_look_up_time_does_not_grow_with_the_number_of_waiting_subflows(self) -> None:
        """Defect: each look-up iterated over all waiting subflows, up to 1,000."""
        lookups = SocketLookupQueue()
        for each in four_tuples(MAX_WAITING):
            lookups.add(each, 0.0)
        now, steps = 0.6, 0
        lookups.pop_due(now)

        def trace(frame: object, event: str, argument: object) -> Any:
            nonlocal steps
            steps += event == "line"
            return trace

        previous_trace = sys.gettrace()
        sys.settrace(trace)
        try:
            for _ in range(100):
                now += 1 / MAX_RATE
                assert len(lookups.pop_due(now)) <= 2
                assert lookups.pause(now) is not None
        finally:
            sys.settrace(previous_trace)
        assert steps < 100 * 60

    def test_dropped_subflows_are_removed(self) -> None:
        lookups = SocketLookupQueue()
        for each in four_tuples(100 * MAX_WAITING):
            lookups.add(each, 0.0)
            lookups.pop(each)
        assert len(lookups) == 0
        assert lookups.pause(0.0) is None


@pytest.mark.parametrize("exists", [True, False])
def test_subflow_is_looked_up_after_a_reset(tracker: Tracker, host: Host, exists: bool) -> None:
    open_connection(tracker, host)
    subflow = host.join()
    feed(tracker, *subflow.established())
    assert kinds_of_events(tracker, subflow.rst()) == []
    requested = tracker.lookups.pop_due(host.time + 0.6)
    assert requested == (subflow.four_tuple,)
    sockets = {subflow.four_tuple: subflow.kernel_subflow(backup=True)} if exists else {}
    events = tracker.apply_lookup(requested, sockets, host.time + 0.6)
    assert [(each.kind.value, each.detail) for each in events] == [
        (CHANGED, "backup flag from the kernel") if exists else (CLOSED, "the kernel has no such subflow")
    ]


def test_all_subflows_are_looked_up_after_a_fastclose(tracker: Tracker, host: Host) -> None:
    """The connection has lost its token, so no event reports its end."""
    first, second = open_connection(tracker, host), host.join()
    feed(tracker, *second.established(), first.from_client(ACK, MpFastclose(host.proxy_key)))
    requested = tracker.lookups.pop_due(host.time + 0.6)
    assert set(requested) == {first.four_tuple, second.four_tuple}
    assert kinds(tracker.apply_lookup(requested, {}, host.time + 0.6)) == [CLOSED, CLOSED]
    assert tracker.lookups.pause(host.time + 0.6) is None
    assert kinds(tracker.expire(host.time + 11)) == [ENDED]


def test_client_that_roams_after_a_reset_keeps_its_connection(tracker: Tracker, host: Host) -> None:
    """Defect: a look-up before the kernel's event about the new subflow closed the connection."""
    first = open_connection(tracker, host)
    feed(tracker, first.rst())
    assert kinds(tracker.apply_lookup(tracker.lookups.pop_due(host.time + 0.6), {}, host.time + 0.6)) == [CLOSED]
    assert kinds_of_events(tracker, *host.join().established()) == [ACTIVE]


def test_daemon_looks_up_a_subflow_after_a_reset(tmp_path: Path) -> None:
    async def scenario() -> None:
        kernel = FakeKernel()
        kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
        joined = four_tuple("10.2.0.1")
        source, destination = (joined.remote, joined.remote_port), (joined.local, joined.local_port)
        rst = Segment(time.monotonic(), "w0", *source, *destination, RST, 1, 0, (), False)
        async with running(tmp_path, CAPPED, kernel) as scene:
            assert set(kernel.netfilter.entries) == {four_tuple("10.1.0.1")}
            kernel.captures["w0"].give(rst)
            await until(lambda: scene.status()["counters"]["observers"]["questions"])
            assert set(kernel.netfilter.entries) == {four_tuple("10.1.0.1")}
            del kernel.sockets.by_four_tuple[joined]
            kernel.captures["w0"].give(rst)
            await until(lambda: not kernel.netfilter.entries)

    asyncio.run(scenario())
