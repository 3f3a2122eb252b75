# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the tracker and the kernel's records: events, dumps, and disagreements between two of them."""

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
    announced,
    feed,
    kinds,
    known,
    opened,
)

from mptcp_throttler.mptcp.model import FourTuple, KernelEventKind
from mptcp_throttler.mptcp.tracker import Tracker

K = KernelEventKind


class TestEvents:
    def test_alone(self, tracker: Tracker, host: Host) -> None:
        initial, path = host.initial(), host.join()
        assert announced(tracker, initial.kernel(K.CREATED), initial.kernel(K.ESTABLISHED)) == [OPENED, ACTIVE]
        assert announced(tracker, path.kernel(K.SUBFLOW_ESTABLISHED)) == [ACTIVE]
        first, second = tracker.connections[host.token].subflows
        assert (first.initial, second.initial, second.remote_id) == (True, False, path.remote_id)
        assert first.interface is None
        assert announced(tracker, path.kernel(K.SUBFLOW_CLOSED)) == [CLOSED]
        assert announced(tracker, host.closed()) == [CLOSED, ENDED]
        assert tracker.counters.disagreements == 0
        assert not tracker.wants_resync

    def test_a_join_to_a_connection_never_seen_asks_for_a_resync(self, tracker: Tracker, host: Host) -> None:
        assert announced(tracker, host.join().kernel(K.SUBFLOW_ESTABLISHED)) == [OPENED, ACTIVE]
        assert tracker.wants_resync
        tracker.resync([], host.time)
        assert not tracker.wants_resync

    def test_connections_of_others_on_this_host_are_ignored(self, tracker: Tracker, host: Host) -> None:
        path = host.initial()
        outward = FourTuple(path.four_tuple.local, 45678, path.four_tuple.remote, 443)
        for kind in K:
            assert announced(tracker, path.kernel(kind, four_tuple=outward)) == []
        assert tracker.counters.kernel_events_ignored == len(K)
        assert announced(tracker, replace(path.kernel(K.CREATED), four_tuple=None)) == []

    def test_a_subflow_that_the_proxy_opens_is_ours(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        path = host.join()
        path.four_tuple = path.four_tuple._replace(local_port=45678)
        assert announced(tracker, path.kernel(K.SUBFLOW_ESTABLISHED)) == [ACTIVE]
        assert kinds(tracker.resync([], host.time + 5)) == [DISAGREE, CLOSED], "the dump lists listening ports only"
        assert known(tracker, host) == [path.four_tuple]
        assert announced(tracker, path.kernel(K.SUBFLOW_CLOSED)) == [CLOSED]

    @pytest.mark.parametrize("is_there", [True, False])
    def test_of_one_that_no_dump_lists_the_kernel_is_asked_when_it_is_silent(
        self, tracker: Tracker, host: Host, is_there: bool
    ) -> None:
        """Defect: it was forgotten as idle after six hours.

        From the third hour on, a resync was requested every second.
        """
        initial, path = opened(tracker, host), host.join()
        path.four_tuple = path.four_tuple._replace(local_port=4000)
        feed(tracker, path.kernel(K.SUBFLOW_ESTABLISHED))
        began = host.time
        for minutes in range(1, 6 * 60 + 7):
            now = began + 60 * minutes
            tracker.resync([initial.dumped()], now)
            assert tracker.expire(now) == []
            assert not tracker.wants_resync
            assert bool(tracker.questions.take(now + 1)) is (minutes > 3 * 60)
        assert path.four_tuple in known(tracker, host)
        found = {path.four_tuple: path.dumped()} if is_there else {}
        assert kinds(tracker.answer([path.four_tuple], found, now)) == ([] if is_there else [CLOSED])
        for _ in range(2):  # Each subflow is asked about up to twice
            tracker.questions.take(now := now + 1)
        tracker.expire(now)
        assert not tracker.questions.take(now + 60), "it was seen just now, or has ended"

    def test_the_kernel_ends_a_connection(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        assert announced(tracker, host.closed()) == [CLOSED, ENDED]
        assert announced(tracker, host.closed()) == []
        assert tracker.counters.disagreements == 0

    def test_subflow_closed(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        other = replace(path.kernel(K.SUBFLOW_CLOSED), token=1)
        assert announced(tracker, other) == []
        assert announced(tracker, path.kernel(K.SUBFLOW_CLOSED)) == [CLOSED]
        assert announced(tracker, path.kernel(K.SUBFLOW_CLOSED)) == []

    def test_priority(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        assert announced(tracker, path.kernel(K.SUBFLOW_PRIORITY, backup=True)) == [CHANGED]
        assert tracker.connections[host.token].subflows[0].backup
        assert tracker.counters.disagreements == 0

    def test_ipv4_mapped_addresses_are_the_same_subflow(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        mapped = host.initial(address="::ffff:198.51.100.1", proxy="::ffff:192.0.2.1")
        assert announced(tracker, mapped.kernel(K.CREATED)) == []
        assert known(tracker, host) == [path.four_tuple]


class TestDisagreement:
    def test_another_token(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        event = path.kernel(K.CREATED, token=77)
        assert announced(tracker, event) == [DISAGREE, CLOSED, OPENED, ACTIVE]
        assert [s.four_tuple for s in tracker.connections[77].subflows] == [path.four_tuple]
        assert known(tracker, host) == []

    def test_another_address_identifier(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        path = host.join()
        feed(tracker, *path.established())
        assert announced(tracker, path.kernel(K.SUBFLOW_ESTABLISHED, remote_id=200, local_id=3)) == [
            DISAGREE,
            DISAGREE,
            CHANGED,
        ]
        second = tracker.connections[host.token].subflows[1]
        assert (second.remote_id, second.local_id) == (200, 3)


class TestResync:
    def test_at_the_start(self, tracker: Tracker, host: Host) -> None:
        initial, path = host.initial(), host.join()
        tracker.interface_of = {path.four_tuple: "wlan0"}.get
        dump = [initial.dumped(), path.dumped(backup=True)]
        assert kinds(tracker.resync(dump, host.time)) == [OPENED, ACTIVE, ACTIVE]
        first, second = tracker.connections[host.token].subflows
        assert (first.initial, second.initial, second.remote_id) == (True, False, path.remote_id)
        assert (second.backup, second.interface, second.local_id) == (True, "wlan0", 0)
        assert tracker.resync(dump, host.time + 1) == []
        assert tracker.counters.disagreements == 0

    def test_what_is_missing_here_is_added(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        join = host.join()
        assert kinds(tracker.resync([path.dumped(), join.dumped()], host.time + 5)) == [ACTIVE]
        assert tracker.counters.disagreements == 0

    def test_what_is_missing_there_is_closed(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        assert kinds(tracker.resync([], host.time + 5)) == [DISAGREE, CLOSED]
        assert known(tracker, host) == []

    def test_what_began_after_the_dump_is_kept(self, tracker: Tracker, host: Host) -> None:
        began = host.time
        path = opened(tracker, host)
        assert tracker.resync([], began) == []
        assert tracker.resync([], host.time + 0.5) == [], "within the grace"
        assert known(tracker, host) == [path.four_tuple]

    def test_what_ended_after_the_dump_does_not_return(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        dump, began = [path.dumped()], host.time
        feed(tracker, path.kernel(K.SUBFLOW_CLOSED))
        assert tracker.resync(dump, began) == []
        assert known(tracker, host) == []

    def test_details_are_corrected(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        path = host.join()
        feed(tracker, *path.established())
        dump = [host.initial().dumped(), path.dumped(remote_id=200, backup=True)]
        assert kinds(tracker.resync(dump, host.time + 5)) == [DISAGREE, CHANGED, CHANGED]
        second = tracker.connections[host.token].subflows[1]
        assert (second.remote_id, second.backup) == (200, True)

    def test_what_changed_after_the_dump_began_is_newer(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        host.time += 5
        began = host.time
        assert announced(tracker, path.kernel(K.SUBFLOW_PRIORITY, backup=True)) == [CHANGED]
        assert tracker.resync([path.dumped(backup=False)], began) == []
        assert kinds(tracker.resync([path.dumped(backup=False)], host.time + 1)) == [CHANGED]

    def test_other_ports_count_only_with_a_token_of_ours(self, tracker: Tracker, host: Host) -> None:
        initial, ours, foreign = host.initial(), host.join(), Host("foreign").initial()
        elsewhere = [path.dumped(four_tuple=path.four_tuple._replace(local_port=45678)) for path in (ours, foreign)]
        assert kinds(tracker.resync([*elsewhere, initial.dumped()], host.time)) == [OPENED, ACTIVE, ACTIVE]
        assert list(tracker.connections) == [host.token]

    def test_it_keeps_the_living_from_looking_idle(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        assert tracker.expire(host.time + 2 * 3600) == []
        assert not tracker.wants_resync
        later = host.time + 5 * 3600
        assert tracker.expire(later) == []
        assert tracker.wants_resync
        tracker.resync([path.dumped()], later)
        tracker.expire(later)
        assert not tracker.wants_resync
        assert tracker.expire(host.time + 7 * 3600) == []
        assert kinds(tracker.expire(later + 7 * 3600)) == [CLOSED]


def test_a_join_on_the_port_of_a_first_subflow_whose_end_was_missed(tracker: Tracker, host: Host) -> None:
    """Defect: no dump corrected this."""
    initial, path, again = host.initial(), host.join(), host.join("198.51.100.1", 40000)
    feed(tracker, initial.kernel(K.CREATED), path.kernel(K.SUBFLOW_ESTABLISHED))
    tracker.resync([path.dumped(), again.dumped()], host.time + 5)
    found = {each.four_tuple: each.initial for each in tracker.connections[host.token].subflows}
    assert found == {path.four_tuple: False, again.four_tuple: False}
