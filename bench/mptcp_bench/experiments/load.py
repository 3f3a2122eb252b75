# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler's behaviour under load, and its cost.

- *joins*: how soon a joining subflow is capped, while the throttler has no other load;
- *rate*: how many new connections per second the throttler can track, and the share of a core that it uses;
- *held*: reload, status, memory, reaction and processor time with up to 10,000 open tunnels, and the effect of the
  console on these figures.

For *joins*, a program outside the daemon measures the time from the MP_JOIN's third ACK on the wire to the first packet
under the cap (``join_probe``). The proxy's end sends continuously, so that this packet usually follows the entry within
a fraction of a millisecond. A second subflow joins each connection in the first round trips. Anticipation is off: with
it, the entry of a connection that is expected to get a second subflow would exist before the join.

For *rate*, a crowd opens connections with two subflows at a fixed pace to a listener on the proxy's port, without
Squid. The client closes each connection half a second later. No event is lost if the tracker opened each connection and
both subflows exactly once, if a kernel entry was added and removed for each capped subflow, and if no path-manager
event and no segment was dropped. The client counts the connections; the kernel counts their joins.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from mptcp_lab.agent.counters import increments
from mptcp_lab.agent.processors import process_seconds
from mptcp_lab.testbed import TWO_PATHS, UNSHAPED, Testbed, TestbedError
from mptcp_lab.testbed.model import Topology
from mptcp_lab.testbed.services import start_throttler, wait_until, write_throttler_config

from .columns import CELL, Table, columns_of, figure, of_cell
from .load_crowd import Crowd, Reactions, reactions, with_crowd
from .load_held import Held, HeldCell
from .parameters import choices, number, parameter, several, whole
from .scenario import Scenario
from .setup import BACKENDS, lacking

MIN_RATE = 500
"""Connections per second that the throttler must be able to track. Higher rates are shown without an aim."""
MIN_SHARE = 0.98
"""Minimum share of the requested rate that the client must reach, and of connections with a join."""
LIFETIME_SECONDS = 0.5
"""Seconds from the opening of a connection to its end."""
WARM_UP_SECONDS = 11.0
"""Seconds until removals keep pace with additions: an entry is removed ten seconds after its subflow ends."""
FINISH_TIMEOUT, QUERY_INTERVAL = 30.0, 0.5
"""Seconds within which the last entry must be removed, and seconds between two queries for this."""
# The landing is at-once, because a soft cap's entry is added up to a second later, when some connections have ended.
RATE_POLICY = """\
version: 1
paths:
  first: {subflow: initial}
rules:
  - {name: cap, paths: [first], throttle: {rate: 5 Mbit/s, landing: at-once}}
"""


def _figure(heading: str, **column: Any) -> Any:
    """Return a field with an aim at rates that the throttler must be able to track."""
    return figure(heading, **{"digits": 0, **column}, judged=lambda row: row.cell.rate <= MIN_RATE)


@dataclass(frozen=True, slots=True)
class RateResult:
    """How completely the throttler tracked the connections."""

    rate: float = _figure("connections opened per second", least=of_cell(lambda cell: MIN_SHARE * cell.rate))
    joins: float = _figure("joins per connection", least=MIN_SHARE, digits=3)
    opened_minus_actual: int = _figure("connections opened by the tracker - by the client", least=0, most=0)
    activated_minus_actual: int = _figure("subflows activated by the tracker - by the client", least=0, most=0)
    lost: int = _figure("connections without entry, or whose entry was not removed", least=0, most=0)
    events_lost: int = _figure("path-manager events lost", most=0)
    dropped: int = _figure("segments dropped", most=0)
    core: float = _figure("share of one core", most=100, digits=1, unit=" %")


