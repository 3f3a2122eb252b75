# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the clients' shares of the connection table: connections above a share are reported and closed."""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import ip_address
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mptcp_dialogue import ACTIVE, CLOSED, OPENED, PORT, ClientSubflow, Host, feed, kinds, kinds_of_events
from mptcp_invariants import SMALL, check_tables

from mptcp_common.netlink import refusal
from mptcp_throttler.mptcp.limits import ConnectionShares
from mptcp_throttler.mptcp.model import Event, EventKind, FourTuple, KernelEventKind
from mptcp_throttler.mptcp.tracker import Tracker
from mptcp_throttler.runtime.actions import MAX_LINES, ActionRunner

MAX_CONNECTIONS = SMALL.max_connections
EXCESS = "connection-excess"
CREATED, JOINED = KernelEventKind.CREATED, KernelEventKind.SUBFLOW_ESTABLISHED


def client_address(client: int) -> bytes:
    return bytes([192, 0, 2, client])


# The rule for shares


@given(room=st.integers(1, 40), actions=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=200))
def test_client_may_have_as_many_connections_as_are_free(room: int, actions: list[tuple[int, bool]]) -> None:
    shares, counts = ConnectionShares(room), Counter[int]()
    for client, opens in actions:
        free = room - counts.total()
        assert shares.allows(client_address(client)) is (counts[client] < free)
        if opens and shares.allows(client_address(client)):
            counts[client] += 1
            shares.add(client_address(client))
        elif not opens and counts[client]:
            counts[client] -= 1
            shares.release(client_address(client))
        assert (shares.total, len(shares.counts)) == (counts.total(), len(+counts))
        assert 0 <= shares.total <= room


