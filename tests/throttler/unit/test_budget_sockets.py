# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the sockets whose bytes budgets count: each byte counts once, even if sockets close or the ledger fails."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from metering import HOURS, LTE, MB, Host, four_tuple, policy, timestamp
from policy_values import replace
from sampling import observe_all

from mptcp_throttler.mptcp.model import Connection, Subflow
from mptcp_throttler.policy.budget import Account
from mptcp_throttler.stages.budget import CHECK_SECONDS, FORGET_SECONDS, BudgetStage
from mptcp_throttler.stages.stage import Samples


def test_last_bytes_of_a_closed_socket_are_counted_once() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 500_000)
    host.sweep()
    host.carry(1, 100_000)
    socket = next(iter(host.sockets.values()))
    host.close(1)
    host.sweep()
    observe_all(host.stage, Samples(host.clock, {socket.four_tuple: socket}, False))
    assert host.total_used() == {"lte": 600_000}
    assert not host.stage.watched()


def test_socket_that_was_never_sampled_is_counted() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 70_000)
    host.close(1)
    assert host.total_used() == {"lte": 70_000}


def test_socket_reported_before_its_sample_is_processed_counts_once() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 70_000)
    (socket,) = host.sockets.values()
    host.report(socket)
    host.sweep()
    host.connect(2, "10.77.1.2")
    host.carry(2, 5)
    host.sweep()
    assert host.total_used() == {"lte": 70_005}


def test_socket_that_is_reported_late_counts_once() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 70_000)
    host.sweep()
    (socket,) = host.sockets.values()
    host.close(1, report=False)
    host.sweep()
    host.sweep()
    host.report(socket._replace(bytes_acked=71_000))
    assert host.total_used() == {"lte": 71_000}


def test_socket_that_is_never_reported_is_forgotten() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.sweep()
    host.close(1, report=False)
    host.sweep()
    assert host.stage.watched()
    host.sweep(FORGET_SECONDS + 1)
    assert not host.stage.watched()


def test_unreported_sockets_are_removed_from_the_ledger() -> None:
    """Defect: if the meter did not report closed sockets, each left its counters in the ledger until the next start."""
    host = Host()
    for token, octets in ((1, 70_000), (2, 5)):
        host.connect(token, "10.77.1.2")
        host.carry(token, octets)
        host.sweep()
        if token == 1:
            assert host.total_used() == {"lte": 70_000}
    host.close(1, report=False)
    host.close(2, report=False)
    host.sweep()
    assert not host.stage.sockets.closed
    host.sweep(FORGET_SECONDS + 1)
    usage = host.stage.sockets.take_pending()
    # The ledger never had counters of the second socket, but its bytes must be added.
    assert (usage.counters, usage.closed) == ({}, frozenset({1, 2}))
    assert list(usage.added.values()) == [5]
    assert not host.stage.sockets.counters
    assert host.stage.accounts.used == dict.fromkeys(usage.added, 70_005)


def test_unreported_socket_with_a_reused_port_is_removed_from_the_ledger() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 1000)
    host.sweep()
    (old,) = host.sockets.values()
    assert host.total_used() == {"lte": 1000}
    host.close(1, report=False)
    subflow = Subflow(old.four_tuple, True, 0, 0, False, None, host.now)
    host.connections[2] = Connection(2, (subflow,), host.now)
    host.sockets = {old.four_tuple: old._replace(token=2, cookie=77, bytes_acked=40)}
    host.decide(2)
    host.sweep()
    assert host.total_used() == {"lte": 1040}
    host.sweep(FORGET_SECONDS + 1)
    assert host.stage.sockets.take_pending().closed == {old.cookie}
    assert host.stage.sockets.counters.keys() == {77}
    for times in (1, 2):
        host.stage.sockets.forget_unlisted(host.clock + times * (CHECK_SECONDS + 1), lambda _: frozenset())
    assert not host.stage.sockets.take_pending().closed, (
        "the counters of the new socket, which is still metered, were removed"
    )


def test_unreported_socket_no_longer_metered_is_removed_from_the_ledger() -> None:
    host = Host(policy(HOURS))
    for token in (1, 2):
        host.connect(token, "10.77.1.2")
        host.carry(token, 1000)
        host.sweep()
    host.now = timestamp("2026-11-20 19:00")
    for token in (1, 2):
        host.decide(token)
    host.sweep()
    assert not host.stage.watched()
    assert host.total_used() == {"by-day": 2000}
    host.sweep(CHECK_SECONDS + 1)
    host.close(1, report=False)
    host.stage.sockets.forget_unlisted(host.clock + CHECK_SECONDS + 1, lambda _: None)
    assert not host.stage.sockets.closed, (
        "the counters of a socket were removed although no sweep showed that it is closed"
    )
    host.sweep(2 * CHECK_SECONDS + 3)
    assert host.stage.sockets.take_pending().closed == {1}
    assert host.stage.sockets.counters.keys() == {2}


