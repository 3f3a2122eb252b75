# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for anticipation: which connections are expected to get a second path, and the records of their clients."""

from __future__ import annotations

from dataclasses import replace

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from mptcp_throttler.mptcp.model import Connection, FourTuple, Subflow
from mptcp_throttler.policy import anticipation
from mptcp_throttler.policy.anticipation import (
    CLIENT_TIMEOUT,
    LONG_WINDOW_SECONDS,
    MAX_CLIENTS,
    MAX_FORGOTTEN,
    WINDOW_SECONDS,
    JoinPredictor,
)

CLIENT = b"\x0a\x00\x00\x01"
OTHER = b"\x0a\x00\x00\x02"


def subflow(remote: bytes, port: int, initial: bool, since: float) -> Subflow:
    return Subflow(FourTuple(b"\x0a\x00\x00\x09", 3128, remote, port), initial, 0, 0, False, None, since)


class Clients:
    """Clients' connections, which begin, get a join, and end."""

    def __init__(self) -> None:
        self.anticipation = JoinPredictor()
        self.open: dict[int, Connection] = {}
        self._token = 0

    def begin(self, now: float, client: bytes = CLIENT, *, observed_from_start: bool = True) -> int:
        self._token += 1
        first = subflow(client, self._token % 60_000, True, now)
        self.open[self._token] = Connection(self._token, (first,), now, observed_from_start)
        self.expected_paths(self._token, now)
        return self._token

    def join(self, token: int, now: float) -> None:
        connection = self.open[token]
        second = subflow(OTHER, token % 60_000, False, now)
        self.open[token] = replace(connection, subflows=(*connection.subflows, second))
        self.expected_paths(token, now)

    def lose_join(self, token: int) -> None:
        self.open[token] = replace(self.open[token], subflows=self.open[token].subflows[:1])

    def end(self, token: int, now: float) -> None:
        del self.open[token]
        self.anticipation.forget(token, now)

    def expected_paths(self, token: int, now: float) -> int:
        """Decide about the connection. Return the number of paths on which it is expected."""
        connection = self.open[token]
        return self.anticipation.expected_paths(connection, len(connection.subflows), now)

    def decide_due(self, now: float) -> list[int]:
        """Decide about all due connections again, as the daemon does."""
        due = self.anticipation.take_due(now)
        for token in due:
            self.expected_paths(token, now)
        return due


@pytest.fixture
def clients() -> Clients:
    return Clients()


def end_without_join(clients: Clients, now: float, client: bytes = CLIENT) -> None:
    token = clients.begin(now, client)
    clients.decide_due(now + WINDOW_SECONDS)
    clients.end(token, now + 5)


def test_connection_of_an_unknown_client_is_expected_on_two_paths(clients: Clients) -> None:
    assert clients.expected_paths(clients.begin(100.0), 100.0) == 2


def test_connection_from_before_the_start_has_no_anticipated_path(clients: Clients) -> None:
    token = clients.begin(100.0, observed_from_start=False)
    assert clients.expected_paths(token, 100.0) == 1
    assert clients.decide_due(200.0) == []
    assert not clients.anticipation.clients


def test_client_without_a_join_counts_as_single_path(clients: Clients) -> None:
    token = clients.begin(100.0)
    assert clients.anticipation.next_window_end == pytest.approx(100.0 + WINDOW_SECONDS)
    assert clients.decide_due(100.0 + WINDOW_SECONDS - 0.01) == []
    assert clients.decide_due(100.0 + WINDOW_SECONDS) == [token]
    assert clients.expected_paths(token, 100.3) == 1
    assert clients.expected_paths(clients.begin(101.0), 101.0) == 1
    assert clients.anticipation.take_changed_clients() == {CLIENT: True}
    assert clients.anticipation.take_changed_clients() == {}


def test_anticipation_resumes_after_a_later_join(clients: Clients) -> None:
    end_without_join(clients, 100.0)
    clients.anticipation.take_changed_clients()
    token = clients.begin(110.0)
    assert clients.expected_paths(token, 110.0) == 1
    clients.join(token, 140.0)
    assert clients.expected_paths(token, 140.0) == 2
    assert clients.anticipation.take_changed_clients() == {CLIENT: False}
    assert clients.expected_paths(clients.begin(141.0), 141.0) == 2
    assert clients.anticipation.next_window_end == pytest.approx(141.0 + LONG_WINDOW_SECONDS)


def test_connection_that_loses_its_join_has_no_anticipated_path(clients: Clients) -> None:
    token = clients.begin(100.0)
    clients.join(token, 100.06)
    clients.lose_join(token)
    assert clients.expected_paths(token, 100.1) == 1
    assert clients.decide_due(104.0) == []


