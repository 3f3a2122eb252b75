# SPDX-License-Identifier: GPL-2.0-or-later
"""The tracker's limits and counters, and the share of its room for connections that each client may use."""

from __future__ import annotations

from dataclasses import dataclass

from mptcp_common.clients import client_of, client_text


@dataclass(frozen=True, slots=True)
class TrackerLimits:
    """Bounds of every table, and timeouts in seconds."""

    max_connections: int = 65_536
    """Includes lingering connections. A connection beyond its client's share (:class:`Shares`) is reported for closing
    (``CONNECTION_EXCESS``); dropping an older connection instead would lift its cap."""
    max_subflows_per_connection: int = 16
    """A subflow beyond this is reported for closing (``SUBFLOW_EXCESS``). The in-kernel path manager accepts at most 8
    after the first; only a user-space path manager may accept more."""
    max_remembered: int = 16_384
    """Handshakes in progress, recent endings, and refused connections: a full table drops its oldest entry."""
    max_refused: int = 1_024  # refused joins that are remembered, so events of them per ``handshake_timeout``
    handshake_timeout: float = 10.0
    closed_linger: float = 10.0
    """How long a connection without a subflow waits for a join (break before make), and an end is remembered."""
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
    expired: int = 0  # handshakes forgotten by timeout


class Shares:
    """Shares the room for connections among the clients (:mod:`mptcp_common.clients`).

    A client may have at most as many connections as are still free: *n* clients at their limits leave 1/(*n* + 1) of
    the room to others. This is the dynamic-threshold rule for queues that share a memory (Choudhury and Hahne,
    IEEE/ACM Transactions on Networking 6(2), 1998).
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self.held: dict[bytes, int] = {}  # number of connections, by client
        self.taken = 0

    def allows(self, address: bytes) -> bool:
        """Return whether the client at *address* may have a further connection."""
        return self.held.get(client_of(address), 0) < self._room - self.taken

    def allows_older(self, address: bytes) -> bool:
        """Return whether a further connection of that client may have begun before the daemon. The order is unknown:
        the first client gets at most half of the room, each further client half of the rest."""
        client = client_of(address)
        clients = len(self.held) + (client not in self.held)
        half = self._room - self._room // 2
        return self.held.get(client, 0) < half and self.taken < self._room - (self._room >> clients)

    def take(self, address: bytes) -> bytes:
        """Count a further connection of a client; return the key for :meth:`give_back`."""
        client = client_of(address)
        self.held[client] = self.held.get(client, 0) + 1
        self.taken += 1
        return client

    def give_back(self, client: bytes) -> None:
        self.held[client] -= 1
        self.taken -= 1
        if not self.held[client]:
            del self.held[client]

    def words(self, address: bytes) -> str:
        client = client_of(address)
        held, left = self.held.get(client, 0), self._room - self.taken
        return f"{client_text(client)} has {held:,} connections, and there is room for {left:,} more of all clients"
