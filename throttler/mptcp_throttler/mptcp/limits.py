# SPDX-License-Identifier: GPL-2.0-or-later
"""The tracker's limits and counters, and the clients' shares of its room."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mptcp_common.clients import client_of, client_text


@dataclass(frozen=True, slots=True)
class TrackerLimits:
    """Bounds of every table, and timeouts in seconds.

    ``idle_timeout`` is long because only handshakes and endings are captured: a subflow with an hour-long download
    looks as idle as a dead one. Each resync marks what the kernel still has as seen. The timeout ends what no resync
    ever confirms; :attr:`~.tracker.Tracker.wants_resync` requests one in time.
    """

    max_connections: int = 65_536
    """Lingering ones count. A connection beyond its client's share (:class:`Shares`) replaces a lingering one of its
    client, or is reported for closing (``CONNECTION_EXCESS``): closing an older one would lift its cap mid-transfer."""
    max_subflows_per_connection: int = 16
    """A further one is reported for closing (``SUBFLOW_EXCESS``). The kernel's own path manager takes at most 8 beside
    the first; only a user-space one may take more."""
    max_remembered: int = 16_384
    """Handshakes in progress, recent endings, and turned-away connections, each. At the bound the oldest goes: a SYN
    flood costs no connection."""
    max_refused: int = 1_024
    """Refused joins remembered, hence the most ``JOIN_REFUSED`` events per ``handshake_timeout``. All are counted."""
    handshake_timeout: float = 10.0
    closed_linger: float = 10.0
    """How long a connection without a subflow waits for a join (break before make), unless the kernel closed it. It
    counts against its client's share meanwhile. Endings of subflows are remembered as long, so that an older dump does
    not bring them back."""
    idle_timeout: float = 6 * 3600.0
    resync_grace: float = 1.0
    """A dump may miss a subflow that became active less than this before it."""


@dataclass(slots=True)
class TrackerCounters:
    """Counts since the tracker was made. Every field only grows."""

    segments: int = 0
    ignored: int = 0
    """Segments of no handshake and no tracked subflow."""
    misdirected: int = 0
    """Segments that came in with the proxy's address, or went out with a client's: forged, or not ours."""
    malformed: int = 0
    fallbacks: int = 0
    """Connections that requested MPTCP and got plain TCP."""
    version_0: int = 0
    """SYNs for MPTCP version 0 (RFC 6824), which Linux answers in plain TCP. They are not tracked."""
    connections_opened: int = 0
    connections_closed: int = 0
    subflows_activated: int = 0
    subflows_closed: int = 0
    joins_refused: int = 0
    """Joins that the proxy refused: an unknown token, a wrong HMAC, too many."""
    kernel_events: int = 0
    kernel_events_ignored: int = 0
    resyncs: int = 0
    disagreements: int = 0
    handshakes_evicted: int = 0
    lingering_evicted: int = 0
    overflows: int = 0
    """Subflows not tracked because their connection has too many."""
    connections_refused: int = 0
    """Reported for closing, because they exceed their client's share."""
    expired: int = 0
    """Handshakes and subflows forgotten by timeout."""


class Shares:
    """Shares the room for connections among the clients (:mod:`mptcp_common.clients`).

    A client may have as many connections as there is room left for: *n* greedy clients leave 1/(*n* + 1) to others. So
    nobody can take all room with idle connections and leave later ones without a cap. This is the dynamic-threshold
    rule for queues that share a memory (Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).

    The rule depends on the order of arrival, which is unknown for connections older than the daemon. They must meet
    what holds in every order: the total of the *k* clients with the most, plus the fewest that one of these has, is at
    most the room plus one.
    """

    def __init__(self, room: int) -> None:
        """*room*: the most connections of all clients together."""
        self._room = room
        self.held: dict[bytes, int] = {}
        """Number of connections, by client."""
        self._clients: Counter[int] = Counter()
        """Number of clients, by how many connections they have."""
        self.taken = 0

    def has_room(self, address: bytes, without: int = 0) -> bool:
        """Return whether the client at *address* may have one more, if *without* of its own were gone."""
        return self.held.get(client_of(address), 0) - without < self._room - self.taken + without

    def had_room(self, address: bytes) -> bool:
        """Return whether, in some order of arrival, one more of that client may have had room. The cost grows with the
        number of distinct counts among the clients: at most about 360 for 65,536 connections."""
        before = self.held.get(client_of(address), 0)
        together = 0
        for held in sorted({*self._clients, before + 1}, reverse=True):
            together += held * (self._clients[held] + (held == before + 1) - (held == before))
            if together + held > self._room + 1:
                return False
        return True

    def take(self, address: bytes) -> bytes:
        """Count one more; return the key for :meth:`give_back`."""
        client = client_of(address)
        self._change(client, 1)
        return client

    def give_back(self, client: bytes) -> None:
        """Count one less."""
        self._change(client, -1)

    def _change(self, client: bytes, by: int) -> None:
        before = self.held.pop(client, 0)
        after = before + by
        if before:
            self._clients[before] -= 1
            if not self._clients[before]:
                del self._clients[before]
        if after:
            self.held[client] = after
            self._clients[after] += 1
        self.taken += by

    def words(self, address: bytes) -> str:
        """Return in words what the client at *address* has."""
        client = client_of(address)
        held, left = self.held.get(client, 0), self._room - self.taken
        return f"{client_text(client)} has {held:,} connections, and there is room for {left:,} of anybody's"
