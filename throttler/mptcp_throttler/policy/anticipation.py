# SPDX-License-Identifier: GPL-2.0-or-later
"""Predicts joins: decisions on young connections are made as if they had a subflow on a second path.

A second path is established after three round trips. By then a short download has ended, without the cap of a rule for
two paths. So for a short time, its window, a young connection on one path is *anticipated* to have two. If the window
ends without a second subflow (here always on a second path), the decision is repeated, and the client has a miss.

A client is the source address of its connections (all clients behind a NAT count as one). If one of its last
connections had a second subflow, later connections are anticipated; if nearly all had one, for twice the time that a
join takes. If no second subflow came in time, or several connections ended too early for it, the client has a single
path. Its connections are not anticipated until one has a second subflow, or after ``CLIENT_TIMEOUT``.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from itertools import islice

from mptcp_throttler.mptcp.model import Connection

ANTICIPATED_PATHS = 2  # number of paths of an anticipated connection
WINDOW_SECONDS = 0.14  # usual window: a few round trips
LONG_WINDOW_SECONDS = 1.0  # longest window for a client that nearly always has a second subflow: joins wait for data
LATE_JOIN_FACTOR = 2.0  # the window of such a client is this multiple of its longest recent join
PARALLEL_CONNECTIONS, EXTRA_SECONDS = 10, 0.01
"""Each simultaneous connection above this number lengthens the window by this time: handshakes wait for each other."""
HIGH_JOIN_SHARE, SHARE_WEIGHT = 0.8, 0.1  # of ``join_share``: the threshold, and the weight of one connection
MAX_MISSES = {False: 1.0, True: 2.0}
"""Misses until a client counts as single-path, by whether it ever joined: on busy paths, joins may come too late."""
SHORT_MISS_WEIGHT = 0.34  # weight of a connection that ended before its window did
CLIENT_TIMEOUT = 600.0  # a client without a connection for this long is forgotten
MAX_FORGOTTEN = 256  # maximum number of clients forgotten per second: removing their initial options takes 1 to 2 ms
MAX_CLIENTS = 65_536  # maximum number of remembered addresses; a new address replaces the least recently seen


@dataclass(slots=True)
class _Client:
    address: bytes
    last_seen: float
    young_connections: int = 0  # number of its connections that are anticipated now
    has_joined: bool = False
    last_join: float = -math.inf  # when a second subflow was last established
    join_share: float = 1.0  # weighted share of its connections that had a second subflow
    longest_join: float = 0.0  # longest recent time to join, up to ``LONG_WINDOW_SECONDS``; each faster join lowers it
    misses: float = 0.0  # weighted number of connections without a second subflow since the last join

    @property
    def has_single_path(self) -> bool:
        return self.misses >= MAX_MISSES[self.has_joined]

    @property
    def window(self) -> float:
        """Time for which the client's connections are anticipated, in seconds."""
        joins_often = self.has_joined and self.join_share >= HIGH_JOIN_SHARE
        usual = max(WINDOW_SECONDS, LATE_JOIN_FACTOR * self.longest_join) if joins_often else WINDOW_SECONDS
        return min(LONG_WINDOW_SECONDS, usual + EXTRA_SECONDS * max(0, self.young_connections - PARALLEL_CONNECTIONS))


@dataclass(slots=True)
class _YoungConnection:
    """A connection that has had one subflow so far."""

    began: float
    client: _Client
    window_end: float | None = None  # when its window ends; None while it is not anticipated


