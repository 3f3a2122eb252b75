# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the events that replay derives from a capture. Replay checks handshakes like the kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mptcp_capture import IPV4, IPV4_TOKEN, IPV6, IPV6_TOKEN
from mptcp_dialogue import ACK, PORT, RST, ClientSubflow, Host

from mptcp_throttler.mptcp.model import FourTuple, KernelEvent, KernelEventKind, Segment
from mptcp_throttler.mptcp.options import MpCapable, MpFastclose, MpPrio, MpTcprst
from mptcp_throttler.mptcp.segment import parse_frame
from mptcp_throttler.replay.simulated_kernel import SimulatedKernel

K = KernelEventKind


def events_of(kernel: SimulatedKernel, *segments: Segment) -> list[KernelEvent]:
    events = []
    for each in segments:
        from_client = each.destination_port == PORT
        ends = each.destination, each.destination_port, each.source, each.source_port
        four_tuple = FourTuple(*ends) if from_client else FourTuple(*ends[2:], *ends[:2])
        events += kernel.process(each, four_tuple, from_client)
    return events


def kinds(kernel: SimulatedKernel, *segments: Segment) -> list[KernelEventKind]:
    return [each.kind for each in events_of(kernel, *segments)]


@pytest.fixture
def kernel() -> SimulatedKernel:
    return SimulatedKernel()


def connect_two_paths(kernel: SimulatedKernel, host: Host) -> tuple[ClientSubflow, ClientSubflow]:
    first, second = host.initial(), host.join()
    assert kinds(kernel, *first.handshake(), *second.handshake()) == [K.CREATED, K.SUBFLOW_ESTABLISHED]
    return first, second


@pytest.mark.parametrize(
    ("frames", "token", "remote_id", "backup"),
    [(IPV4, IPV4_TOKEN, 5, True), (IPV6, IPV6_TOKEN, 6, False)],
    ids=["IPv4", "IPv6"],
)
def test_events_of_real_linux_connections(
    kernel: SimulatedKernel, frames: list[tuple[float, str, bytes]], token: int, remote_id: int, backup: bool
) -> None:
    segments = [segment for time, name, frame in frames if (segment := parse_frame(frame, time, name)) is not None]
    created, joined, *ends = events_of(kernel, *segments)
    assert (created.kind, created.token, joined.kind, joined.token) == (K.CREATED, token, K.SUBFLOW_ESTABLISHED, token)
    assert (joined.local_id, joined.remote_id, joined.backup) == (0, remote_id, backup)
    assert [(each.kind, each.detail[:8]) for each in ends] == [(K.SUBFLOW_CLOSED, "FIN from")] * 2


class TestHandshakes:
    def test_third_ack_must_have_both_keys(self, kernel: SimulatedKernel, host: Host) -> None:
        subflow = host.initial()
        assert kinds(kernel, subflow.syn(), subflow.syn_ack(), subflow.ack(forged=True)) == []
        assert kinds(kernel, subflow.from_client(ACK, MpCapable(0, 1)), subflow.ack()) == [K.CREATED]
        assert kinds(kernel, subflow.ack()) == [], "a repeated third ACK caused an event"

    def test_join_must_have_the_right_hmac(self, kernel: SimulatedKernel, host: Host) -> None:
        """A replayed HMAC is invalid, because the proxy's nonce is new for each join."""
        connect_two_paths(kernel, host)
        earlier_join = host.join(port=7)
        later_join = earlier_join.later_attempt()
        replayed = replace(earlier_join.ack(), acknowledgment=later_join.ack().acknowledgment)
        assert kinds(kernel, later_join.syn(), later_join.syn_ack(), replayed, later_join.ack(forged=True)) == []
        assert kinds(kernel, later_join.ack()) == [K.SUBFLOW_ESTABLISHED]

    def test_acknowledgment_numbers_must_match(self, kernel: SimulatedKernel, host: Host) -> None:
        subflow = host.initial()
        assert kinds(kernel, subflow.syn(), replace(subflow.syn_ack(), acknowledgment=5), subflow.ack()) == []
        assert kinds(kernel, subflow.syn_ack(), replace(subflow.ack(), acknowledgment=5)) == []
        assert kinds(kernel, subflow.ack()) == [K.CREATED]

    def test_join_without_known_keys_is_counted_as_unproven(self, kernel: SimulatedKernel, host: Host) -> None:
        assert kinds(kernel, *host.join().handshake()) == []
        assert kernel.unproven_joins == 1

    def test_segments_in_the_wrong_direction_are_ignored(self, kernel: SimulatedKernel, host: Host) -> None:
        syn, syn_ack, ack = host.initial().handshake()
        assert kinds(kernel, syn, replace(syn_ack, outgoing=False), ack) == []
        assert kinds(kernel, replace(syn_ack, outgoing=True), replace(ack, outgoing=False)) == [K.CREATED]


class TestEnds:
    def test_subflow_ends_with_both_fins(self, kernel: SimulatedKernel, host: Host) -> None:
        first, second = connect_two_paths(kernel, host)
        assert kinds(kernel, first.fin(), first.fin()) == []
        (event,) = events_of(kernel, first.proxy_fin())
        assert (event.kind, event.detail) == (K.SUBFLOW_CLOSED, "FIN from the proxy")
        assert kinds(kernel, second.rst()) == [K.SUBFLOW_CLOSED]

    def test_subflow_ends_with_a_reset(self, kernel: SimulatedKernel, host: Host) -> None:
        _, second = connect_two_paths(kernel, host)
        (event,) = events_of(kernel, second.rst(MpTcprst(1, 5)), second.rst())
        assert (event.kind, event.detail) == (K.SUBFLOW_CLOSED, "RST from the client, MP_TCPRST reason 5")

    @pytest.mark.parametrize("client", [True, False])
    def test_connection_ends_with_mp_fastclose_and_the_right_key(
        self, kernel: SimulatedKernel, host: Host, client: bool
    ) -> None:
        first, second = connect_two_paths(kernel, host)
        send = first.from_client if client else first.from_proxy
        right, wrong = (host.proxy_key, host.client_key) if client else (host.client_key, host.proxy_key)
        assert kinds(kernel, send(ACK, MpFastclose(wrong))) == []
        assert kinds(kernel, send(RST, MpFastclose(right)), first.rst(), second.rst()) == [K.CLOSED]

    def test_keys_of_a_forgotten_connection_are_not_kept(self, kernel: SimulatedKernel, host: Host) -> None:
        first, _ = connect_two_paths(kernel, host)
        kernel.forget(host.token)
        assert kinds(kernel, *host.join(port=7).handshake()) == []
        assert kinds(kernel, first.from_client(ACK, MpFastclose(host.proxy_key))) == []


def test_mp_prio_from_the_client_changes_the_priority(kernel: SimulatedKernel, host: Host) -> None:
    _, second = connect_two_paths(kernel, host)
    (event,) = events_of(kernel, second.from_client(ACK, MpPrio(True)), second.from_proxy(ACK, MpPrio(False)))
    assert (event.kind, event.backup) == (K.SUBFLOW_PRIORITY, True)
