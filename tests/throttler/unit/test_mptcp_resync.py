# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a resync in parts: their sizes do not change the result, and concurrent changes lose no subflow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mptcp_dialogue import (
    ACTIVE,
    CHANGED,
    CLOSED,
    DISAGREE,
    OPENED,
    PORT,
    ClientSubflow,
    Host,
    feed,
    kinds,
    kinds_of_events,
    known_subflows,
    open_connection,
)
from mptcp_invariants import Subscriber, check_tables

from mptcp_throttler.mptcp.limits import TrackerLimits
from mptcp_throttler.mptcp.model import Event, FourTuple, KernelEventKind, KernelSubflow
from mptcp_throttler.mptcp.tracker import Resync, Tracker

K = KernelEventKind
LIMITS = TrackerLimits(max_connections=3, max_subflows_per_connection=3)


def finish(resync: Resync, limit: int = 500) -> list[Event]:
    return [event for step in resync.finish(limit) for event in step]


def subflows_of(host: Host) -> list[ClientSubflow]:
    """Return three subflows. The proxy opened the third from another local port."""
    outward = host.join("203.0.113.9")
    outward.four_tuple = outward.four_tuple._replace(local_port=45678, remote=host.client_key[:4])
    initial, join = host.initial(), host.join()
    for subflow in (initial, join):
        subflow.four_tuple = subflow.four_tuple._replace(remote=host.client_key[4:])
    return [initial, join, outward]


SUBFLOWS = [subflow for number in range(4) for subflow in subflows_of(Host(f"host {number}"))]
indexes = st.integers(0, len(SUBFLOWS) - 1)


@settings(max_examples=examples(300), deadline=None)
@given(
    tracked=st.lists(st.tuples(indexes, st.integers(1, 3)), max_size=8),
    listed=st.lists(st.tuples(indexes, st.booleans()), max_size=12),
    cuts=st.sets(st.integers(0, 12)),
    limit=st.integers(1, 5),
)
def test_result_of_a_resync_does_not_depend_on_how_the_dump_is_divided(
    tracked: list[tuple[int, int]], listed: list[tuple[int, bool]], cuts: set[int], limit: int
) -> None:
    items = [item for index, count in tracked if index % 3 < 2 for item in SUBFLOWS[index].established()[-count:]]
    time = max((item.time for item in items), default=1000.0) + 5
    dump = [SUBFLOWS[index].kernel_subflow(backup=backup) for index, backup in listed]
    undivided, divided = Tracker([PORT], LIMITS), Tracker([PORT], LIMITS)
    feed(undivided, *items)
    feed(divided, *items)
    expected = undivided.resync(dump, time)
    resync = divided.begin_resync(time)
    boundaries = [0, *sorted(cuts), len(dump)]
    events = [event for start, end in pairwise(boundaries) for event in resync.add(dump[start:end])] + finish(
        resync, limit
    )
    assert events == expected
    assert dict(divided.connections) == dict(undivided.connections)
    assert divided.table_sizes == undivided.table_sizes
    check_tables(divided, LIMITS)


