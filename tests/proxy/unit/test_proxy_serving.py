# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the judgement whether Squid listens as it should, and when a change is reported."""

from __future__ import annotations

from mptcp_proxy import serving
from mptcp_proxy.configuration.listeners import listeners
from mptcp_proxy.configuration.source import PhysicalLine, statements
from mptcp_proxy.listeners_watch import wanted
from mptcp_proxy.listening import Listening
from mptcp_proxy.serving import CHANGING, DESERTED, INTERVAL, PASSING, SOON, UNOPENED, Judge, Picture, Standstill

GOOD = Picture((3128,))
FEWER = Picture((3128,), fewer=((3128, 1, 2),))
NOBODY = Picture((3128,), missing=(3128,))


def mine(port: int, pid: int = 5, *, mptcp: bool = True) -> Listening:
    return Listening("*", port, "squid", (pid,), mptcp=mptcp)


def test_a_picture_of_ports_that_take_plain_tcp_or_nothing_or_too_little() -> None:
    sockets = [mine(3128), mine(3128, 6), mine(3129, mptcp=False), mine(3129, 6), mine(3130), mine(3131, 7)]
    seen = serving.picture(dict.fromkeys(range(3128, 3133), 2), {5, 6}, sockets, {})
    assert seen == Picture((3128, 3129, 3130, 3131, 3132), (3129,), (3131, 3132), ((3130, 1, 2),))
    assert seen.served
    assert not seen.complete
    # Without CAP_SYS_PTRACE a process does not see which process of another user owns a listener.
    unknown = [Listening("*", 3128, "", (), mptcp=True), Listening("*", 3129, "", ())]
    assert serving.picture({3128: 1, 3129: 1, 3130: 1}, {5}, unknown, {3128: {""}, 3129: {""}}) == Picture(
        (3128, 3129, 3130), (3129,), (3130,)
    )


def test_how_many_listeners_there_are_to_be() -> None:
    ports = ("http_port 3128", "http_port 10.0.0.1:3129", "http_port 10.0.0.2:3129")
    said = (*ports, "if ${process_number} = 1", "http_port 3130", "endif")
    lines = [PhysicalLine("f", number, line) for number, line in enumerate(said, 1)]
    assert wanted(listeners(statements(lines, "n")), 2) == {3128: 2, 3129: 4, 3130: 1}


def test_a_start_is_told_when_it_is_over_and_what_it_lacks_after_a_while() -> None:
    judge = Judge(100.0)
    assert not judge.looked(NOBODY, True, 100.0)
    assert judge.due == 100.0 + SOON
    assert not judge.looked(FEWER, True, 101.0)
    assert judge.looked(GOOD, True, 102.0)
    assert judge.due == 102.0 + INTERVAL
    assert not judge.looked(GOOD, True, 112.0)

    judge = Judge(100.0)
    assert not judge.looked(FEWER, True, 100.0 + CHANGING - 0.1)
    assert judge.looked(FEWER, True, 100.0 + CHANGING)


def test_listeners_that_went_are_found_at_any_time_and_told_once() -> None:
    """Defect: the listeners were checked only at the start, and a proxy without listeners was reported as serving."""
    judge = Judge(0.0)
    judge.looked(GOOD, True, 0.0)
    told = []
    now, due = 3600.0, 3600.0
    while now < 3600.0 + 60:
        if now >= due:
            if judge.looked(NOBODY if now < 3640 else GOOD, True, now):
                told.append(now)
            due = judge.due
        now += 0.5
    assert told == [3600.0 + PASSING, 3640.0]


def test_a_worker_that_ends_and_is_started_again_is_not_told() -> None:
    judge = Judge(0.0)
    judge.looked(GOOD, True, 0.0)
    assert not judge.looked(FEWER, True, 1000.0)
    assert judge.due == 1000.0 + SOON
    assert not judge.looked(GOOD, True, 1001.0)
    # The next failure has the full time again.
    assert not judge.looked(FEWER, True, 1010.0)
    assert not judge.looked(FEWER, True, 1010.0 + PASSING - 0.1)
    assert judge.looked(FEWER, True, 1010.0 + PASSING)


def test_a_reload_is_told_when_it_is_over_though_nothing_has_changed() -> None:
    judge = Judge(0.0)
    judge.looked(GOOD, True, 0.0)
    judge.expect_change(50.0)
    assert not judge.looked(NOBODY, True, 51.0)
    assert judge.looked(GOOD, True, 52.0)
    judge.expect_change(100.0)
    assert judge.looked(NOBODY, True, 100.0 + CHANGING)


def test_a_reload_that_begins_late_has_its_time_all_the_same() -> None:
    judge = Judge(0.0)
    judge.looked(GOOD, True, 0.0)
    judge.expect_change(50.0)
    assert judge.looked(GOOD, True, 51.0), "these were the old ones"
    assert not judge.looked(NOBODY, True, 61.0)
    assert not judge.looked(NOBODY, True, 50.0 + CHANGING - 1)
    assert judge.looked(NOBODY, True, 50.0 + CHANGING)
    # Without some of its processes Squid is not reading a file.
    judge.expect_change(200.0)
    assert judge.looked(GOOD, True, 201.0)
    assert not judge.looked(NOBODY, False, 202.0)
    assert judge.looked(NOBODY, False, 202.0 + PASSING)


