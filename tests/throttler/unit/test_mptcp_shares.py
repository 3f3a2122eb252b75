# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the clients' shares of the connection table: connections beyond a share are reported, to be closed."""

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
from mptcp_dialogue import ACTIVE, CLOSED, OPENED, PORT, Host, Path, announced, feed, kinds
from mptcp_invariants import SMALL, check_tables

from mptcp_throttler.kernel.netlink import refusal
from mptcp_throttler.mptcp.limits import Shares
from mptcp_throttler.mptcp.model import Event, EventKind, FourTuple, KernelEventKind
from mptcp_throttler.mptcp.tracker import Tracker
from mptcp_throttler.runtime.actions import MOST_LINES, Actions

ROOM = SMALL.max_connections
EXCESS = "connection-excess"
CREATED, JOINED = KernelEventKind.CREATED, KernelEventKind.SUBFLOW_ESTABLISHED


def packed(client: int) -> bytes:
    return bytes([192, 0, 2, client])


# The rule for shares


@given(room=st.integers(1, 40), actions=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=200))
def test_a_client_has_as_many_as_there_is_room_left_for(room: int, actions: list[tuple[int, bool]]) -> None:
    shares, held = Shares(room), Counter[int]()
    for client, takes in actions:
        left = room - held.total()
        assert shares.has_room(packed(client)) is (held[client] < left)
        if takes and shares.has_room(packed(client)):
            held[client] += 1
            shares.take(packed(client))
        elif not takes and held[client]:
            held[client] -= 1
            shares.give_back(packed(client))
        assert (shares.taken, len(shares.held)) == (held.total(), len(+held))
        assert 0 <= shares.taken <= room


