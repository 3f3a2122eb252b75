"""What one daemon keeps for those who ask, and who tells it what: decisions, entries in the kernel, joins."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from mptcp_throttler.mptcp.model import Connection, FourTuple
from mptcp_throttler.policy.model import Direction, Policy
from mptcp_throttler.runtime.decisions import Listener
from mptcp_throttler.shaping.plan import Planner
from mptcp_throttler.telemetry.chronicle import Chronicle
from mptcp_throttler.telemetry.clients import Clients
from mptcp_throttler.telemetry.latency import CapLatency, JoinLatency
from mptcp_throttler.telemetry.traffic import Traffic


class Telemetry:
    """Of one daemon."""

    def __init__(
        self,
        connections: Mapping[int, Connection],
        download: Planner,
        upload: Planner,
        sweep_seconds: Callable[[], float],
    ) -> None:
        """*connections* is the tracker's live view by token; the planners tell of their entries from now on.

        *sweep_seconds* returns for how long the last sweep worked.
        """
        self._connections = connections
        self._download = download
        self._dry_run = False
        self.traffic = Traffic(time.monotonic, sweep_seconds, self._is_dry)
        self.clients = Clients()
        self.join_latency = JoinLatency()
        self.cap_latency = CapLatency(time.monotonic, (download, upload))
        self.chronicle = Chronicle(self.traffic)
        download.told = partial(self._entries, Direction.DOWN)
        upload.told = partial(self._entries, Direction.UP)

    def set_policy(self, policy: Policy) -> None:
        """*policy* is in force; decisions by it follow."""
        self._dry_run = policy.dry_run

    @property
    def capped(self) -> int:
        """How many subflows have a cap. More have an entry in the kernel: ended ones, and some that have no cap."""
        return 0 if self._is_dry() else self.traffic.capped

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """Who hears of each decision."""
        return self.traffic.decided, self.clients.decided, self.chronicle.decided

    def joined(self, four_tuple: FourTuple, captured: float) -> None:
        """The last packet of a join was captured: the kernel's entries that it brings about are timed."""
        known = self.traffic.standing(four_tuple, Direction.DOWN)
        connection = None if known is None else self._connections.get(known[0])
        # One of very many joins at a time is not decided yet: it alone is timed.
        subflows = [four_tuple] if connection is None else [each.four_tuple for each in connection.subflows]
        self.join_latency.joined(captured, subflows, self._download.entries.upserts)

    def _is_dry(self) -> bool:
        return self._dry_run

    def _entries(self, direction: Direction, four_tuples: Collection[FourTuple], there: bool) -> None:
        now = time.time()
        if there and direction is Direction.DOWN:
            self.join_latency.applied(four_tuples, now)
        self.chronicle.entries(direction, four_tuples, there, now)
