"""Which connections are decided as if they had a subflow on a second path already. Pure: times are arguments.

A rule that asks for two paths would leave alone what a connection sends before the second one stands: three
round trips, in which a short download is over. So a young connection on one path is *anticipated* to have two,
unless its client is known to have a single path. One that has no second path after a while is decided as what it
is, and what is known of its client says so. A second subflow is, below, one on a second path.

A client is the address from which its connections begin. What is known of it comes from its last connections alone:

- a second subflow came: connections to come are anticipated; where nearly all had one, for twice as long as that took;
- none came in time, or several connections ended before one could: the client has a single path, and none of
  its connections is anticipated until one has a second subflow, or until nothing was known of it for ``KEPT_SECONDS``.

Clients behind one address (NAT) are one: where any of them brings a second subflow, all are anticipated.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from itertools import islice

from mptcp_throttler.mptcp.model import Connection

ANTICIPATED = 2
"""Paths with which an anticipated connection is decided."""
WINDOW_SECONDS = 0.14
"""For how long a connection is anticipated: a few round trips, and what a client with a single path loses at the most
but for the time until its congestion window has grown."""
LONG_WINDOW_SECONDS = 1.0
"""The same at the most for a client of which nearly all connections had a second subflow: joins wait behind data."""
LATE_FACTOR = 2.0
"""It is so many times the longest that a join took that client lately."""
LONGEST_WINDOW_SECONDS = 8.0
"""The same while other connections of that client get theirs, within ``LONG_WINDOW_SECONDS``: its second path is
there, and a SYN that was lost is sent again after 1, 3 and 7 seconds."""
RECHECK_SECONDS = 0.5
"""How often that is asked."""
FEW_CONNECTIONS, MORE_SECONDS = 10, 0.01
"""With more connections at a time the window is longer by this for each, for their handshakes wait for each other."""
NEARLY_ALL, WEIGHT = 0.8, 0.1
"""The share of its connections that had a second subflow, as an exponentially weighted mean."""
MISSES = {False: 1.0, True: 2.0}
"""With how many connections without a second subflow a client is taken for one with a single path: by whether it had
brought one before. A busy path may delay a join beyond the window."""
SHORT_MISS = 0.34
"""What a connection counts that ended before its window."""
KEPT_SECONDS = 600.0
"""A client with no connection for so long is unknown."""
MAX_FORGOTTEN = 256
"""Clients that are forgotten at a time, each second: to take them out of the map of what their subflows begin with
holds the loop for a millisecond or two. Where ``MAX_CLIENTS`` came in ten minutes, 109 are to go each second."""
MAX_CLIENTS = 65_536
"""Addresses remembered; the one with the oldest connection gives way."""


@dataclass(slots=True)
class _Client:
    """What is known of a client address."""

    last: float
    """When a connection of it last showed something."""
    young: int = 0
    """Its connections that are anticipated now."""
    joins: bool = False
    """Some connection had a second subflow."""
    joined: float = -math.inf
    """When the last one had."""
    share: float = 1.0
    """Of its connections, those that had one."""
    longest: float = 0.0
    """Seconds until a connection had its second subflow, ``LONG_WINDOW_SECONDS`` at the most: of the last ones the
    longest, which counts less with each one that came sooner."""
    misses: float = 0.0
    """Connections without one since then."""

    @property
    def has_single_path(self) -> bool:
        return self.misses >= MISSES[self.joins]

    def is_forgotten(self, now: float) -> bool:
        """Tell whether it was not seen for long."""
        return now - self.last >= KEPT_SECONDS

    @property
    def brings_two(self) -> bool:
        """Nearly all of its connections had a second subflow."""
        return self.joins and self.share >= NEARLY_ALL

    @property
    def window(self) -> float:
        """For how long a connection of it is anticipated, in seconds."""
        usual = max(WINDOW_SECONDS, LATE_FACTOR * self.longest) if self.brings_two else WINDOW_SECONDS
        return min(LONG_WINDOW_SECONDS, usual + MORE_SECONDS * max(0, self.young - FEW_CONNECTIONS))


@dataclass(slots=True)
class _Young:
    """A connection that has had one subflow so far."""

    client: bytes
    began: float
    known: _Client
    until: float | None
    """When its window ends; None when it is not anticipated, or no longer."""


class Anticipation:
    """The clients, and the connections that have not had a second subflow. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._clients: dict[bytes, _Client] = {}
        """In the order in which they were last seen: who sets that moves them to the end."""
        self._young: dict[int, _Young] = {}
        """By token."""
        self._settled: dict[int, _Young | None] = {}
        """Connections of which nothing more is to be learned; None where their beginning was not seen."""
        self._flips: dict[bytes, bool] = {}
        self._windows: list[tuple[float, int]] = []
        """A heap of when windows end, and the tokens."""

    @property
    def clients(self) -> int:
        """How many addresses are remembered."""
        return len(self._clients)

    def take_flips(self) -> dict[bytes, bool]:
        """Return the clients that came to be known for a single path, or are no longer, since the last time."""
        flips, self._flips = self._flips, {}
        return flips

    def paths(self, connection: Connection, active: int, now: float) -> int:
        """Return with how many paths *connection* is to be decided: the *active* ones that it has, or more."""
        token = connection.token
        if token in self._settled:
            return self._lost(token, self._settled[token], active, now)
        young = self._young.get(token)
        if not active:
            if young is not None:
                self._leave(young)
            return active
        if young is None:
            if not connection.seen_from_start:
                self._settled[token] = None
                return active
            young = self._begin(connection, now)
        if active >= ANTICIPATED:
            self._leave(young)
            self._joined(young, now)
            self._settled[token] = self._young.pop(token)
            return active
        if young.until is not None and young.until <= now:
            until = self._until(young, now, young.known.window)
            if until > now:
                self._anticipate(token, young, until)
            else:
                self._leave(young)
                self._missed(young, 1.0, now)
        return active if young.until is None else ANTICIPATED

    def forget(self, token: int, now: float) -> None:
        """Connection *token* has ended."""
        self._settled.pop(token, None)
        young = self._young.pop(token, None)
        if young is not None and young.until is not None:
            self._leave(young)
            # Of several that ran at a time one counts: together they say no more than one of them.
            if young.began >= young.known.last:
                self._missed(young, SHORT_MISS, now)

    def expire(self, now: float) -> None:
        """Forget clients that were not seen for long, the one first that was seen longest ago; some at a time."""
        gone = []
        for client, known in islice(self._clients.items(), MAX_FORGOTTEN):
            if not known.is_forgotten(now):
                break
            if not known.young:
                gone.append(client)
        for client in gone:
            self._drop(client)

    def due(self, now: float) -> list[int]:
        """Return the connections whose window has ended: they are to be decided anew."""
        tokens = []
        while self._windows and self._windows[0][0] <= now:
            until, token = heapq.heappop(self._windows)
            young = self._young.get(token) or self._settled.get(token)
            if young is not None and young.until == until:
                tokens.append(token)
        return tokens

    @property
    def next_due(self) -> float | None:
        """When :meth:`due` may next have something; None while nothing is anticipated."""
        return self._windows[0][0] if self._windows else None

    def _lost(self, token: int, young: _Young | None, active: int, now: float) -> int:
        """Return with how many paths a connection is decided that had two.

        One that lost a subflow as soon as it had it, as joins over a crowded path do, is anticipated for
        ``LONG_WINDOW_SECONDS`` or longer, if its client brings two.
        """
        if active != 1 or young is None or not young.known.brings_two:
            return active
        if young.until is None or young.until <= now:
            until = self._until(young, now, LONG_WINDOW_SECONDS)
            if until <= now:
                return active
            self._anticipate(token, young, until)
        return ANTICIPATED

    @staticmethod
    def _until(young: _Young, now: float, window: float) -> float:
        """Return when the *window* of a connection ends, as far as is known at *now*."""
        until, known = young.began + window, young.known
        if known.brings_two and now - known.joined < LONG_WINDOW_SECONDS:
            until = max(until, min(now + RECHECK_SECONDS, young.began + LONGEST_WINDOW_SECONDS))
        return until

    def _begin(self, connection: Connection, now: float) -> _Young:
        first = next((each for each in connection.subflows if each.initial), connection.subflows[0])
        client = first.four_tuple.remote
        known = self._clients.get(client)
        if known is not None and known.is_forgotten(now):
            self._drop(client)
            known = None
        if known is None:
            known = _Client(connection.since)
            self._remember(client, known, known.last)
        young = self._young[connection.token] = _Young(client, connection.since, known, None)
        if known.has_single_path:
            self._remember(client, known, now)
        else:
            known.young += 1
            self._anticipate(connection.token, young, young.began + known.window)
        return young

    def _anticipate(self, token: int, young: _Young, until: float) -> None:
        young.until = until
        heapq.heappush(self._windows, (until, token))

    @staticmethod
    def _leave(young: _Young) -> None:
        """The connection is anticipated no longer."""
        if young.until is not None:
            young.until = None
            young.known.young -= 1

    def _joined(self, young: _Young, now: float) -> None:
        known = self._clients.get(young.client, young.known)
        if known.has_single_path:
            self._flips[young.client] = False
        known.joins, known.misses, known.joined = True, 0.0, now
        known.longest = max((1 - WEIGHT) * known.longest, min(now - young.began, LONG_WINDOW_SECONDS))
        known.share += WEIGHT * (1 - known.share)
        self._remember(young.client, known, now)

    def _missed(self, young: _Young, weight: float, now: float) -> None:
        known = self._clients.get(young.client, young.known)
        known.share -= WEIGHT * weight * known.share
        if known.joined <= young.began:  # else another connection's join came meanwhile: the path is there
            known.misses = min(MISSES[True], known.misses + weight)
        if known.has_single_path:
            self._flips[young.client] = True
        self._remember(young.client, known, now)

    def _remember(self, client: bytes, known: _Client, now: float) -> None:
        known.last = now
        self._clients.pop(client, None)
        self._clients[client] = known
        if len(self._clients) > MAX_CLIENTS:
            self._drop(next(iter(self._clients)))

    def _drop(self, client: bytes) -> None:
        if self._clients.pop(client).has_single_path:
            self._flips[client] = False
