# SPDX-License-Identifier: GPL-2.0-or-later
"""The tracker's limits and counters, and the number of connections that each client may have."""

from __future__ import annotations

from dataclasses import dataclass

from mptcp_common.clients import client_of, client_text


@dataclass(frozen=True, slots=True)
class TrackerLimits:
    """Bounds of every table, and timeouts in seconds."""

    max_connections: int = 65_536
    """Includes lingering connections. A connection above its client's share (:class:`ConnectionShares`) is reported
    for closing (``CONNECTION_EXCESS``); dropping an older connection instead would lift its cap."""
    max_subflows_per_connection: int = 16
    """A subflow in excess is reported for closing (``SUBFLOW_EXCESS``). The in-kernel path manager accepts at most 8
    after the first; only a user-space path manager may accept more."""
    max_remembered: int = 16_384
    """Handshakes in progress, recent endings, and refused connections: a full table drops its oldest entry."""
    max_refused: int = 1_024  # refused joins that are remembered and reported per ``handshake_timeout``
    handshake_timeout: float = 10.0
    closed_linger: float = 10.0
    """Lifetime of a connection without a subflow (a join may follow: break before make), and of records of ends."""
    resync_grace: float = 1.0  # a dump may miss a subflow that became active less than this many seconds before it


@dataclass(slots=True)
class TrackerCounters:
    """Counters since the tracker was created. They never decrease."""

    segments: int = 0
    ignored: int = 0  # segments that belong to no handshake and no tracked subflow
    misdirected: int = 0  # segments that came in with the proxy's source address, or went out with a client's
    malformed: int = 0
    fallbacks: int = 0  # connections that requested MPTCP and got plain TCP
    version_0: int = 0  # SYNs for MPTCP version 0 (RFC 6824), which Linux answers in plain TCP. They are not tracked.
    connections_opened: int = 0
    connections_closed: int = 0
    subflows_activated: int = 0
    subflows_closed: int = 0
    joins_refused: int = 0  # joins that the proxy refused: unknown token, wrong HMAC, or too many subflows
    kernel_events: int = 0
    kernel_events_ignored: int = 0
    resyncs: int = 0
    disagreements: int = 0
    handshakes_evicted: int = 0
    overflows: int = 0  # subflows not tracked because their connection has too many
    connections_refused: int = 0  # connections reported for closing, because they exceed their client's share
    expired: int = 0  # handshakes forgotten after a timeout


class ConnectionShares:
    """Divides the capacity of the connection table among the clients (:mod:`mptcp_common.clients`).

    A client may have at most as many connections as places are free: *n* clients at their limits leave 1/(*n* + 1) of
    the capacity to others. This is the dynamic-threshold rule for queues that share a memory (Choudhury and Hahne,
    IEEE/ACM Transactions on Networking 6(2), 1998).
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.counts: dict[bytes, int] = {}  # number of connections, by client
        self.total = 0

    def allows(self, address: bytes) -> bool:
        """Return whether the client at *address* may have a further connection."""
        return self.counts.get(client_of(address), 0) < self._capacity - self.total

    def allows_older(self, address: bytes) -> bool:
        """Return whether the client may have a further connection that is older than the daemon. In which order these
        began is unknown: the first client gets at most half of the capacity, each further client half of the rest."""
        client = client_of(address)
        clients = len(self.counts) + (client not in self.counts)
        half = self._capacity - self._capacity // 2
        return self.counts.get(client, 0) < half and self.total < self._capacity - (self._capacity >> clients)

    def add(self, address: bytes) -> bytes:
        """Count a further connection of a client; return the key for :meth:`release`."""
        client = client_of(address)
        self.counts[client] = self.counts.get(client, 0) + 1
        self.total += 1
        return client

    def release(self, client: bytes) -> None:
        self.counts[client] -= 1
        self.total -= 1
        if not self.counts[client]:
            del self.counts[client]

    def describe(self, address: bytes) -> str:
        client, free = client_of(address), self._capacity - self.total
        room = f"there is room for {free:,} more connections of all clients together"
        return f"{client_text(client)} has {self.counts.get(client, 0):,} connections; {room}"