class JoinPredictor:
    """The clients and their connections. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.clients: dict[bytes, _Client] = {}
        """In the order of ``last_seen``: :meth:`_remember` moves a client to the end."""
        self._connections: dict[int, _YoungConnection | None] = {}  # by token; None: not, or no longer, young
        self._changed_clients: dict[bytes, bool] = {}
        self._windows: list[tuple[float, int]] = []  # heap: window end, token

    def take_changed_clients(self) -> dict[bytes, bool]:
        """Return the clients that became single-path (True), or ceased to be (False), since the last call."""
        changed, self._changed_clients = self._changed_clients, {}
        return changed

    def expected_paths(self, connection: Connection, active: int, now: float) -> int:
        """Return the number of paths for the decisions on *connection*. *active*: its number of active paths."""
        token = connection.token
        if token not in self._connections:
            if not active:
                return active
            self._connections[token] = self._begin(connection, now) if connection.seen_from_start else None
        young = self._connections[token]
        if young is None:
            return active
        if active != 1:
            self._end_window(young)
            if active:
                self._record_join(young, now)
                self._connections[token] = None
            return active
        if young.window_end is not None and young.window_end <= now:
            window_end = young.began + young.client.window
            if window_end > now:
                self._anticipate(token, young, window_end)
            else:
                self._end_window(young)
                self._record_miss(young, 1.0, now)
        return active if young.window_end is None else ANTICIPATED_PATHS

    def forget(self, token: int, now: float) -> None:
        young = self._connections.pop(token, None)
        if young is not None and young.window_end is not None:
            self._end_window(young)
            # Simultaneous connections count once: together they give no more information than one.
            if young.began >= young.client.last_seen:
                self._record_miss(young, SHORT_MISS_WEIGHT, now)

    def expire(self, now: float) -> None:
        """Forget at most ``MAX_FORGOTTEN`` clients not seen for ``CLIENT_TIMEOUT``, the least recently seen first."""
        for address, client in list(islice(self.clients.items(), MAX_FORGOTTEN)):
            if now - client.last_seen >= CLIENT_TIMEOUT and not client.young_connections:
                self._drop(address)

    def take_due(self, now: float) -> list[int]:
        """Return the tokens of connections whose window has ended: the caller must repeat the decisions on them."""
        tokens = []
        while self._windows and self._windows[0][0] <= now:
            window_end, token = heapq.heappop(self._windows)
            young = self._connections.get(token)
            if young is not None and young.window_end == window_end:
                tokens.append(token)
        return tokens

    @property
    def next_window_end(self) -> float | None:
        """When :meth:`take_due` may next return a connection; None while no connection is anticipated."""
        return self._windows[0][0] if self._windows else None

    def _begin(self, connection: Connection, now: float) -> _YoungConnection:
        first = next((each for each in connection.subflows if each.initial), connection.subflows[0])
        address = first.four_tuple.remote
        client = self.clients.get(address)
        if client is None:
            client = _Client(address, connection.since)
            self._remember(client, client.last_seen)
        young = _YoungConnection(connection.since, client)
        if client.has_single_path:
            self._remember(client, now)
        else:
            client.young_connections += 1
            self._anticipate(connection.token, young, young.began + client.window)
        return young

    def _anticipate(self, token: int, young: _YoungConnection, window_end: float) -> None:
        young.window_end = window_end
        heapq.heappush(self._windows, (window_end, token))

    @staticmethod
    def _end_window(young: _YoungConnection) -> None:
        if young.window_end is not None:
            young.window_end = None
            young.client.young_connections -= 1

    def _record_join(self, young: _YoungConnection, now: float) -> None:
        client = self.clients.get(young.client.address, young.client)  # the client may have been forgotten since
        if client.has_single_path:
            self._changed_clients[client.address] = False
        client.has_joined, client.misses, client.last_join = True, 0.0, now
        client.longest_join = max((1 - SHARE_WEIGHT) * client.longest_join, min(now - young.began, LONG_WINDOW_SECONDS))
        client.join_share += SHARE_WEIGHT * (1 - client.join_share)
        self._remember(client, now)

    def _record_miss(self, young: _YoungConnection, weight: float, now: float) -> None:
        client = self.clients.get(young.client.address, young.client)
        client.join_share -= SHARE_WEIGHT * weight * client.join_share
        if client.last_join <= young.began:  # otherwise another connection has joined since: the path works
            client.misses = min(MAX_MISSES[True], client.misses + weight)
        if client.has_single_path:
            self._changed_clients[client.address] = True
        self._remember(client, now)

    def _remember(self, client: _Client, now: float) -> None:
        client.last_seen = now
        self.clients.pop(client.address, None)
        self.clients[client.address] = client
        if len(self.clients) > MAX_CLIENTS:
            self._drop(next(iter(self.clients)))

    def _drop(self, address: bytes) -> None:
        if self.clients.pop(address).has_single_path:
            self._changed_clients[address] = False
