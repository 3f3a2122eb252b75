"""What the daemon knew at the moment when it was asked: what every answer is made from, in a child."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow, SocketDetails
from mptcp_throttler.policy.model import Direction, Policy, Verdict
from mptcp_throttler.shaping.model import ClassCounters
from mptcp_throttler.shaping.plan import Planner
from mptcp_throttler.telemetry.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Sockets:
    """How an answer asks the kernel; what it refuses is missing from the answer."""

    look_up: Callable[
        [Sequence[FourTuple]], tuple[Mapping[FourTuple, KernelSubflow], Mapping[FourTuple, SocketDetails]]
    ]
    class_counters: Callable[[Direction], Mapping[int, ClassCounters]]


@dataclass(frozen=True, slots=True)
class Known:
    """All of it. Mappings by token are of connections."""

    now: float
    """When the answer is made, seconds since the epoch."""
    ahead: float
    """How many seconds the wall clock is ahead of the monotonic one."""
    policy: Policy
    connections: Mapping[int, Connection]
    verdicts: Mapping[int, tuple[Verdict, ...]]
    download: Planner
    upload: Planner
    relaxed: Callable[[int], str | None]
    """Why the caps of a connection are relaxed; None while they are not."""
    traffic: Traffic
    sockets: Sockets

    def wall(self, time: float) -> float:
        """Return the wall-clock time, seconds since the epoch, of a monotonic *time*."""
        return time + self.ahead