def test_sockets_that_began_after_a_sweep_are_kept() -> None:
    """If few sockets are watched, the sampler looks each one up, and makes no sweep for a long time."""
    host = Host(policy(HOURS))
    host.sweep()
    host.connect(1, "10.77.1.2")
    host.carry(1, 1000)
    host.sweep()
    host.now = timestamp("2026-11-20 19:00")
    host.decide(1)
    host.sweep()
    host.total_used()
    times_of_queries: list[float] = []

    def record_query(since: float) -> set[int]:
        times_of_queries.append(since)
        return set()

    first, second = host.clock + CHECK_SECONDS + 1, host.clock + 2 * CHECK_SECONDS + 2
    host.stage.sockets.forget_unlisted(first, record_query)
    assert not times_of_queries
    host.stage.sockets.forget_unlisted(second, record_query)
    assert times_of_queries == [first], "the query was not for the sockets listed since the first check"


def test_socket_with_a_reused_port_counts_separately() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 1000)
    host.sweep()
    (old,) = host.sockets.values()
    host.connections.clear()
    reused = old.four_tuple
    host.sockets = {reused: old._replace(token=2, cookie=77, bytes_acked=40)}
    subflow = Subflow(reused, True, 0, 0, False, None, host.now)
    host.connections[2] = Connection(2, (subflow,), host.now)
    host.decide(2)
    new, host.sockets = host.sockets, {reused: old}
    host.sweep()  # This sample read the socket before the port was reused.
    host.sockets = new
    host.sweep()
    host.report(old._replace(bytes_acked=1200))
    host.stage.forget(1)
    host.carry(2, 2)
    host.sweep()
    assert host.total_used() == {"lte": 1242}
    assert list(host.stage.watched()) == [reused]


def test_sockets_that_reuse_a_port_before_any_sample_all_count() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    (first,) = host.sockets.values()
    for token in (2, 3, 4):
        host.stage.forget(token - 1)
        subflow = Subflow(first.four_tuple, True, 0, 0, False, None, host.now)
        host.connections = {token: Connection(token, (subflow,), host.now)}
        host.decide(token)
        host.report(first._replace(token=token - 1, cookie=token - 1, bytes_acked=1000))
    host.stage.forget(4)
    host.report(first._replace(token=4, cookie=4, bytes_acked=1000))
    assert host.total_used() == {"lte": 4000}
    assert not host.stage.watched()


def test_bytes_that_the_ledger_has_are_not_counted_again() -> None:
    host = Host()
    start = int(timestamp("2026-11-01 00:00"))
    host.stage.accounts.set_used((), {Account("lte", "10.77.1.2", start): 900_000})
    host.stage.sockets.counters = {1: (5000, 10)}
    host.connect(1, "10.77.1.2")
    host.carry(1, 6000, upload=10)
    host.sweep()
    assert host.total_used() == {"lte": 1000}
    host.carry(1, 99_000)
    assert host.sweep() == {1}, "counting did not continue from the usage in the ledger"


def test_counters_of_unlisted_sockets_are_removed_and_others_kept() -> None:
    """Defect: ten minutes after a start, the counters of open sockets that no rule metered were removed, too.

    If such a socket was metered later, all its bytes counted again.
    """
    host = Host(policy(HOURS), now="2026-11-20 06:00")
    host.connect(1, "10.77.1.2")
    host.carry(1, 5000)
    host.stage.sockets.counters = {1: (4000, 0), 99: (5000, 10)}
    host.sweep()
    host.sweep(CHECK_SECONDS + 1)
    assert host.stage.sockets.take_pending().closed == {99}
    for _ in range(3):
        assert not host.sweep(CHECK_SECONDS + 1)
        assert not host.stage.sockets.take_pending().closed
    # The stage does not know the socket, so it counts from the first byte that is not in the ledger.
    host.stage.forget(1)
    host.now = timestamp("2026-11-20 08:00")
    host.decide(1)
    host.sweep()
    assert host.total_used() == {"by-day": 1000}
    (socket,) = host.sockets.values()
    host.close(1)
    assert host.stage.sockets.take_pending().closed == {socket.cookie}


def test_unmetered_socket_that_closes_is_forgotten_immediately() -> None:
    host = Host(policy(HOURS), now="2026-11-20 06:00")
    host.connect(1, "10.77.1.2")
    host.stage.sockets.counters = {1: (4000, 0)}
    host.close(1)
    assert host.stage.sockets.take_pending().closed == {1}


def test_reset_by_another_process_takes_effect() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 2 * MB)
    host.sweep()
    assert host.decide(1)[0].throttle is not None
    host.total_used()
    host.carry(1, 100)
    host.sweep()
    assert set(host.stage.accounts.set_used(host.stage.accounts.periods, {})) == {1}
    assert host.decide(1)[0].throttle is None
    assert host.total_used() == {"lte": 2 * MB + 100}, "the bytes since the reset were not counted"


