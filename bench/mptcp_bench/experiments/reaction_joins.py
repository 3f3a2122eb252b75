"""What the probe of the experiment ``reaction`` makes of the captured packets. Pure.

Times are the kernel's time stamps, as monotonic seconds. Connections come one after another, and each is known by
the client's port of its first subflow, the one that is to be capped. Once the entry of that subflow is in the kernel's
set, its packets have our bits in their marks.
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
"""After a join whose entry has not come."""


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
    """Finds the joins of connections to *port*, and the first packets after them that are throttled."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._initial_port = self._joined_port = 0
        self._opened = 0.0
        self._waiting: list[Join] = []
        self._sent: dict[int, list[Sent]] = {}
        """By the client's port, since the connection began."""

    def segment(self, segment: Segment) -> None:
        """Take a segment with an MPTCP option that signals something."""
        if segment.destination_port != self._port:
            return
        kinds = {type(option) for option in segment.options}
        # The SYN and, a round trip later, the third ACK carry the option: the first of the two counts.
        if MpCapable in kinds and segment.source_port != self._initial_port:
            self._initial_port, self._opened = segment.source_port, segment.time
            self._sent[self._initial_port] = []
        # Sent again until it is acknowledged (RFC 8684, 3.2); only the first can be waited for.
        if MpJoinAck in kinds and self._initial_port != self._joined_port:
            self._joined_port = self._initial_port
            self._waiting.append(Join(self._initial_port, segment.time, segment.time - self._opened))

    def packet(self, sent: Sent) -> None:
        """Take a packet to a client. Nothing is kept of a connection that is decided, or whose SYN was not seen."""
        if (of_connection := self._sent.get(sent.port)) is not None:
            of_connection.append(sent)

    def decided(self, now: float) -> Iterator[dict[str, float]]:
        """Yield a sample for each join after which a packet was throttled, or that is too long ago."""
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
    """Return what is known of a join from the packets of its connection's first subflow, in the order of their times.

    ``delay_ms``: until the first packet that is throttled: infinite where none was, negative where one was before the
    join, which therefore did not make the entry. ``gap_ms``: how long nothing was sent before that packet; the entry
    came somewhere in this gap. ``bytes`` that passed unthrottled in between, and ``age_ms`` of the connection.
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