class Kernel(RuleBasedStateMachine):
    """Sockets open and close while a dump is read. Each part of the dump was written before the latest changes.

    The dump visits the slots of a hash table in order, as in the kernel. An event may be lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tracker = Tracker([PORT])
        self.subscriber = Subscriber()
        self.time = 1000.0
        self.open_indexes: set[int] = set()
        self.must_be_active: set[FourTuple] = set()
        """Existing subflows that the tracker has known since they were opened."""
        self.reported_closed: set[FourTuple] = set()
        """Closed subflows whose end was reported by an event."""
        self.resync: Resync | None = None
        self.position = 0
        self.written_part: list[KernelSubflow] = []

    def receive(self, events: Sequence[Event]) -> None:
        self.subscriber.receive(events)

    @rule(seconds=st.sampled_from((0.001, 0.3, 2.0, 20.0)))
    def wait(self, seconds: float) -> None:
        self.time += seconds
        self.receive(self.tracker.expire(self.time))

    def apply_event(self, subflow: ClientSubflow, kind: K) -> None:
        self.time += 0.001
        subflow.host.time = self.time
        self.receive(self.tracker.apply_event(subflow.kernel_event(kind)))

    @rule(index=indexes, lost=st.booleans())
    def open(self, index: int, lost: bool) -> None:
        subflow = SUBFLOWS[index]
        if index in self.open_indexes:
            return
        if not subflow.is_initial and not any(other // 3 == index // 3 for other in self.open_indexes):
            return
        self.open_indexes.add(index)
        self.reported_closed.discard(subflow.four_tuple)
        if not lost:
            self.apply_event(subflow, K.CREATED if subflow.is_initial else K.SUBFLOW_ESTABLISHED)

    @rule(index=indexes, lost=st.booleans())
    def close(self, index: int, lost: bool) -> None:
        if index in self.open_indexes:
            self.open_indexes.remove(index)
            self.must_be_active.discard(SUBFLOWS[index].four_tuple)
            if not lost:
                self.reported_closed.add(SUBFLOWS[index].four_tuple)
                self.apply_event(SUBFLOWS[index], K.SUBFLOW_CLOSED)

    @rule(number=st.integers(0, 3))
    def close_connection(self, number: int) -> None:
        indexes_of_connection = {index for index in self.open_indexes if index // 3 == number}
        self.open_indexes -= indexes_of_connection
        for index in indexes_of_connection:
            self.must_be_active.discard(SUBFLOWS[index].four_tuple)
            self.reported_closed.add(SUBFLOWS[index].four_tuple)
        self.time += 0.001
        host = SUBFLOWS[number * 3].host
        host.time = self.time
        self.receive(self.tracker.apply_event(host.close_event()))

    def write(self, count: int) -> list[KernelSubflow]:
        """Write the next part of the dump. Return the part before, which is read now."""
        previous_part, self.written_part = self.written_part, []
        for index in range(self.position, min(self.position + count, len(SUBFLOWS))):
            if index in self.open_indexes:
                self.written_part.append(SUBFLOWS[index].kernel_subflow())
        self.position += count
        return previous_part

    @rule(count=st.integers(1, 6))
    def begin(self, count: int) -> None:
        self.time += 0.001
        self.position = 0
        self.resync, self.written_part = self.tracker.begin_resync(self.time), []
        self.write(count)

    @precondition(lambda self: self.resync is not None)
    @rule(count=st.integers(1, 6))
    def read_part(self, count: int) -> None:
        assert self.resync is not None
        self.receive(self.resync.add(self.write(count)))

    @precondition(lambda self: self.resync is not None and self.position >= len(SUBFLOWS))
    @rule(limit=st.integers(1, 4))
    def finish(self, limit: int) -> None:
        resync, self.resync = self.resync, None
        assert resync is not None
        self.receive(resync.add(self.write(0)))
        for events in resync.finish(limit):
            self.receive(events)
            self.check_active_subflows()

    @rule()
    def complete_dump_without_changes(self) -> None:
        self.time += 5
        self.receive(
            self.tracker.resync([SUBFLOWS[index].kernel_subflow() for index in sorted(self.open_indexes)], self.time)
        )
        # A subflow on another local port is identified by its token, so a subflow on the listening port must be listed,
        # too.
        known_connections = {index // 3 for index in self.open_indexes if SUBFLOWS[index].four_tuple.local_port == PORT}
        expected = {SUBFLOWS[index].four_tuple for index in self.open_indexes if index // 3 in known_connections}
        active = self.active_subflows()
        assert expected <= active
        assert {each for each in active if each.local_port == PORT} == {
            each for each in expected if each.local_port == PORT
        }

    def active_subflows(self) -> set[FourTuple]:
        return {subflow.four_tuple for each in self.tracker.connections.values() for subflow in each.subflows}

    @invariant()
    def check_active_subflows(self) -> None:
        active = self.active_subflows()
        assert active >= self.must_be_active
        assert not active & self.reported_closed
        self.must_be_active = active & {SUBFLOWS[index].four_tuple for index in self.open_indexes}

    @invariant()
    def tables_agree(self) -> None:
        check_tables(self.tracker, TrackerLimits())
        self.subscriber.assert_agrees_with(self.tracker)


Kernel.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=50, deadline=None)
TestKernel = Kernel.TestCase


class TestConcurrentChanges:
    def test_unfinished_dump_closes_no_subflow(self, tracker: Tracker, host: Host) -> None:
        subflow = open_connection(tracker, host)
        feed(tracker, host.join("203.0.113.7").kernel_event(K.SUBFLOW_ESTABLISHED, token=77))
        assert tracker.needs_resync
        assert tracker.begin_resync(host.time + 5).add([]) == []
        assert known_subflows(tracker, host) == [subflow.four_tuple]
        assert tracker.needs_resync, "the unfinished dump counted as the requested one"
        assert tracker.counters.resyncs == 0

    def test_subflow_closed_during_a_dump_does_not_return(self, tracker: Tracker, host: Host) -> None:
        subflow = open_connection(tracker, host)
        resync = tracker.begin_resync(host.time)
        assert kinds_of_events(tracker, subflow.kernel_event(K.SUBFLOW_CLOSED)) == [CLOSED]
        assert resync.add([subflow.kernel_subflow()]) == finish(resync) == []

    @pytest.mark.parametrize("kind", [K.SUBFLOW_CLOSED, K.CLOSED])
    def test_unknown_subflow_closed_during_a_dump_is_not_added(self, tracker: Tracker, host: Host, kind: K) -> None:
        subflow = host.initial()
        resync = tracker.begin_resync(host.time)
        assert kinds_of_events(tracker, host.close_event() if kind is K.CLOSED else subflow.kernel_event(kind)) == []
        assert resync.add([subflow.kernel_subflow()]) == finish(resync) == []
        assert kinds(tracker.resync([subflow.kernel_subflow()], host.time + 5))[:2] == [OPENED, ACTIVE], (
            "a later dump did not add the subflow"
        )

    def test_subflow_closed_during_a_long_dump_does_not_return(self, tracker: Tracker, host: Host) -> None:
        subflow = open_connection(tracker, host)
        resync = tracker.begin_resync(host.time)
        feed(tracker, subflow.kernel_event(K.SUBFLOW_CLOSED))
        tracker.expire(host.time + 60)
        assert resync.add([subflow.kernel_subflow()]) == finish(resync) == []
        tracker.expire(host.time + 60)
        assert tracker.table_sizes["ended"] == 0, "the record of the ended subflow was kept after the dump"

    def test_later_attempt_with_the_same_tuple_is_not_the_old_subflow(self, tracker: Tracker, host: Host) -> None:
        subflow = open_connection(tracker, host)
        resync = tracker.begin_resync(host.time)
        feed(tracker, subflow.kernel_event(K.SUBFLOW_CLOSED), *subflow.later_attempt().handshake())
        assert resync.add([subflow.kernel_subflow()]) == finish(resync) == []

    def test_subflow_listed_before_its_handshake_is_read_is_kept(self, tracker: Tracker, host: Host) -> None:
        """The dump lists the subflow before its packets are read, because the two buffers are read alternately."""
        resync = tracker.begin_resync(host.time)
        subflow = host.initial()
        handshake = subflow.handshake()
        assert kinds(resync.add([subflow.kernel_subflow()], host.tick())) == [OPENED, ACTIVE]
        assert CLOSED not in kinds_of_events(tracker, *handshake)
        assert finish(resync) == []
        assert known_subflows(tracker, host) == [subflow.four_tuple]

    def test_subflow_opened_during_a_dump_is_kept(self, tracker: Tracker, host: Host) -> None:
        resync = tracker.begin_resync(host.time)
        subflow = open_connection(tracker, host)
        assert resync.add([]) == finish(resync) == []
        assert known_subflows(tracker, host) == [subflow.four_tuple]

    def test_resync_requested_during_a_dump_is_kept(self, tracker: Tracker, host: Host) -> None:
        resync = tracker.begin_resync(host.time)
        feed(tracker, host.join().kernel_event(K.SUBFLOW_ESTABLISHED))
        finish(resync)
        assert tracker.needs_resync
        tracker.resync([host.join().kernel_subflow()], host.time)
        assert not tracker.needs_resync

    def test_later_dump_invalidates_an_earlier_one(self, tracker: Tracker, host: Host) -> None:
        subflow, other = open_connection(tracker, host), host.join()
        older, newer = tracker.begin_resync(host.time + 5), tracker.begin_resync(host.time + 6)
        assert older.add([other.kernel_subflow()]) == newer.add([subflow.kernel_subflow()]) == []
        assert finish(older) == []
        assert tracker.counters.resyncs == 0
        assert finish(newer) == []
        assert known_subflows(tracker, host) == [subflow.four_tuple]
        assert tracker.counters.resyncs == 1

    def test_later_dump_stops_the_end_of_an_earlier_one(self, tracker: Tracker, host: Host) -> None:
        feed(tracker, *host.initial().established(), *host.join().established())
        steps = tracker.begin_resync(host.time + 5).finish(1)
        assert kinds(next(steps)) == [DISAGREE, CLOSED]
        tracker.begin_resync(host.time + 6)
        assert list(steps) == []

    def test_missing_subflows_are_closed_in_steps(self, tracker: Tracker) -> None:
        hosts = [Host(f"host {number}") for number in range(10)]
        for number, host in enumerate(hosts):
            feed(tracker, *host.initial(port=2000 + number).established())
        steps = [kinds(step) for step in tracker.begin_resync(hosts[0].time + 5).finish(4)]
        assert steps == [[DISAGREE, CLOSED] * 4, [DISAGREE, CLOSED] * 4, [DISAGREE, CLOSED] * 2]


class TestDifferences:
    def test_unchanged_subflow_keeps_its_snapshot(self, tracker: Tracker, host: Host) -> None:
        subflow = open_connection(tracker, host)
        tracker.resync([subflow.kernel_subflow()], host.time)
        before = tracker.connections[host.token]
        assert tracker.resync([subflow.kernel_subflow()], host.time + 5) == []
        assert tracker.connections[host.token] is before

    @pytest.mark.parametrize("changes", [{"backup": True}, {"remote_id": 9}, {"local_id": 9}, {"token": 9}])
    def test_each_difference_from_the_dump_is_applied(
        self, tracker: Tracker, host: Host, changes: dict[str, int]
    ) -> None:
        subflow = open_connection(tracker, host)
        tracker.resync([subflow.kernel_subflow()], host.time + 5)
        assert tracker.resync([subflow.kernel_subflow(**changes)], host.time + 10)

    def test_interface_is_learned_from_the_route(self, tracker: Tracker, host: Host) -> None:
        subflow = host.initial()
        feed(tracker, subflow.kernel_event(K.CREATED))
        tracker.interface_of = {subflow.four_tuple: "wlan0"}.get
        for expected in ([CHANGED], []):
            resync = tracker.begin_resync(host.time + 5)
            mapped = host.initial("::ffff:198.51.100.1", proxy="::ffff:192.0.2.1")
            assert kinds(resync.add([mapped.kernel_subflow()])) == expected
            assert finish(resync) == []
        assert tracker.connections[host.token].subflows[0].interface == "wlan0"


class TestFullConnection:
    """The events about a join and about a close were lost, so the connection seems to be full."""

    @staticmethod
    def full_connection() -> tuple[Tracker, list[ClientSubflow], ClientSubflow]:
        """Return a tracker, its three known subflows, and the subflow that has replaced the second in the kernel."""
        tracker, host = Tracker([PORT], LIMITS), Host()
        subflows = [host.initial(), host.join(port=11), host.join(port=12)]
        tracker.resync([subflow.kernel_subflow() for subflow in subflows], 1000.0)
        return tracker, subflows, host.join(port=13)

    @pytest.mark.parametrize("limit", [1, 500])
    def test_excess_subflow_is_added_if_the_same_dump_shows_a_closed_one(self, limit: int) -> None:
        tracker, (first, _, third), replacement = self.full_connection()
        resync = tracker.begin_resync(1010.0)
        assert not resync.add([replacement.kernel_subflow(), first.kernel_subflow(), third.kernel_subflow()])
        assert kinds(finish(resync, limit)) == [DISAGREE, CLOSED, ACTIVE]
        assert set(known_subflows(tracker, first.host)) == {first.four_tuple, third.four_tuple, replacement.four_tuple}
        check_tables(tracker, LIMITS)

    def test_subflow_that_ended_before_the_end_of_the_dump_is_not_added(self) -> None:
        tracker, (first, _, third), replacement = self.full_connection()
        resync = tracker.begin_resync(1010.0)
        resync.add([replacement.kernel_subflow(), first.kernel_subflow(), third.kernel_subflow()])
        tracker.apply_event(replace(replacement.kernel_event(K.SUBFLOW_CLOSED), time=1010.5))
        assert kinds(finish(resync)) == [DISAGREE, CLOSED]
