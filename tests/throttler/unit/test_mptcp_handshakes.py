# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for captured handshakes: the tracker learns only interfaces, refused joins and fallbacks from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from mptcp_dialogue import (
    ACK,
    ACTIVE,
    CHANGED,
    FIN,
    OPENED,
    PORT,
    REFUSED,
    RST,
    SYN,
    ClientSubflow,
    Host,
    address_bytes,
    feed,
    kinds_of_events,
    known_subflows,
    open_connection,
)
from mptcp_invariants import SMALL, check_tables

from mptcp_throttler.mptcp.model import FourTuple, KernelEventKind, Segment
from mptcp_throttler.mptcp.options import Malformed, MpCapable, MpFastclose, MpPrio, MpTcprst, RemoveAddr
from mptcp_throttler.mptcp.tracker import Tracker

K = KernelEventKind


class TestInterface:
    def test_interface_is_taken_from_the_syn_ack(self, tracker: Tracker, host: Host) -> None:
        subflow = host.initial()
        feed(
            tracker,
            subflow.syn(),
            replace(subflow.syn_ack(), interface="eth7"),
            subflow.ack(),
            subflow.kernel_event(K.CREATED),
        )
        assert tracker.connections[host.token].subflows[0].interface == "eth7"

    def test_handshake_may_be_read_after_the_kernels_event(self, tracker: Tracker, host: Host) -> None:
        subflow = host.initial()
        syn, syn_ack, _ = subflow.handshake()
        assert kinds_of_events(tracker, subflow.kernel_event(K.CREATED), syn, syn_ack, syn_ack) == [
            OPENED,
            ACTIVE,
            CHANGED,
        ]
        assert tracker.connections[host.token].subflows[0].interface == "eth0"
        assert not tracker.table_sizes["handshakes"]

    def test_without_a_syn_ack_the_interface_is_looked_up_in_the_routes(self, tracker: Tracker, host: Host) -> None:
        """Any host can send a SYN, or a packet that looks like the SYN/ACK, so an incoming SYN/ACK does not count."""
        subflow = host.initial()
        tracker.interface_of = {subflow.four_tuple: "wlan0"}.get
        forged = replace(subflow.syn_ack(), outgoing=False, interface="eth7")
        feed(tracker, replace(subflow.syn(), outgoing=False), forged, subflow.kernel_event(K.CREATED))
        assert tracker.connections[host.token].subflows[0].interface == "wlan0"
        assert tracker.counters.misdirected == 1

    def test_repeated_syn_does_not_hide_the_interface(self, tracker: Tracker, host: Host) -> None:
        subflow = host.initial()
        syn, syn_ack, _ = subflow.handshake()
        feed(tracker, syn, syn_ack, subflow.syn(), subflow.kernel_event(K.CREATED))
        assert tracker.connections[host.token].subflows[0].interface == "eth0"

    def test_syn_ack_of_a_later_attempt_changes_nothing(self, tracker: Tracker, host: Host) -> None:
        subflow = open_connection(tracker, host).later_attempt()
        assert kinds_of_events(tracker, subflow.syn(), replace(subflow.syn_ack(), interface="eth7")) == []
        assert tracker.connections[host.token].subflows[0].interface == "eth0"

    def test_ipv4_mapped_addresses_are_ipv4(self, tracker: Tracker, host: Host) -> None:
        subflow = host.initial(address="::ffff:198.51.100.1", proxy="::ffff:192.0.2.1")
        feed(tracker, *subflow.established())
        (tracked,) = tracker.connections[host.token].subflows
        assert tracked.four_tuple == FourTuple(address_bytes("192.0.2.1"), PORT, address_bytes("198.51.100.1"), 40000)
        assert tracked.interface == "eth0"

    def test_client_may_use_the_proxys_port(self, tracker: Tracker, host: Host) -> None:
        subflow = host.initial(port=PORT)
        for segment in subflow.handshake():
            tracker.apply_segment(replace(segment, outgoing=segment.source == subflow.four_tuple.local))
        assert kinds_of_events(tracker, subflow.kernel_event(KernelEventKind.CREATED)) == [OPENED, ACTIVE]
        assert tracker.connections[host.token].subflows[0].interface == "eth0"


Reply = Callable[[ClientSubflow], Segment]


