"""A mapping ordered by time, oldest first: expiry costs O(1) per expired entry."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from mptcp_throttler.mptcp.records import ConnectionRecord

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TimedTable(Generic[K, V]):
    """Keys to values, oldest first.

    Times of different interfaces and of kernel events arrive slightly out of order. To keep the order, an entry gets
    the latest time seen so far if that is later than its own.
    """

    __slots__ = ("_entries", "_latest")

    def __init__(self) -> None:
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._latest = float("-inf")

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def put(self, key: K, value: V, time: float) -> None:
        """Enter *key*, or move it to the end."""
        if time > self._latest:
            self._latest = time
        self._entries[key] = (self._latest, value)
        self._entries.move_to_end(key)

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def pop(self, key: K) -> V | None:
        entry = self._entries.pop(key, None)
        return None if entry is None else entry[1]

    def pop_oldest(self) -> V:
        return self._entries.popitem(last=False)[1][1]

    def pop_until(self, time: float) -> Iterator[V]:
        """Remove and yield every entry stamped at or before *time*. Entries may be put and popped between steps."""
        entries = self._entries
        while entries:
            key = next(iter(entries))
            stamp, value = entries[key]
            if stamp > time:
                return
            del entries[key]
            yield value

    def drop_until(self, time: float) -> int:
        """Remove every entry stamped at or before *time*; return how many."""
        return sum(1 for _ in self.pop_until(time))


class IdleConnections(TimedTable[int, ConnectionRecord]):
    """Connections without a subflow, which wait for a join: by token, oldest first, and counted per client."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[bytes, dict[int, ConnectionRecord]] = {}
        """By holder."""

    def number_of(self, client: bytes) -> int:
        """Return how many of these connections *client* has."""
        return len(self._of.get(client, ()))

    def oldest_of(self, client: bytes) -> ConnectionRecord:
        """Return the longest-waiting connection of *client*, which must have one."""
        return next(iter(self._of[client].values()))

    def put(self, key: int, value: ConnectionRecord, time: float) -> None:
        super().put(key, value, time)
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
        others = self._of[connection.holder]
        del others[connection.token]
        if not others:
            del self._of[connection.holder]