def test_one_late_join_does_not_end_anticipation_for_a_client(clients: Clients) -> None:
    token = clients.begin(100.0)
    clients.join(token, 100.06)
    clients.begin(101.0)
    assert len(clients.decide_due(103.5)) == 1
    assert clients.expected_paths(clients.begin(104.0), 104.0) == 2
    clients.decide_due(106.5)
    assert clients.expected_paths(clients.begin(107.0), 107.0) == 1


@pytest.mark.parametrize(
    ("join_seconds", "window"),
    [(0.005, WINDOW_SECONDS), (0.2, 0.4), (0.45, 0.9), (0.8, LONG_WINDOW_SECONDS), (30.0, LONG_WINDOW_SECONDS)],
)
def test_window_is_twice_the_clients_join_time(clients: Clients, join_seconds: float, window: float) -> None:
    clients.join(clients.begin(60.0), 60.0 + join_seconds)
    token = clients.begin(101.0)
    assert clients.decide_due(101.0 + window - 0.01) == []
    assert clients.decide_due(101.0 + window + 0.001) == [token]
    assert clients.expected_paths(token, 101.0 + window + 0.001) == 1


def test_many_short_joins_shorten_the_window_after_a_long_one(clients: Clients) -> None:
    clients.join(clients.begin(100.0), 101.0)
    for second in range(110, 140):
        clients.join(clients.begin(second), second + 0.01)
    clients.decide_due(149.0)
    clients.begin(150.0)
    assert clients.anticipation.next_window_end == pytest.approx(150.0 + WINDOW_SECONDS)


def test_late_join_lengthens_the_next_window(clients: Clients) -> None:
    clients.join(clients.begin(100.0), 100.01)
    late_connection = clients.begin(110.0)
    clients.decide_due(110.0 + WINDOW_SECONDS)
    assert clients.expected_paths(late_connection, 110.2) == 1
    clients.join(late_connection, 110.3)
    clients.begin(120.0)
    assert clients.anticipation.next_window_end == pytest.approx(120.6)


def test_window_stays_short_if_two_devices_share_an_address(clients: Clients) -> None:
    """A laptop with one path and a phone with two share the address of a router."""
    for number in range(10):
        phone = clients.begin(100.0 + 5 * number)
        laptop = clients.begin(100.01 + 5 * number)
        clients.join(phone, 100.06 + 5 * number)
        clients.decide_due(104.0 + 5 * number)
        assert clients.expected_paths(laptop, 104.0 + 5 * number) == 1
    laptop = clients.begin(200.0)
    assert clients.expected_paths(laptop, 200.0) == 2
    assert clients.decide_due(200.0 + WINDOW_SECONDS) == [laptop]


def test_many_simultaneous_connections_get_a_longer_window(clients: Clients) -> None:
    tokens = [clients.begin(100.0) for _ in range(110)]
    clients.decide_due(100.0 + WINDOW_SECONDS)
    assert all(clients.expected_paths(token, 100.0 + WINDOW_SECONDS) == 2 for token in tokens)
    clients.join(tokens[0], 100.5)
    clients.decide_due(100.0 + LONG_WINDOW_SECONDS)
    assert clients.anticipation.take_changed_clients() == {}, (
        "the client counts as single-path, although one of its connections got a join"
    )


def test_client_with_short_successive_connections_counts_as_single_path(clients: Clients) -> None:
    for number in range(3):
        token = clients.begin(100.0 + number)
        assert clients.expected_paths(token, 100.0 + number) == 2
        clients.end(token, 100.05 + number)
    assert clients.expected_paths(clients.begin(110.0), 110.0) == 1


def test_short_simultaneous_connections_count_as_one(clients: Clients) -> None:
    tokens = [clients.begin(100.0) for _ in range(50)]
    for token in tokens:
        clients.end(token, 100.05)
    assert clients.expected_paths(clients.begin(100.1), 100.1) == 2


def test_client_is_forgotten_after_the_timeout(clients: Clients) -> None:
    end_without_join(clients, 100.0)
    assert clients.expected_paths(clients.begin(100.0 + CLIENT_TIMEOUT - 1), 100.0 + CLIENT_TIMEOUT - 1) == 1
    clients.anticipation.take_changed_clients()
    now = 100.0 + 2 * CLIENT_TIMEOUT
    clients.anticipation.expire(now)
    assert clients.expected_paths(clients.begin(now), now) == 2
    assert clients.anticipation.take_changed_clients() == {CLIENT: False}


def test_clients_that_do_not_return_are_forgotten(clients: Clients) -> None:
    """Defect: a client's record was deleted only when the client returned.

    Up to 65,536 records stayed, with the initial limits of their subflows.
    """
    end_without_join(clients, 100.0)
    clients.join(clients.begin(100.0, OTHER), 100.06)
    assert clients.anticipation.take_changed_clients() == {CLIENT: True}
    clients.anticipation.expire(100.0 + CLIENT_TIMEOUT - 1)
    assert (len(clients.anticipation.clients), clients.anticipation.take_changed_clients()) == (2, {})
    clients.anticipation.expire(800.0)
    assert (len(clients.anticipation.clients), clients.anticipation.take_changed_clients()) == (0, {CLIENT: False})
    assert clients.expected_paths(clients.begin(801.0), 801.0) == 2


