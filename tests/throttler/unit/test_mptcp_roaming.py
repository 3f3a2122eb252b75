# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for clients that lose all subflows while the tables are full: their next join finds the connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mptcp_dialogue import ACTIVE, CLOSED, OPENED, PORT, ClientSubflow, Host, feed, kinds, kinds_of_events
from mptcp_invariants import SMALL, Subscriber, check_tables

from mptcp_throttler.mptcp.model import Event, EventKind, FourTuple, KernelEventKind
from mptcp_throttler.mptcp.tracker import Tracker

MAX_CONNECTIONS = SMALL.max_connections
CREATED, JOINED = KernelEventKind.CREATED, KernelEventKind.SUBFLOW_ESTABLISHED
SUBFLOW_CLOSED = KernelEventKind.SUBFLOW_CLOSED
EXCESS = "connection-excess"


def subflow_of(client: int, number: int = 0) -> ClientSubflow:
    return Host(f"{client}/{number}").initial(f"198.51.100.{client}", 1000 + number)


def full_tracker() -> tuple[Tracker, list[ClientSubflow]]:
    """Return a full tracker, in which each client has one connection."""
    tracker, subflows = Tracker([PORT], SMALL), [subflow_of(client) for client in range(MAX_CONNECTIONS)]
    for subflow in subflows:
        assert kinds_of_events(tracker, subflow.kernel_event(CREATED)) == [OPENED, ACTIVE]
    return tracker, subflows


@pytest.mark.parametrize("captured", [False, True])
def test_roaming_client_keeps_its_connection_in_a_full_table(captured: bool) -> None:
    """Defect: a new connection of any client displaced the roaming client's, which its next join then closed."""
    tracker, subflows = full_tracker()
    roaming = subflows[0]
    before = tracker.connections[roaming.host.token].since
    assert kinds_of_events(tracker, roaming.kernel_event(SUBFLOW_CLOSED)) == [CLOSED]
    assert kinds_of_events(tracker, subflow_of(99).kernel_event(CREATED)) == [EXCESS]
    join = roaming.host.join("203.0.113.7")
    events = feed(tracker, *(join.handshake() if captured else ()), join.kernel_event(JOINED))
    assert kinds(events) == [ACTIVE]
    connection = tracker.connections[roaming.host.token]
    assert ([each.four_tuple for each in connection.subflows], connection.since) == ([join.four_tuple], before)
    check_tables(tracker, SMALL)


def test_join_is_added_although_syns_evicted_its_handshake() -> None:
    tracker, subflows = full_tracker()
    roaming = subflows[0]
    feed(tracker, roaming.kernel_event(SUBFLOW_CLOSED))
    join = roaming.host.join("203.0.113.7")
    feed(tracker, join.syn(), join.syn_ack())
    for number in range(2 * SMALL.max_remembered):
        feed(tracker, subflow_of(50, number).syn())
    assert join.four_tuple not in tracker.wire.handshakes
    assert kinds_of_events(tracker, join.ack(), join.kernel_event(JOINED)) == [ACTIVE]
    check_tables(tracker, SMALL)


ACTIONS = st.tuples(
    st.sampled_from(["opens", "opens", "roams", "returns", "ends", "syn", "handshake", "join syn"]),
    st.integers(0, 20),
    st.integers(0, 3),
)


@given(st.lists(ACTIONS, min_size=20, max_size=80))
def test_roaming_clients_keep_their_connections_in_any_flood(actions: list[tuple[str, int, int]]) -> None:
    """Each connection of the kernel is tracked with its original start time, unless its end was reported."""
    tracker, subscriber, time = Tracker([PORT], SMALL), Subscriber(), 1000.0
    in_kernel: dict[int, tuple[float, FourTuple | None]] = {}
    for number, (action, client, port) in enumerate(actions):
        subflow = subflow_of(client, 0)
        host = subflow.host
        host.time = time = time + 0.01
        events: list[Event] = []
        entry = in_kernel.get(host.token)
        if action == "opens" and entry is None:
            events = feed(tracker, subflow.kernel_event(CREATED))
            in_kernel[host.token] = host.time, subflow.four_tuple
        elif action == "roams" and entry is not None and entry[1] is not None:
            events = feed(tracker, subflow.kernel_event(SUBFLOW_CLOSED, four_tuple=entry[1]))
            in_kernel[host.token] = entry[0], None
        elif action == "returns" and entry is not None and entry[1] is None:
            join = host.join(f"203.0.113.{client}", 2000 + number)
            events = feed(tracker, *(join.handshake() if port % 2 else ()), join.kernel_event(JOINED))
            in_kernel[host.token] = entry[0], join.four_tuple
        elif action == "ends" and entry is not None:
            events = feed(tracker, host.close_event())
            del in_kernel[host.token]
        elif action == "syn":
            events = feed(tracker, *(subflow_of(100 + client, each).syn() for each in range(20)))
        elif action == "handshake":
            events = feed(tracker, *subflow_of(100 + client, port).handshake())
        elif action == "join syn" and entry is not None:
            events = feed(tracker, *(host.join(f"203.0.113.{100 + client}", each).syn() for each in range(6)))
        subscriber.receive(each for each in events if each.kind is not EventKind.CONNECTION_EXCESS)
        for event in events:
            if event.kind is EventKind.CONNECTION_EXCESS:
                in_kernel.pop(event.token, None)
        for token, (start, four_tuple) in in_kernel.items():
            connection = tracker.connections[token]
            assert connection.since == start
            assert [each.four_tuple for each in connection.subflows] == ([] if four_tuple is None else [four_tuple])
        check_tables(tracker, SMALL)
        subscriber.assert_agrees_with(tracker)