@dataclass(frozen=True, slots=True)
class RateCell:
    """*rate* new connections per second with one netfilter adapter, measured over *seconds*."""

    topology: ClassVar[Topology] = with_crowd(UNSHAPED)
    adapter: str
    rate: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.adapter}, {self.rate} connections/s"

    def measure(self, testbed: Testbed) -> RateResult:
        proxy = testbed["proxy"]
        settings = {"netfilter": self.adapter, "verify_interval": 3600, "log_level": "warning"}
        policy = proxy.write("policy.yaml", RATE_POLICY)
        throttler = start_throttler(proxy, write_throttler_config(proxy, policy, settings=settings))
        # Connections are closed at the pace, and opened to replace them; a delayed client catches up.
        open_at_once = round(self.rate * LIFETIME_SECONDS)
        crowd = Crowd.start(testbed, rate=2 * self.rate, squid=False)
        mib = proxy.mib()
        crowd.keep_open(open_at_once)
        crowd.replace_per_second(self.rate)
        time.sleep(WARM_UP_SECONDS)
        pid, client = throttler.process.pid, crowd.client
        begin, opened, processor_seconds = time.monotonic(), client.read().opened, process_seconds(pid)
        time.sleep(self.seconds)
        duration, opened = time.monotonic() - begin, client.read().opened - opened
        processor_seconds = process_seconds(pid) - processor_seconds
        crowd.replace_per_second(0)
        crowd.keep_open(0)
        connections = client.read().opened
        joins = increments(mib, proxy.mib()).get("MPTcpExtMPJoinAckRx", 0)

        def finished() -> bool:
            time.sleep(QUERY_INTERVAL)
            return bool(throttler.status()["counters"]["reconciler"]["entries_deleted"] >= connections)

        with suppress(TestbedError):
            wait_until(finished, "the throttler removes the last entry", timeout=FINISH_TIMEOUT)
        counters = throttler.status()["counters"]
        reconciler, tracker, observers = counters["reconciler"], counters["tracker"], counters["observers"]
        return RateResult(
            rate=opened / duration,
            joins=joins / connections if connections else 0.0,
            opened_minus_actual=tracker["connections_opened"] - connections,
            activated_minus_actual=tracker["subflows_activated"] - connections - joins,
            lost=connections - min(reconciler["entries_upserted"], reconciler["entries_deleted"]),
            events_lost=observers["kernel_events_lost"],
            dropped=observers["segments_dropped"],
            core=100 * processor_seconds / duration,
        )


JOINS_POLICY = """\
version: 1
anticipate: false
paths:
  ethernet: {clients: [10.77.1.0/24]}
rules:
  - {name: cap, paths: [ethernet], throttle: {rate: 5 Mbit/s, landing: at-once}}
"""


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
        policy = proxy.write("policy.yaml", JOINS_POLICY)
        start_throttler(proxy, write_throttler_config(proxy, policy, settings={"netfilter": self.adapter}))
        return reactions(testbed, self.count)


PARTS = ("joins", "rate", "held")
Cell = JoinsCell | RateCell | HeldCell


@dataclass(frozen=True, slots=True)
class Settings:
    part: tuple[str, ...] = choices("parts to measure", PARTS)
    netfilter: tuple[str, ...] = choices("netfilter adapters (parts joins and rate)", BACKENDS)
    n: tuple[int, ...] = parameter("numbers of open tunnels", "100,1000,10000", several(whole()), quick="20,200")
    rate: tuple[int, ...] = parameter("new connections per second", "250,500,750,1000", several(whole()), quick="500")
    seconds: float = parameter(
        "seconds for which processor time and the loop's lag are measured", "30", number(), quick="5"
    )
    reactions: int = parameter("number of joins per measurement (half while polled)", "200", whole(4), quick="20")


def cells(chosen: Settings) -> list[Cell]:
    adapters = chosen.netfilter
    by_part: dict[str, list[Cell]] = {
        "joins": [JoinsCell(adapter, chosen.reactions) for adapter in adapters],
        "rate": [RateCell(adapter, rate, chosen.seconds) for adapter in adapters for rate in chosen.rate],
        "held": [HeldCell(tunnels, chosen.seconds, chosen.reactions) for tunnels in chosen.n],
    }
    return [cell for part in chosen.part for cell in by_part[part]]


def _table(title: str, cell: type, measured: type) -> Table[Any, Any]:
    return Table(title, columns_of(measured), (CELL,), of=lambda row: isinstance(row.cell, cell), transposed=True)


SCENARIO: Scenario[Settings, Cell, Testbed, Any] = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "htb", "tbf", "ipset", "iptables-legacy", "squid", "ss", "gcc", "curl"),
    cells=cells,
    skip_reason=lambda cell: None if isinstance(cell, HeldCell) else lacking(cell.adapter),
    runs=lambda chosen, cell, variant: 1,
    attempts=1,
    bed=lambda chosen, cells, seed: Testbed(cells[0].topology),
    measure=lambda testbed, turn: turn.cell.measure(testbed),
    tables=[
        _table("Reaction: from a join's third ACK to the first packet under the cap", JoinsCell, Reactions),
        _table("New connections with two subflows", RateCell, RateResult),
        _table("Tunnels held", HeldCell, Held),
    ],
)
