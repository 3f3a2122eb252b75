# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the tracker tracks each subflow or, if the connection has too many, reports it as excess."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mptcp_dialogue import ACTIVE, PORT, Host, feed, kinds, kinds_of_events
from mptcp_invariants import SMALL, check_tables

from mptcp_throttler.mptcp.model import Event, EventKind, FourTuple, KernelEventKind
from mptcp_throttler.mptcp.tracker import Tracker
from mptcp_throttler.runtime.actions import MAX_LINES, ActionRunner

MAX_SUBFLOWS = SMALL.max_subflows_per_connection
EXCESS = "subflow-excess"


def full_connection() -> tuple[Tracker, Host]:
    """Return a tracker with one connection that has the maximum number of subflows."""
    tracker, host = Tracker([PORT], SMALL), Host()
    feed(tracker, *host.initial().established())
    feed(
        tracker,
        *(host.join(port=port).kernel_event(KernelEventKind.SUBFLOW_ESTABLISHED) for port in range(1, MAX_SUBFLOWS)),
    )
    assert len(tracker.connections[host.token].subflows) == MAX_SUBFLOWS
    return tracker, host


@pytest.mark.parametrize("captured", [False, True])
def test_subflow_above_the_maximum_is_reported(captured: bool) -> None:
    tracker, host = full_connection()
    excess_subflow = host.join(port=MAX_SUBFLOWS)
    if captured:
        assert kinds_of_events(tracker, *excess_subflow.handshake()) == []
    (event,) = feed(tracker, excess_subflow.kernel_event(KernelEventKind.SUBFLOW_ESTABLISHED))
    assert (event.kind.value, event.token, event.four_tuple) == (EXCESS, host.token, excess_subflow.four_tuple)
    check_tables(tracker, SMALL)
    feed(tracker, host.join(port=1).kernel_event(KernelEventKind.SUBFLOW_CLOSED))
    assert kinds_of_events(tracker, excess_subflow.kernel_event(KernelEventKind.SUBFLOW_ESTABLISHED)) == [ACTIVE], (
        "the subflow is not tracked although another has closed"
    )


@pytest.mark.parametrize("reason", ["a reset", "a dump is requested"])
def test_excess_is_reported_only_after_a_dump_if_a_subflow_may_have_ended(reason: str) -> None:
    """Defect: a real subflow was closed because the table was full, although it contained ended subflows."""
    for ended in (True, False):
        tracker, host = full_connection()
        subflows = [host.initial(), *(host.join(port=port) for port in range(1, MAX_SUBFLOWS + 1))]
        if reason == "a reset":
            assert kinds_of_events(tracker, subflows[1].rst()) == []
            assert tracker.lookups.pause(0.0) is not None
        else:
            tracker.request_resync()
        assert kinds_of_events(tracker, subflows[MAX_SUBFLOWS].kernel_event(KernelEventKind.SUBFLOW_ESTABLISHED)) == []
        assert tracker.needs_resync
        now = host.time + 2 * SMALL.resync_grace
        listed = [subflow.kernel_subflow() for subflow in subflows if not (ended and subflow is subflows[1])]
        event_kinds = kinds(tracker.resync(listed, now))
        assert (ACTIVE in event_kinds, EXCESS in event_kinds) == (ended, not ended)
        assert not tracker.needs_resync


def test_dump_removes_ended_subflows_before_it_reports_excess() -> None:
    tracker, host = full_connection()
    subflows = [host.initial(), *(host.join(port=port) for port in range(1, MAX_SUBFLOWS + 2))]
    now = host.time + 10
    dump_without_one = [
        subflow.kernel_subflow() for subflow in subflows[: MAX_SUBFLOWS + 1] if subflow is not subflows[2]
    ]
    event_kinds = kinds(tracker.resync(reversed(dump_without_one), now))
    assert ("subflow-closed" in event_kinds, ACTIVE in event_kinds, EXCESS in event_kinds) == (True, True, False)
    dump_with_two_more = [subflow.kernel_subflow() for subflow in subflows]
    events = [event for event in tracker.resync(dump_with_two_more, now + 10) if event.kind is EventKind.SUBFLOW_EXCESS]
    assert [event.four_tuple for event in events] == [subflows[2].four_tuple, subflows[-1].four_tuple]


