"""The tracker on the wire: handshakes and joins, as dialogues between a client and the proxy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mptcp_capture import IPV4, IPV4_TOKEN, IPV6, IPV6_TOKEN
from mptcp_dialogue import (
    ACK,
    ACTIVE,
    CHANGED,
    CLOSED,
    FIN,
    OPENED,
    PORT,
    REFUSED,
    RST,
    SYN,
    Host,
    announced,
    feed,
    opened,
    packed,
    states,
)

from mptcp_throttler.mptcp.model import EventKind, FourTuple, SubflowState
from mptcp_throttler.mptcp.options import (
    MpCapable,
    MpJoinSyn,
)
from mptcp_throttler.mptcp.segment import parse_frame
from mptcp_throttler.mptcp.tracker import Tracker


class TestRealConnections:
    @pytest.mark.parametrize(
        ("frames", "token", "remote_id", "backup"), [(IPV4, IPV4_TOKEN, 5, True), (IPV6, IPV6_TOKEN, 6, False)]
    )
    def test_linux(
        self, tracker: Tracker, frames: list[tuple[float, str, bytes]], token: int, remote_id: int, backup: bool
    ) -> None:
        events = []
        for time, interface, frame in frames:
            segment = parse_frame(frame, time, interface)
            assert segment is not None
            caused = tracker.segment(segment)
            events += caused
            if any(event.kind is EventKind.SUBFLOW_ACTIVE for event in caused):
                connection = tracker.get(token)
        assert connection is not None
        first, second = connection.subflows
        assert len(connection.active) == 2
        assert (first.initial, first.interface, first.local_id, first.remote_id) == (True, "v0", 0, 0)
        assert (second.initial, second.interface, second.local_id, second.remote_id) == (False, "v1", 0, remote_id)
        assert (first.backup, second.backup) == (False, backup)
        assert [event.kind.value for event in events] == [OPENED, ACTIVE, ACTIVE, CHANGED, CHANGED, CLOSED, CLOSED]
        assert {event.token for event in events} == {token}
        assert tracker.counters.ignored == 0
        assert tracker.counters.duplicates == 1, "the first data repeats MP_CAPABLE"


class TestInitialSubflow:
    def test_handshake(self, tracker: Tracker, host: Host) -> None:
        path = host.initial()
        assert announced(tracker, path.syn()) == []
        assert announced(tracker, path.syn_ack()) == []
        assert not tracker.connections
        assert announced(tracker, path.ack()) == [OPENED, ACTIVE]
        connection = tracker.connections[host.token]
        (subflow,) = connection.subflows
        assert connection.token == host.token
        assert (subflow.four_tuple, subflow.initial, subflow.state) == (path.four_tuple, True, SubflowState.ACTIVE)
        assert (subflow.local_id, subflow.remote_id, subflow.backup) == (0, 0, False)

    def test_a_forged_third_ack_opens_nothing_and_does_no_harm(self, tracker: Tracker, host: Host) -> None:
        path = host.initial()
        assert announced(tracker, path.syn(), path.syn_ack(), path.ack(forged=True)) == []
        assert announced(tracker, path.ack()) == [OPENED, ACTIVE]

    def test_a_third_ack_of_another_handshake_is_ignored(self, tracker: Tracker, host: Host) -> None:
        path = host.initial()
        stale = replace(path.ack(), acknowledgment=5)
        assert announced(tracker, path.syn(), path.syn_ack(), stale) == []

    def test_a_syn_ack_that_answers_another_syn_is_ignored(self, tracker: Tracker, host: Host) -> None:
        path = host.initial()
        assert announced(tracker, path.syn(), replace(path.syn_ack(), acknowledgment=5), path.ack()) == []
        assert not tracker.connections

    def test_fallback_to_tcp_is_forgotten(self, tracker: Tracker, host: Host) -> None:
        path = host.initial()
        assert announced(tracker, path.syn(), path.plain_syn_ack(), path.ack()) == []
        assert tracker.counters.fallbacks == 1
        assert tracker.table_sizes["subflows"] == 0

    def test_plain_tcp_is_none_of_our_business(self, tracker: Tracker) -> None:
        path = Host().initial()
        assert announced(tracker, path.plain_syn(), path.plain_syn_ack(), path.fin(), path.proxy_fin()) == []
        assert tracker.counters.ignored == 4
        assert not any(tracker.table_sizes.values())

    @pytest.mark.parametrize(
        ("offered", "answered", "tracked"), [(1, 1, True), (2, 1, True), (1, 0, False), (1, 2, False)]
    )
    def test_version_negotiation(self, tracker: Tracker, offered: int, answered: int, tracked: bool) -> None:
        host = Host()
        path = host.initial()
        answer = MpCapable(answered, 1, host.proxy_key if answered == 1 else None)
        announced(tracker, path.syn(MpCapable(offered, 1)), path.syn_ack(answer), path.ack())
        assert (host.token in tracker.connections) is tracked
        assert tracker.counters.version_0 == 0
        assert tracker.table_sizes["subflows"] == tracked

    def test_version_0_is_counted_and_not_tracked(self, tracker: Tracker, host: Host) -> None:
        """Linux answers it in plain TCP."""
        path = host.initial()
        syn = path.syn(MpCapable(0, 1))
        assert announced(tracker, syn, path.plain_syn_ack(), path.from_client(ACK, MpCapable(0, 1))) == []
        assert tracker.counters.version_0 == 1
        assert not any(tracker.table_sizes.values())
        assert announced(tracker, syn, path.syn_ack(MpCapable(0, 1)), path.ack()) == [], "nor if something answers it"
        assert not any(tracker.table_sizes.values())

    def test_a_third_ack_of_version_0_proves_nothing(self, tracker: Tracker, host: Host) -> None:
        path = host.initial()
        assert announced(tracker, path.syn(), path.syn_ack(), path.from_client(ACK, MpCapable(0, 1))) == []
        assert announced(tracker, path.ack()) == [OPENED, ACTIVE]

    def test_a_syn_of_version_0_on_a_live_tuple_replaces_it_when_answered(self, tracker: Tracker, host: Host) -> None:
        path = opened(tracker, host).again()
        assert announced(tracker, path.syn(MpCapable(0, 1))) == []
        assert announced(tracker, path.plain_syn_ack()) == ["subflow-closed"]
        assert tracker.counters.version_0 == 1

    def test_retransmissions_and_double_captures_change_nothing(self, tracker: Tracker, host: Host) -> None:
        path = host.initial()
        twice = [segment for segment in path.handshake() for _ in range(2)]
        assert announced(tracker, *twice) == [OPENED, ACTIVE]
        assert tracker.counters.duplicates == 3
        again = [segment for segment in (path.fin(), path.proxy_fin()) for _ in range(2)]
        assert announced(tracker, *again) == [CHANGED, CLOSED]
        assert (tracker.counters.duplicates, tracker.counters.ignored) == (4, 1)

    def test_an_early_third_ack_of_another_handshake_is_ignored(self, tracker: Tracker, host: Host) -> None:
        path = host.initial()
        stale = replace(path.ack(), acknowledgment=5)
        assert announced(tracker, path.syn(), stale, path.syn_ack()) == []
        assert announced(tracker, path.ack()) == [OPENED, ACTIVE]

    def test_every_order_of_the_handshake_ends_alike(self, host: Host) -> None:
        """Several interfaces are read one after the other; a third ACK is never sent before its SYN."""
        syn, syn_ack, ack = host.initial().handshake()
        for order in ((syn, ack, syn_ack), (syn_ack, syn, ack), (syn_ack, ack, syn), (syn, syn_ack, ack)):
            tracker = Tracker([PORT])
            assert announced(tracker, *order) == [OPENED, ACTIVE]
            assert tracker.table_sizes["half_open"] == 0

    def test_the_first_data_proves_as_well(self, tracker: Tracker) -> None:
        host = Host()
        path = host.initial()
        data = path.from_client(ACK, MpCapable(1, 1, host.client_key, host.proxy_key, 5))
        assert announced(tracker, path.syn(), path.syn_ack(), data) == [OPENED, ACTIVE]

    def test_ipv4_mapped_addresses_are_stored_as_ipv4(self, tracker: Tracker, host: Host) -> None:
        path = host.initial(address="::ffff:198.51.100.1", proxy="::ffff:192.0.2.1")
        feed(tracker, *path.handshake())
        (subflow,) = tracker.connections[host.token].subflows
        assert subflow.four_tuple == FourTuple(packed("192.0.2.1"), PORT, packed("198.51.100.1"), 40000)

    def test_the_answers_interface_counts(self, tracker: Tracker, host: Host) -> None:
        path = host.initial()
        feed(tracker, path.syn(), replace(path.syn_ack(), interface="eth7"), path.ack())
        assert tracker.connections[host.token].subflows[0].interface == "eth7"


class TestDirection:
    def test_a_client_may_use_the_proxys_port(self, tracker: Tracker, host: Host) -> None:
        path = host.initial(port=PORT)
        assert announced(tracker, *path.handshake()) == [OPENED, ACTIVE]
        assert announced(tracker, path.proxy_fin(), path.fin()) == [CHANGED, CLOSED]

    def test_neither_port_is_ours(self, tracker: Tracker) -> None:
        path = Host().initial()
        assert announced(tracker, replace(path.syn(), destination_port=80)) == []
        assert tracker.counters.ignored == 1

    def test_a_connection_that_the_proxy_opens_is_not_ours(self, tracker: Tracker) -> None:
        path = Host().initial()
        outward = replace(path.from_proxy(SYN, MpCapable(1, 1)), acknowledgment=0)
        assert announced(tracker, outward, path.from_client(SYN | ACK, MpCapable(1, 1, bytes(8)))) == []
        assert tracker.table_sizes["subflows"] == 0

    def test_an_answer_that_came_in_is_none(self, tracker: Tracker, host: Host) -> None:
        """Anyone on the way can bear the proxy's address; it is the proxy's own packets that show the interface."""
        path = host.initial()
        syn, syn_ack, ack = path.handshake()
        forged = replace(syn_ack, outgoing=False, interface="eth7", sequence=4711)
        assert announced(tracker, replace(syn, outgoing=False), forged, replace(ack, outgoing=True)) == []
        assert tracker.counters.misdirected == 2
        assert announced(tracker, replace(syn_ack, outgoing=True), replace(ack, outgoing=False)) == [OPENED, ACTIVE]
        assert tracker.connections[host.token].subflows[0].interface == "eth0"

    def test_the_proxy_answers_the_syn_that_it_took(self, tracker: Tracker, host: Host) -> None:
        path = host.initial()
        others = [replace(path.syn(), sequence=number) for number in (1, 2)]
        answer = replace(path.syn_ack(), outgoing=True)
        assert announced(tracker, *others, answer, path.ack()) == [OPENED, ACTIVE]

    def test_nonsense_flags(self, tracker: Tracker, host: Host) -> None:
        path = host.initial()
        assert announced(tracker, replace(path.syn(), flags=SYN | FIN), replace(path.syn(), flags=SYN | RST)) == []
        assert tracker.table_sizes["subflows"] == 0


class TestJoin:
    def test_good(self, tracker: Tracker, host: Host) -> None:
        initial, path = opened(tracker, host), host.join()
        path.backup = True
        assert announced(tracker, path.syn(), path.syn_ack()) == []
        assert len(tracker.connections[host.token].active) == 1
        assert announced(tracker, path.ack()) == [ACTIVE]
        first, second = tracker.connections[host.token].subflows
        assert (first.four_tuple, second.four_tuple) == (initial.four_tuple, path.four_tuple)
        assert (second.initial, second.remote_id, second.local_id, second.backup) == (False, path.remote_id, 0, True)

    def test_forged(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        path = host.join()
        events = feed(tracker, path.syn(), path.syn_ack(), path.ack(forged=True))
        assert [(event.kind.value, event.token, event.four_tuple) for event in events] == [
            (REFUSED, host.token, path.four_tuple)
        ]
        assert events[0].detail == "third ACK with a wrong HMAC"
        assert announced(tracker, path.ack(forged=True), path.proxy_rst()) == []
        assert len(tracker.connections[host.token].subflows) == 1
        assert tracker.counters.joins_refused == 1

    def test_a_forged_third_ack_does_no_harm(self, tracker: Tracker, host: Host) -> None:
        """The proxy never took it: its checksum was wrong, perhaps."""
        opened(tracker, host)
        path = host.join()
        assert announced(tracker, path.syn(), path.syn_ack(), path.ack(forged=True), path.ack()) == [REFUSED, ACTIVE]

    def test_replayed_third_ack(self, tracker: Tracker, host: Host) -> None:
        """The proxy's nonce is new each time: yesterday's HMAC proves nothing."""
        opened(tracker, host)
        old = host.join()
        assert announced(tracker, *old.handshake(), old.rst()) == [ACTIVE, CLOSED]
        new = old.again()
        replay = replace(old.ack(), acknowledgment=new.ack().acknowledgment)
        assert announced(tracker, new.syn(), new.syn_ack(), replay) == [REFUSED]

    def test_a_syn_alone_is_nothing_and_is_forgotten(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        path = host.join()
        assert announced(tracker, path.syn()) == []
        assert states(tracker, host)[path.four_tuple] is SubflowState.SYN
        assert tracker.expire(host.time + 11) == []
        assert path.four_tuple not in states(tracker, host)

    def test_unknown_token(self, tracker: Tracker) -> None:
        path = Host().join()
        (event,) = feed(tracker, path.syn(), path.syn(), path.ack())
        assert (event.kind.value, event.token, event.detail) == (REFUSED, path.host.token, "unknown token")
        assert tracker.counters.joins_refused == 1

    @pytest.mark.parametrize("answer", ["plain", "reset"])
    def test_turned_down_by_the_proxy(self, tracker: Tracker, host: Host, answer: str) -> None:
        opened(tracker, host)
        path = host.join()
        answered = path.plain_syn_ack() if answer == "plain" else path.proxy_rst()
        assert announced(tracker, path.syn(), answered) == [REFUSED]
        assert len(tracker.connections[host.token].subflows) == 1

    def test_given_up_by_the_client(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        path = host.join()
        assert announced(tracker, path.syn(), path.syn_ack(), path.rst(), path.fin()) == []
        assert len(tracker.connections[host.token].active) == 1
        assert tracker.table_sizes["half_open"] == 1, "its RST is anyone's: the handshake has its time"
        tracker.expire(host.time + 10)
        assert tracker.table_sizes["half_open"] == 0

    def test_every_order_of_the_handshake_ends_alike(self, host: Host) -> None:
        path = host.join()
        syn, syn_ack, ack = path.handshake()
        for order in ((syn, ack, syn_ack), (syn_ack, syn, ack), (syn_ack, ack, syn), (syn, syn_ack, ack)):
            tracker = Tracker([PORT])
            opened(tracker, host)
            assert announced(tracker, *order) == [ACTIVE]
            forged = replace(path.ack(forged=True), time=ack.time)
            tracker = Tracker([PORT])
            opened(tracker, host)
            assert announced(tracker, *(forged if item is ack else item for item in order)) == [REFUSED]

    def test_a_third_ack_for_a_later_syn_ack_waits(self, tracker: Tracker, host: Host) -> None:
        opened(tracker, host)
        path = host.join()
        stale = replace(path.ack(forged=True), acknowledgment=1)
        assert announced(tracker, path.syn(), stale, path.syn_ack()) == []
        assert announced(tracker, path.ack()) == [ACTIVE]

    def test_without_keys_it_is_unproven_until_they_come(self, tracker: Tracker) -> None:
        """The client's key is shown in the third ACK alone, which here is read after the join."""
        host = Host()
        initial, path, forged = host.initial(), host.join(), host.join("203.0.113.2")
        feed(tracker, initial.syn(), initial.syn_ack())
        assert announced(tracker, path.syn(), path.syn_ack(), path.ack()) == []
        assert announced(tracker, forged.syn(), forged.syn_ack(), forged.ack(forged=True)) == []
        assert tracker.counters.unproven_joins == 2
        assert announced(tracker, initial.ack()) == [OPENED, ACTIVE, ACTIVE, REFUSED]

    def test_a_stale_third_ack_does_not_displace_one_that_waits(self, tracker: Tracker) -> None:
        host = Host()
        initial, path = host.initial(), host.join()
        feed(tracker, initial.syn(), initial.syn_ack(), *path.handshake())
        assert announced(tracker, replace(path.ack(forged=True), acknowledgment=5)) == []
        assert announced(tracker, initial.ack()) == [OPENED, ACTIVE, ACTIVE]

    def test_joins_wait_in_vain_for_an_initial_subflow_that_fails(self, tracker: Tracker) -> None:
        host = Host()
        initial, path = host.initial(), host.join()
        assert announced(tracker, initial.syn(), initial.syn_ack(), *path.handshake(), initial.proxy_rst()) == []
        assert not any(tracker.table_sizes.values())


def test_a_syn_names_any_token_but_only_its_own_counts(tracker: Tracker) -> None:
    """The keys that check a join are those of the connection that its token names."""
    victim, attacker = Host("victim"), Host("attacker")
    feed(tracker, *victim.initial().handshake(), *attacker.initial("198.51.100.9").handshake())
    path = attacker.join()
    stolen = MpJoinSyn(False, 9, victim.token, path.nonce_client)
    assert announced(tracker, path.syn(stolen), path.syn_ack(), path.ack()) == [REFUSED]
    assert len(tracker.connections[victim.token].active) == 1
