# SPDX-License-Identifier: GPL-2.0-or-later
"""The state of the daemon at the time of a request: the source of every answer, in a child process.

A child must not use the daemon's sockets, because it would read data meant for the daemon; so it queries the kernel
through its own sockets. If the kernel refuses a query, this is logged, and the answer lacks the data.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from mptcp_common import __version__
from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.ports import KernelSockets
from mptcp_throttler.mptcp.model import Connection, FourTuple, Sockets, Subflow
from mptcp_throttler.policy.model import Direction
from mptcp_throttler.policy.verdict import Verdict
from mptcp_throttler.runtime.budgets import Budgets, ClosedSockets
from mptcp_throttler.runtime.drift import DriftMonitor
from mptcp_throttler.runtime.engine import Engine
from mptcp_throttler.runtime.event_loop import LoopDelayMeter
from mptcp_throttler.runtime.observe import Observers
from mptcp_throttler.shaping.model import ClassCounters
from mptcp_throttler.views.answers import SCHEMA, Answer, ReloadCounts, TunnelName

log = logging.getLogger(__name__)


class Snapshot:
    """The parts of the daemon; they do not change while an answer is built."""

    def __init__(
        self,
        pid: int,
        engine: Engine,
        budgets: Budgets,
        closed_sockets: ClosedSockets,
        reloads: ReloadCounts,
        drift: DriftMonitor,
        loop_delay: LoopDelayMeter,
        observers: Observers,
    ) -> None:
        self.engine, self.budgets, self.closed_sockets, self.reloads = engine, budgets, closed_sockets, reloads
        self.drift, self.loop_delay, self.observers = drift, loop_delay, observers
        self.now = time.time()  # seconds since the epoch
        self.common_keys: Answer = {"schema": SCHEMA, "time": self.now, "version": __version__, "pid": pid}
        self.settings, self.connections = engine.settings, engine.tracker.connections
        self.policy, self.is_dry = engine.decisions.policy, engine.decisions.is_dry
        self.policy_load_time = self.to_wall_clock(engine.policy_since)  # seconds since the epoch
        self.planners = engine.downloads.planner, engine.uploads.planner

    def to_wall_clock(self, time: float) -> float:
        """Convert a monotonic *time* to seconds since the epoch."""
        return time + self.engine.clock_offset

    def tunnel_name(self, connection: Connection) -> TunnelName:
        """Return the name of the connection's tunnel for an answer; empty if the connection is not a tunnel."""
        if not connection.is_tunnel:
            return {}
        paths = (self.engine.tunnels.table.paths.get(each.four_tuple) for each in connection.subflows)
        return {"tunnel": next((path.tunnel for path in paths if path is not None), "")}

    def verdicts(self, token: int) -> tuple[Verdict, ...]:
        return self.engine.decisions.verdicts.get(token, ())

    def applied_verdicts(self, token: int) -> tuple[Verdict, ...]:
        return self.engine.decisions.applied_verdicts(self.verdicts(token))

    def connections_with(self, endpoint: tuple[bytes, int]) -> list[tuple[Connection, Subflow]]:
        """Return each subflow whose client end is *endpoint* (address and port), with its connection. Clients behind a
        NAT may have the same endpoint if they connect to different addresses or ports of this host."""
        pairs = ((each, subflow) for each in self.connections.values() for subflow in each.subflows)
        return [(each, subflow) for each, subflow in pairs if subflow.four_tuple[2:] == endpoint]

    def latest_samples(self) -> Sockets:
        """Return the samples of the last sweep, or of a new sweep if the last one is old."""
        sampler = self.engine.sampler
        if not sampler.is_current():
            try:
                return {each.four_tuple: each for batch in self._sockets().batches() for each in batch}
            except (KernelError, OSError) as error:
                log.error("%s; the answer has older byte counts", error)
        return sampler.latest

    def look_up(self, four_tuples: Sequence[FourTuple]) -> Sockets:
        """Return the current state of these sockets from the kernel."""
        try:
            return self._sockets().look_up(four_tuples)
        except (KernelError, OSError) as error:
            log.error("%s; the answer lacks socket data", error)
            return {}

    def _sockets(self) -> KernelSockets:
        return self.engine.tunnels.add_paths(self.engine.kernel.sockets(self.settings))

    def class_counters(self, direction: Direction) -> Mapping[int, ClassCounters]:
        """Return the counters of the classes of one direction, by minor number."""
        try:
            return self.engine.kernel.class_counters(self.settings, direction)
        except (KernelError, OSError) as error:
            log.error("%s; the answer lacks class counters", error)
            return {}


def split_by_direction(verdicts: Iterable[Verdict]) -> tuple[dict[FourTuple, Verdict], dict[FourTuple, Verdict]]:
    """Return the verdicts on downloads and on uploads, each by subflow."""
    down: dict[FourTuple, Verdict] = {}
    up: dict[FourTuple, Verdict] = {}
    for verdict in verdicts:
        (down if verdict.direction is Direction.DOWN else up)[verdict.four_tuple] = verdict
    return down, up
