"""Open connections without a live subflow, which wait for a join to find them, and how many of them each client has."""

from __future__ import annotations

from collections.abc import Iterator

from mptcp_throttler.mptcp.records import ConnectionRecord
from mptcp_throttler.mptcp.timed_table import TimedTable


class Lingering(TimedTable[int, ConnectionRecord]):
    """By token, oldest first. A connection's holder stays the same while it is here."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[bytes, dict[int, ConnectionRecord]] = {}
        """By holder."""

    def number_of(self, client: bytes) -> int:
        """Return how many connections that count for *client* are here."""
        return len(self._of.get(client, ()))

    def oldest_of(self, client: bytes) -> ConnectionRecord:
        """Return the one of *client* that is here the longest; there must be one."""
        return next(iter(self._of[client].values()))

    def put(self, key: int, value: ConnectionRecord, time: float) -> None:
        super().put(key, value, time)
        if value.holder is not None:
            self._leave(value)
            self._of.setdefault(value.holder, {})[key] = value

    def pop(self, key: int) -> ConnectionRecord | None:
        connection = super().pop(key)
        if connection is not None:
            self._leave(connection)
        return connection

    def pop_until(self, time: float) -> Iterator[ConnectionRecord]:
        for connection in super().pop_until(time):
            self._leave(connection)
            yield connection

    def _leave(self, connection: ConnectionRecord) -> None:
        holder = connection.holder
        if holder is None or (others := self._of.get(holder)) is None:
            return
        others.pop(connection.token, None)
        if not others:
            del self._of[holder]
