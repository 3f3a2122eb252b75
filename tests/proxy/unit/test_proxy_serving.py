# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the decision whether Squid listens as it should, and for the choice of the changes to report."""

from __future__ import annotations

from mptcp_proxy import serving
from mptcp_proxy.configuration.listeners import listeners
from mptcp_proxy.configuration.source import PhysicalLine, statements
from mptcp_proxy.listeners_watch import required_sockets
from mptcp_proxy.listening import ListeningSocket
from mptcp_proxy.serving import (
    CHANGE_SECONDS,
    INTERVAL,
    PROBLEM_INTERVAL,
    TOLERATED_SECONDS,
    WITHOUT_LISTENERS_SECONDS,
    WITHOUT_PROCESSES_SECONDS,
    ListenJudge,
    ListenState,
    StuckProcesses,
)

COMPLETE = ListenState((3128,))
TOO_FEW = ListenState((3128,), too_few=((3128, 1, 2),))
"""Port 3128 has one listener of two."""
NOT_LISTENING = ListenState((3128,), missing=(3128,))
ALL_RUN, ONE_MISSING = True, False
"""Whether all processes of Squid run."""


def squid_listener(port: int, pid: int = 5, *, mptcp: bool = True) -> ListeningSocket:
    return ListeningSocket("*", port, "squid", (pid,), mptcp=mptcp)


def test_state_lists_plain_missing_and_incomplete_ports() -> None:
    sockets = [
        squid_listener(3128),
        squid_listener(3128, 6),
        squid_listener(3129, mptcp=False),
        squid_listener(3129, 6),
        squid_listener(3130),
        squid_listener(3131, 7),
    ]
    found = serving.listen_state(dict.fromkeys(range(3128, 3133), 2), {5, 6}, sockets, {})
    assert found == ListenState((3128, 3129, 3130, 3131, 3132), (3129,), (3131, 3132), ((3130, 1, 2),))
    assert found.listens
    assert not found.complete
    # Without CAP_SYS_PTRACE, a process does not get the owner of another user's listener.
    unknown = [ListeningSocket("*", 3128, "", (), mptcp=True), ListeningSocket("*", 3129, "", ())]
    assert serving.listen_state({3128: 1, 3129: 1, 3130: 1}, {5}, unknown, {3128: {""}, 3129: {""}}) == ListenState(
        (3128, 3129, 3130), (3129,), (3130,)
    )


def test_expected_listeners_are_counted_by_port() -> None:
    ports = ("http_port 3128", "http_port 10.0.0.1:3129", "http_port 10.0.0.2:3129")
    configuration = (*ports, "if ${process_number} = 1", "http_port 3130", "endif")
    lines = [PhysicalLine("f", number, line) for number, line in enumerate(configuration, 1)]
    assert required_sockets(listeners(statements(lines, "n")), 2) == {3128: 2, 3129: 4, 3130: 1}


def test_complete_start_is_reported_immediately_and_a_failed_start_later() -> None:
    judge = ListenJudge(100.0)
    assert not judge.observe(NOT_LISTENING, ALL_RUN, 100.0)
    assert judge.next_check == 100.0 + PROBLEM_INTERVAL
    assert not judge.observe(TOO_FEW, ALL_RUN, 101.0)
    assert judge.observe(COMPLETE, ALL_RUN, 102.0)
    assert judge.next_check == 102.0 + INTERVAL
    assert not judge.observe(COMPLETE, ALL_RUN, 112.0)

    judge = ListenJudge(100.0)
    assert not judge.observe(TOO_FEW, ALL_RUN, 100.0 + CHANGE_SECONDS - 0.1)
    assert judge.observe(TOO_FEW, ALL_RUN, 100.0 + CHANGE_SECONDS)


def test_lost_listeners_are_reported_once_at_any_time() -> None:
    """Defect: the listeners were checked only at the start, and a proxy without listeners was reported as serving."""
    judge = ListenJudge(0.0)
    judge.observe(COMPLETE, ALL_RUN, 0.0)
    times = []
    now, next_check = 3600.0, 3600.0
    while now < 3600.0 + 60:
        if now >= next_check:
            if judge.observe(NOT_LISTENING if now < 3640 else COMPLETE, ALL_RUN, now):
                times.append(now)
            next_check = judge.next_check
        now += 0.5
    assert times == [3600.0 + TOLERATED_SECONDS, 3640.0]


