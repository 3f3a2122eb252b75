# SPDX-License-Identifier: GPL-2.0-or-later
"""How many new connections per second the throttler can track, and what share of a core it uses.

A crowd opens connections with two subflows at a fixed pace to a listener on the proxy's port, without Squid. The client
closes each connection half a second later. No event is lost if the tracker opened each connection and both subflows
exactly once, if a kernel entry was added and removed for each capped subflow, and if no path-manager event and no
segment was dropped. The client counts the connections; the kernel counts their joins.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from mptcp_lab.agent.counters import added_to
from mptcp_lab.agent.processors import process_seconds
from mptcp_lab.testbed import UNSHAPED, Testbed, TestbedError
from mptcp_lab.testbed.model import Topology
from mptcp_lab.testbed.services import start_throttler, wait_until, write_throttler_config

from .columns import Column, Row, Table
from .load_crowd import Crowd, with_crowd

AIM_RATE = 500
"""Connections per second that the throttler must be able to track. Higher rates are shown without an aim."""
PACE = 0.98
"""Minimum share of the requested rate that the client must reach, and of connections with a join."""
LIFETIME = 0.5
"""Seconds from the opening of a connection to its end."""
LINGERING = 11.0
"""Seconds until removals keep pace with additions: an entry is removed ten seconds after its subflow ends."""
FINISHED = 30.0
"""Seconds within which the last entry must be removed."""
PAUSE = 0.5
"""Seconds between two queries whether the last entry is removed. Each query costs the daemon processor time."""
# landing: at-once, because the entry of a soft cap comes up to a second later, when some connections have ended.
POLICY = """\
version: 1
paths:
  first: {subflow: initial}
rules:
  - {name: cap, paths: [first], throttle: {rate: 5 Mbit/s, landing: at-once}}
"""


@dataclass(frozen=True, slots=True)
class Followed:
    """How completely the throttler tracked the connections."""

    rate: float
    """Connections that the client opened per second."""
    joins: float
    """Mean number of joins per connection."""
    opened_less_made: int
    """Number of connections that the tracker opened, minus the number that the client opened."""
    activated_less_made: int
    """Number of subflows that the tracker activated, minus the client's connections and their joins."""
    lost: int
    """Number of connections without an entry, or whose entry was not removed."""
    events_lost: int
    """Number of overflows of the buffer for path-manager events."""
    dropped: int
    """Number of segments that the capture dropped."""
    core: float
    """Processor time of the throttler as a share of one core, in per cent."""


@dataclass(frozen=True, slots=True)
class RateCell:
    """*rate* new connections per second with one netfilter adapter, measured over *seconds*."""

    topology: ClassVar[Topology] = with_crowd(UNSHAPED)
    adapter: str
    rate: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.adapter}, {self.rate} connections/s"

    def measure(self, testbed: Testbed) -> Followed:
        proxy = testbed["proxy"]
        settings = {"netfilter": self.adapter, "verify_interval": 3600, "log_level": "warning"}
        policy = proxy.write("policy.yaml", POLICY)
        throttler = start_throttler(proxy, write_throttler_config(proxy, policy, settings=settings))
        # Connections are closed at the pace, and opened to replace them; a delayed client catches up.
        crowd = Crowd.without_squid(testbed, 2 * self.rate)
        mib = proxy.mib()
        crowd.hold(round(self.rate * LIFETIME))
        crowd.churn(self.rate)
        time.sleep(LINGERING)
        pid, client = throttler.process.pid, crowd.client
        begin, opened, used = time.monotonic(), client.read().opened, process_seconds(pid)
        time.sleep(self.seconds)
        took, opened, used = time.monotonic() - begin, client.read().opened - opened, process_seconds(pid) - used
        crowd.churn(0)
        crowd.hold(0)
        connections = client.read().opened
        joins = added_to(mib, proxy.mib()).get("MPTcpExtMPJoinAckRx", 0)

        def finished() -> bool:
            time.sleep(PAUSE)
            return bool(throttler.status()["counters"]["reconciler"]["entries_deleted"] >= connections)

        with suppress(TestbedError):
            wait_until(finished, "the throttler removes the last entry", timeout=FINISHED)
        counters = throttler.status()["counters"]
        done, tracked, observed = counters["reconciler"], counters["tracker"], counters["observers"]
        return Followed(
            rate=opened / took,
            joins=joins / connections if connections else 0.0,
            opened_less_made=tracked["connections_opened"] - connections,
            activated_less_made=tracked["subflows_activated"] - connections - joins,
            lost=connections - min(done["entries_upserted"], done["entries_deleted"]),
            events_lost=observed["kernel_events_lost"],
            dropped=observed["segments_dropped"],
            core=100 * used / took,
        )


def _up_to_the_aim(row: Row[RateCell, Followed]) -> bool:
    return row.cell.rate <= AIM_RATE


def _none(heading: str, of: str, least: float | None = None) -> Column[RateCell, Followed]:
    return Column(heading, of, least=least, most=0, digits=0, judged=_up_to_the_aim)


TABLE: Table[Any, Followed] = Table(
    "New connections with two subflows",
    [
        Column("opened per second", "rate", least=lambda row: PACE * row.cell.rate, digits=0, judged=_up_to_the_aim),
        Column("joins for each connection", "joins", least=PACE, digits=3, judged=_up_to_the_aim),
        _none("opened by the tracker, less made", "opened_less_made", 0),
        _none("subflows activated, less made", "activated_less_made", 0),
        _none("connections without entry, or whose entry stayed", "lost", 0),
        _none("path-manager events lost", "events_lost"),
        _none("segments dropped", "dropped"),
        Column("share of one core", "core", most=100, digits=1, unit=" %", judged=_up_to_the_aim),
    ],
    of=lambda row: isinstance(row.cell, RateCell),
    beside=True,
)
