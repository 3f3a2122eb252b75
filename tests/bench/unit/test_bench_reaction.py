# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for what the experiment ``reaction`` takes for a join and for the first throttled packet after it."""

from __future__ import annotations

import math

import pytest

from mptcp_bench.experiments.reaction_joins import GIVE_UP_SECONDS, Joins, Sent
from mptcp_bench.experiments.reaction_probe_client import port_at
from mptcp_bench.experiments.scale_policy import FULL, Caps
from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.options import MpCapable, MpJoinAck, MptcpOption

PORT, FIRST, SECOND, NEXT = 3128, 40_000, 50_000, 40_002
"""The proxy's port; the client's ports of first and second subflow, and of the first subflow of another connection."""
CAPABLE, THIRD_ACK = MpCapable(1, 0), MpJoinAck(b"\0" * 20)


def segment(at: float, port: int, option: MptcpOption) -> Segment:
    return Segment(at, "wan0", b"\x0a\x4d\x01\x02", port, b"\x0a\x4d\x08\x02", PORT, 16, 0, 0, (option,))


def joined(*sent: Sent, at: float = 10.3) -> Joins:
    """Return a connection that began at 10 s and was joined *at*; *sent* are the packets that left the proxy."""
    joins = Joins(PORT)
    joins.segment(segment(10.0, FIRST, CAPABLE))
    joins.segment(segment(10.001, FIRST, CAPABLE))
    joins.segment(segment(at, SECOND, THIRD_ACK))
    for packet in sent:
        joins.packet(packet)
    return joins


def test_a_reaction_ends_with_the_first_packet_that_is_marked() -> None:
    joins = joined(
        Sent(10.2, FIRST, 1000, False),
        Sent(10.301, FIRST, 1400, False),
        Sent(10.3015, SECOND, 9999, False),
        Sent(10.302, FIRST, 1400, False),
        Sent(10.304, FIRST, 1400, True),
        Sent(10.305, FIRST, 1400, True),
    )
    [sample] = joins.decided(10.4)
    assert sample == pytest.approx({"delay_ms": 4, "gap_ms": 2, "bytes": 2800, "age_ms": 300})
    assert list(joins.decided(99.0)) == []


def test_without_a_packet_in_between_the_gap_begins_with_the_join() -> None:
    [sample] = joined(Sent(10.2, FIRST, 1000, False), Sent(10.302, FIRST, 1400, True)).decided(10.4)
    assert sample == pytest.approx({"delay_ms": 2, "gap_ms": 2, "bytes": 0, "age_ms": 300})


def test_a_cap_that_was_there_before_the_join_is_no_reaction() -> None:
    [sample] = joined(Sent(10.1, FIRST, 1400, True), Sent(10.31, FIRST, 1400, True)).decided(10.4)
    assert sample["delay_ms"] == pytest.approx(-200)


def test_a_join_is_given_up_after_a_while_and_its_delay_is_infinite() -> None:
    joins = joined(Sent(10.4, FIRST, 1400, False))
    assert list(joins.decided(10.3 + GIVE_UP_SECONDS)) == []
    [sample] = joins.decided(10.31 + GIVE_UP_SECONDS)
    assert sample["delay_ms"] == math.inf
    assert sample["bytes"] == 1400


def test_the_next_connection_does_not_decide_the_one_before() -> None:
    joins = joined()
    joins.segment(segment(10.5, NEXT, CAPABLE))
    joins.segment(segment(10.51, SECOND + 1, THIRD_ACK))
    joins.packet(Sent(10.512, NEXT, 1400, True))
    [sample] = joins.decided(10.6)
    assert sample["delay_ms"] == pytest.approx(2)
    joins.packet(Sent(10.7, FIRST, 1400, True))
    [sample] = joins.decided(10.8)
    assert sample["delay_ms"] == pytest.approx(400)


def test_a_third_ack_that_is_sent_again_is_no_second_join() -> None:
    joins = joined(Sent(10.302, FIRST, 1400, True))
    assert len(list(joins.decided(10.4))) == 1
    joins.segment(segment(10.45, SECOND, THIRD_ACK))
    joins.packet(Sent(10.46, FIRST, 1400, True))
    assert list(joins.decided(99.0)) == []


def test_where_the_reaction_is_measured_nothing_is_anticipated() -> None:
    assert "anticipate: false" in FULL.text()
    assert "anticipate: false" not in Caps(crowd=True).text()
    assert "anticipate: false" not in Caps(client=5_000_000, landing="soft").text()


def test_connections_that_follow_each_other_have_other_ports_in_later_runs_too() -> None:
    """Consider a run of 200 connections and one after it: an entry stays for ten seconds after its subflow's end."""
    ports = [port_at(1234.5 + 0.25 * number) for number in range(400)]
    assert len(set(ports)) == len(ports)
    assert all(1024 < port < 32_768 for port in ports)
