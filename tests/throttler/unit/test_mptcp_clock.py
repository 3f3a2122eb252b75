"""The wall clock is set while connections are tracked: what has ended is found out as soon as ever."""

from __future__ import annotations

import pytest
from mptcp_dialogue import ACTIVE, CLOSED, ENDED, OPENED, Host, announced, feed, kinds, opened, states
from mptcp_invariants import check_tables

from mptcp_throttler.mptcp.limits import TrackerLimits
from mptcp_throttler.mptcp.model import KernelEvent, KernelEventKind, SubflowState
from mptcp_throttler.mptcp.tracker import Tracker

THEN = 1_000_000.0
STEPS = [-86_400.0, -3600.0, -5.0, 0.0, 3600.0]
"""Seconds by which the clock is set, without a word to the tracker."""
FORWARD = [2.0, 3600.0, 86_400.0, 5e8]
"""Seconds of which the tracker is told."""


@pytest.fixture
def host() -> Host:
    return Host("phone", THEN)


def set_clock(tracker: Tracker, host: Host, step: float) -> float:
    """Have the clock set, and the tracker look at it; return the time then."""
    tracker.expire(host.time)
    host.time += 1.0 + step
    tracker.expire(host.time)
    check_tables(tracker, TrackerLimits())
    return host.time


def confirmed(tracker: Tracker, host: Host) -> None:
    """Have a connection of two subflows that the kernel has, too."""
    for path, kind in (
        (opened(tracker, host), KernelEventKind.CREATED),
        (host.join(), KernelEventKind.SUBFLOW_ESTABLISHED),
    ):
        if kind is KernelEventKind.SUBFLOW_ESTABLISHED:
            feed(tracker, *path.handshake())
        feed(tracker, KernelEvent(host.tick(), kind, host.token, path.four_tuple))


@pytest.mark.parametrize("step", STEPS)
def test_a_dump_closes_what_the_kernel_has_no_more(tracker: Tracker, host: Host, step: float) -> None:
    confirmed(tracker, host)
    now = set_clock(tracker, host, step)
    assert set(states(tracker, host).values()) == {SubflowState.ACTIVE}
    assert kinds(tracker.resync([], now + 5)).count(CLOSED) == 2
    assert states(tracker, host) == {}


@pytest.mark.parametrize("step", STEPS)
def test_a_connection_without_subflows_goes_in_time(tracker: Tracker, host: Host, step: float) -> None:
    path = opened(tracker, host)
    assert announced(tracker, path.fin(), path.proxy_fin())[-1] == CLOSED
    now = set_clock(tracker, host, step)
    # Set forward it went at once.
    ended = [] if host.token in tracker.connections else [ENDED]
    for second in range(1, 13):
        ended += kinds(tracker.expire(now + second))
    assert ended == [ENDED]
    assert dict(tracker.connections) == {}


@pytest.mark.parametrize("lingers", [False, True])
@pytest.mark.parametrize("step", [-86_400.0, -5.0, 3600.0])
def test_no_connection_begins_in_the_future_and_none_gets_older(
    tracker: Tracker, host: Host, step: float, lingers: bool
) -> None:
    """Defect: set back, a connection had begun hours after now; set forward, one that lingers showed the old time."""
    path = opened(tracker, host)
    if lingers:
        feed(tracker, path.fin(), path.proxy_fin())
    age = host.time - tracker.connections[host.token].since
    now = set_clock(tracker, host, step) if step < 0 else set_forward(tracker, host, step)
    wanted = 0.0 if step < 0 else age + 1.0
    assert now - tracker.connections[host.token].since == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("step", STEPS)
def test_a_handshake_that_is_not_completed_goes_in_time(tracker: Tracker, host: Host, step: float) -> None:
    """Before the step, and after it."""
    feed(tracker, *host.initial().handshake()[:1])
    now = set_clock(tracker, host, step)
    other = Host("other", now)
    feed(tracker, *other.initial().handshake()[:1])
    for second in range(1, 13):
        tracker.expire(now + second)
    assert tracker.table_sizes["half_open"] == 0