class TestRefusedJoins:
    @pytest.mark.parametrize(
        ("reply", "detail"),
        [
            (lambda subflow: subflow.proxy_rst(), "RST from the proxy"),
            (lambda subflow: subflow.proxy_rst(MpTcprst(0, 2)), "RST from the proxy, MP_TCPRST reason 2"),
            (lambda subflow: subflow.plain_syn_ack(), "the proxy's SYN/ACK has no MP_JOIN"),
        ],
    )
    def test_join_counts_as_refused_after_a_rst_or_a_plain_syn_ack(
        self, tracker: Tracker, host: Host, reply: Reply, detail: str
    ) -> None:
        open_connection(tracker, host)
        subflow = host.join()
        (event,) = feed(tracker, subflow.syn(), reply(subflow))
        assert (event.kind.value, event.token, event.four_tuple) == (REFUSED, host.token, subflow.four_tuple)
        assert event.detail == detail
        assert kinds_of_events(tracker, subflow.syn(), reply(subflow)) == [], "a repeated reply was reported again"
        assert tracker.counters.joins_refused == 2

    def test_join_with_an_unknown_token_or_a_wrong_hmac_counts_as_refused(self, tracker: Tracker, host: Host) -> None:
        subflow = host.join()
        (event,) = feed(tracker, subflow.syn(), subflow.proxy_rst())
        assert (event.token, event.detail) == (host.token, "unknown token")
        open_connection(tracker, host)
        subflow = host.join(port=7)
        assert kinds_of_events(
            tracker, subflow.syn(), subflow.syn_ack(), subflow.ack(forged=True), subflow.proxy_rst()
        ) == [REFUSED]

    def test_reset_from_the_client_refuses_nothing(self, tracker: Tracker, host: Host) -> None:
        open_connection(tracker, host)
        subflow = host.join()
        assert kinds_of_events(tracker, subflow.syn(), subflow.syn_ack(), subflow.rst(), subflow.fin()) == []
        assert kinds_of_events(tracker, subflow.ack(), subflow.kernel_event(K.SUBFLOW_ESTABLISHED)) == [ACTIVE]

    def test_flood_of_refused_joins_is_counted_in_bounded_tables(self, host: Host) -> None:
        tracker = Tracker([PORT], SMALL)
        for port in range(100):
            subflow = host.join(port=port)
            feed(tracker, subflow.syn(), subflow.proxy_rst())
            check_tables(tracker, SMALL)
        assert tracker.counters.joins_refused == 100
        assert tracker.table_sizes["refused"] == SMALL.max_refused
        tracker.expire(host.time + SMALL.handshake_timeout)
        assert not any(tracker.table_sizes.values())


class TestCounters:
    def test_fallback_to_tcp_is_counted(self, tracker: Tracker, host: Host) -> None:
        subflow = host.initial()
        assert kinds_of_events(tracker, subflow.syn(), subflow.plain_syn_ack(), subflow.ack()) == []
        assert tracker.counters.fallbacks == 1
        assert not any(tracker.table_sizes.values())

    def test_plain_tcp_is_ignored(self, tracker: Tracker, host: Host) -> None:
        subflow = host.initial()
        assert (
            kinds_of_events(tracker, subflow.plain_syn(), subflow.plain_syn_ack(), subflow.fin(), subflow.proxy_fin())
            == []
        )
        assert tracker.counters.ignored == 4

    def test_version_0_is_counted(self, tracker: Tracker, host: Host) -> None:
        """Linux answers version 0 with plain TCP."""
        subflow = host.initial()
        assert kinds_of_events(tracker, subflow.syn(MpCapable(0, 1)), subflow.plain_syn_ack()) == []
        assert (tracker.counters.version_0, tracker.counters.fallbacks) == (1, 0)
        assert not any(tracker.table_sizes.values())

    def test_impossible_flags_and_ports_are_ignored(self, tracker: Tracker, host: Host) -> None:
        subflow = host.initial()
        invalid = replace(subflow.syn(), flags=SYN | FIN), replace(subflow.syn(), flags=SYN | RST)
        assert (
            kinds_of_events(tracker, *invalid, replace(subflow.syn(), destination_port=80), subflow.from_proxy(SYN))
            == []
        )
        assert not any(tracker.table_sizes.values())
        open_connection(tracker, host)
        feed(tracker, subflow.from_client(ACK, Malformed(1, "short", b""), Malformed(None, "long", b"")))
        assert tracker.counters.malformed == 2

    def test_flood_of_syns_evicts_the_oldest_handshakes(self, host: Host) -> None:
        tracker = Tracker([PORT], SMALL)
        for port in range(100):
            feed(tracker, host.initial(port=port).syn())
            check_tables(tracker, SMALL)
        assert tracker.counters.handshakes_evicted == 100 - SMALL.max_remembered
        tracker.expire(host.time + SMALL.handshake_timeout)
        assert tracker.counters.expired == SMALL.max_remembered


def test_handshakes_without_a_kernel_event_create_no_subflow(tracker: Tracker, host: Host) -> None:
    first, second = host.initial(), host.join()
    assert kinds_of_events(tracker, *first.handshake(), *second.handshake()) == []
    assert not tracker.connections


def test_packets_do_not_change_subflows_that_the_kernel_reported(tracker: Tracker, host: Host) -> None:
    first, second = open_connection(tracker, host), host.join()
    feed(tracker, *second.established())
    other = Host("other", host.time).initial().later_attempt()
    packets = [
        *(first.fin(), first.proxy_fin(), first.rst(), second.proxy_rst()),
        *(first.from_client(ACK, MpPrio(True)), first.from_client(ACK, RemoveAddr((0, second.remote_id)))),
        first.from_client(ACK, MpFastclose(host.proxy_key)),
        *(
            *other.handshake(),
            *first.later_attempt().handshake(),
            first.later_attempt().plain_syn(),
            first.later_attempt().plain_syn_ack(),
        ),
    ]
    before = tracker.connections[host.token]
    assert kinds_of_events(tracker, *packets) == []
    assert tracker.connections[host.token] is before
    assert known_subflows(tracker, host) == [first.four_tuple, second.four_tuple]
