"""What must hold of a tracker at any time, whatever its input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mptcp_throttler.mptcp.limits import TrackerLimits
from mptcp_throttler.mptcp.model import Event, EventKind, FourTuple, SubflowState
from mptcp_throttler.mptcp.questions import MAX_WAITING
from mptcp_throttler.mptcp.tracker import Tracker
from mptcp_throttler.mptcp.tracker_table import HALF_OPEN, LIVE

SMALL = TrackerLimits(
    max_connections=12, max_subflows_per_connection=4, max_half_open=16, max_refused=8, closed_linger=5.0
)


def check_tables(tracker: Tracker, limits: TrackerLimits) -> None:
    """Every table is within its bound, and the tables agree with each other."""
    table, size = tracker._table, tracker.table_sizes
    assert size["connections"] <= limits.max_connections
    assert size["half_open"] <= limits.max_half_open
    assert size["refused"] <= limits.max_refused
    assert size["ended"] <= limits.max_half_open
    assert size["turned_away"] <= limits.max_half_open
    assert size["live"] + size["closing"] <= limits.max_connections * limits.max_subflows_per_connection
    assert size["subflows"] == size["half_open"] + size["live"] + size["closing"]
    assert size["tokens"] <= limits.max_connections + limits.max_half_open
    attached = 0
    for token, connection in table.tokens.items():
        assert connection.token == token
        assert connection.opened is (token in table.opened)
        assert 0 < len(connection.subflows) <= limits.max_subflows_per_connection or token in table.lingering
        assert (token in table.lingering) is (connection.opened and not connection.has_live())
        attached += len(connection.subflows)
        real = any(each.known_to_kernel for each in connection.subflows)
        assert real <= connection.confirmed
        assert connection.confirmed is (connection.holder is not None)
        for subflow in connection.subflows:
            assert table.subflows[subflow.four_tuple] is subflow
            assert subflow.connection is connection
    assert table.opened.keys() <= table.tokens.keys()
    live = 0
    active = [subflow for subflow in table.subflows.values() if subflow.state is SubflowState.ACTIVE]
    unconfirmed = {subflow.four_tuple for subflow in active if not subflow.known_to_kernel}
    assert size["unconfirmed"] == len(unconfirmed)
    assert all(four_tuple in table.unconfirmed for four_tuple in unconfirmed)
    doubtful = {token for token, connection in table.opened.items() if not connection.confirmed}
    assert len(table.unconfirmed_connections) == len(doubtful)
    assert all(token in table.unconfirmed_connections for token in doubtful)
    holders = Counter(each.holder for each in table.tokens.values() if each.holder is not None)
    assert (table.shares.taken, table.shares.clients) == (holders.total(), len(holders))
    lingering = Counter(each.holder for token, each in table.tokens.items() if token in table.lingering and each.holder)
    assert all(table.lingering.number_of(client) == count for client, count in lingering.items())
    assert table.lingering._of.keys() == lingering.keys()
    assert size["questions"] <= MAX_WAITING
    for four_tuple, subflow in table.subflows.items():
        closing = subflow.state is SubflowState.CLOSING
        live += subflow.state is SubflowState.ACTIVE
        assert (table.closing.get(four_tuple) is subflow) is closing
        assert (table.half_open.get(four_tuple) is subflow) is (subflow.state in HALF_OPEN)
        attached += subflow.connection is None
    assert attached == size["subflows"]
    assert live == size["live"]


class Subscriber:
    """Knows of the tracker what its events announce, as the rest of the daemon does."""

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

    def agrees_with(self, tracker: Tracker) -> None:
        assert self.live == {
            token: {subflow.four_tuple for subflow in connection.subflows if subflow.state in LIVE}
            for token, connection in tracker.connections.items()
        }
