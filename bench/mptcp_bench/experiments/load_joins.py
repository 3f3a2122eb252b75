# SPDX-License-Identifier: GPL-2.0-or-later
"""How soon a joining subflow is capped: from the MP_JOIN's third ACK on the wire to the first packet under its cap.

This is measured from outside the daemon (``join_probe``). The proxy's end sends continuously, so that the first packet
under the cap mostly follows the entry within a fraction of a millisecond, and the bytes that passed unthrottled until
then are real. 200 connections follow one another. The second subflow joins in the first round trips; of every fourth
connection it joins in mid-transfer, when the link is full. Anticipation is off, because with it the entry of a
connection that is expected to get a second subflow would exist before the join.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Self

from mptcp_lab.testbed import TWO_PATHS, Testbed, TestbedError
from mptcp_lab.testbed.commands import undone_on_error
from mptcp_lab.testbed.services import PROXY_PORT, start_throttler, write_throttler_config

from ..statistics import percentile
from .columns import Column, Table
from .join_client import LATE_EVERY, LISTENS_SECONDS

LATE_MS = 200.0
"""If a connection is older than this at the join, its transfer is well under way."""
AIM_P99_MS = 5.0
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
    """The reactions to many joins: numbers of connections, and milliseconds."""

    joined: int
    in_mid_transfer: int
    capped: int
    """Those that were capped after the join."""
    capped_before: int
    median: float
    p99: float
    greatest: float
    passed: float
    """Bytes that passed unthrottled after the join, the 99th percentile of connections in mid-transfer."""

    @classmethod
    def of(cls, samples: Sequence[Mapping[str, float]]) -> Self:
        """Summarise the samples of ``join_probe``. The delay of a join without a cap is infinite."""
        delays = [sample["delay_ms"] for sample in samples]
        late = [sample for sample in samples if sample["age_ms"] > LATE_MS]
        return cls(
            joined=len(samples),
            in_mid_transfer=len(late),
            capped=sum(0 <= delay < inf for delay in delays),
            capped_before=sum(delay < 0 for delay in delays),
            median=percentile(delays, 50, default=inf),
            p99=percentile(delays, 99, default=inf),
            greatest=percentile(delays, 100, default=inf),
            passed=percentile([sample["bytes"] for sample in late], 99, default=inf),
        )


@dataclass(frozen=True, slots=True)
class JoinsCell:
    """Joins with one netfilter adapter, while the throttler has nothing else to do."""

    adapter: str
    count: int

    def __str__(self) -> str:
        return self.adapter

    @contextmanager
    def bed(self, seed: int) -> Iterator[Testbed]:
        with Testbed(TWO_PATHS) as testbed:
            proxy = testbed["proxy"]
            policy = proxy.write("policy.yaml", POLICY)
            start_throttler(proxy, write_throttler_config(proxy, policy, settings={"netfilter": self.adapter}))
            yield testbed

    def measure(self, bed: Testbed, variant: str) -> Reactions:
        return Reactions.of(probed(bed, self.count))


def probed(testbed: Testbed, count: int, port: int = PROXY_PORT) -> list[dict[str, float]]:
    """Return a sample of each connection to the free *port*. A throttler must be running."""
    proxy, client = testbed["proxy"], testbed["client"]
    output = testbed.directory / "samples.json"
    program = [sys.executable, "-I", "-m"]
    asked = [str(count), str(output), str(port), client.address("eth0")]
    probe = proxy.popen([*program, f"{__package__}.join_probe", *asked], name="probe")
    ends = [proxy.address("wan0"), str(port), str(count), client.address("wlan0")]
    # After an error, kill the probe and its process that listens, to free the port for the next probe.
    with undone_on_error(probe.kill_tree):
        client.run([*program, f"{__package__}.join_client", *ends], timeout=count + LISTENS_SECONDS + 60)
        if probe.wait(60) != 0:
            raise TestbedError(f"the probe failed{probe.tail()}")
    samples: list[dict[str, float]] = json.loads(output.read_text())
    return samples


TABLE: Table[Any, Reactions] = Table(
    "Reaction: from a join's third ACK to the first packet under the cap",
    [
        Column("connections that were joined", "joined", least=lambda row: row.cell.count, digits=0),
        Column(
            "of these, in mid-transfer", "in_mid_transfer", least=lambda row: row.cell.count // LATE_EVERY, digits=0
        ),
        Column("of these, capped afterwards", "capped", least=lambda row: row.cell.count, digits=0),
        Column("of these, capped before", "capped_before", most=0, digits=0),
        Column("median ms", "median"),
        Column("p99 ms", "p99", aim="third ACK to the first packet under the cap, p99", unit=" ms", most=AIM_P99_MS),
        Column("greatest ms", "greatest"),
        Column("bytes passed in mid-transfer, p99", "passed", digits=0),
    ],
    of=lambda row: isinstance(row.cell, JoinsCell),
    beside=True,
)
