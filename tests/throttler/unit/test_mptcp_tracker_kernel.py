"""The tracker and the kernel's records: events, dumps, and when the two observers disagree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mptcp_dialogue import (
    ACK,
    ACTIVE,
    CHANGED,
    CLOSED,
    DISAGREE,
    ENDED,
    OPENED,
    PORT,
    REFUSED,
    Host,
    announced,
    feed,
    kinds,
    opened,
    states,
)

from mptcp_throttler.mptcp.model import FourTuple, KernelEvent, KernelEventKind, SubflowState
from mptcp_throttler.mptcp.options import MpCapable, MpPrio
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

    @pytest.mark.parametrize("at", range(7))
    def test_events_and_packets_come_in_either_order(self, host: Host, at: int) -> None:
        """The kernel's events come before, among or after the packets that they are about."""
        initial, path = host.initial(), host.join()
        packets = [*initial.handshake(), *path.handshake()]
        events = [initial.kernel(K.CREATED), initial.kernel(K.ESTABLISHED), path.kernel(K.SUBFLOW_ESTABLISHED)]
        tracker = Tracker([PORT])
        caused = feed(tracker, *packets[:at], *events, *packets[at:])
        learnt = [event for event in caused if event.detail == "leaves by eth0"]
        confirmed = [event for event in caused if event.detail == "the kernel has it"]
        assert kinds(event for event in caused if event not in learnt + confirmed) == [OPENED, ACTIVE, ACTIVE]
        assert kinds(confirmed) == [CHANGED] * (2 if at == 6 else 0), "of two that count"
        late = sum(position >= at for position in (0, 3))  # SYNs read after their subflow was active
        assert kinds(learnt) == [CHANGED] * late, "a policy may go by the interface"
        assert tracker.counters.disagreements == 0
        assert tracker.table_sizes["half_open"] == 0
        first, second = tracker.connections[host.token].subflows
        assert (first.interface, second.interface) == ("eth0", "eth0"), "learnt from the packets read late"

    def test_packets_read_after_the_event_still_bring_the_keys(self, tracker: Tracker, host: Host) -> None:
        initial, path = host.initial(), host.join()
        packets = initial.handshake()
        assert announced(tracker, initial.kernel(K.CREATED), *packets) == [OPENED, ACTIVE, CHANGED]
        assert announced(tracker, path.syn(), path.syn_ack(), path.ack(forged=True)) == [REFUSED]

    def test_wrong_keys_are_not_learnt(self, tracker: Tracker, host: Host) -> None:
        """Neither from a third ACK nor from a SYN/ACK whose key does not make the token that the kernel reported."""
        initial, path, attacker = host.initial(), host.join(), Host("attacker")
        syn, syn_ack = initial.syn(), initial.syn_ack(MpCapable(1, 1, attacker.proxy_key))
        ack = initial.from_client(ACK, MpCapable(1, 1, attacker.client_key, attacker.proxy_key))
        assert announced(tracker, initial.kernel(K.CREATED), ack, syn, syn_ack, initial.ack()) == [
            OPENED,
            ACTIVE,
            CHANGED,
        ]
        assert announced(tracker, *path.handshake()) == [ACTIVE]

    def test_an_answer_to_a_syn_never_seen_changes_nothing(self, tracker: Tracker, host: Host) -> None:
        path = host.join()
        feed(tracker, path.kernel(K.SUBFLOW_ESTABLISHED))
        assert announced(tracker, path.syn_ack()) == []
        assert tracker.connections[host.token].subflows[0].interface is None

    def test_it_proves_a_join_that_the_packets_cannot(self, tracker: Tracker, host: Host) -> None:
        initial, path = host.initial(), host.join()
        feed(tracker, initial.kernel(K.CREATED))
        assert announced(tracker, *path.handshake()) == []
        assert states(tracker, host)[path.four_tuple] is SubflowState.UNPROVEN
        assert announced(tracker, path.kernel(K.SUBFLOW_ESTABLISHED)) == [ACTIVE]
        assert tracker.counters.disagreements == 0

    def test_it_proves_an_initial_subflow_whose_third_ack_was_lost(self, tracker: Tracker, host: Host) -> None:
        path, join = host.initial(), host.join()
        feed(tracker, path.syn(), path.syn_ack())
        assert announced(tracker, join.kernel(K.SUBFLOW_ESTABLISHED)) == [OPENED, ACTIVE, ACTIVE]
        assert set(states(tracker, host).values()) == {SubflowState.ACTIVE}

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
        assert states(tracker, host) == {path.four_tuple: SubflowState.ACTIVE}
        assert announced(tracker, path.kernel(K.SUBFLOW_CLOSED)) == [CLOSED]

    @pytest.mark.parametrize("is_there", [True, False])
    def test_of_one_that_no_dump_lists_the_kernel_is_asked_when_it_is_silent(
        self, tracker: Tracker, host: Host, is_there: bool
    ) -> None:
        """Defect: it was forgotten as idle after six hours, and a resync was wanted each second from the third on."""
        initial, path = opened(tracker, host), host.join()
        path.four_tuple = path.four_tuple._replace(local_port=4000)
        feed(tracker, path.kernel(K.SUBFLOW_ESTABLISHED))
        began = host.time
        for minutes in range(1, 6 * 60 + 7):
            now = began + 60 * minutes
            tracker.resync([initial.dumped()], now)
            assert tracker.expire(now) == []
            assert not tracker.wants_resync
            assert bool(tracker.questions(now)) is (minutes >= 3 * 60)
        assert states(tracker, host)[path.four_tuple] is SubflowState.ACTIVE
        found = {path.four_tuple: path.dumped()} if is_there else {}
        assert kinds(tracker.answer([path.four_tuple], found, now)) == ([] if is_there else [CLOSED])
        for _ in range(3):  # one is asked up to three times
            tracker.questions(now := now + 1)
        tracker.expire(now)
        assert not tracker.questions(now + 60), "it was seen just now, or has ended"

    def test_a_forged_end_does_not_lift_a_cap(self, tracker: Tracker, host: Host) -> None:
        """Sequence numbers cannot be checked; a client could send a RST that its own host never sent."""
        path = opened(tracker, host)
        assert announced(tracker, path.kernel(K.ESTABLISHED), path.rst(), path.fin(), path.proxy_fin()) == []
        assert states(tracker, host) == {path.four_tuple: SubflowState.ACTIVE}
        assert announced(tracker, path.kernel(K.SUBFLOW_CLOSED)) == [CLOSED]

    def test_the_kernel_ends_a_connection(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        assert announced(tracker, host.closed()) == [CLOSED, ENDED]
        assert announced(tracker, path.fin(), path.proxy_fin(), host.closed()) == []
        assert tracker.counters.disagreements == 0

    def test_a_join_that_was_crowded_out_leaves_by_the_route(self, tracker: Tracker, host: Host) -> None:
        """Its client sent more SYNs than a connection may have subflows: no packet of it is remembered."""
        opened(tracker, host)
        path = host.join()
        tracker.interface_of = {path.four_tuple: "wlan0"}.get
        feed(tracker, path.syn(), path.syn_ack(), *(host.join(port=port).syn() for port in range(1, 40)))
        assert path.four_tuple not in states(tracker, host)
        assert announced(tracker, path.kernel(K.SUBFLOW_ESTABLISHED)) == [ACTIVE]
        assert tracker.connections[host.token].subflows[-1].interface == "wlan0"

    def test_the_interface_of_a_syn_is_not_believed_where_the_answer_was_not_seen(
        self, tracker: Tracker, host: Host
    ) -> None:
        opened(tracker, host)
        path = host.join()
        tracker.interface_of = {path.four_tuple: "wlan0"}.get
        event = path.kernel(K.SUBFLOW_ESTABLISHED)
        assert announced(tracker, path.syn(), event) == [ACTIVE]
        assert tracker.connections[host.token].subflows[-1].interface == "wlan0"

    def test_a_syn_on_its_four_tuple_does_not_say_where_a_join_leaves(self, tracker: Tracker, host: Host) -> None:
        """It named another connection and came in elsewhere."""
        other, forged = Host("other"), replace(host.join().syn(), interface="eth7")
        opened(tracker, host)
        feed(tracker, *other.initial("198.51.100.9").handshake())
        path = other.join()
        tracker.interface_of = {path.four_tuple: "wlan0"}.get
        assert announced(tracker, forged, path.kernel(K.SUBFLOW_ESTABLISHED)) == [ACTIVE]
        assert tracker.connections[other.token].subflows[-1].interface == "wlan0"

    def test_subflow_closed(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        other = replace(path.kernel(K.SUBFLOW_CLOSED), token=1)
        assert announced(tracker, other) == []
        assert announced(tracker, path.kernel(K.SUBFLOW_CLOSED)) == [CLOSED]
        assert announced(tracker, path.kernel(K.SUBFLOW_CLOSED)) == []

    def test_priority(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        assert announced(tracker, path.kernel(K.SUBFLOW_PRIORITY, backup=True)) == [CHANGED]
        assert announced(tracker, path.from_client(ACK, MpPrio(True, None))) == []
        assert tracker.connections[host.token].subflows[0].backup
        assert tracker.counters.disagreements == 0

    def test_a_fin_before_the_kernels_first_word_is_not_believed_afterwards(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        assert announced(tracker, path.fin(), path.kernel(K.ESTABLISHED)) == [CHANGED, CHANGED]
        assert states(tracker, host) == {path.four_tuple: SubflowState.ACTIVE}
        assert announced(tracker, path.fin(), path.proxy_fin()) == []
        assert announced(tracker, host.closed()) == [CLOSED, ENDED]

    def test_a_reused_tuple_explains_another_token(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        rebooted = Host("rebooted", time=host.time)
        new = rebooted.initial().again()
        assert announced(tracker, new.syn(), new.kernel(K.CREATED)) == [CLOSED, OPENED, ACTIVE]
        assert tracker.counters.disagreements == 0

    def test_a_syn_after_the_kernels_event_is_another_attempt(self, tracker: Tracker, host: Host) -> None:
        initial = host.initial()
        feed(tracker, initial.kernel(K.CREATED))
        rebooted = Host("rebooted", time=host.time)
        new = rebooted.initial()
        assert announced(tracker, new.syn()) == []
        assert announced(tracker, new.syn_ack(), new.ack()) == [], "the kernel has the other"
        assert announced(tracker, new.kernel(K.CREATED)) == [CLOSED, OPENED, ACTIVE]

    def test_ipv4_mapped_addresses_are_the_same_subflow(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        mapped = host.initial(address="::ffff:198.51.100.1", proxy="::ffff:192.0.2.1")
        assert announced(tracker, mapped.kernel(K.CREATED)) == []
        assert states(tracker, host) == {path.four_tuple: SubflowState.ACTIVE}


class TestDisagreement:
    def test_established_though_the_hmac_was_wrong(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        path = host.join()
        assert announced(tracker, path.syn(), path.syn_ack(), path.ack(forged=True)) == [REFUSED]
        assert announced(tracker, path.kernel(K.SUBFLOW_ESTABLISHED)) == [ACTIVE, DISAGREE]
        assert tracker.counters.disagreements == 1

    def test_a_join_refused_for_an_unknown_token_is_none(self, tracker: Tracker, host: Host) -> None:
        path = host.join()
        assert announced(tracker, path.syn(), path.kernel(K.SUBFLOW_ESTABLISHED)) == [REFUSED, OPENED, ACTIVE]
        assert tracker.counters.disagreements == 0

    def test_another_token(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        event = path.kernel(K.CREATED, token=77)
        assert announced(tracker, event) == [DISAGREE, CLOSED, OPENED, ACTIVE]
        assert [s.four_tuple for s in tracker.connections[77].active] == [path.four_tuple]
        assert states(tracker, host) == {}

    def test_the_syn_read_late_names_another_token(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        other, path = Host("other"), host.join()
        feed(tracker, *other.initial("198.51.100.9").handshake())
        syn = path.syn()
        feed(tracker, replace(path.kernel(K.SUBFLOW_ESTABLISHED), token=other.token))
        assert announced(tracker, syn, syn) == [DISAGREE]
        assert path.four_tuple in states(tracker, other)

    def test_another_address_identifier(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        path = host.join()
        feed(tracker, *path.handshake())
        assert announced(tracker, path.kernel(K.SUBFLOW_ESTABLISHED, remote_id=200, local_id=3)) == [
            CHANGED,
            DISAGREE,
            DISAGREE,
            CHANGED,
        ]
        second = tracker.connections[host.token].subflows[1]
        assert (second.remote_id, second.local_id) == (200, 3)

    def test_a_backup_flag_that_the_packets_did_not_show_is_none(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        path = host.join()
        path.backup = True
        syn = path.syn()
        assert announced(tracker, path.kernel(K.SUBFLOW_ESTABLISHED), syn) == [ACTIVE, CHANGED]
        answered = host.join("203.0.113.2")
        answered.backup = True
        assert announced(tracker, answered.syn_ack(), answered.kernel(K.SUBFLOW_ESTABLISHED)) == [ACTIVE, CHANGED]
        assert [s.backup for s in tracker.connections[host.token].subflows] == [False, True, True]
        assert tracker.counters.disagreements == 0

    def test_a_refusal_of_an_earlier_attempt_is_none(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        path = host.join()
        again = path.again()
        assert announced(tracker, path.syn(), path.syn_ack(), path.ack(forged=True)) == [REFUSED]
        assert announced(tracker, *again.handshake(), again.rst()) == [ACTIVE, CLOSED]
        assert announced(tracker, path.kernel(K.SUBFLOW_ESTABLISHED)) == [ACTIVE]
        assert tracker.counters.disagreements == 0

    def test_another_backup_flag(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        path = host.join()
        feed(tracker, *path.handshake())
        assert announced(tracker, path.kernel(K.SUBFLOW_ESTABLISHED, backup=True)) == [CHANGED, DISAGREE, CHANGED]
        assert tracker.connections[host.token].subflows[1].backup


class TestResync:
    def test_at_the_start(self, tracker: Tracker, host: Host) -> None:
        initial, path = host.initial(), host.join()
        dump = [initial.dumped(), path.dumped(backup=True, interface="wlan0")]
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
        path = opened(tracker, host)
        assert kinds(tracker.resync([], host.time + 5)) == [DISAGREE, CLOSED]
        assert states(tracker, host) == {}
        assert announced(tracker, path.fin()) == []

    def test_half_open_subflows_are_left_alone(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        join = host.join()
        feed(tracker, join.syn(), join.syn_ack())
        assert tracker.resync([path.dumped()], host.time + 5) == []
        assert announced(tracker, join.ack()) == [ACTIVE]

    def test_it_proves_as_events_do(self, tracker: Tracker, host: Host) -> None:
        initial, path = host.initial(), host.join()
        feed(tracker, initial.kernel(K.CREATED), *path.handshake())
        assert kinds(tracker.resync([initial.dumped(), path.dumped()], host.time)) == [ACTIVE]

    def test_what_began_after_the_dump_is_kept(self, tracker: Tracker, host: Host) -> None:
        began = host.time
        path = opened(tracker, host)
        assert tracker.resync([], began) == []
        assert tracker.resync([], host.time + 0.5) == [], "within the grace"
        assert states(tracker, host) == {path.four_tuple: SubflowState.ACTIVE}

    def test_what_ended_after_the_dump_does_not_return(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        dump, began = [path.dumped()], host.time
        feed(tracker, path.rst())
        assert tracker.resync(dump, began) == []
        assert states(tracker, host) == {}

    def test_what_ended_by_a_forged_reset_does(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        feed(tracker, path.rst())
        assert kinds(tracker.resync([path.dumped()], host.time + 5)) == [ACTIVE, DISAGREE]
        assert states(tracker, host) == {path.four_tuple: SubflowState.ACTIVE}

    def test_so_does_what_closes_by_a_forged_fin(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        feed(tracker, path.fin())
        assert tracker.resync([path.dumped()], host.time) == [], "the FIN is younger than the grace"
        assert kinds(tracker.resync([path.dumped()], host.time + 5)) == [DISAGREE, CHANGED]
        assert states(tracker, host) == {path.four_tuple: SubflowState.ACTIVE}
        assert announced(tracker, path.fin(), path.proxy_fin()) == [], "the kernel has it"

    def test_an_open_handshake_that_the_dump_has_is_active(self, tracker: Tracker, host: Host) -> None:
        path = host.initial()
        feed(tracker, path.syn())
        assert kinds(tracker.resync([path.dumped()], host.time)) == [OPENED, ACTIVE]
        assert announced(tracker, path.syn_ack(), path.ack()) == []

    def test_details_are_corrected(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        path = host.join()
        feed(tracker, *path.handshake())
        dump = [host.initial().dumped(), path.dumped(remote_id=200, backup=True)]
        assert kinds(tracker.resync(dump, host.time + 5)) == [CHANGED, CHANGED, DISAGREE, CHANGED, CHANGED]
        second = tracker.connections[host.token].subflows[1]
        assert (second.remote_id, second.backup) == (200, True)

    def test_what_changed_after_the_dump_began_is_newer(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host)
        host.time += 5
        began = host.time
        assert announced(tracker, path.kernel(K.SUBFLOW_PRIORITY, backup=True)) == [CHANGED]
        feed(tracker, path.from_client(ACK))
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


@pytest.mark.parametrize("dumped", [False, True])
def test_a_join_is_none_of_a_connection_that_was_attempted_from_its_port(
    tracker: Tracker, host: Host, dumped: bool
) -> None:
    """Defect: where the join's packets were not captured, it was taken for a first subflow for as long as it lived."""
    initial, path = opened(tracker, host), host.join()
    feed(tracker, Host("other", host.tick()).initial("203.0.113.1", 50000).syn())
    if dumped:
        tracker.resync([initial.dumped(), path.dumped()], host.time + 5)
    else:
        feed(tracker, path.kernel(K.SUBFLOW_ESTABLISHED))
    assert [each.initial for each in tracker.connections[host.token].subflows] == [True, False]
    assert tracker.counters.disagreements == 0


def test_a_connection_is_no_join_that_was_answered_on_its_port(tracker: Tracker, host: Host) -> None:
    feed(tracker, Host("other").join("198.51.100.1", 40000).syn_ack())
    feed(tracker, host.initial().kernel(K.CREATED))
    assert [each.initial for each in tracker.connections[host.token].subflows] == [True]


def test_a_join_on_the_port_of_a_first_subflow_whose_end_was_missed(tracker: Tracker, host: Host) -> None:
    """Defect: no dump corrected it."""
    initial, path, again = host.initial(), host.join(), host.join("198.51.100.1", 40000)
    feed(tracker, initial.kernel(K.CREATED), path.kernel(K.SUBFLOW_ESTABLISHED))
    tracker.resync([path.dumped(), again.dumped()], host.time + 5)
    found = {each.four_tuple: each.initial for each in tracker.connections[host.token].active}
    assert found == {path.four_tuple: False, again.four_tuple: False}


def test_events_without_their_packets_keep_their_order(tracker: Tracker, host: Host) -> None:
    """A subflow closed on the wire, whose establishment is reported only then, ends with its connection."""
    path = opened(tracker, host)
    late: list[KernelEvent] = [path.kernel(K.CREATED), path.kernel(K.ESTABLISHED)]
    assert announced(tracker, path.rst(), *late) == [CLOSED, ACTIVE]
    assert announced(tracker, host.closed()) == [CLOSED, ENDED]
