# SPDX-License-Identifier: GPL-2.0-or-later
"""Predicts joins: young connections are decided as if they had a subflow on a second path. Pure.

A second path is established after three round trips. By then a short download has ended, without the cap of a rule for
two paths. So a young connection on one path is *anticipated* to have two. If its window ends without a second path, it
is decided as it is, and counts as a miss of its client. Below, "second subflow" means one on a second path.

A client is the source address of its connections (all clients behind a NAT count as one). Only its last connections
count. If one of them had a second subflow, later connections are anticipated; if nearly all had a second subflow, for
twice the time of a join. If no second subflow came in time, or several connections ended too early for it, the client
has a single path. Its connections are not anticipated until one has a second subflow, or ``KEPT_SECONDS`` have passed.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from itertools import islice

from mptcp_throttler.mptcp.model import Connection

ANTICIPATED = 2  # number of paths of an anticipated connection
WINDOW_SECONDS = 0.14  # The usual window: a few round trips. A single-path client loses this and its window's growth.
LONG_WINDOW_SECONDS = 1.0  # longest window for a client that nearly always has a second subflow: joins wait for data
LATE_FACTOR = 2.0  # the window of such a client is this multiple of its longest recent join
FEW_CONNECTIONS, MORE_SECONDS = 10, 0.01
"""Each simultaneous connection beyond these few lengthens the window, because handshakes wait for each other."""
NEARLY_ALL, WEIGHT = 0.8, 0.1  # threshold and weight of the weighted share of connections with a second subflow
MISSES = {False: 1.0, True: 2.0}
"""Misses until a client counts as single-path, by whether it ever joined: a busy path delays joins past the window."""
SHORT_MISS = 0.34  # weight of a connection that ended before its window
KEPT_SECONDS = 600.0  # a client without a connection for this long is forgotten
MAX_FORGOTTEN = 256  # maximum clients forgotten per second: removing their initial limits takes 1 to 2 ms
MAX_CLIENTS = 65_536  # maximum addresses remembered; a new address replaces the one that was seen longest ago


@dataclass(slots=True)
class _Client:
    address: bytes
    last: float  # when the client was last seen
    young: int = 0  # number of its connections that are anticipated now
    joins: bool = False
    joined: float = -math.inf  # when a second subflow was last established
    share: float = 1.0  # weighted share of its connections that had a second subflow
    longest: float = 0.0  # longest recent time to join, at most ``LONG_WINDOW_SECONDS``; decays with each faster join
    misses: float = 0.0  # weighted number of connections without a second subflow since the last join

    @property
    def has_single_path(self) -> bool:
        return self.misses >= MISSES[self.joins]

    @property
    def window(self) -> float:
        """Time for which the client's connections are anticipated, in seconds."""
        brings_two = self.joins and self.share >= NEARLY_ALL
        usual = max(WINDOW_SECONDS, LATE_FACTOR * self.longest) if brings_two else WINDOW_SECONDS
        return min(LONG_WINDOW_SECONDS, usual + MORE_SECONDS * max(0, self.young - FEW_CONNECTIONS))


@dataclass(slots=True)
class _Young:
    """A connection that has had one subflow so far."""

    began: float
    known: _Client
    until: float | None = None  # when its window ends; None while it is not anticipated


class JoinPredictor:
    """The clients and their connections. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.clients: dict[bytes, _Client] = {}
        """In the order of ``last``: :meth:`_remember` moves a client to the end."""
        self._connections: dict[int, _Young | None] = {}  # by token; None: no news of its client to expect
        self._flips: dict[bytes, bool] = {}
        self._windows: list[tuple[float, int]] = []  # heap: window end, token

    def take_flips(self) -> dict[bytes, bool]:
        """Return the clients that became single-path (True), or ceased to be (False), since the last call."""
        flips, self._flips = self._flips, {}
        return flips

    def paths(self, connection: Connection, active: int, now: float) -> int:
        """Return the number of paths by which to decide *connection*: the *active* paths, or more."""
        token = connection.token
        if token not in self._connections:
            if not active:
                return active
            self._connections[token] = self._begin(connection, now) if connection.seen_from_start else None
        young = self._connections[token]
        if young is None:
            return active
        if active != 1:
            self._leave(young)
            if active:
                self._joined(young, now)
                self._connections[token] = None
            return active
        if young.until is not None and young.until <= now:
            until = young.began + young.known.window
            if until > now:
                self._anticipate(token, young, until)
            else:
                self._leave(young)
                self._missed(young, 1.0, now)
        return active if young.until is None else ANTICIPATED

    def forget(self, token: int, now: float) -> None:
        young = self._connections.pop(token, None)
        if young is not None and young.until is not None:
            self._leave(young)
            # Simultaneous connections count once: together they give no more information than one.
            if young.began >= young.known.last:
                self._missed(young, SHORT_MISS, now)

    def expire(self, now: float) -> None:
        """Forget at most ``MAX_FORGOTTEN`` clients that were not seen for ``KEPT_SECONDS``, the oldest first."""
        for client, known in list(islice(self.clients.items(), MAX_FORGOTTEN)):
            if now - known.last >= KEPT_SECONDS and not known.young:
                self._drop(client)

    def due(self, now: float) -> list[int]:
        """Return the connections whose window has ended; the caller must decide them again."""
        tokens = []
        while self._windows and self._windows[0][0] <= now:
            until, token = heapq.heappop(self._windows)
            young = self._connections.get(token)
            if young is not None and young.until == until:
                tokens.append(token)
        return tokens

    @property
    def next_due(self) -> float | None:
        """When :meth:`due` may next return something; None while nothing is anticipated."""
        return self._windows[0][0] if self._windows else None

    def _begin(self, connection: Connection, now: float) -> _Young:
        first = next((each for each in connection.subflows if each.initial), connection.subflows[0])
        client = first.four_tuple.remote
        known = self.clients.get(client)
        if known is None:
            known = _Client(client, connection.since)
            self._remember(known, known.last)
        young = _Young(connection.since, known)
        if known.has_single_path:
            self._remember(known, now)
        else:
            known.young += 1
            self._anticipate(connection.token, young, young.began + known.window)
        return young

    def _anticipate(self, token: int, young: _Young, until: float) -> None:
        young.until = until
        heapq.heappush(self._windows, (until, token))

    @staticmethod
    def _leave(young: _Young) -> None:
        if young.until is not None:
            young.until = None
            young.known.young -= 1

    def _joined(self, young: _Young, now: float) -> None:
        known = self.clients.get(young.known.address, young.known)  # the client may have been forgotten since
        if known.has_single_path:
            self._flips[known.address] = False
        known.joins, known.misses, known.joined = True, 0.0, now
        known.longest = max((1 - WEIGHT) * known.longest, min(now - young.began, LONG_WINDOW_SECONDS))
        known.share += WEIGHT * (1 - known.share)
        self._remember(known, now)

    def _missed(self, young: _Young, weight: float, now: float) -> None:
        known = self.clients.get(young.known.address, young.known)
        known.share -= WEIGHT * weight * known.share
        if known.joined <= young.began:  # otherwise another connection has joined since: the path works
            known.misses = min(MISSES[True], known.misses + weight)
        if known.has_single_path:
            self._flips[known.address] = True
        self._remember(known, now)

    def _remember(self, known: _Client, now: float) -> None:
        known.last = now
        self.clients.pop(known.address, None)
        self.clients[known.address] = known
        if len(self.clients) > MAX_CLIENTS:
            self._drop(next(iter(self.clients)))

    def _drop(self, client: bytes) -> None:
        if self.clients.pop(client).has_single_path:
            self._flips[client] = False
