"""How much the tracker remembers, for how long, and of which clients; and what it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields

from mptcp_common.clients import client_of, client_text


@dataclass(frozen=True, slots=True)
class TrackerLimits:
    """Bounds of every table, and timeouts in seconds. All must be positive.

    ``idle_timeout`` is long because only handshakes and endings are captured: a subflow that carries a download for an
    hour looks as idle as a dead one. Each resync marks what the kernel still has as seen; the timeout is for
    what no resync ever confirms, and :attr:`~.tracker.Tracker.wants_resync` asks for one in good time.
    """

    max_connections: int = 65_536
    """Those without a subflow included. What the kernel has beyond its client's share (:class:`Shares`) is reported, to
    be closed (``CONNECTION_EXCESS``), unless another of that client lingers, which goes in its place: closing an older
    one would lift its cap in mid-transfer."""
    max_subflows_per_connection: int = 16
    """Where the kernel has as many, one more that it took is reported, to be closed (``SUBFLOW_EXCESS``). Its own path
    manager takes 8 beside the first at the most; only under the one in user space there may be more."""
    max_remembered: int = 16_384
    """Handshakes under way, and each of what has ended or was turned away lately. At the bound the oldest goes: a flood
    of SYNs costs no connection."""
    max_refused: int = 1_024
    """Refused joins remembered, and so the most ``JOIN_REFUSED`` events in one ``handshake_timeout``; every refusal
    is counted."""
    handshake_timeout: float = 10.0
    closed_linger: float = 10.0
    """How long a connection without a subflow is kept for a join to find (break before make), unless the
    kernel closed it. It counts for its client meanwhile. Endings of subflows are remembered as long, so that a dump
    begun before them does not bring them back."""
    idle_timeout: float = 6 * 3600.0
    resync_grace: float = 1.0
    """A subflow that became active less than this before a dump may be missing from it."""

    def __post_init__(self) -> None:
        for item in fields(self):
            if getattr(self, item.name) <= 0:
                raise ValueError(f"{item.name} must be positive, not {getattr(self, item.name)}")


@dataclass(slots=True)
class TrackerCounters:
    """What happened since the tracker was made. Every field only grows."""

    segments: int = 0
    ignored: int = 0
    """Segments that say nothing of a handshake or of a subflow that is tracked."""
    misdirected: int = 0
    """Segments that came in with the proxy's address, or went out with a client's: forged, or of somebody else."""
    malformed: int = 0
    """MPTCP options that break their format."""
    fallbacks: int = 0
    """Connections that asked for MPTCP and were answered in plain TCP."""
    version_0: int = 0
    """SYNs that ask for MPTCP version 0 (RFC 6824), which Linux answers in plain TCP. They are not tracked."""
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
    """Connections reported to be closed, because their client has as many as there is room left for."""
    expired: int = 0
    """Handshakes and subflows forgotten by timeout."""


class Shares:
    """Shares the room for connections among the clients (:mod:`mptcp_common.clients`).

    A client may have as many connections as there is room left for: one that asks for all gets half, two get a third
    each, and *n* of them leave a part of *n* + 1 to others, however many they ask for. So nobody can take all room by
    idle connections and have those that come next go without a cap. The rule is that of dynamic thresholds for queues
    that share a memory (Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).

    It depends on the order in which connections come, which is unknown of those older than the daemon. These are held
    to what is true in every order: what the *k* clients with the most have together, and the fewest that one of them
    has once more, is no more than the room and one.
    """

    def __init__(self, room: int) -> None:
        """There is *room* for so many connections that the kernel has."""
        self._room = room
        self._held: dict[bytes, int] = {}
        self._clients: Counter[int] = Counter()
        """How many clients have so many."""
        self.taken = 0
        """By all together."""

    @property
    def clients(self) -> int:
        return len(self._held)

    def has_room(self, address: bytes, without: int = 0) -> bool:
        """Return whether the client with that *address* may have one more; if so many of its own were gone."""
        return self._held.get(client_of(address), 0) - without < self._room - self.taken + without

    def had_room(self, address: bytes) -> bool:
        """Return whether one more of that client may have had room as it came, in whatever order they came.

        It takes the longer the more different numbers of connections clients have: of 65,536 some 360 at the most.
        """
        before = self._held.get(client_of(address), 0)
        together = 0
        for held in sorted({*self._clients, before + 1}, reverse=True):
            together += held * (self._clients[held] + (held == before + 1) - (held == before))
            if together + held > self._room + 1:
                return False
        return True

    def take(self, address: bytes) -> bytes:
        """Count one more; return what it is to be given back by."""
        client = client_of(address)
        self._change(client, 1)
        return client

    def give_back(self, client: bytes) -> None:
        """Count one less."""
        self._change(client, -1)

    def _change(self, client: bytes, by: int) -> None:
        before = self._held.pop(client, 0)
        after = before + by
        if before:
            self._clients[before] -= 1
            if not self._clients[before]:
                del self._clients[before]
        if after:
            self._held[client] = after
            self._clients[after] += 1
        self.taken += by

    def words(self, address: bytes) -> str:
        """Say what the client with that *address* has."""
        client = client_of(address)
        held, left = self._held.get(client, 0), self._room - self.taken
        return f"{client_text(client)} has {held:,} connections, and there is room for {left:,} of anybody's"
