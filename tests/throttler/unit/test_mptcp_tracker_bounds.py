"""The tracker's limits and timeouts, its counters, and its table of transitions."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import fields, replace

import pytest
from mptcp_dialogue import (
    ACTIVE,
    CLOSED,
    ENDED,
    OPENED,
    PORT,
    Host,
    announced,
    feed,
    kinds,
    states,
)
from mptcp_invariants import SMALL, check_tables

from mptcp_throttler.mptcp.model import EventKind, KernelEventKind, SubflowState
from mptcp_throttler.mptcp.timed_table import TimedTable
from mptcp_throttler.mptcp.tracker import Tracker, TrackerLimits
from mptcp_throttler.mptcp.tracker_table import HALF_OPEN, LIVE, TRANSITIONS, Signal, announcement


@pytest.fixture
def tracker() -> Tracker:
    return Tracker([PORT], SMALL)


def many(count: int) -> list[Host]:
    return [Host(f"host {number}", time=1000 + number) for number in range(count)]


class TestFloods:
    def test_of_initial_syns(self, tracker: Tracker) -> None:
        victim = Host()
        assert announced(tracker, *victim.initial().handshake()) == [OPENED, ACTIVE]
        for host in many(100):
            path = host.initial(port=2000)
            path.four_tuple = path.four_tuple._replace(remote=host.client_key[:4])
            assert announced(tracker, path.syn()) == []
            check_tables(tracker, SMALL)
        assert tracker.table_sizes["half_open"] == SMALL.max_half_open
        assert tracker.counters.half_open_evicted == 100 - SMALL.max_half_open
        assert len(tracker.connections[victim.token].active) == 1

    def test_of_answered_syns_whose_joins_wait(self, tracker: Tracker) -> None:
        """With the handshake of a connection go those of its joins, the one that makes the room needed included."""
        for number, host in enumerate(many(40)):
            path, join = host.initial(port=2000 + number), host.join(port=2000 + number)
            assert announced(tracker, path.syn(), path.syn_ack(), *join.handshake()) == []
            check_tables(tracker, SMALL)

    def test_of_joins_to_one_connection(self, tracker: Tracker) -> None:
        host = Host()
        feed(tracker, *host.initial().handshake())
        for port in range(100):
            assert announced(tracker, host.join(port=port).syn()) == []
            check_tables(tracker, SMALL)
        last = host.join(port=99)
        assert announced(tracker, last.syn_ack(), last.ack()) == [ACTIVE], "the oldest make room, not the newest"

    def test_of_active_joins_to_one_connection(self, tracker: Tracker) -> None:
        host = Host()
        feed(tracker, *host.initial().handshake())
        events_seen = Counter(
            kind for port in range(10) for kind in announced(tracker, *host.join(port=port).handshake())
        )
        assert events_seen == {ACTIVE: SMALL.max_subflows_per_connection - 1}
        assert tracker.counters.overflows == 7
        events = [host.join(port=port).kernel(KernelEventKind.SUBFLOW_ESTABLISHED) for port in range(11, 16)]
        caused = [announced(tracker, event) for event in events]
        assert caused == [[CLOSED, ACTIVE]] * SMALL.max_subflows_per_connection + [["subflow-excess"]], (
            "what the kernel has comes first"
        )
        assert tracker.counters.overflows == 8
        check_tables(tracker, SMALL)

    def test_of_joins_with_unknown_tokens(self, tracker: Tracker) -> None:
        paths = [host.join(port=number) for number, host in enumerate(many(100))]
        assert len([event for path in paths for event in feed(tracker, path.syn())]) == SMALL.max_refused
        assert tracker.counters.joins_refused == 100
        check_tables(tracker, SMALL)
        tracker.expire(paths[-1].host.time + SMALL.half_open_timeout)
        assert announced(tracker, paths[-1].syn()) == ["join-refused"]

    def test_of_connections(self, tracker: Tracker) -> None:
        hosts = many(SMALL.max_connections + 5)
        paths = [host.initial(f"198.51.100.{number}") for number, host in enumerate(hosts)]
        created = [path.kernel(KernelEventKind.CREATED) for path in paths[: SMALL.max_connections]]
        events_seen = [announced(tracker, *path.handshake(), *created[n : n + 1]) for n, path in enumerate(paths)]
        assert events_seen == [[OPENED, ACTIVE]] * SMALL.max_connections + [[]] * 5
        assert tracker.counters.overflows == 5
        check_tables(tracker, SMALL)
        late = hosts[-1].initial("198.51.100.99")
        assert announced(tracker, late.kernel(KernelEventKind.CREATED)) == ["connection-excess"]
        assert kinds(tracker.resync([path.dumped() for path in paths], 1100.0)) == ["connection-excess"] * 5
        assert announced(tracker, hosts[0].closed(), *late.handshake()) == [CLOSED, ENDED, OPENED, ACTIVE]
        check_tables(tracker, SMALL)

    def test_of_connections_that_packets_alone_have_shown(self, tracker: Tracker) -> None:
        for number, host in enumerate(many(SMALL.max_connections + 5)):
            events = announced(tracker, *host.initial(port=3000 + number).handshake())
            assert events == [OPENED, ACTIVE] if number < SMALL.max_connections else [CLOSED, ENDED, OPENED, ACTIVE]
            check_tables(tracker, SMALL)
        real = [Host(f"real {number}") for number in range(SMALL.max_connections)]
        for number, host in enumerate(real):
            created = host.initial(f"203.0.113.{number}").kernel(KernelEventKind.CREATED)
            assert announced(tracker, created) == [CLOSED, ENDED, OPENED, ACTIVE]
            check_tables(tracker, SMALL)
        assert announced(tracker, *Host("one more").initial(port=5000).handshake()) == []
        assert list(tracker.connections) == [host.token for host in real]

    def test_a_connection_without_room_goes_with_all_its_handshakes(self) -> None:
        """Also if it has two initial subflows: one of an earlier attempt, one that the kernel reports."""
        limits = replace(SMALL, max_connections=1)
        tracker, host = Tracker([PORT], limits), Host()
        feed(tracker, Host("other").initial(port=1).kernel(KernelEventKind.CREATED))
        attempt, join = host.initial(port=2), host.join()
        feed(tracker, attempt.syn(), attempt.syn_ack(), join.syn(), join.syn_ack())
        assert announced(tracker, host.initial(port=3).kernel(KernelEventKind.CREATED)) == ["connection-excess"]
        assert tracker.table_sizes["subflows"] == 1
        check_tables(tracker, limits)

    def test_of_endings(self, tracker: Tracker) -> None:
        for number, host in enumerate(many(100)):
            path = host.initial(port=3000 + number)
            feed(tracker, *path.handshake(), path.rst())
            check_tables(tracker, SMALL)
        assert tracker.table_sizes["ended"] == SMALL.max_half_open


def test_a_connection_takes_little_memory() -> None:
    """10,000 connections of two subflows, with what readers get of them, are to take less than 25 MB."""
    count = 400
    hosts = [Host(f"host {number}") for number in range(count)]
    tracker = Tracker([PORT])
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number, host in enumerate(hosts):
        address = f"10.0.{number >> 8}.{number & 255}"
        paths = host.initial(address), host.join(address)
        for path in paths:
            feed(tracker, *path.handshake())
    taken = sum(len(connection.active) for connection in tracker.connections.values())
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert taken == 2 * count
    assert used / count < 2_500


class TestExpiry:
    def test_every_state_has_its_timeout(self, tracker: Tracker) -> None:
        limits = SMALL
        half_open, closing, idle = (Host(name) for name in ("half-open", "closing", "idle"))
        one, two, three = half_open.initial(port=1), closing.initial(port=2), idle.initial(port=3)
        feed(tracker, one.syn(), one.syn_ack(), *two.handshake(), two.fin(), *three.handshake())
        began = max(half_open.time, closing.time, idle.time)
        assert tracker.table_sizes["half_open"] == 1
        assert kinds(tracker.expire(began + limits.half_open_timeout)) == []
        assert tracker.table_sizes["half_open"] == 0
        assert kinds(tracker.expire(began + limits.closing_timeout)) == [CLOSED]
        assert kinds(tracker.expire(began + limits.closing_timeout + limits.closed_linger)) == [ENDED]
        (closed,) = tracker.expire(began + limits.idle_timeout)
        assert (closed.kind, closed.four_tuple, closed.detail) == (EventKind.SUBFLOW_CLOSED, three.four_tuple, "idle")
        assert kinds(tracker.expire(began + limits.idle_timeout + limits.closed_linger)) == [ENDED]
        assert not any(tracker.table_sizes.values())
        assert tracker.counters.expired == 3

    def test_segments_keep_a_subflow_from_looking_idle(self, tracker: Tracker) -> None:
        host = Host()
        path = host.initial()
        feed(tracker, *path.handshake())
        host.time += SMALL.idle_timeout - 1
        feed(tracker, path.from_client(0x10))
        assert tracker.expire(host.time + SMALL.idle_timeout - 1) == []

    def test_a_handshake_gains_no_time_by_repetition(self, tracker: Tracker) -> None:
        host = Host()
        path = host.initial()
        feed(tracker, path.syn())
        host.time += SMALL.half_open_timeout - 1
        feed(tracker, path.syn(), path.syn_ack())
        tracker.expire(host.time + 1)
        assert tracker.table_sizes["subflows"] == 0

    def test_times_may_run_backwards_a_little(self, tracker: Tracker) -> None:
        hosts = many(5)
        for number, host in enumerate(hosts):
            feed(tracker, replace(host.initial(port=number).syn(), time=1000.0 - number))
        tracker.expire(1000.0 + SMALL.half_open_timeout)
        assert tracker.table_sizes["half_open"] == 0


def test_timed_table_is_ordered_by_last_put() -> None:
    table: TimedTable[str, int] = TimedTable()
    for time, key in enumerate("abca"):
        table.put(key, time, float(time))
    assert (len(table), table.oldest(), table.get("a"), "b" in table) == (3, 1, 3, True)
    assert list(table.pop_until(2.0)) == [1, 2]
    assert table.oldest() == 3
    assert (table.pop("a"), table.pop("a"), table.get("z"), len(table)) == (3, None, None, 0)


def test_timed_table_stays_in_order_when_times_do_not() -> None:
    table: TimedTable[str, str] = TimedTable()
    table.put("late", "late", 5.0)
    table.put("early", "early", 3.0)
    assert table.pop_oldest() == "late"
    assert list(table.pop_until(4.0)) == []
    assert list(table.pop_until(5.0)) == ["early"]


def test_counters_are_a_copy(tracker: Tracker) -> None:
    before = tracker.counters
    feed(tracker, Host().initial().syn())
    assert (before.segments, tracker.counters.segments) == (0, 1)


def test_snapshots_do_not_change(tracker: Tracker) -> None:
    host = Host()
    path = host.initial()
    feed(tracker, *path.handshake())
    before = tracker.connections[host.token]
    assert tracker.connections[host.token] is before, "made once"
    feed(tracker, path.fin())
    assert before.subflows[0].state is SubflowState.ACTIVE
    assert states(tracker, host) == {path.four_tuple: SubflowState.CLOSING}


@pytest.mark.parametrize("name", [field.name for field in fields(TrackerLimits)])
def test_limits_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive, not 0"):
        TrackerLimits(**{name: 0})


class TestTable:
    def test_only_proof_makes_a_subflow_active(self) -> None:
        proofs = {Signal.PROVEN, Signal.JOINED, Signal.KERNEL_ESTABLISHED, Signal.DUMPED}
        for signals in TRANSITIONS.values():
            assert {signal for signal, new in signals.items() if new is SubflowState.ACTIVE} <= proofs

    def test_every_state_but_the_last_can_end(self) -> None:
        for state in HALF_OPEN | LIVE:
            ends = {signal for signal, new in TRANSITIONS[state].items() if new is SubflowState.CLOSED}
            assert ends >= {Signal.RST, Signal.EXPIRED, Signal.ABANDONED, Signal.REPLACED}
        assert TRANSITIONS[SubflowState.CLOSED] == {}
        assert set(TRANSITIONS) == {None, *SubflowState}

    def test_what_is_announced(self) -> None:
        for state, signals in TRANSITIONS.items():
            for new in signals.values():
                known_before, known_after = state in LIVE, new in LIVE
                kind = announcement(state, new)
                if known_before and known_after:
                    assert kind is EventKind.SUBFLOW_CHANGED
                elif known_after:
                    assert kind is EventKind.SUBFLOW_ACTIVE
                else:
                    assert kind is (EventKind.SUBFLOW_CLOSED if known_before else None)
