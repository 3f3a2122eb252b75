# SPDX-License-Identifier: GPL-2.0-or-later
"""How soon a joining subflow is capped: from the MP_JOIN's third ACK on the wire to the first packet under its cap.

A program outside the daemon measures this time (``join_probe``). The proxy's end sends continuously, so that the first
packet under the cap usually follows the entry within a fraction of a millisecond. 200 connections follow one another,
and a second subflow joins each of them in the first round trips. Anticipation is off: with anticipation, the entry of a
connection that is expected to get a second subflow would exist before the join.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Self

from mptcp_lab.testbed import TWO_PATHS, Testbed, TestbedError
from mptcp_lab.testbed.commands import undone_on_error
from mptcp_lab.testbed.model import Topology
from mptcp_lab.testbed.services import PROXY_PORT, accepts, start_throttler, wait_until, write_throttler_config

from ..statistics import percentile
from .columns import Column, Table

LISTENS_SECONDS = 60.0
"""Seconds within which the probe must listen. On a busy machine its start takes more than ten seconds."""
AIM_P99_MS = 5.0
"""Maximum of the reaction's 99th percentile, in milliseconds."""
POLICY = """\
version: 1
anticipate: false
paths:
  ethernet: {clients: [10.77.1.0/24]}
rules:
  - {name: cap, paths: [ethernet], throttle: {rate: 5 Mbit/s, landing: at-once}}
"""


@dataclass(frozen=True, slots=True)
class Reactions:
    """The reactions to many joins: numbers of connections, and delays in milliseconds."""

    joined: int
    """Number of connections that a second subflow joined."""
    capped: int
    """Number of these connections that were capped after the join."""
    capped_before: int
    """Number of these connections that were capped before the join."""
    median: float
    p99: float
    greatest: float

    @classmethod
    def of(cls, delays: Sequence[float]) -> Self:
        """Summarise the delays of ``join_probe``. The delay of a join without a cap is infinity."""
        return cls(
            joined=len(delays),
            capped=sum(0 <= delay < inf for delay in delays),
            capped_before=sum(delay < 0 for delay in delays),
            median=percentile(delays, 50, default=inf),
            p99=percentile(delays, 99, default=inf),
            greatest=percentile(delays, 100, default=inf),
        )


@dataclass(frozen=True, slots=True)
class JoinsCell:
    """Joins with one netfilter adapter, while the throttler has no other load."""

    topology: ClassVar[Topology] = TWO_PATHS
    adapter: str
    count: int

    def __str__(self) -> str:
        return self.adapter

    def measure(self, testbed: Testbed) -> Reactions:
        proxy = testbed["proxy"]
        policy = proxy.write("policy.yaml", POLICY)
        start_throttler(proxy, write_throttler_config(proxy, policy, settings={"netfilter": self.adapter}))
        return reactions(testbed, self.count)


def reactions(testbed: Testbed, count: int, port: int = PROXY_PORT) -> Reactions:
    """Return the reactions to *count* joins of connections to the free *port*. A throttler must be running."""
    proxy, client = testbed["proxy"], testbed["client"]
    output, address = testbed.directory / "delays.json", proxy.address("wan0")
    program = [sys.executable, "-I", "-m", f"{__package__}.join_probe"]
    probe = proxy.popen([*program, "probe", str(port), str(count), client.address("eth0"), str(output)], name="probe")
    # After an error, kill the probe and its child process, which listens, to free the port for the next probe.
    with undone_on_error(probe.kill_tree):
        listening = "the probe listens"
        wait_until(lambda: accepts(proxy, address, port), listening, process=probe, timeout=LISTENS_SECONDS)
        client.run([*program, "client", str(port), str(count), address, client.address("wlan0")], timeout=count + 120)
        if probe.wait(60) != 0:
            raise TestbedError(f"the probe failed{probe.tail()}")
    return Reactions.of(json.loads(output.read_text()))


TABLE: Table[Any, Reactions] = Table(
    "Reaction: from a join's third ACK to the first packet under the cap",
    [
        Column("connections that were joined", "joined", least=lambda row: row.cell.count, digits=0),
        Column("of these, capped afterwards", "capped", least=lambda row: row.cell.count, digits=0),
        Column("of these, capped before", "capped_before", most=0, digits=0),
        Column("median ms", "median"),
        Column("p99 ms", "p99", aim="third ACK to the first packet under the cap, p99", unit=" ms", most=AIM_P99_MS),
        Column("greatest ms", "greatest"),
    ],
    of=lambda row: isinstance(row.cell, JoinsCell),
    beside=True,
)
