# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the tracker's use of kernel events and dumps, and for disagreements."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mptcp_dialogue import (
    ACTIVE,
    CHANGED,
    CLOSED,
    DISAGREE,
    ENDED,
    OPENED,
    Host,
    feed,
    kinds,
    kinds_of_events,
    known_subflows,
    open_connection,
)

from mptcp_throttler.mptcp.model import FourTuple, KernelEventKind
from mptcp_throttler.mptcp.tracker import Tracker

K = KernelEventKind


class TestEvents:
    def test_connection_is_tracked_from_kernel_events_only(self, tracker: Tracker, host: Host) -> None:
        initial, subflow = host.initial(), host.join()
        assert kinds_of_events(tracker, initial.kernel_event(K.CREATED), initial.kernel_event(K.ESTABLISHED)) == [
            OPENED,
            ACTIVE,
        ]
        assert kinds_of_events(tracker, subflow.kernel_event(K.SUBFLOW_ESTABLISHED)) == [ACTIVE]
        first, second = tracker.connections[host.token].subflows
        assert (first.initial, second.initial, second.remote_id) == (True, False, subflow.remote_id)
        assert first.interface is None
        assert kinds_of_events(tracker, subflow.kernel_event(K.SUBFLOW_CLOSED)) == [CLOSED]
        assert kinds_of_events(tracker, host.close_event()) == [CLOSED, ENDED]
        assert tracker.counters.disagreements == 0
        assert not tracker.needs_resync

    def test_join_to_an_unknown_connection_requests_a_resync(self, tracker: Tracker, host: Host) -> None:
        assert kinds_of_events(tracker, host.join().kernel_event(K.SUBFLOW_ESTABLISHED)) == [OPENED, ACTIVE]
        assert tracker.needs_resync
        tracker.resync([], host.time)
        assert not tracker.needs_resync

    def test_connections_of_other_programs_are_ignored(self, tracker: Tracker, host: Host) -> None:
        subflow = host.initial()
        outward = FourTuple(subflow.four_tuple.local, 45678, subflow.four_tuple.remote, 443)
        for kind in K:
            assert kinds_of_events(tracker, subflow.kernel_event(kind, four_tuple=outward)) == []
        assert tracker.counters.kernel_events_ignored == len(K)
        assert kinds_of_events(tracker, replace(subflow.kernel_event(K.CREATED), four_tuple=None)) == []

    def test_subflow_opened_by_the_proxy_is_tracked(self, tracker: Tracker, host: Host) -> None:
        open_connection(tracker, host)
        subflow = host.join()
        subflow.four_tuple = subflow.four_tuple._replace(local_port=45678)
        assert kinds_of_events(tracker, subflow.kernel_event(K.SUBFLOW_ESTABLISHED)) == [ACTIVE]
        assert kinds(tracker.resync([], host.time + 5)) == [DISAGREE, CLOSED], (
            "not exactly the subflow at the listening port was closed"
        )
        assert known_subflows(tracker, host) == [subflow.four_tuple]
        assert kinds_of_events(tracker, subflow.kernel_event(K.SUBFLOW_CLOSED)) == [CLOSED]

    @pytest.mark.parametrize("exists", [True, False])
    def test_unlisted_subflow_is_looked_up_after_each_dump(self, tracker: Tracker, host: Host, exists: bool) -> None:
        """Defect: a subflow at another port, which no dump lists, expired as idle after six hours."""
        initial, subflow = open_connection(tracker, host), host.join()
        subflow.four_tuple = subflow.four_tuple._replace(local_port=4000)
        feed(tracker, subflow.kernel_event(K.SUBFLOW_ESTABLISHED))
        for minutes in range(1, 5):
            now = host.time + 60 * minutes
            assert tracker.resync([initial.kernel_subflow()], now) == []
            assert tracker.lookups.pop_due(now + 1) == (subflow.four_tuple,)
            assert not tracker.needs_resync
        sockets = {subflow.four_tuple: subflow.kernel_subflow()} if exists else {}
        assert kinds(tracker.apply_lookup([subflow.four_tuple], sockets, now)) == ([] if exists else [CLOSED])

    def test_kernel_event_ends_a_connection(self, tracker: Tracker, host: Host) -> None:
        open_connection(tracker, host)
        assert kinds_of_events(tracker, host.close_event()) == [CLOSED, ENDED]
        assert kinds_of_events(tracker, host.close_event()) == []
        assert tracker.counters.disagreements == 0

    def test_subflow_closed_event_closes_its_subflow(self, tracker: Tracker, host: Host) -> None:
        subflow = open_connection(tracker, host)
        other = replace(subflow.kernel_event(K.SUBFLOW_CLOSED), token=1)
        assert kinds_of_events(tracker, other) == []
        assert kinds_of_events(tracker, subflow.kernel_event(K.SUBFLOW_CLOSED)) == [CLOSED]
        assert kinds_of_events(tracker, subflow.kernel_event(K.SUBFLOW_CLOSED)) == []

    def test_priority_event_changes_the_backup_flag(self, tracker: Tracker, host: Host) -> None:
        subflow = open_connection(tracker, host)
        assert kinds_of_events(tracker, subflow.kernel_event(K.SUBFLOW_PRIORITY, backup=True)) == [CHANGED]
        assert tracker.connections[host.token].subflows[0].backup
        assert tracker.counters.disagreements == 0

    def test_ipv4_mapped_addresses_identify_the_same_subflow(self, tracker: Tracker, host: Host) -> None:
        subflow = open_connection(tracker, host)
        mapped = host.initial(address="::ffff:198.51.100.1", proxy="::ffff:192.0.2.1")
        assert kinds_of_events(tracker, mapped.kernel_event(K.CREATED)) == []
        assert known_subflows(tracker, host) == [subflow.four_tuple]