@given(room=st.integers(1, 300), clients=st.integers(1, 6))
def test_those_who_ask_for_all_leave_as_much_as_each_of_them_has(room: int, clients: int) -> None:
    shares = Shares(room)
    tried = [shares.take(packed(n)) for _ in range(room) for n in range(clients) if shares.has_room(packed(n))]
    left = room - len(tried)
    assert left >= room // (clients + 1)
    assert max(Counter(tried).values()) <= left + 1, "who took the last one had no more than was left then"
    for _ in range((left + 1) // 2):
        assert shares.has_room(packed(99)), "another client finds room for as many"
        shares.take(packed(99))


def test_who_has_an_ipv6_network_is_one_client() -> None:
    shares = Shares(4)
    for host in range(2):
        assert shares.has_room(ip_address(f"2001:db8::{host}").packed)
        shares.take(ip_address(f"2001:db8::{host}").packed)
    assert not shares.has_room(ip_address("2001:db8::77").packed)
    assert shares.words(ip_address("2001:db8::77").packed) == (
        "2001:db8::/64 has 2 connections, and there is room for 2 of anybody's"
    )
    assert shares.has_room(ip_address("2001:db8:0:1::").packed)
    assert shares.has_room(packed(1))
    assert shares.words(packed(1)).startswith("192.0.2.1 has 0 connections")


# The tracker


def path_of(number: int, client: int = 0) -> Path:
    """Return the first subflow of a client's connection with this number."""
    return Host(f"{client}/{number}").initial(f"192.0.2.{client}", 1000 + number)


def filled() -> tuple[Tracker, list[Path]]:
    """Return a tracker in which one client has its maximum of connections: half of the room."""
    tracker = Tracker([PORT], SMALL)
    paths = [path_of(number) for number in range(ROOM // 2)]
    for path in paths:
        assert announced(tracker, *path.established()) == [OPENED, ACTIVE]
    return tracker, paths


@pytest.mark.parametrize("captured", [False, True])
def test_one_more_of_a_client_that_has_its_share_is_reported_and_another_client_finds_room(captured: bool) -> None:
    tracker, paths = filled()
    more = path_of(99)
    (event,) = feed(tracker, *(more.handshake() if captured else ()), more.kernel(CREATED))
    assert (event.kind.value, event.token, event.four_tuple) == (EXCESS, more.host.token, more.four_tuple)
    assert event.detail == "192.0.2.0 has 6 connections, and there is room for 6 of anybody's"
    assert len(tracker.connections) == ROOM // 2, "those that were there stay"
    assert tracker.counters.connections_refused == 1
    assert announced(tracker, path_of(1, client=1).kernel(CREATED)) == [OPENED, ACTIVE]
    check_tables(tracker, SMALL)
    feed(tracker, *(path.host.closed() for path in paths[:2]))
    assert announced(tracker, more.kernel(CREATED)) == [OPENED, ACTIVE], "then there is room"


@pytest.mark.parametrize("captured", [True, False])
def test_a_join_that_comes_after_its_connection_was_turned_away_takes_nobodys_share(captured: bool) -> None:
    """Defect: the join was counted for its own source address.

    That client's next connection was then refused.
    """
    tracker, _ = filled()
    more = path_of(99)
    feed(tracker, more.kernel(CREATED))
    join, taken = more.host.join(port=7), len(tracker.connections)
    if captured:
        feed(tracker, *join.handshake())
    event = feed(tracker, join.kernel(JOINED))[-1]
    assert (event.kind.value, event.token, event.four_tuple) == (EXCESS, more.host.token, join.four_tuple)
    assert len(tracker.connections) == taken
    assert tracker.counters.connections_refused == 1, "a connection is counted once, whatever of it comes late"
    check_tables(tracker, SMALL)


def test_a_connection_without_a_subflow_counts_for_nobody() -> None:
    tracker, paths = filled()
    for path in paths:
        assert announced(tracker, path.kernel(KernelEventKind.SUBFLOW_CLOSED)) == [CLOSED]
    for number in range(100, 100 + ROOM // 2):
        assert announced(tracker, path_of(number).kernel(CREATED))[-2:] == [OPENED, ACTIVE]
    (event,) = feed(tracker, paths[-1].host.join("192.0.2.0", 77).kernel(JOINED))[-1:]
    assert event.kind is EventKind.CONNECTION_EXCESS, "one that comes back is more than the share again"
    check_tables(tracker, SMALL)


@pytest.mark.parametrize("ended", [0, 2])
def test_a_dump_reports_what_is_too_much_once_those_that_have_ended_are_gone(ended: int) -> None:
    """The kernel's event about their end was lost."""
    tracker, paths = filled()
    more = [path_of(number) for number in (98, 99)]
    now = max(path.host.time for path in paths) + 10
    events = tracker.resync([path.dumped() for path in (*more, *paths[ended:])], now)
    reported = [event.four_tuple for event in events if event.kind is EventKind.CONNECTION_EXCESS]
    assert reported == ([] if ended else [path.four_tuple for path in more])
    assert kinds(events).count(ACTIVE) == ended
    check_tables(tracker, SMALL)


@pytest.mark.parametrize("backwards", [False, True])
def test_a_dump_counts_a_connection_for_the_client_of_its_first_subflow(backwards: bool) -> None:
    """The order of the dump does not matter. All subflows of an excess connection are reported."""
    tracker = Tracker([PORT], SMALL)
    paths = [path_of(number) for number in range(ROOM // 2 + 2)]
    joins = [path.host.join("203.0.113.1", 2000 + number) for number, path in enumerate(paths)]
    dump = [each.dumped() for pair in zip(paths, joins, strict=True) for each in pair]
    events = tracker.resync(reversed(dump) if backwards else dump, 2000.0)
    reported = {event.four_tuple for event in events if event.kind is EventKind.CONNECTION_EXCESS}
    tracked = {each.four_tuple for shown in tracker.connections.values() for each in shown.subflows}
    assert len(tracker.connections) == ROOM // 2
    assert tracked | reported == {entry.four_tuple for entry in dump}
    assert len(reported) == 4
    assert tracker.counters.connections_refused == 2
    check_tables(tracker, SMALL)


def test_one_that_was_closed_while_the_dump_was_read_is_not_reported() -> None:
    tracker, paths = filled()
    more = path_of(99)
    more.host.time = now = max(path.host.time for path in paths) + 10
    resync = tracker.begin_resync(now)
    assert resync.add([path.dumped() for path in (more, *paths)]) == []
    feed(tracker, more.host.closed())
    assert [event for events in resync.finish() for event in events] == []


# Connections that are older than the daemon


@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 1, 2]), st.integers(0, 4).map(bool)), max_size=60),
    st.randoms(),
    st.integers(1, 5),
)
@example([(0, True)] * (ROOM // 2) + [(1, True)] * (ROOM // 4), Random(1), 5)
def test_a_restart_closes_nothing_that_came_by_the_rule_in_whatever_order_it_is_listed(
    actions: list[tuple[int, bool]], chance: Random, size: int
) -> None:
    """Defect: a client that had filled its share before other clients came was found to have too many."""
    shares, there = Shares(ROOM), list[tuple[int, int]]()
    for number, (client, opens) in enumerate(actions):
        if opens and shares.has_room(packed(client)):
            shares.take(packed(client))
            there.append((number, client))
        elif not opens and there:
            shares.give_back(packed(there.pop(0)[1]))
    paths = [path_of(number, client) for number, client in there]
    joins = [path.host.join("203.0.113.1", 2000 + number) for number, path in enumerate(paths)]
    dump = [path.dumped() for path in (*paths, *joins)]
    chance.shuffle(dump)
    tracker = Tracker([PORT], SMALL)
    resync = tracker.begin_resync(2000.0)
    events = [event for start in range(0, len(dump), size) for event in resync.add(dump[start : start + size])]
    events += [event for more in resync.finish() for event in more]
    assert EXCESS not in kinds(events)
    tracked = {each.four_tuple for shown in tracker.connections.values() for each in shown.subflows}
    assert tracked == {entry.four_tuple for entry in dump}
    check_tables(tracker, SMALL)


def test_of_what_a_client_opened_before_the_daemon_half_of_the_room_stays_and_then_the_rule_holds() -> None:
    tracker = Tracker([PORT], SMALL)
    others = [path_of(1, client) for client in (1, 2)]
    many = [path_of(number) for number in range(ROOM)]
    events = tracker.resync([path.dumped() for path in (*others, *many)], 2000.0)
    assert (len(tracker.connections), kinds(events).count(EXCESS)) == (2 + ROOM // 2, ROOM // 2)
    feed(tracker, many[0].host.closed())
    assert announced(tracker, path_of(99).kernel(CREATED)) == [EXCESS], "its client has more than there is room for"
    assert announced(tracker, path_of(1, client=3).kernel(CREATED)) == [OPENED, ACTIVE]
    stay = [*others, *many[1 : ROOM // 2], path_of(1, client=3), path_of(97, 1), path_of(98, 1)]
    assert EXCESS not in kinds(tracker.resync([path.dumped() for path in stay], 2010.0))
    events = tracker.resync([path.dumped() for path in (*stay, path_of(96))], 2020.0)
    assert kinds(events) == [EXCESS], "a later dump holds to the rule, too"


def test_clients_that_took_all_before_the_daemon_leave_room_to_another() -> None:
    tracker = Tracker([PORT], SMALL)
    dump = [path_of(number, client).dumped() for number in range(ROOM) for client in (0, 1)]
    assert EXCESS in kinds(tracker.resync(dump, 2000.0))
    held = Counter(shown.subflows[0].four_tuple.remote for shown in tracker.connections.values())
    assert sorted(held.values()) == [ROOM // 3, ROOM // 3 + 1], "a third each, as by the rule"
    assert announced(tracker, path_of(1, client=2).kernel(CREATED)) == [OPENED, ACTIVE]


@given(st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 1, 2]), st.integers(0, 4).map(bool)), max_size=60))
def test_what_came_by_the_rule_is_true_in_every_order(actions: list[tuple[int, bool]]) -> None:
    """For any k: the sum of the k largest shares, plus the smallest of these, is at most the room plus one."""
    shares, there = Shares(ROOM), list[bytes]()
    for client, opens in actions:
        if opens and shares.has_room(packed(client)):
            assert shares.had_room(packed(client))
            there.append(shares.take(packed(client)))
        elif not opens and there:
            shares.give_back(there.pop(0))
        sizes = sorted(Counter(there).values(), reverse=True)
        for extra in range(3):
            after = sorted((Counter(there) + Counter([packed(extra)])).values(), reverse=True)
            fits = all(sum(after[: k + 1]) + after[k] <= ROOM + 1 for k in range(len(after)))
            assert shares.had_room(packed(extra)) is fits
        assert all(sum(sizes[: k + 1]) + sizes[k] <= ROOM + 1 for k in range(len(sizes)))


def test_before_the_first_dump_is_over_what_comes_keeps_to_the_rule_and_what_is_joined_was_there() -> None:
    tracker = Tracker([PORT], SMALL)
    resync = tracker.begin_resync(2000.0)
    resync.add([path_of(number, number % 3).dumped() for number in range(ROOM - 3)])
    assert announced(tracker, path_of(98).kernel(CREATED), path_of(97).kernel(CREATED))[-1] == EXCESS
    assert announced(tracker, path_of(99).host.join("192.0.2.0", 77).kernel(JOINED)) == [OPENED, ACTIVE]


ACTIONS = st.tuples(
    st.sampled_from(["opens", "opens", "joins", "ends", "ends unnoticed", "forged", "waits", "dump"]),
    st.integers(0, 3),
    st.integers(0, 9),
)


@given(st.lists(ACTIONS, min_size=30, max_size=120))
def test_whatever_comes_the_kernel_has_no_connection_that_is_neither_tracked_nor_reported(
    actions: list[tuple[str, int, int]],
) -> None:
    tracker, time = Tracker([PORT], SMALL), 1000.0
    there: dict[int, dict[FourTuple, Path]] = {}
    for action, client, number in actions:
        path = path_of(number, client)
        host = path.host
        host.time = time = time + 0.1
        events: list[Event] = []
        if action == "opens" and host.token not in there:
            there[host.token] = {path.four_tuple: path}
            events = feed(tracker, *(path.handshake() if number % 2 else []), path.kernel(CREATED))
        elif action == "joins" and host.token in there and len(there[host.token]) == 1:
            join = host.join(f"203.0.113.{client}", 2000 + number)
            there[host.token][join.four_tuple] = join
            events = feed(tracker, join.kernel(JOINED))
        elif action in ("ends", "ends unnoticed") and there.pop(host.token, None) is not None:
            events = feed(tracker, host.closed()) if action == "ends" else []
        elif action == "forged" and host.token not in there:
            events = feed(tracker, *path.handshake())
        elif action == "waits":
            time += 2 * SMALL.closed_linger
            events = tracker.expire(time)
        if action == "dump" or tracker.wants_resync:
            time += 2 * SMALL.closed_linger
            events += tracker.resync([each.dumped() for paths in there.values() for each in paths.values()], time)
        for event in events:
            if event.kind is EventKind.CONNECTION_EXCESS:
                there.pop(event.token, None)
        tracked = {each.four_tuple for shown in tracker.connections.values() for each in shown.subflows}
        assert {four_tuple for paths in there.values() for four_tuple in paths} <= tracked
        check_tables(tracker, SMALL)


# Closing the reported connections


class Sockets:
    def __init__(self, keeps: Callable[[int], bool] = lambda _: False) -> None:
        """Make a fake. *keeps* says which sockets the kernel refuses to close, counted from 0."""
        self.closed: list[FourTuple] = []
        self._keeps = keeps

    def close_sockets(self, four_tuples: Sequence[FourTuple]) -> dict[FourTuple, str]:
        stayed = [each for number, each in enumerate(four_tuples) if self._keeps(number)]
        self.closed += [each for each in four_tuples if each not in stayed]
        return dict.fromkeys(stayed, str(refusal(struct.pack("=i", -95), "close TCP sockets")))


def reported(count: int = 1, time: float = 60.0) -> list[Event]:
    tracker, _ = filled()
    events = feed(tracker, *(path_of(100 + number).kernel(CREATED) for number in range(count)))
    return [replace(event, time=time) for event in events]


def close(sockets: Sockets, events: Sequence[Event], *, dry_run: bool = False) -> None:
    closing(sockets).close_excess(events, is_dry_run=dry_run)


def closing(sockets: Sockets) -> Actions:
    return Actions(None, {}, sockets, None, None)  # type: ignore[arg-type]


def test_what_is_reported_is_closed_at_once_and_said(caplog: pytest.LogCaptureFixture) -> None:
    sockets, events = Sockets(), reported(2)
    close(sockets, events)
    assert sockets.closed == [event.four_tuple for event in events]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    whose = "192.0.2.0 has 6 connections, and there is room for 6 of anybody's"
    assert caplog.messages[0].endswith(f": too many connections of its client: {whose}: closed")


@pytest.mark.parametrize(
    ("dry_run", "words"), [(True, "left, for this is a dry run"), (False, "(Operation not supported)")]
)
def test_what_stays_is_said_to_have_no_cap(caplog: pytest.LogCaptureFixture, dry_run: bool, words: str) -> None:
    sockets = Sockets(keeps=lambda _: True)
    close(sockets, reported(), dry_run=dry_run)
    assert words in caplog.text
    assert caplog.messages[0].endswith("; nothing caps it")


def test_only_what_stays_of_many_is_said_to_have_no_cap(caplog: pytest.LogCaptureFixture) -> None:
    close(Sockets(keeps=lambda number: number == 1), reported(3))
    assert [message.endswith("; nothing caps it") for message in caplog.messages] == [False, True, False]
    assert [message.endswith(": closed") for message in caplog.messages] == [True, False, True]


def test_a_flood_of_them_is_said_a_few_times_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    sockets = Sockets()
    one = closing(sockets)
    one.close_excess(reported(100), is_dry_run=False)
    assert (len(sockets.closed), len(caplog.records)) == (100, MOST_LINES)
    one.close_excess(reported(1, 120.0), is_dry_run=False)
    assert len(caplog.records) == MOST_LINES + 1