def test_restart_of_a_worker_is_not_reported() -> None:
    judge = ListenJudge(0.0)
    judge.observe(COMPLETE, ALL_RUN, 0.0)
    assert not judge.observe(TOO_FEW, ALL_RUN, 1000.0)
    assert judge.next_check == 1000.0 + PROBLEM_INTERVAL
    assert not judge.observe(COMPLETE, ALL_RUN, 1001.0)
    # The tolerated time begins again at the next failure.
    assert not judge.observe(TOO_FEW, ALL_RUN, 1010.0)
    assert not judge.observe(TOO_FEW, ALL_RUN, 1010.0 + TOLERATED_SECONDS - 0.1)
    assert judge.observe(TOO_FEW, ALL_RUN, 1010.0 + TOLERATED_SECONDS)


def test_end_of_a_reload_is_reported_even_without_a_change() -> None:
    judge = ListenJudge(0.0)
    judge.observe(COMPLETE, ALL_RUN, 0.0)
    judge.expect_change(50.0)
    assert not judge.observe(NOT_LISTENING, ALL_RUN, 51.0)
    assert judge.observe(COMPLETE, ALL_RUN, 52.0)
    judge.expect_change(100.0)
    assert judge.observe(NOT_LISTENING, ALL_RUN, 100.0 + CHANGE_SECONDS)


def test_reload_that_begins_late_gets_the_full_time() -> None:
    judge = ListenJudge(0.0)
    judge.observe(COMPLETE, ALL_RUN, 0.0)
    judge.expect_change(50.0)
    assert judge.observe(COMPLETE, ALL_RUN, 51.0), "the old listeners, which Squid still has, were not reported"
    assert not judge.observe(NOT_LISTENING, ALL_RUN, 61.0)
    assert not judge.observe(NOT_LISTENING, ALL_RUN, 50.0 + CHANGE_SECONDS - 1)
    assert judge.observe(NOT_LISTENING, ALL_RUN, 50.0 + CHANGE_SECONDS)
    # If a process of Squid is missing, Squid is not reading its configuration.
    judge.expect_change(200.0)
    assert judge.observe(COMPLETE, ALL_RUN, 201.0)
    assert not judge.observe(NOT_LISTENING, ONE_MISSING, 202.0)
    assert judge.observe(NOT_LISTENING, ONE_MISSING, 202.0 + TOLERATED_SECONDS)


def test_squid_must_restart_after_a_long_time_without_listeners() -> None:
    judge = ListenJudge(0.0)
    judge.observe(COMPLETE, ALL_RUN, 0.0)
    for second in range(10, 10 + int(WITHOUT_PROCESSES_SECONDS)):
        judge.observe(NOT_LISTENING, ALL_RUN, float(second))
        assert not judge.must_restart(ONE_MISSING, float(second))
    assert judge.must_restart(ONE_MISSING, 10 + WITHOUT_PROCESSES_SECONDS)
    # If all processes of Squid run, Squid may be reading a long configuration.
    assert not judge.must_restart(ALL_RUN, 10 + WITHOUT_PROCESSES_SECONDS)
    assert judge.must_restart(ALL_RUN, 10 + WITHOUT_LISTENERS_SECONDS)
    judge.observe(TOO_FEW, ALL_RUN, 10 + WITHOUT_PROCESSES_SECONDS)
    assert not judge.must_restart(ONE_MISSING, 10 + WITHOUT_PROCESSES_SECONDS)


def test_long_reload_is_awaited_even_without_a_worker() -> None:
    """Defect: the supervisor ended the worker that read the file, 15 seconds after the worker closed its listeners."""
    judge = ListenJudge(0.0)
    judge.observe(COMPLETE, ALL_RUN, 0.0)
    judge.expect_change(100.0)
    judge.observe(COMPLETE, ALL_RUN, 101.0)
    for second in range(102, 102 + int(WITHOUT_LISTENERS_SECONDS)):
        judge.observe(NOT_LISTENING, ONE_MISSING, float(second))
        assert not judge.must_restart(ONE_MISSING, float(second))
    assert judge.must_restart(ONE_MISSING, 102.0 + WITHOUT_LISTENERS_SECONDS)
    judge.observe(COMPLETE, ALL_RUN, 300.0)
    judge.observe(NOT_LISTENING, ONE_MISSING, 400.0)
    assert judge.must_restart(ONE_MISSING, 400.0 + WITHOUT_PROCESSES_SECONDS)


