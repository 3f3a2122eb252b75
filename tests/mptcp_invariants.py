# SPDX-License-Identifier: GPL-2.0-or-later
"""Invariants of a tracker, which hold at all times and for all input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mptcp_throttler.mptcp.limits import TrackerLimits
from mptcp_throttler.mptcp.lookups import MAX_WAITING
from mptcp_throttler.mptcp.model import Event, EventKind, FourTuple
from mptcp_throttler.mptcp.tracker import Tracker

SMALL = TrackerLimits(
    max_connections=12, max_subflows_per_connection=4, max_remembered=16, max_refused=8, closed_linger=5.0
)


def check_tables(tracker: Tracker, limits: TrackerLimits) -> None:
    """Assert that each table is within its limit, and that the tables are consistent with each other."""
    table, size = tracker.table, tracker.table_sizes
    assert size["connections"] <= limits.max_connections
    assert size["handshakes"] <= limits.max_remembered
    assert size["refused"] <= limits.max_refused
    assert size["ended"] <= limits.max_remembered
    assert size["turned_away"] <= limits.max_remembered
    assert size["questions"] <= MAX_WAITING
    attached = 0
    for token, connection in table.connections.items():
        assert connection.token == token
        assert (token in table.lingering) is (not connection.subflows)
        assert len(connection.subflows) <= limits.max_subflows_per_connection
        attached += len(connection.subflows)
        for subflow in connection.subflows:
            assert table.subflows[subflow.four_tuple].subflow is subflow
            assert table.subflows[subflow.four_tuple].token == token
    assert attached == size["subflows"]
    holders = Counter(each.holder for each in table.connections.values())
    assert (table.shares.total, len(table.shares.counts)) == (holders.total(), len(holders))


class Subscriber:
    """Computes the connections from the events of a tracker, as other parts of the daemon do."""

    def __init__(self) -> None:
        self.live: dict[int, set[FourTuple]] = {}

    def receive(self, events: Iterable[Event]) -> None:
        for event in events:
            token, four_tuple = event.token, event.four_tuple
            match event.kind:
                case EventKind.CONNECTION_OPENED:
                    assert token not in self.live
                    self.live[token] = set()
                case EventKind.CONNECTION_CLOSED:
                    assert self.live.pop(token) == set()
                case EventKind.SUBFLOW_ACTIVE:
                    assert four_tuple is not None
                    assert four_tuple not in self.live[token]
                    self.live[token].add(four_tuple)
                case EventKind.SUBFLOW_CLOSED:
                    assert four_tuple is not None
                    self.live[token].remove(four_tuple)
                case EventKind.SUBFLOW_CHANGED:
                    assert four_tuple in self.live[token]

    def assert_agrees_with(self, tracker: Tracker) -> None:
        assert self.live == {
            token: {subflow.four_tuple for subflow in connection.subflows}
            for token, connection in tracker.connections.items()
        }
