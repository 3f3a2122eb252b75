"""The tracker's mutable records of connections and subflows, never handed out.

Readers get the frozen :class:`~.model.Connection` and :class:`~.model.Subflow`. These are made on demand and kept until
something changes, so a change that nobody reads costs nothing.
"""

from __future__ import annotations

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow, Subflow


class ConnectionRecord:
    """One connection that the kernel has."""

    __slots__ = ("_snapshot", "holder", "seen_from_start", "since", "subflows", "token")

    def __init__(self, token: int, since: float, seen_from_start: bool, holder: bytes) -> None:
        self.token = token
        self.since = since
        self.seen_from_start = seen_from_start
        self.holder = holder
        """The client whose share it counts against (:class:`~.limits.Shares`)."""
        self.subflows: list[SubflowRecord] = []
        """Oldest first; few, so a list is enough."""
        self._snapshot: Connection | None = None

    def changed(self) -> None:
        self._snapshot = None

    def snapshot(self) -> Connection:
        if self._snapshot is None:
            subflows = tuple(subflow.snapshot() for subflow in self.subflows)
            self._snapshot = Connection(self.token, subflows, self.since, self.seen_from_start)
        return self._snapshot


class SubflowRecord:
    """One subflow that the kernel has."""

    __slots__ = (
        "_snapshot",
        "backup",
        "connection",
        "four_tuple",
        "initial",
        "interface",
        "last_seen",
        "listed",
        "local_id",
        "prioritised",
        "remote_id",
        "since",
    )

    def __init__(self, four_tuple: FourTuple, connection: ConnectionRecord, initial: bool, time: float) -> None:
        self.four_tuple = four_tuple
        self.connection = connection
        self.initial = initial
        self.local_id: int | None = 0 if initial else None
        self.remote_id: int | None = 0 if initial else None
        self.backup = False
        self.prioritised = time
        """When the kernel last reported ``backup``."""
        self.interface: str | None = None
        self.since = time
        self.last_seen = time
        self.listed = 0
        """Number of the latest dump that listed it."""
        self._snapshot: Subflow | None = None

    def touch(self, time: float) -> None:
        """Note that the subflow was seen; keep the snapshot."""
        if time > self.last_seen:
            self.last_seen = time

    def agrees_with(self, entry: KernelSubflow) -> bool:
        """Return whether *entry*, a socket of this four-tuple, tells only that the subflow still exists."""
        return (
            self.connection.token == entry.token
            and self.initial is entry.initial
            and self.backup is entry.backup
            and (entry.remote_id is None or entry.remote_id == self.remote_id)
            and (entry.local_id is None or entry.local_id == self.local_id)
        )

    def changed(self) -> None:
        self._snapshot = None
        self.connection.changed()

    def snapshot(self) -> Subflow:
        if self._snapshot is None:
            self._snapshot = Subflow(
                self.four_tuple,
                self.initial,
                self.local_id,
                self.remote_id,
                self.backup,
                self.interface,
                self.since,
            )
        return self._snapshot