class TestDisagreement:
    def test_event_with_another_token_moves_the_subflow(self, tracker: Tracker, host: Host) -> None:
        subflow = open_connection(tracker, host)
        event = subflow.kernel_event(K.CREATED, token=77)
        assert kinds_of_events(tracker, event) == [DISAGREE, CLOSED, OPENED, ACTIVE]
        assert [s.four_tuple for s in tracker.connections[77].subflows] == [subflow.four_tuple]
        assert known_subflows(tracker, host) == []

    def test_event_with_other_address_identifiers_corrects_the_tracker(self, tracker: Tracker, host: Host) -> None:
        open_connection(tracker, host)
        subflow = host.join()
        feed(tracker, *subflow.established())
        assert kinds_of_events(tracker, subflow.kernel_event(K.SUBFLOW_ESTABLISHED, remote_id=200, local_id=3)) == [
            DISAGREE,
            DISAGREE,
            CHANGED,
        ]
        second = tracker.connections[host.token].subflows[1]
        assert (second.remote_id, second.local_id) == (200, 3)


class TestResync:
    def test_resync_at_the_start_adds_all_subflows(self, tracker: Tracker, host: Host) -> None:
        initial, subflow = host.initial(), host.join()
        tracker.interface_of = {subflow.four_tuple: "wlan0"}.get
        dump = [initial.kernel_subflow(), subflow.kernel_subflow(backup=True)]
        assert kinds(tracker.resync(dump, host.time)) == [OPENED, ACTIVE, ACTIVE]
        first, second = tracker.connections[host.token].subflows
        assert (first.initial, second.initial, second.remote_id) == (True, False, subflow.remote_id)
        assert (second.backup, second.interface, second.local_id) == (True, "wlan0", 0)
        assert tracker.resync(dump, host.time + 1) == []
        assert tracker.counters.disagreements == 0

    def test_resync_adds_missing_subflows(self, tracker: Tracker, host: Host) -> None:
        subflow = open_connection(tracker, host)
        join = host.join()
        assert kinds(tracker.resync([subflow.kernel_subflow(), join.kernel_subflow()], host.time + 5)) == [ACTIVE]
        assert tracker.counters.disagreements == 0

    def test_resync_closes_subflows_that_the_dump_lacks(self, tracker: Tracker, host: Host) -> None:
        open_connection(tracker, host)
        assert kinds(tracker.resync([], host.time + 5)) == [DISAGREE, CLOSED]
        assert known_subflows(tracker, host) == []

    def test_resync_keeps_subflows_that_began_after_the_dump(self, tracker: Tracker, host: Host) -> None:
        dump_time = host.time
        subflow = open_connection(tracker, host)
        assert tracker.resync([], dump_time) == []
        assert tracker.resync([], host.time + 0.5) == [], "a subflow that began within the grace time was closed"
        assert known_subflows(tracker, host) == [subflow.four_tuple]

    def test_resync_does_not_restore_subflows_that_ended_after_the_dump(self, tracker: Tracker, host: Host) -> None:
        subflow = open_connection(tracker, host)
        dump, dump_time = [subflow.kernel_subflow()], host.time
        feed(tracker, subflow.kernel_event(K.SUBFLOW_CLOSED))
        assert tracker.resync(dump, dump_time) == []
        assert known_subflows(tracker, host) == []

    def test_resync_corrects_details(self, tracker: Tracker, host: Host) -> None:
        open_connection(tracker, host)
        subflow = host.join()
        feed(tracker, *subflow.established())
        dump = [host.initial().kernel_subflow(), subflow.kernel_subflow(remote_id=200, backup=True)]
        assert kinds(tracker.resync(dump, host.time + 5)) == [DISAGREE, CHANGED, CHANGED]
        second = tracker.connections[host.token].subflows[1]
        assert (second.remote_id, second.backup) == (200, True)

    def test_resync_ignores_details_older_than_an_event(self, tracker: Tracker, host: Host) -> None:
        subflow = open_connection(tracker, host)
        host.time += 5
        dump_time = host.time
        assert kinds_of_events(tracker, subflow.kernel_event(K.SUBFLOW_PRIORITY, backup=True)) == [CHANGED]
        assert tracker.resync([subflow.kernel_subflow(backup=False)], dump_time) == []
        assert kinds(tracker.resync([subflow.kernel_subflow(backup=False)], host.time + 1)) == [CHANGED]

    def test_resync_adds_other_ports_only_for_a_known_token(self, tracker: Tracker, host: Host) -> None:
        initial, joined, foreign = host.initial(), host.join(), Host("foreign").initial()
        on_other_port = [
            subflow.kernel_subflow(four_tuple=subflow.four_tuple._replace(local_port=45678))
            for subflow in (joined, foreign)
        ]
        assert kinds(tracker.resync([initial.kernel_subflow(), *on_other_port], host.time)) == [OPENED, ACTIVE, ACTIVE]
        assert list(tracker.connections) == [host.token]


def test_join_that_reuses_ports_replaces_an_ended_initial_subflow(tracker: Tracker, host: Host) -> None:
    """Defect: if no event reported the end, the join was tracked as an initial subflow, and no dump corrected this."""
    initial, subflow, rejoined = host.initial(), host.join(), host.join("198.51.100.1", 40000)
    feed(tracker, initial.kernel_event(K.CREATED), subflow.kernel_event(K.SUBFLOW_ESTABLISHED))
    tracker.resync([subflow.kernel_subflow(), rejoined.kernel_subflow()], host.time + 5)
    sockets = {each.four_tuple: each.initial for each in tracker.connections[host.token].subflows}
    assert sockets == {subflow.four_tuple: False, rejoined.four_tuple: False}