def test_start_has_time_to_read_a_long_file() -> None:
    judge = ListenJudge(0.0)
    judge.observe(NOT_LISTENING, ALL_RUN, 1.0)
    assert not judge.must_restart(ONE_MISSING, WITHOUT_LISTENERS_SECONDS - 1)
    assert judge.must_restart(ONE_MISSING, WITHOUT_LISTENERS_SECONDS)


def test_time_without_a_check_does_not_count_as_time_without_listeners() -> None:
    """Defect: if ss was missing or failed, the supervisor ended a healthy Squid two minutes after its start."""
    judge = ListenJudge(0.0)
    assert not judge.observe_unknown(0.0)
    assert judge.next_check == INTERVAL
    assert not judge.must_restart(ALL_RUN, WITHOUT_LISTENERS_SECONDS)
    assert not judge.must_restart(ONE_MISSING, WITHOUT_LISTENERS_SECONDS)
    # During a reload, a check finds no listener, and the next check fails.
    judge.observe(COMPLETE, ALL_RUN, 200.0)
    judge.expect_change(300.0)
    judge.observe(NOT_LISTENING, ALL_RUN, 301.0)
    judge.observe_unknown(302.0)
    assert not judge.must_restart(ALL_RUN, 301.0 + WITHOUT_LISTENERS_SECONDS)
    assert not judge.must_restart(ONE_MISSING, 301.0 + WITHOUT_LISTENERS_SECONDS)
    # The time without listeners begins at the next check that succeeds.
    judge.observe(NOT_LISTENING, ALL_RUN, 500.0)
    assert not judge.must_restart(ALL_RUN, 500.0 + WITHOUT_LISTENERS_SECONDS - 1)
    assert judge.must_restart(ALL_RUN, 500.0 + WITHOUT_LISTENERS_SECONDS)


def test_change_without_a_check_ends_after_its_time() -> None:
    judge = ListenJudge(0.0)
    assert not judge.observe_unknown(CHANGE_SECONDS - 1)
    assert judge.observe_unknown(CHANGE_SECONDS)
    judge.expect_change(100.0)
    assert not judge.observe_unknown(100.0 + CHANGE_SECONDS - 1)
    assert judge.observe_unknown(100.0 + CHANGE_SECONDS)


def test_hopeless_workers_are_revived_before_squid_is_restarted() -> None:
    from mptcp_proxy.configuration.workers import with_workers

    (revival,) = [line.text for line in with_workers((), 2) if "hopeless" in line.text]
    assert TOLERATED_SECONDS < int(revival.split()[1]) < WITHOUT_PROCESSES_SECONDS


def test_processes_without_any_cpu_time_are_found() -> None:
    stuck = StuckProcesses()
    for number in range(StuckProcesses.MAX_CHECKS):
        assert stuck.observe({5: 100, 6: number}) == frozenset()
    assert stuck.observe({5: 100, 6: 10}) == {5}
    assert stuck.observe({5: 100, 6: 11, 7: 0}) == {5}
    # Process 5 runs again. Process 7 has ended, and a new process gets its PID.
    assert stuck.observe({5: 101, 6: 12}) == frozenset()
    assert stuck.observe({5: 101, 7: 0}) == frozenset()


def test_listener_of_unknown_owner_counts_only_at_the_configured_address() -> None:
    """Defect: without root, another program's listener on the same port at another address counted as Squid's."""
    other = ListeningSocket("127.0.0.1", 3128, "", ())
    own = ListeningSocket("192.168.7.1", 3128, "", (), mptcp=True)
    hosts = {3128: {"192.168.7.1"}}
    assert serving.listen_state({3128: 1}, {5}, [other], hosts) == ListenState((3128,), missing=(3128,))
    assert serving.listen_state({3128: 1}, {5}, [other, own], hosts) == ListenState((3128,))
    # A host name may mean any address, and no host means all addresses.
    for host in ("proxy.example", "", "[::]", "0.0.0.0"):
        assert serving.listen_state({3128: 1}, {5}, [own], {3128: {host}}) == ListenState((3128,))