def test_it_is_deserted_when_nobody_listened_for_long() -> None:
    judge = Judge(0.0)
    judge.looked(GOOD, True, 0.0)
    for second in range(10, 10 + int(DESERTED)):
        judge.looked(NOBODY, True, float(second))
        assert not judge.deserted(False, float(second))
    assert judge.deserted(False, 10 + DESERTED)
    # All processes of Squid run: it may be reading a long file.
    assert not judge.deserted(True, 10 + DESERTED)
    assert judge.deserted(True, 10 + UNOPENED)
    judge.looked(FEWER, True, 10 + DESERTED)
    assert not judge.deserted(False, 10 + DESERTED)


def test_a_reload_of_a_long_file_is_waited_for_though_a_worker_is_missing() -> None:
    """Defect: the supervisor ended the worker that read the file 15 seconds after it had closed its listeners."""
    judge = Judge(0.0)
    judge.looked(GOOD, True, 0.0)
    judge.expect_change(100.0)
    judge.looked(GOOD, True, 101.0)
    for second in range(102, 102 + int(UNOPENED)):
        judge.looked(NOBODY, False, float(second))
        assert not judge.deserted(False, float(second))
    assert judge.deserted(False, 102.0 + UNOPENED)
    judge.looked(GOOD, True, 300.0)
    judge.looked(NOBODY, False, 400.0)
    assert judge.deserted(False, 400.0 + DESERTED)


def test_a_start_has_as_long_as_a_long_file_takes() -> None:
    judge = Judge(0.0)
    judge.looked(NOBODY, True, 1.0)
    assert not judge.deserted(False, UNOPENED - 1)
    assert judge.deserted(False, UNOPENED)


def test_what_nobody_could_see_does_not_count_as_deserted() -> None:
    """Defect: if ss was missing or failed, a healthy Squid was ended two minutes after its start."""
    judge = Judge(0.0)
    assert not judge.blind(0.0)
    assert judge.due == INTERVAL
    assert not judge.deserted(True, UNOPENED)
    assert not judge.deserted(False, UNOPENED)
    # The last successful look was during a reload.
    judge.looked(GOOD, True, 200.0)
    judge.expect_change(300.0)
    judge.looked(NOBODY, True, 301.0)
    judge.blind(302.0)
    assert not judge.deserted(True, 301.0 + UNOPENED)
    assert not judge.deserted(False, 301.0 + UNOPENED)
    # The time counts from the first look that succeeds again.
    judge.looked(NOBODY, True, 500.0)
    assert not judge.deserted(True, 500.0 + UNOPENED - 1)
    assert judge.deserted(True, 500.0 + UNOPENED)


def test_a_change_that_nobody_can_see_is_over_when_it_has_had_its_time() -> None:
    judge = Judge(0.0)
    assert not judge.blind(CHANGING - 1)
    assert judge.blind(CHANGING)
    judge.expect_change(100.0)
    assert not judge.blind(100.0 + CHANGING - 1)
    assert judge.blind(100.0 + CHANGING)


def test_workers_given_up_come_back_before_it_is_deserted() -> None:
    from mptcp_proxy.configuration.workers import with_workers

    (revival,) = [line.text for line in with_workers((), 2) if "hopeless" in line.text]
    assert PASSING < int(revival.split()[1]) < DESERTED


def test_processes_that_do_not_run_at_all() -> None:
    standstill = Standstill()
    for look in range(Standstill.LOOKS):
        assert standstill.looked({5: 100, 6: look}) == frozenset()
    assert standstill.looked({5: 100, 6: 10}) == {5}
    assert standstill.looked({5: 100, 6: 11, 7: 0}) == {5}
    # Process 5 runs again, and a new process has the number of an ended one.
    assert standstill.looked({5: 101, 6: 12}) == frozenset()
    assert standstill.looked({5: 101, 7: 0}) == frozenset()


def test_a_listener_of_nobody_known_is_ours_only_at_an_address_of_ours() -> None:
    """Defect: without root, another program's listener on the same port at another address counted as Squid's."""
    foreign = Listening("127.0.0.1", 3128, "", ())
    ours = Listening("192.168.7.1", 3128, "", (), mptcp=True)
    hosts = {3128: {"192.168.7.1"}}
    assert serving.picture({3128: 1}, {5}, [foreign], hosts) == Picture((3128,), missing=(3128,))
    assert serving.picture({3128: 1}, {5}, [foreign, ours], hosts) == Picture((3128,))
    # A host name may stand for any address, and no host means all addresses.
    for host in ("proxy.example", "", "[::]", "0.0.0.0"):
        assert serving.picture({3128: 1}, {5}, [ours], {3128: {host}}) == Picture((3128,))
