"""What the kernel is asked when packets claim something, how often, and what follows from its answers."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path as File
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
    PORT,
    RST,
    Host,
    Path,
    announced,
    feed,
    kinds,
    states,
)
from test_daemon import CAPPED, running, until

from mptcp_throttler.mptcp.connection_table import CONFIRMED_AFTER
from mptcp_throttler.mptcp.model import FourTuple, KernelEventKind, Segment, SubflowState
from mptcp_throttler.mptcp.options import MpFastclose, MpPrio
from mptcp_throttler.mptcp.questions import BURST, MAX_WAITING, RATE, SocketLookupQueue
from mptcp_throttler.mptcp.tracker import Tracker


def some(count: int) -> list[FourTuple]:
    return [FourTuple(bytes(4), PORT, bytes(4), port) for port in range(count)]


class Walk:
    """SocketLookupQueue without a bound on look-ups, by walks over all that wait."""

    def __init__(self) -> None:
        self.waiting: dict[FourTuple, tuple[float, int]] = {}

    def ask(self, four_tuple: FourTuple) -> None:
        self.waiting.setdefault(four_tuple, (float("-inf"), 0))

    def drop(self, four_tuple: FourTuple) -> None:
        self.waiting.pop(four_tuple, None)

    def take(self, now: float) -> list[FourTuple]:
        due = [each for each, (time, _) in self.waiting.items() if time <= now]
        for each in due:
            times = self.waiting.pop(each)[1]
            if times < 2:
                self.waiting[each] = (now + (0.1, 0.9)[times], times + 1)
        return due


class TestQuestions:
    def test_each_is_asked_three_times_however_often_it_is_wanted(self) -> None:
        questions, (one,) = SocketLookupQueue(), some(1)
        asked = []
        for step in range(1000):
            if step < 300:
                questions.ask(one)
            asked += [step for _ in questions.take(step / 1000)]
        assert asked == [0, 100]
        assert (questions.take(1.1), questions.pause(1.1)) == ((one,), None)

    def test_a_flood_costs_no_more_than_the_rate(self) -> None:
        questions, flood = SocketLookupQueue(), some(MAX_WAITING + 100)
        asked = 0
        for step in range(2000):
            for each in flood:
                questions.ask(each)
            assert len(questions) <= MAX_WAITING
            asked += len(questions.take(step / 1000))
        assert asked <= BURST + 2 * RATE
        assert asked >= 2 * RATE - 1

    def test_it_says_when_to_come_again(self) -> None:
        questions = SocketLookupQueue()
        assert questions.pause(5.0) is None
        for each in some(2 * BURST):
            questions.ask(each)
        assert questions.pause(5.0) == 0
        assert len(questions.take(5.0)) == BURST
        pause = questions.pause(5.0)
        assert pause is not None
        assert pause == pytest.approx(1 / RATE)
        assert len(questions.take(5.0 + pause + 1e-6)) == 1

    def test_what_ended_is_not_asked(self) -> None:
        questions, (one,) = SocketLookupQueue(), some(1)
        questions.ask(one)
        questions.drop(one)
        assert questions.take(0.0) == ()
        questions.ask(one)
        assert questions.take(0.0) == (one,)
        questions.drop(one)
        questions.ask(one)
        assert (questions.take(0.0), questions.take(0.05)) == ((one,), ()), "asked anew, not twice"

    @given(claims=st.lists(st.tuples(st.sampled_from("adt"), st.integers(0, 9), st.sampled_from((0.03, 0.1, 0.9)))))
    def test_each_comes_when_a_walk_over_all_would_find_it(self, claims: list[tuple[str, int, float]]) -> None:
        """Ten subflows never wait for the rate."""
        questions, walked, each = SocketLookupQueue(), Walk(), some(10)
        now = 0.0
        for what, which, after in claims:
            now += after
            if what == "t":
                assert sorted(questions.take(now)) == sorted(walked.take(now))
            else:
                for one in (questions, walked):
                    (one.ask if what == "a" else one.drop)(each[which])
            assert len(questions) == len(walked.waiting)
            pause = questions.pause(now)
            assert pause == (max(0.0, min(due for due, _ in walked.waiting.values()) - now) if walked.waiting else None)

    def test_what_waits_costs_a_look_up_nothing(self) -> None:
        """A thousand that wait took a walk of a thousand steps for each that was looked up."""
        questions = SocketLookupQueue()
        for each in some(MAX_WAITING):
            questions.ask(each)
        questions.take(0.0)
        now, steps = 0.0, 0

        def trace(frame: object, event: str, argument: object) -> Any:
            nonlocal steps
            steps += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for _ in range(100):
                now += 1 / RATE
                assert len(questions.take(now)) <= 2
                assert questions.pause(now) is not None
        finally:
            sys.settrace(before)
        assert steps < 100 * 60

    def test_what_was_dropped_is_not_kept(self) -> None:
        questions = SocketLookupQueue()
        for each in some(100 * MAX_WAITING):
            questions.ask(each)
            questions.drop(each)
        assert len(questions._heap) <= 2 * BURST + 1

    def test_those_asked_later_do_not_keep_one_from_its_turn(self) -> None:
        questions, (first, *others) = SocketLookupQueue(), some(3000)
        questions.ask(first)
        asked, now = 0, 0.0
        for each in others:
            now += 1 / (2 * RATE)
            questions.ask(each)
            asked += first in questions.take(now)
        while len(questions):
            now += 1 / RATE
            asked += first in questions.take(now)
        assert asked == 3


@pytest.fixture
def tracker(host: Host) -> Tracker:
    """One to which no events come, with a connection of two subflows that a dump has shown."""
    made = Tracker([PORT])
    made.events_arrive = False
    made.resync([host.initial().dumped(), host.join().dumped()], host.time)
    host.time += 5
    return made


CLAIMS = ("fin", "rst", "proxy_rst", "priority", "fast_close", "replacement")


def claim(path: Path, kind: str) -> list[Segment]:
    if kind == "priority":
        return [path.from_client(ACK, MpPrio(True, None))]
    if kind == "fast_close":
        return [path.from_client(RST, MpFastclose(path.host.proxy_key))]
    if kind == "replacement":
        return [path.again().syn(), path.again().syn_ack()]
    return [getattr(path, kind)()]


@pytest.mark.parametrize("kind", CLAIMS)
class TestWithoutEvents:
    def test_what_the_kernel_has_stays(self, tracker: Tracker, host: Host, kind: str) -> None:
        path = host.join()
        assert announced(tracker, *claim(path, kind)) == []
        assert tracker.questions(1.0) == (path.four_tuple,)
        assert tracker.answer([path.four_tuple], {path.four_tuple: path.dumped()}, host.time) == []
        assert set(states(tracker, host).values()) == {SubflowState.ACTIVE}

    def test_what_it_has_no_longer_ends(self, tracker: Tracker, host: Host, kind: str) -> None:
        path = host.join()
        feed(tracker, *claim(path, kind))
        assert kinds(tracker.answer(tracker.questions(1.0), {}, host.time)) == [CLOSED]
        assert states(tracker, host) == {host.initial().four_tuple: SubflowState.ACTIVE}
        assert tracker.next_question(1.0) is None


def test_a_priority_that_the_kernel_took_is_learnt(tracker: Tracker, host: Host) -> None:
    path = host.join()
    feed(tracker, *claim(path, "priority"))
    asked = tracker.questions(1.0)
    events = tracker.answer(asked, {path.four_tuple: path.dumped(backup=True)}, host.time)
    assert [(each.kind.value, each.detail) for each in events] == [(CHANGED, "backup flag from the kernel")]


@pytest.mark.parametrize("kind", CLAIMS)
def test_where_events_arrive_nothing_is_asked_but_of_resets(tracker: Tracker, host: Host, kind: str) -> None:
    """Of subflows that MP_FASTCLOSE ended the kernel tells nothing."""
    tracker.events_arrive = True
    path = host.join()
    assert announced(tracker, *claim(path, kind)) == []
    assert tracker.questions(1.0) == ((path.four_tuple,) if kind in ("rst", "proxy_rst", "fast_close") else ())
    assert set(states(tracker, host).values()) == {SubflowState.ACTIVE}


class TestUnconfirmed:
    def test_the_kernel_is_asked_when_no_event_follows(self, host: Host) -> None:
        tracker, path = Tracker([PORT]), host.initial()
        feed(tracker, *path.handshake())
        tracker.expire(host.time + CONFIRMED_AFTER / 2)
        assert tracker.next_question(1.0) is None
        tracker.expire(host.time + CONFIRMED_AFTER)
        assert tracker.questions(1.0) == (path.four_tuple,)
        later = host.time + CONFIRMED_AFTER
        assert tracker.answer([path.four_tuple], {path.four_tuple: path.dumped()}, later) == []
        assert tracker.connections[host.token].subflows[0].confirmed
        tracker.expire(later + 5)
        assert tracker.next_question(9.0) is not None, "the look-ups that were begun"
        for now in (2.0, 4.0):
            tracker.questions(now)
        tracker.expire(later + 9)
        assert tracker.next_question(9.0) is None

    def test_what_the_kernel_never_had_ends(self, host: Host) -> None:
        tracker, path, phantom = Tracker([PORT]), host.initial(), host.join()
        feed(tracker, *path.handshake(), path.kernel(KernelEventKind.CREATED))
        assert announced(tracker, *phantom.handshake()) == [ACTIVE]
        assert [each.confirmed for each in tracker.connections[host.token].subflows] == [True, False]
        at_once = tracker.answer([phantom.four_tuple], {}, host.time)
        assert at_once == [], "the kernel may not have come to the third ACK yet"
        tracker.expire(host.time + CONFIRMED_AFTER)
        assert kinds(tracker.answer(tracker.questions(1.0), {}, host.time + CONFIRMED_AFTER)) == [CLOSED]


def test_the_daemon_asks(tmp_path: File) -> None:
    """Nobody listens to path-manager events here, so that each RST is a question."""

    async def scenario() -> None:
        kernel = FakeKernel()
        kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
        known = four_tuple("10.2.0.1")
        rst = Segment(
            time.monotonic(), "w0", known.remote, known.remote_port, known.local, known.local_port, RST, 1, 0, (), False
        )
        async with running(tmp_path, CAPPED, kernel) as scene:
            assert set(kernel.netfilter.entries) == {four_tuple("10.1.0.1")}
            kernel.captures["w0"].give(rst)
            await until(lambda: scene.status()["counters"]["observers"]["questions"])
            assert set(kernel.netfilter.entries) == {four_tuple("10.1.0.1")}
            del kernel.sockets.there[known]
            kernel.captures["w0"].give(rst)
            await until(lambda: not kernel.netfilter.entries)

    asyncio.run(scenario())