ACTIONS = st.tuples(st.sampled_from(["forged", "joined", "closed", "reset", "dump"]), st.integers(1, 12))


@given(st.lists(ACTIONS, max_size=60))
def test_each_subflow_of_the_kernel_is_tracked_or_reported(
    actions: list[tuple[str, int]],
) -> None:
    tracker, host = Tracker([PORT], SMALL), Host()
    first = host.initial()
    events = feed(tracker, *first.established())
    in_kernel: dict[FourTuple, object] = {first.four_tuple: first}
    for action, port in actions:
        subflow = host.join(port=port)
        four_tuple = subflow.four_tuple
        if action == "forged":
            events = feed(tracker, *host.join(address="192.0.2.99", port=port).handshake())
        elif action == "joined" and four_tuple not in in_kernel:
            in_kernel[four_tuple] = subflow
            events = feed(tracker, subflow.kernel_event(KernelEventKind.SUBFLOW_ESTABLISHED))
        elif action == "closed" and in_kernel.pop(four_tuple, None) is not None:
            events = feed(tracker, subflow.kernel_event(KernelEventKind.SUBFLOW_CLOSED))
        elif action == "reset":
            events = feed(tracker, subflow.rst())
        if action == "dump" or tracker.needs_resync:
            host.time += 2 * SMALL.closed_linger
            events += tracker.resync([each.kernel_subflow() for each in in_kernel.values()], host.time)  # type: ignore[attr-defined]
        tracked = {each.four_tuple for each in tracker.connections[host.token].subflows}
        for event in events:
            if event.kind is EventKind.SUBFLOW_EXCESS:
                assert event.four_tuple in in_kernel
                assert len(tracked & in_kernel.keys()) == MAX_SUBFLOWS, (
                    "excess was reported although not all tracked subflows exist"
                )
                del in_kernel[event.four_tuple]
        events = []
        assert in_kernel.keys() <= tracked
        check_tables(tracker, SMALL)


class PathManager:
    def __init__(self, *, is_active: bool = True) -> None:
        self.is_active = is_active


class Sockets:
    def __init__(self, refusal: str = "") -> None:
        self.closed: list[FourTuple] = []
        self._refusal = refusal

    def close_sockets(self, four_tuples: Sequence[FourTuple]) -> dict[FourTuple, str]:
        if self._refusal:
            return dict.fromkeys(four_tuples, self._refusal)
        self.closed += four_tuples
        return {}


def excess_events(time: float = 60.0) -> list[Event]:
    tracker, host = full_connection()
    events = feed(tracker, host.join(port=MAX_SUBFLOWS).kernel_event(KernelEventKind.SUBFLOW_ESTABLISHED))
    return [replace(event, time=time) for event in events]


def actions_with(sockets: Sockets, *, is_active: bool = True) -> ActionRunner:
    return ActionRunner(PathManager(is_active=is_active), {}, sockets, None, None)  # type: ignore[arg-type]


def test_excess_subflow_is_closed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    sockets, events = Sockets(), excess_events()
    actions_with(sockets).close_excess(events, is_dry_run=False)
    assert sockets.closed == [events[0].four_tuple]
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert "too many subflows: its connection has 4 other subflows: closed" in line.getMessage()


def test_excess_subflow_is_only_logged_without_the_path_manager(caplog: pytest.LogCaptureFixture) -> None:
    """Defect: excess subflows were closed even in a dry run, or if another program was the user-space path manager."""
    sockets = Sockets()
    actions_with(sockets, is_active=False).close_excess(excess_events(), is_dry_run=False)
    assert sockets.closed == []
    (line,) = caplog.records
    assert "too many subflows: its connection has 4 other subflows: left open: " in line.getMessage()
    assert line.getMessage().endswith("it is not capped")


def test_refused_requests_to_close_are_logged_a_few_times_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    runner = actions_with(Sockets("close TCP sockets: EPERM"))
    for _ in range(100):
        runner.close_excess(excess_events(), is_dry_run=False)
    assert len(caplog.records) == MAX_LINES
    assert "EPERM; it is not capped" in caplog.text
    runner.close_excess(excess_events(120.0), is_dry_run=False)
    assert len(caplog.records) == MAX_LINES + 1