def test_only_sockets_near_a_step_are_urgent() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    host.connect(2, "10.77.1.3")
    host.connect(3, "10.77.1.2")
    host.sweep()
    host.carry(1, 100_000)
    host.carry(2, 1000)
    host.sweep()
    assert list(host.stage.urgent()) == []
    host.carry(1, 300_000)
    host.sweep()
    assert list(host.stage.urgent()) == [four_tuple("10.77.1.2", 40001)]
    host.carry(1, 700_000)
    urgent_subflow = four_tuple("10.77.1.2", 40001)
    outcome = observe_all(host.stage, Samples(host.clock + 0.1, {urgent_subflow: host.sockets[urgent_subflow]}, False))
    assert set(outcome.changed) == {1, 3}, "not both connections of the account were decided immediately"
    host.sweep()
    host.sweep()
    assert list(host.stage.urgent()) == []


def test_number_of_urgent_sockets_is_limited() -> None:
    host = Host(policy(LTE % "period: month, per: path"))
    for token in range(600):
        host.connect(token, "10.77.1.2")
    host.sweep()
    for token in range(600):
        host.carry(token, 1000 + token)
    host.sweep()
    urgent = list(host.stage.urgent())
    assert len(urgent) == 200
    assert urgent[0] == four_tuple("10.77.1.2", 40599)


def test_usage_that_could_not_be_written_is_written_later() -> None:
    host = Host()
    for token, octets in ((1, 5), (2, 7)):
        host.connect(token, "10.77.1.2")
        host.carry(token, octets)
    host.sweep()
    first = host.stage.sockets.take_pending()
    assert (set(first.counters), host.total_used()) == ({1, 2}, {})
    host.carry(1, 1)
    host.sweep()
    host.close(2)
    host.stage.sockets.restore_pending(first)
    pending = host.stage.sockets.take_pending()
    assert list(pending.added.values()) == [13]
    assert (pending.counters, pending.closed) == ({1: (6, 0)}, frozenset({2}))


ACTIONS = st.sampled_from(["send", "sweep", "decide", "reconnect", "close without a report", "next period", "policy"])


@given(st.lists(ACTIONS, max_size=40))
def test_each_byte_counts_exactly_once(actions: list[str]) -> None:
    host = Host(policy(LTE % "period: day"))
    token, sent = 1, 0
    host.connect(token, "10.77.1.2")
    for action in actions:
        if action == "send":
            host.carry(token, 1000, upload=10)
            sent += 1010
        elif action == "sweep":
            host.sweep()
        elif action == "decide":
            host.decide(token)
        elif action in ("reconnect", "close without a report"):
            if action == "close without a report":
                host.sweep()
            host.close(token, report=action == "reconnect")
            token += 1
            host.connect(token, "10.77.1.2")
        elif action == "policy":
            host.stage.set_policy(replace(host.policy))
            host.decide(token)
        else:
            host.now += 86_400
    host.sweep()
    assert host.total_used() == ({"lte": sent} if sent else {})


LEDGER_ACTIONS = st.sampled_from(
    [
        "send", "sweep", "write", "close without a report", "wait", "check for ended sockets",
        "leave or enter the hours", "crash",
    ]
)  # fmt: skip


@given(st.lists(LEDGER_ACTIONS, max_size=30))
def test_ledger_keeps_counters_of_open_sockets_only(actions: list[str]) -> None:
    """No meter reports closed sockets here, and a daemon may end after any of its writes."""
    host = Host(policy(HOURS))
    rows: dict[int, tuple[int, int]] = {}
    token, sent, within_hours = 1, 0, True

    def write() -> None:
        usage = host.stage.sockets.take_pending()
        for account, octets in usage.added.items():
            host.written[account] = host.written.get(account, 0) + octets
        rows.update(usage.counters)
        for cookie in usage.closed:
            rows.pop(cookie, None)

    host.connect(token, "10.77.1.2")
    for action in actions:
        if action == "send" and within_hours:
            host.carry(token, 1000, upload=10)
            sent += 1010
        elif action == "sweep":
            host.sweep()
        elif action == "write":
            write()
        elif action == "close without a report":
            host.sweep()
            write()
            host.close(token, report=False)
            token += 1
            host.connect(token, "10.77.1.2")
        elif action in ("wait", "check for ended sockets"):
            host.sweep(1 + (FORGET_SECONDS if action == "wait" else CHECK_SECONDS))
        elif action == "leave or enter the hours":
            host.sweep()
            within_hours = not within_hours
            host.now = timestamp("2026-11-20 12:00") + (0 if within_hours else 8 * 3600)
            host.decide(token)
            host.sweep()
            write()
        elif action == "crash":
            host.stage = BudgetStage()
            host.stage.set_policy(host.policy)
            host.stage.accounts.set_used((), host.written)
            host.stage.sockets.counters = dict(rows)
            host.decide(token)
    for seconds in (1, 1, FORGET_SECONDS + 1, CHECK_SECONDS + 1, CHECK_SECONDS + 1):
        host.sweep(seconds)
    write()
    assert sum(host.written.values()) == sent
    assert rows.keys() <= {host.cookies}
