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
from .columns import Table, columns_of, figure, of_cell

LISTEN_TIMEOUT = 60.0
"""Seconds within which the probe must listen. On a busy machine its start takes more than ten seconds."""
MAX_P99_MS = 5.0
"""Maximum of the reaction's 99th percentile, in milliseconds."""
POLICY = """\
version: 1
anticipate: false
paths:
  ethernet: {clients: [10.77.1.0/24]}
rules:
  - {name: cap, paths: [ethernet], throttle: {rate: 5 Mbit/s, landing: at-once}}
"""
_ALL_JOINS = of_cell(lambda cell: cell.count)


@dataclass(frozen=True, slots=True)
class Reactions:
    """The reactions to many joins: numbers of connections, and delays in milliseconds."""

    joined: int = figure("connections that were joined", least=_ALL_JOINS, digits=0)
    capped: int = figure("of these, capped afterwards", least=_ALL_JOINS, digits=0)
    capped_before: int = figure("of these, capped before", most=0, digits=0)
    median: float = figure("median ms")
    p99: float = figure("p99 ms", aim="third ACK to the first packet under the cap, p99", unit=" ms", most=MAX_P99_MS)
    greatest: float = figure("greatest ms")

    @classmethod
    def of(cls, delays: Sequence[float]) -> Self:
        """Summarise the delays of ``join_probe``. The delay of a join without a cap is infinity."""
        return cls(
            len(delays),
            sum(0 <= delay < inf for delay in delays),
            sum(delay < 0 for delay in delays),
            *(percentile(delays, percent, default=inf) for percent in (50, 99, 100)),
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
        wait_until(lambda: accepts(proxy, address, port), listening, process=probe, timeout=LISTEN_TIMEOUT)
        client.run([*program, "client", str(port), str(count), address, client.address("wlan0")], timeout=count + 120)
        if probe.wait(60) != 0:
            raise TestbedError(f"the probe failed{probe.tail()}")
    return Reactions.of(json.loads(output.read_text()))


TABLE: Table[Any, Reactions] = Table(
    "Reaction: from a join's third ACK to the first packet under the cap",
    columns_of(Reactions),
    of=lambda row: isinstance(row.cell, JoinsCell),
    beside=True,
)
