"""How many clients have connections: kept with every decision, so that a summary goes through no connection."""

from __future__ import annotations

from mptcp_throttler.mptcp.model import Connection
from mptcp_throttler.policy.model import Verdict


class Clients:
    """By the addresses that connections are known by."""

    def __init__(self) -> None:
        self._of: dict[int, bytes] = {}
        """By token."""
        self._connections: dict[bytes, int] = {}
        """How many each client has."""

    def __len__(self) -> int:
        return len(self._connections)

    def decided(
        self,
        token: int,
        connection: Connection | None,
        before: tuple[Verdict, ...],
        after: tuple[Verdict, ...],
        now: float,
    ) -> None:
        """Take that *connection* has changed, or, with None, ended: about each change it is decided anew."""
        del before, after, now
        known = self._of.get(token)
        client = None if connection is None else connection.client
        if client == known:
            return
        if known is not None:
            left = self._connections[known] - 1
            if left:
                self._connections[known] = left
            else:
                del self._connections[known]
            del self._of[token]
        if client is not None:
            self._of[token] = client
            self._connections[client] = self._connections.get(client, 0) + 1
