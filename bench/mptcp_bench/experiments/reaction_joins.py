# SPDX-License-Identifier: GPL-2.0-or-later
"""How the probe of the experiment ``reaction`` evaluates captured packets. Pure.

Times are the kernel's time stamps, converted to monotonic seconds. Connections follow one another. Each is identified
by the client's port of its first subflow, which is the subflow to be capped. When that subflow has an entry in the
kernel's set, its packets have our bits in their marks.
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
"""Seconds after a join after which its entry counts as missing."""


class Sent(NamedTuple):
    """A data packet that left the proxy."""

    time: float
    port: int
    """The client's port."""
    length: int
    """Bytes of payload."""
    marked: bool


@dataclass(frozen=True, slots=True)
class Join:
    """The third ACK of a joining second subflow."""

    initial_port: int
    time: float
    age: float
    """Age of the connection at the join: seconds since its first segment."""


class Joins:
    """Find the joins of connections to *port*, and for each the first throttled packet after it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._initial_port = self._joined_port = 0
        self._opened = 0.0
        self._waiting: list[Join] = []
        self._sent: dict[int, list[Sent]] = {}
        """Packets of a connection since it began, by the client's port of its first subflow."""

    def segment(self, segment: Segment) -> None:
        """Process a segment that has an MPTCP option for signalling."""
        if segment.destination_port != self._port:
            return
        kinds = {type(option) for option in segment.options}
        # Both the SYN and, a round trip later, the third ACK carry the option. Only the SYN begins a connection.
        if MpCapable in kinds and segment.source_port != self._initial_port:
            self._initial_port, self._opened = segment.source_port, segment.time
            self._sent[self._initial_port] = []
        # The client repeats the third ACK until it is acknowledged (RFC 8684, 3.2). Only the first one counts.
        if MpJoinAck in kinds and self._initial_port != self._joined_port:
            self._joined_port = self._initial_port
            self._waiting.append(Join(self._initial_port, segment.time, segment.time - self._opened))

    def packet(self, sent: Sent) -> None:
        """Process a data packet to a client; ignore it if its connection is decided, or its SYN was not seen."""
        if (of_connection := self._sent.get(sent.port)) is not None:
            of_connection.append(sent)

    def decided(self, now: float) -> Iterator[dict[str, float]]:
        """Yield a sample for each join after which a throttled packet came, or too much time has passed."""
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
    """Return the sample of a join, from the packets of its connection's first subflow in order of time.

    ``delay_ms`` is the time from the join to the first throttled packet. It is infinite if none came, and negative if
    one came before the join, which then did not cause the entry. ``gap_ms`` is the time before that packet in which
    nothing was sent; the entry came in this gap. ``bytes`` is the unthrottled payload between join and that packet,
    ``age_ms`` the connection's age at the join.
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
