# SPDX-License-Identifier: GPL-2.0-or-later
"""How the probe of the experiment ``reaction`` evaluates captured packets. Pure.

Times are the kernel's time stamps, as monotonic seconds. Connections come one after another, identified by the client's
port of the first subflow, which is the one to be capped. Once that subflow's entry is in the kernel's set, its packets
have our bits in their marks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.options import MpCapable, MpJoinAck

GIVE_UP_SECONDS = 3.0
"""Seconds after a join whose entry has not come."""


class Sent(NamedTuple):
    """A packet with data that left the proxy."""

    time: float
    port: int
    """The client's."""
    length: int
    """Bytes of payload."""
    marked: bool


@dataclass(frozen=True, slots=True)
class Join:
    """The third ACK of a second subflow."""

    initial_port: int
    time: float
    age: float
    """Seconds since the connection's first segment."""


class Joins:
    """Finds the joins of connections to *port*, and the first throttled packets after them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._initial_port = self._joined_port = 0
        self._opened = 0.0
        self._waiting: list[Join] = []
        self._sent: dict[int, list[Sent]] = {}
        """By the client's port, since the connection began."""

    def segment(self, segment: Segment) -> None:
        """Process a segment with a signalling MPTCP option."""
        if segment.destination_port != self._port:
            return
        kinds = {type(option) for option in segment.options}
        # The SYN and, a round trip later, the third ACK carry the option: the first counts.
        if MpCapable in kinds and segment.source_port != self._initial_port:
            self._initial_port, self._opened = segment.source_port, segment.time
            self._sent[self._initial_port] = []
        # Retransmitted until it is acknowledged (RFC 8684, 3.2); only the first counts.
        if MpJoinAck in kinds and self._initial_port != self._joined_port:
            self._joined_port = self._initial_port
            self._waiting.append(Join(self._initial_port, segment.time, segment.time - self._opened))

    def packet(self, sent: Sent) -> None:
        """Process a packet to a client. Packets of a decided connection, or one without a seen SYN, are ignored."""
        if (of_connection := self._sent.get(sent.port)) is not None:
            of_connection.append(sent)

    def decided(self, now: float) -> Iterator[dict[str, float]]:
        """Yield a sample for each join that was followed by a throttled packet, or is too old."""
        still = []
        for join in self._waiting:
            sent = self._sent[join.initial_port]
            if any(packet.marked for packet in sent) or now > join.time + GIVE_UP_SECONDS:
                del self._sent[join.initial_port]
                yield sample(join, sent)
            else:
                still.append(join)
        self._waiting = still
        wanted = {self._initial_port, *(join.initial_port for join in still)}
        self._sent = {port: sent for port, sent in self._sent.items() if port in wanted}


def sample(join: Join, sent: Sequence[Sent]) -> dict[str, float]:
    """Return what is known of a join from its connection's first subflow's packets, in order of time.

    ``delay_ms`` is the time until the first throttled packet: infinite if there was none, negative if one came before
    the join, which therefore did not make the entry. ``gap_ms``: how long nothing was sent before that packet; the
    entry came somewhere in this gap. ``bytes`` passed unthrottled in between; ``age_ms`` is that of the connection.
    """
    before = list(takewhile(lambda packet: not packet.marked, sent))
    first = sent[len(before)].time if len(before) < len(sent) else math.inf
    passed = [packet for packet in before if packet.time > join.time]
    last = passed[-1].time if passed else join.time
    return {
        "delay_ms": 1000 * (first - join.time),
        "gap_ms": 1000 * (first - last),
        "bytes": sum(packet.length for packet in passed),
        "age_ms": 1000 * join.age,
    }