@given(room=st.integers(1, 300), clients=st.integers(1, 6))
def test_clients_at_their_limits_leave_room_for_another_client(room: int, clients: int) -> None:
    shares = ConnectionShares(room)
    admitted = [
        shares.add(client_address(n)) for _ in range(room) for n in range(clients) if shares.allows(client_address(n))
    ]
    free = room - len(admitted)
    assert free >= room // (clients + 1)
    assert max(Counter(admitted).values()) <= free + 1, (
        "a client exceeds the remaining room by more than one connection"
    )
    for _ in range((free + 1) // 2):
        assert shares.allows(client_address(99)), "another client was refused half of the remaining room"
        shares.add(client_address(99))


def test_ipv6_network_counts_as_one_client() -> None:
    shares = ConnectionShares(4)
    for host in range(2):
        assert shares.allows(ip_address(f"2001:db8::{host}").packed)
        shares.add(ip_address(f"2001:db8::{host}").packed)
    assert not shares.allows(ip_address("2001:db8::77").packed)
    assert shares.describe(ip_address("2001:db8::77").packed) == (
        "2001:db8::/64 has 2 connections; there is room for 2 more connections of all clients together"
    )
    assert shares.allows(ip_address("2001:db8:0:1::").packed)
    assert shares.allows(client_address(1))
    assert shares.describe(client_address(1)).startswith("192.0.2.1 has 0 connections")


# The tracker


def subflow_of(number: int, client: int = 0) -> ClientSubflow:
    """Return the first subflow of a client's connection with this number."""
    return Host(f"{client}/{number}").initial(f"192.0.2.{client}", 1000 + number)


def tracker_with_full_share() -> tuple[Tracker, list[ClientSubflow]]:
    """Return a tracker in which one client has its maximum of connections: half of the room."""
    tracker = Tracker([PORT], SMALL)
    subflows = [subflow_of(number) for number in range(MAX_CONNECTIONS // 2)]
    for subflow in subflows:
        assert kinds_of_events(tracker, *subflow.established()) == [OPENED, ACTIVE]
    return tracker, subflows


@pytest.mark.parametrize("captured", [False, True])
def test_connection_above_a_share_is_reported_and_another_client_has_room(captured: bool) -> None:
    tracker, subflows = tracker_with_full_share()
    excess_subflow = subflow_of(99)
    (event,) = feed(tracker, *(excess_subflow.handshake() if captured else ()), excess_subflow.kernel_event(CREATED))
    assert (event.kind.value, event.token, event.four_tuple) == (
        EXCESS,
        excess_subflow.host.token,
        excess_subflow.four_tuple,
    )
    assert event.detail == "192.0.2.0 has 6 connections; there is room for 6 more connections of all clients together"
    assert len(tracker.connections) == MAX_CONNECTIONS // 2, "an earlier connection was removed"
    assert tracker.counters.connections_refused == 1
    assert kinds_of_events(tracker, subflow_of(1, client=1).kernel_event(CREATED)) == [OPENED, ACTIVE]
    check_tables(tracker, SMALL)
    feed(tracker, *(subflow.host.close_event() for subflow in subflows[:2]))
    assert kinds_of_events(tracker, excess_subflow.kernel_event(CREATED)) == [OPENED, ACTIVE], (
        "a new connection was refused although two had closed"
    )


@pytest.mark.parametrize("captured", [True, False])
def test_join_of_a_refused_connection_does_not_count_for_a_share(captured: bool) -> None:
    """Defect: the join counted for its own source address.

    So the next connection from that address was refused.
    """
    tracker, _ = tracker_with_full_share()
    excess_subflow = subflow_of(99)
    feed(tracker, excess_subflow.kernel_event(CREATED))
    join, count = excess_subflow.host.join(port=7), len(tracker.connections)
    if captured:
        feed(tracker, *join.handshake())
    event = feed(tracker, join.kernel_event(JOINED))[-1]
    assert (event.kind.value, event.token, event.four_tuple) == (EXCESS, excess_subflow.host.token, join.four_tuple)
    assert len(tracker.connections) == count
    assert tracker.counters.connections_refused == 1, "a refused connection was counted again"
    check_tables(tracker, SMALL)


def test_connection_without_subflows_counts_until_its_timeout() -> None:
    tracker, subflows = tracker_with_full_share()
    for subflow in subflows:
        assert kinds_of_events(tracker, subflow.kernel_event(KernelEventKind.SUBFLOW_CLOSED)) == [CLOSED]
    assert kinds_of_events(tracker, subflow_of(99).kernel_event(CREATED)) == [EXCESS]
    assert kinds_of_events(tracker, subflows[-1].host.join("192.0.2.0", 77).kernel_event(JOINED)) == [ACTIVE]
    tracker.expire(subflows[-1].host.time + SMALL.closed_linger)
    assert len(tracker.connections) == 1
    assert kinds_of_events(tracker, subflow_of(98).kernel_event(CREATED)) == [OPENED, ACTIVE]
    check_tables(tracker, SMALL)


def test_connection_whose_close_event_was_lost_counts_until_its_timeout() -> None:
    tracker, subflows = tracker_with_full_share()
    excess_subflows = [subflow_of(number) for number in (98, 99)]
    now = max(subflow.host.time for subflow in subflows) + 10
    dump = [subflow.kernel_subflow() for subflow in (*excess_subflows, *subflows[2:])]
    events = tracker.resync(dump, now)
    excess_events = [event.four_tuple for event in events if event.kind is EventKind.CONNECTION_EXCESS]
    assert excess_events == [subflow.four_tuple for subflow in excess_subflows]
    check_tables(tracker, SMALL)
    tracker.expire(now + SMALL.closed_linger)
    events = tracker.resync(dump, now + 2 * SMALL.closed_linger)
    assert (EXCESS in kinds(events), kinds(events).count(ACTIVE)) == (False, 2)
    check_tables(tracker, SMALL)


@pytest.mark.parametrize("reverse", [False, True])
def test_dump_counts_a_connection_for_its_first_subflows_client(reverse: bool) -> None:
    """The order of the dump does not matter. All subflows of an excess connection are reported."""
    tracker = Tracker([PORT], SMALL)
    subflows = [subflow_of(number) for number in range(MAX_CONNECTIONS // 2 + 2)]
    joins = [subflow.host.join("203.0.113.1", 2000 + number) for number, subflow in enumerate(subflows)]
    dump = [each.kernel_subflow() for pair in zip(subflows, joins, strict=True) for each in pair]
    events = tracker.resync(reversed(dump) if reverse else dump, 2000.0)
    excess_events = {event.four_tuple for event in events if event.kind is EventKind.CONNECTION_EXCESS}
    tracked = {each.four_tuple for connection in tracker.connections.values() for each in connection.subflows}
    assert len(tracker.connections) == MAX_CONNECTIONS // 2
    assert tracked | excess_events == {entry.four_tuple for entry in dump}
    assert len(excess_events) == 4
    assert tracker.counters.connections_refused == 2
    check_tables(tracker, SMALL)


# Connections that are older than the daemon


@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 1, 2]), st.integers(0, 4).map(bool)), max_size=60),
    st.randoms(),
    st.integers(1, 5),
)
@example([(0, True)] * (MAX_CONNECTIONS // 2) + [(1, True)] * (MAX_CONNECTIONS // 4), Random(1), 5)
def test_restart_keeps_allowed_connections_in_any_order(
    actions: list[tuple[int, bool]], rng: Random, size: int
) -> None:
    """Defect: a client that had filled its share before other clients connected seemed to exceed it."""
    shares, in_kernel = ConnectionShares(MAX_CONNECTIONS), list[tuple[int, int]]()
    for number, (client, opens) in enumerate(actions):
        if opens and shares.allows(client_address(client)):
            shares.add(client_address(client))
            in_kernel.append((number, client))
        elif not opens and in_kernel:
            shares.release(client_address(in_kernel.pop(0)[1]))
    subflows = [subflow_of(number, client) for number, client in in_kernel]
    joins = [subflow.host.join("203.0.113.1", 2000 + number) for number, subflow in enumerate(subflows)]
    dump = [subflow.kernel_subflow() for subflow in (*subflows, *joins)]
    rng.shuffle(dump)
    tracker = Tracker([PORT], SMALL)
    resync = tracker.begin_resync(2000.0)
    events = [event for start in range(0, len(dump), size) for event in resync.add(dump[start : start + size])]
    events += [event for step in resync.finish() for event in step]
    assert EXCESS not in kinds(events)
    tracked = {each.four_tuple for connection in tracker.connections.values() for each in connection.subflows}
    assert tracked == {entry.four_tuple for entry in dump}
    check_tables(tracker, SMALL)


def test_older_connections_of_a_client_keep_half_of_the_room() -> None:
    tracker = Tracker([PORT], SMALL)
    others = [subflow_of(1, client) for client in (1, 2)]
    subflows = [subflow_of(number) for number in range(MAX_CONNECTIONS)]
    events = tracker.resync([subflow.kernel_subflow() for subflow in (*others, *subflows)], 2000.0)
    assert (len(tracker.connections), kinds(events).count(EXCESS)) == (2 + MAX_CONNECTIONS // 2, MAX_CONNECTIONS // 2)
    feed(tracker, subflows[0].host.close_event())
    assert kinds_of_events(tracker, subflow_of(99).kernel_event(CREATED)) == [EXCESS], (
        "a client above its share got another connection"
    )
    assert kinds_of_events(tracker, subflow_of(1, client=3).kernel_event(CREATED)) == [OPENED, ACTIVE]
    stay = [*others, *subflows[1 : MAX_CONNECTIONS // 2], subflow_of(1, client=3), subflow_of(97, 1), subflow_of(98, 1)]
    assert EXCESS not in kinds(tracker.resync([subflow.kernel_subflow() for subflow in stay], 2010.0))
    events = tracker.resync([subflow.kernel_subflow() for subflow in (*stay, subflow_of(96))], 2020.0)
    assert kinds(events) == [EXCESS], "not exactly the new connection of the later dump was refused"


def test_clients_that_had_filled_the_table_leave_room_for_another() -> None:
    tracker = Tracker([PORT], SMALL)
    dump = [subflow_of(number, client).kernel_subflow() for number in range(MAX_CONNECTIONS) for client in (0, 1)]
    assert EXCESS in kinds(tracker.resync(dump, 2000.0))
    counts = Counter(connection.subflows[0].four_tuple.remote for connection in tracker.connections.values())
    assert sorted(counts.values()) == [MAX_CONNECTIONS // 3, MAX_CONNECTIONS // 3 + 1], (
        "the clients did not keep a third of the room each"
    )
    assert kinds_of_events(tracker, subflow_of(1, client=2).kernel_event(CREATED)) == [OPENED, ACTIVE]


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4).map(bool)), max_size=90))
def test_allowed_connections_are_allowed_after_a_restart_in_any_order(
    room: int, actions: list[tuple[int, bool]]
) -> None:
    shares, in_kernel = ConnectionShares(room), list[bytes]()
    for client, opens in actions:
        if opens and shares.allows(client_address(client)):
            assert shares.allows_older(client_address(client))
            in_kernel.append(shares.add(client_address(client)))
        elif not opens and in_kernel:
            shares.release(in_kernel.pop(0))
    listed = ConnectionShares(room)
    for client_key in sorted(in_kernel):
        assert listed.allows_older(client_key), "a connection was refused in the order of a dump"
        listed.add(client_key)


def test_rule_applies_to_new_connections_before_the_first_dump_ends() -> None:
    tracker = Tracker([PORT], SMALL)
    resync = tracker.begin_resync(2000.0)
    resync.add([subflow_of(number, number % 3).kernel_subflow() for number in range(MAX_CONNECTIONS - 3)])
    assert (
        kinds_of_events(tracker, subflow_of(98).kernel_event(CREATED), subflow_of(97).kernel_event(CREATED))[-1]
        == EXCESS
    )
    assert kinds_of_events(tracker, subflow_of(99).host.join("192.0.2.0", 77).kernel_event(JOINED)) == [OPENED, ACTIVE]


ACTIONS = st.tuples(
    st.sampled_from(["opens", "opens", "joins", "ends", "ends without an event", "forged", "waits", "dump"]),
    st.integers(0, 3),
    st.integers(0, 9),
)


@given(st.lists(ACTIONS, min_size=30, max_size=120))
def test_each_connection_of_the_kernel_is_tracked_or_reported(
    actions: list[tuple[str, int, int]],
) -> None:
    tracker, time = Tracker([PORT], SMALL), 1000.0
    in_kernel: dict[int, dict[FourTuple, ClientSubflow]] = {}
    for action, client, number in actions:
        subflow = subflow_of(number, client)
        host = subflow.host
        host.time = time = time + 0.1
        events: list[Event] = []
        if action == "opens" and host.token not in in_kernel:
            in_kernel[host.token] = {subflow.four_tuple: subflow}
            events = feed(tracker, *(subflow.handshake() if number % 2 else []), subflow.kernel_event(CREATED))
        elif action == "joins" and host.token in in_kernel and len(in_kernel[host.token]) == 1:
            join = host.join(f"203.0.113.{client}", 2000 + number)
            in_kernel[host.token][join.four_tuple] = join
            events = feed(tracker, join.kernel_event(JOINED))
        elif action in ("ends", "ends without an event") and in_kernel.pop(host.token, None) is not None:
            events = feed(tracker, host.close_event()) if action == "ends" else []
        elif action == "forged" and host.token not in in_kernel:
            events = feed(tracker, *subflow.handshake())
        elif action == "waits":
            time += 2 * SMALL.closed_linger
            events = tracker.expire(time)
        if action == "dump" or tracker.needs_resync:
            time += 2 * SMALL.closed_linger
            events += tracker.resync(
                [each.kernel_subflow() for subflows in in_kernel.values() for each in subflows.values()], time
            )
        for event in events:
            if event.kind is EventKind.CONNECTION_EXCESS:
                in_kernel.pop(event.token, None)
        tracked = {each.four_tuple for connection in tracker.connections.values() for each in connection.subflows}
        assert {four_tuple for subflows in in_kernel.values() for four_tuple in subflows} <= tracked
        check_tables(tracker, SMALL)


# Closing the reported connections


class Sockets:
    def __init__(self, refuses_to_close: Callable[[int], bool] = lambda _: False) -> None:
        """Create a fake. *refuses_to_close* returns whether the kernel refuses to close the socket at an index."""
        self.closed: list[FourTuple] = []
        self._refuses_to_close = refuses_to_close

    def close_sockets(self, four_tuples: Sequence[FourTuple]) -> dict[FourTuple, str]:
        still_open = [each for number, each in enumerate(four_tuples) if self._refuses_to_close(number)]
        self.closed += [each for each in four_tuples if each not in still_open]
        return dict.fromkeys(still_open, str(refusal(struct.pack("=i", -95), "close TCP sockets")))


def excess_events(count: int = 1, time: float = 60.0) -> list[Event]:
    tracker, _ = tracker_with_full_share()
    events = feed(tracker, *(subflow_of(100 + number).kernel_event(CREATED) for number in range(count)))
    return [replace(event, time=time) for event in events]


def close_excess(sockets: Sockets, events: Sequence[Event], *, dry_run: bool = False) -> None:
    actions_with(sockets).close_excess(events, is_dry_run=dry_run)


def actions_with(sockets: Sockets) -> ActionRunner:
    return ActionRunner(None, {}, sockets, None, None)  # type: ignore[arg-type]


def test_reported_connections_are_closed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    sockets, events = Sockets(), excess_events(2)
    close_excess(sockets, events)
    assert sockets.closed == [event.four_tuple for event in events]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    reason = "192.0.2.0 has 6 connections; there is room for 6 more connections of all clients together"
    assert caplog.messages[0].endswith(f": too many connections of its client: {reason}: closed")


@pytest.mark.parametrize(("dry_run", "words"), [(True, "left open in a dry run"), (False, "(Operation not supported)")])
def test_connection_that_is_not_closed_is_logged_as_uncapped(
    caplog: pytest.LogCaptureFixture, dry_run: bool, words: str
) -> None:
    sockets = Sockets(refuses_to_close=lambda _: True)
    close_excess(sockets, excess_events(), dry_run=dry_run)
    assert words in caplog.text
    assert caplog.messages[0].endswith("; it is not capped")


def test_only_connections_that_stay_open_are_logged_as_uncapped(caplog: pytest.LogCaptureFixture) -> None:
    close_excess(Sockets(refuses_to_close=lambda number: number == 1), excess_events(3))
    assert [message.endswith("; it is not capped") for message in caplog.messages] == [False, True, False]
    assert [message.endswith(": closed") for message in caplog.messages] == [True, False, True]


def test_flood_of_excess_connections_is_logged_a_few_times_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    sockets = Sockets()
    actions = actions_with(sockets)
    actions.close_excess(excess_events(100), is_dry_run=False)
    assert (len(sockets.closed), len(caplog.records)) == (100, MAX_LINES)
    actions.close_excess(excess_events(1, 120.0), is_dry_run=False)
    assert len(caplog.records) == MAX_LINES + 1
