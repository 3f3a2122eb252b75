# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the tracker's limits, timeouts and counters."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from mptcp_dialogue import (
    ACTIVE,
    CLOSED,
    ENDED,
    OPENED,
    PORT,
    Host,
    feed,
    kinds,
    kinds_of_events,
    known_subflows,
)
from mptcp_invariants import SMALL, check_tables

from mptcp_throttler.mptcp.connection_table import TimedTable
from mptcp_throttler.mptcp.model import KernelEventKind
from mptcp_throttler.mptcp.tracker import Tracker


@pytest.fixture
def tracker() -> Tracker:
    return Tracker([PORT], SMALL)


def hosts_with_times(count: int) -> list[Host]:
    return [Host(f"host {number}", time=1000 + number) for number in range(count)]


class TestFloods:
    def test_connections_above_the_limit_are_reported(self, tracker: Tracker) -> None:
        hosts = hosts_with_times(SMALL.max_connections + 5)
        subflows = [host.initial(f"198.51.100.{number}") for number, host in enumerate(hosts)]
        event_kinds = [kinds_of_events(tracker, *subflow.established()) for subflow in subflows]
        assert event_kinds == [[OPENED, ACTIVE]] * SMALL.max_connections + [["connection-excess"]] * 5
        check_tables(tracker, SMALL)
        assert (
            kinds(tracker.resync([subflow.kernel_subflow() for subflow in subflows], 1100.0))
            == ["connection-excess"] * 5
        )
        late = Host("late", 1101.0).initial("198.51.100.99")
        assert kinds_of_events(tracker, hosts[0].close_event(), *late.established()) == [CLOSED, ENDED, OPENED, ACTIVE]
        check_tables(tracker, SMALL)

    def test_number_of_remembered_ended_subflows_is_bounded(self, tracker: Tracker) -> None:
        for number, host in enumerate(hosts_with_times(100)):
            subflow = host.initial(port=3000 + number)
            feed(tracker, *subflow.established(), subflow.kernel_event(KernelEventKind.SUBFLOW_CLOSED))
            check_tables(tracker, SMALL)
        assert tracker.table_sizes["ended"] == SMALL.max_remembered


def test_memory_per_connection_is_bounded() -> None:
    """10,000 connections with two subflows each must take less than 25 MB, including the snapshots for readers."""
    count = 400
    hosts = [Host(f"host {number}") for number in range(count)]
    tracker = Tracker([PORT])
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number, host in enumerate(hosts):
        address = f"10.0.{number >> 8}.{number & 255}"
        subflows = host.initial(address), host.join(address)
        for subflow in subflows:
            feed(tracker, *subflow.established())
    admitted = sum(len(connection.subflows) for connection in tracker.connections.values())
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert admitted == 2 * count
    assert used / count < 2_500


class TestExpiry:
    def test_idle_subflow_stays_tracked(self, tracker: Tracker) -> None:
        subflow = Host().initial()
        feed(tracker, *subflow.established())
        assert tracker.expire(subflow.host.time + 7 * 86_400) == []
        assert known_subflows(tracker, subflow.host) == [subflow.four_tuple]

    def test_times_may_be_slightly_out_of_order(self, tracker: Tracker) -> None:
        for number, host in enumerate(hosts_with_times(5)):
            feed(tracker, replace(host.initial(port=number).syn(), time=1000.0 - number))
        tracker.expire(1000.0 + SMALL.handshake_timeout)
        assert tracker.table_sizes["handshakes"] == 0


def test_timed_table_is_ordered_by_last_put() -> None:
    table: TimedTable[str, int] = TimedTable()
    for time, key in enumerate("abca"):
        table.put(key, time, float(time))
    assert (len(table), table.get("a"), "b" in table) == (3, 3, True)
    assert list(table.pop_until(2.0)) == [1, 2]
    assert (table.pop("a"), table.pop("a"), table.get("z"), len(table)) == (3, None, None, 0)


def test_timed_table_stays_in_order_if_times_are_not_in_order() -> None:
    table: TimedTable[str, str] = TimedTable(2)
    evicted = [table.put(key, key, time) for key, time in (("late", 5.0), ("early", 3.0), ("early", 3.0), ("new", 4.0))]
    assert (evicted, "late" in table) == ([False, False, False, True], False)
    assert table.drop_until(4.0) == 0
    assert table.drop_until(5.0) == 2


def test_snapshots_do_not_change(tracker: Tracker) -> None:
    subflow = Host().initial()
    feed(tracker, *subflow.established())
    before = tracker.connections[subflow.host.token]
    assert tracker.connections[subflow.host.token] is before, "the snapshot was created again"
    feed(tracker, subflow.kernel_event(KernelEventKind.SUBFLOW_CLOSED))
    assert [each.four_tuple for each in before.subflows] == [subflow.four_tuple]
    assert known_subflows(tracker, subflow.host) == []