def test_expiry_forgets_a_limited_number_of_the_oldest_clients(clients: Clients) -> None:
    addresses = [number.to_bytes(4, "big") for number in range(2 * MAX_FORGOTTEN + 10)]
    for client in addresses:
        end_without_join(clients, 100.0, client)
    clients.begin(690.0, addresses[0])
    clients.anticipation.take_changed_clients()
    for remaining in (MAX_FORGOTTEN + 10, 10, 1):
        clients.anticipation.expire(800.0)
        assert len(clients.anticipation.clients) == remaining
    assert clients.anticipation.take_changed_clients() == dict.fromkeys(addresses[1:], False)
    assert clients.expected_paths(clients.begin(801.0, addresses[0]), 801.0) == 1


def test_client_with_an_anticipated_connection_is_not_forgotten(clients: Clients) -> None:
    clients.join(clients.begin(100.0), 100.06)
    end_without_join(clients, 100.0, OTHER)
    token, now = clients.begin(100.05 + CLIENT_TIMEOUT), 100.15 + CLIENT_TIMEOUT
    clients.anticipation.expire(now)
    assert clients.anticipation.take_changed_clients() == {OTHER: False}, (
        "the first client delayed the expiry of another"
    )
    assert (len(clients.anticipation.clients), clients.expected_paths(token, now)) == (1, 2)


STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "join", "end"]), st.integers(0, 3), st.floats(0, 300)), max_size=40
)


@settings(max_examples=examples(300), deadline=None)
@given(STEPS)
def test_clients_are_ordered_by_their_last_activity(steps: list[tuple[str, int, float]]) -> None:
    """Otherwise a recently active client could precede expired clients in the order and delay their removal."""
    clients, now = Clients(), 1000.0
    for action, number, seconds in steps:
        now += seconds
        clients.decide_due(now)
        tokens = sorted(clients.open)
        if action == "begin" or not tokens:
            clients.begin(now, bytes([10, 0, 0, number]))
        elif action == "join":
            clients.join(tokens[number % len(tokens)], now)
        else:
            clients.end(tokens[number % len(tokens)], now)
        last_seen = [client.last_seen for client in clients.anticipation.clients.values()]
        assert last_seen == sorted(last_seen)
        clients.anticipation.expire(now)
        assert all(
            client.young_connections or now - client.last_seen < CLIENT_TIMEOUT
            for client in clients.anticipation.clients.values()
        )


def test_number_of_remembered_clients_is_bounded(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anticipation, "MAX_CLIENTS", 1000)
    assert MAX_CLIENTS < 1_000_000
    for number in range(20_000):
        token = clients.begin(100.0 + number / 1000, number.to_bytes(4, "big"))
        clients.decide_due(100.0 + number / 1000)
        if number >= 300:
            clients.end(token - 300, 100.0 + number / 1000)
    clients.decide_due(1000.0)
    assert len(clients.anticipation.clients) <= 1000
    assert clients.anticipation.next_window_end is None
    changed_clients = clients.anticipation.take_changed_clients()
    assert sum(changed_clients.values()) <= 1000
    assert not changed_clients[(0).to_bytes(4, "big")], (
        "a displaced client keeps the socket options of a single-path client"
    )


def test_connections_without_subflows_do_not_lengthen_the_window(clients: Clients) -> None:
    for number in range(100):
        token = clients.begin(100.0 + number / 1000)
        clients.open[token] = replace(clients.open[token], subflows=())
        assert clients.expected_paths(token, 100.0 + number / 1000) == 0
    token = clients.begin(101.0)
    assert clients.decide_due(101.0 + WINDOW_SECONDS) == [token]


def test_join_of_an_old_connection_updates_the_new_record_of_its_client(clients: Clients) -> None:
    """Defect: a client's old record replaced the newer one, so the kernel treated a client with two paths as one with a
    single path."""
    single_path: dict[bytes, bool] = {}

    def decide_until(end: float, begin: float) -> None:
        for second in range(int(begin), int(end)):
            clients.decide_due(second)
            clients.anticipation.expire(second)
            single_path.update(clients.anticipation.take_changed_clients())

    clients.join(clients.begin(0.0), 0.2)
    old_connection = clients.begin(10.0)
    decide_until(700.0, 10.0)
    clients.begin(700.0)
    decide_until(720.0, 700.0)
    assert single_path[CLIENT] is True
    clients.join(old_connection, 800.0)
    decide_until(801.0, 800.0)
    assert single_path[CLIENT] is False