@pytest.mark.parametrize("step", STEPS)
def test_a_new_connection_is_tracked_at_once(tracker: Tracker, host: Host, step: float) -> None:
    confirmed(tracker, host)
    now = set_clock(tracker, host, step)
    other = Host("other", now)
    path = other.initial("198.51.100.7")
    assert announced(tracker, *path.handshake()) == [OPENED, ACTIVE]
    assert kinds(feed(tracker, other.closed())) == [CLOSED, ENDED]


def test_a_step_back_asks_for_a_resync(tracker: Tracker, host: Host) -> None:
    confirmed(tracker, host)
    set_clock(tracker, host, 0.0)
    assert not tracker.wants_resync
    set_clock(tracker, host, -3600.0)
    assert tracker.wants_resync


def test_a_segment_from_before_the_step_that_is_read_after_it(tracker: Tracker, host: Host) -> None:
    """Defect: no dump closed its subflow, and nothing expired, until the clock was there again."""
    set_clock(tracker, host, 0.0)
    now = host.time - 3600.0
    tracker.expire(now)
    opened(tracker, host)
    feed(tracker, Host("other", host.time).initial("198.51.100.7").syn())
    tracker.expire(now + 1)
    assert kinds(tracker.resync([], now + 3)).count(CLOSED) == 1
    tracker.expire(now + 20)
    assert tracker.table_sizes["subflows"] == 0
    check_tables(tracker, TrackerLimits())


def test_what_looked_idle_when_the_clock_was_set_forward_is_back_with_the_dump_that_follows(
    tracker: Tracker, host: Host
) -> None:
    """Defect: that dump was taken for older than the ends, and all were without a cap until the next periodic one."""
    confirmed(tracker, host)
    there = [host.initial().dumped(), host.join().dumped()]
    now = host.time + 86_400.0
    assert kinds(tracker.expire(now)).count(CLOSED) == 2
    assert tracker.wants_resync
    tracker.resync(there, now + 0.2)
    assert set(states(tracker, host)) == {each.four_tuple for each in there}
    assert not tracker.wants_resync


def set_forward(tracker: Tracker, host: Host, step: float) -> float:
    tracker.expire(host.time)
    host.time += 1.0 + step
    tracker.clock_set_forward(step)
    tracker.expire(host.time)
    check_tables(tracker, TrackerLimits())
    return host.time


@pytest.mark.parametrize("step", FORWARD)
def test_nothing_is_idle_when_the_clock_was_set_forward(tracker: Tracker, host: Host, step: float) -> None:
    """Defect: everything was forgotten, and without a cap until the dump that followed."""
    began = host.time
    confirmed(tracker, host)
    # Ages stay, and with them what is young.
    connection = tracker.connections[host.token]
    age = host.time - connection.since, [host.time - each.since for each in connection.subflows]
    now = set_forward(tracker, host, step)
    assert set(states(tracker, host).values()) == {SubflowState.ACTIVE}
    connection = tracker.connections[host.token]
    assert connection.since >= began + step
    assert age[0] + 1 == pytest.approx(now - connection.since)
    assert [each + 1 for each in age[1]] == pytest.approx([now - each.since for each in connection.subflows])
    # And what is gone is found out.
    assert kinds(tracker.resync([], now + 5)).count(CLOSED) == 2


@pytest.mark.parametrize("step", FORWARD)
def test_a_handshake_and_an_end_expire_as_long_after_a_step_forward(tracker: Tracker, host: Host, step: float) -> None:
    path = opened(tracker, host)
    assert announced(tracker, path.fin(), path.proxy_fin())[-1] == CLOSED
    feed(tracker, Host("other", host.time).initial("198.51.100.7").syn())
    now = set_forward(tracker, host, step)
    assert host.token in tracker.connections
    assert tracker.table_sizes["half_open"] == 1
    ended = []
    for second in range(1, 13):
        ended += kinds(tracker.expire(now + second))
    assert ended == [ENDED]
    assert tracker.table_sizes["half_open"] == 0


def test_a_dump_that_was_under_way_when_the_clock_was_set_forward_closes_nothing(tracker: Tracker, host: Host) -> None:
    confirmed(tracker, host)
    dump = tracker.begin_resync(host.time)
    now = set_forward(tracker, host, 86_400.0)
    assert [event for events in dump.finish() for event in events] == []
    assert tracker.wants_resync
    assert kinds(tracker.resync([], now + 5)).count(CLOSED) == 2
