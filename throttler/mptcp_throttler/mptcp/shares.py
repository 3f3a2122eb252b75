"""How much of the room for connections each client has, and who may have more.

Whoever held all of it with connections that do nothing would have those that come next go without a cap. So a client
may have as many connections as there is room left for: one that asks for all gets half, two get a third each, and
*n* of them leave a part of *n* + 1 to others, however many they ask for. A client with few finds room until the last.

What one client is, :mod:`mptcp_common.clients` says. The rule is that of dynamic thresholds for queues that share a
memory (Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). What it costs is the same however many
connections there are.

The rule depends on the order in which connections come, and of those that are older than the daemon nobody knows it.
So they are held to what is true in every order. When the last of the connections of the *k* clients with the most came,
its client had fewer than there was room left for. So what these *k* have together, and the fewest that one of them has
once more, is no more than the room and one: one client has half of it at the most, two have a third each.
"""

from __future__ import annotations

from collections import Counter

from mptcp_common.clients import client_of, client_text


class Shares:
    """Of *room* connections, those that the kernel has."""

    def __init__(self, room: int) -> None:
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
