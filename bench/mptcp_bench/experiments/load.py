# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler's behaviour under load, and its cost.

- *joins*: how soon a joining subflow is capped, while the throttler has no other load;
- *rate*: how many new connections per second the throttler can track, and the share of a core that it uses;
- *held*: reloads, status, reaction to joins, processor time and memory while thousands of tunnels are open.

For *joins*, a program outside the daemon measures the time from the MP_JOIN's third ACK on the wire to the first packet
under the cap (``join_probe``). The proxy's end sends continuously, so that this packet usually follows the entry within
a fraction of a millisecond. Anticipation is off: with it, the entry would exist before the join.

For *rate*, a crowd (``load_crowd``) opens connections with two subflows at a fixed pace to a listener on the proxy's
port, without Squid. The client closes each connection half a second later. No event is lost if the tracker opened each
connection and both subflows exactly once, if a kernel entry was added and removed for each capped subflow, and if no
path-manager event and no segment was dropped.

For *held*, the crowd's tunnels pass the real Squid. The joins are those of other connections, on another port. At the
end, the console is measured, while ten browsers show its page and its metrics are scraped.
"""

from __future__ import annotations

import json
import math
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from mptcp_common.status_client import ask_text
from mptcp_lab.agent.counters import PeriodicCalls, increments
from mptcp_lab.agent.processors import process_seconds, tree_seconds
from mptcp_lab.testbed import TWO_PATHS, UNSHAPED, LiveNode, Process, Testbed, TestbedError, paths, services
from mptcp_lab.testbed.commands import undone_on_error
from mptcp_lab.testbed.model import Topology
from mptcp_lab.testbed.services import PROXY_PORT, Throttler, wait_until
from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE

from ..statistics import median, percentile
from .columns import CELL, Table, columns_of, figure, of_cell
from .load_crowd import FULL, PROBE_PORT, UNCAPPED, Crowd, remote_ends, start_with, with_crowd
from .parameters import choices, number, parameter, several, whole
from .relay_load import user_memory
from .scenario import Scenario
from .setup import BACKENDS, lacking

MAX_P99_MS = 5.0
"""Aim: greatest 99th percentile of the reaction time without load, in milliseconds."""
_JOIN_COUNT = of_cell(lambda cell: cell.joins)


@dataclass(frozen=True, slots=True)
class Reactions:
    """The reactions to many joins."""

    capped: int = figure("joins after which the connection was capped", least=_JOIN_COUNT, digits=0)
    p99: float = figure("third ACK to the first packet under the cap, p99", unit=" ms", most=MAX_P99_MS)
    """99th percentile of the delays in milliseconds; the delay of a join without a cap is infinite."""


def measure_reactions(testbed: Testbed, count: int, port: int = PROXY_PORT) -> Reactions:
    """Return the reactions to *count* joins of connections to the free *port*. A throttler must be running."""
    proxy, client = testbed["proxy"], testbed["client"]
    output, address = testbed.directory / "delays.json", proxy.address("wan0")
    argv = [sys.executable, "-I", "-m", f"{__package__}.join_probe"]
    probe = proxy.popen([*argv, "probe", str(port), str(count), client.address("eth0"), str(output)], name="probe")
    # After an error, kill the probe and its child process, which listens, to free the port for the next probe.
    with undone_on_error(probe.kill_tree):
        # On a busy machine the probe's start takes more than ten seconds.
        wait_until(lambda: services.accepts(proxy, address, port), "the probe listens", process=probe, timeout=60)
        client.run([*argv, "client", str(port), str(count), address, client.address("wlan0")], timeout=count + 120)
        if probe.wait(60) != 0:
            raise TestbedError(f"the probe failed{probe.tail()}")
    delays = json.loads(output.read_text())
    # A negative delay means that the cap came before the join.
    capped = sum(0 <= delay < math.inf for delay in delays)
    return Reactions(capped, percentile(delays, 99, default=math.inf))


# The landing is at-once, because a soft cap's entry is added up to a second later, when some connections have ended.
POLICY = """\
version: 1
paths: {first: {subflow: initial}}
rules: [{name: cap, paths: [first], throttle: {rate: 5 Mbit/s, landing: at-once}}]
"""


@dataclass(frozen=True, slots=True)
class JoinsCell:
    """A number of *joins* with one netfilter adapter, while the throttler has no other load."""

    topology: ClassVar[Topology] = TWO_PATHS
    adapter: str
    joins: int

    def __str__(self) -> str:
        return self.adapter

    def measure(self, testbed: Testbed) -> Reactions:
        proxy = testbed["proxy"]
        policy = proxy.write("policy.yaml", f"{POLICY}anticipate: false\n")
        services.start_throttler(
            proxy, services.write_throttler_config(proxy, policy, settings={"netfilter": self.adapter})
        )
        return measure_reactions(testbed, self.joins)


MIN_RATE = 500
"""Connections per second that the throttler must be able to track. Higher rates are shown without an aim."""
MIN_SHARE = 0.98
"""Minimum share of the requested rate that the client must reach, and of connections with a join."""
LIFETIME_SECONDS = 0.5
"""Seconds from the opening of a connection to its end."""
WARM_UP_SECONDS = 11.0
"""Seconds until removals keep pace with additions: an entry is removed ten seconds after its subflow ends."""
FINISH_TIMEOUT = 30.0
"""Seconds within which the last entry must be removed."""


def _rate_figure(heading: str, **column: Any) -> Any:
    """Return a field with an aim at rates that the throttler must be able to track."""
    return figure(heading, **{"digits": 0, **column}, judged=lambda row: row.cell.rate <= MIN_RATE)


@dataclass(frozen=True, slots=True)
class RateResult:
    """How completely the throttler tracked the connections."""

    rate: float = _rate_figure("connections opened per second", least=of_cell(lambda cell: MIN_SHARE * cell.rate))
    joins: float = _rate_figure("joins per connection", least=MIN_SHARE, digits=3)
    opened_minus_actual: int = _rate_figure("connections opened by the tracker - by the client", least=0, most=0)
    activated_minus_actual: int = _rate_figure("subflows activated by the tracker - by the client", least=0, most=0)
    lost: int = _rate_figure("connections without entry, or whose entry was not removed", least=0, most=0)
    events_lost: int = _rate_figure("path-manager events lost", most=0)
    dropped: int = _rate_figure("segments dropped", most=0)
    core: float = _rate_figure("share of one core", most=100, digits=1, unit=" %")


@dataclass(frozen=True, slots=True)
class RateCell:
    """*rate* new connections per second with one netfilter adapter, measured for *seconds*."""

    topology: ClassVar[Topology] = with_crowd(UNSHAPED)
    adapter: str
    rate: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.adapter}, {self.rate} connections/s"

    def measure(self, testbed: Testbed) -> RateResult:
        proxy = testbed["proxy"]
        settings = {"netfilter": self.adapter, "verify_interval": 3600, "log_level": "warning"}
        policy = proxy.write("policy.yaml", POLICY)
        throttler = services.start_throttler(proxy, services.write_throttler_config(proxy, policy, settings=settings))
        # The crowd can open connections twice as fast as needed, so that a delayed client catches up.
        crowd = Crowd.start(testbed, rate=2 * self.rate, squid=False)
        mib = proxy.mib()
        crowd.keep_open(round(self.rate * LIFETIME_SECONDS))
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

        def is_finished() -> bool:
            return bool(throttler.status()["counters"]["reconciler"]["entries_deleted"] >= connections)

        # Entries that remain count as lost.
        with suppress(TestbedError):
            wait_until(is_finished, "the throttler removes the last entry", timeout=FINISH_TIMEOUT)
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


MAX_LAG_SECONDS = 0.05
"""Maximum lag of the event loop in seconds. A lag of 0 means that the throttler's gauge does not work."""
SPAN_SECONDS = 10.0
"""Seconds for which the throttler's gauge keeps the longest lag of the event loop."""
SETTLE_SECONDS = 3.0
"""Seconds to wait after a change before processor time is measured."""
RELOAD_TIMEOUT, ANSWER_TIMEOUT = 120.0, 60.0
"""Seconds after which a reload counts as unfinished, and seconds within which the status socket must answer."""
STATUS_QUERIES, QUERY_INTERVAL = 5, 0.25
"""Number of ``status --json`` commands whose median time is measured; seconds between two queries while polled."""
BROWSERS, SCRAPES = 10, 2
"""Number of browsers that have the console's page open, and number of scrapes of the console."""
CONSOLE_PORT = 8610
_TUNNEL_COUNT = of_cell(lambda cell: cell.tunnels)


@dataclass(frozen=True, slots=True)
class Held:
    """Measurements while tunnels are open. Times are in seconds, reactions in milliseconds; infinity: not finished."""

    in_status: int = figure("connections with two subflows in status", least=_TUNNEL_COUNT, digits=0)
    ended: int = figure("tunnels closed by the proxy", most=0, digits=0)
    reload: float = figure("time from a reload to the last set entry", unit=" s", most=5.0)
    released: float = figure("time from a reload until the set is empty", unit=" s", most=5.0)
    lag: float = figure("longest lag of the event loop", unit=" s", least=1e-9, most=MAX_LAG_SECONDS, digits=3)
    command: float = figure("status --json, median", unit=" s", most=0.5, digits=3)
    busy: float = figure("cores used with caps, guard and budgets", most=0.25, digits=3)
    idle: float = figure("cores used without caps", most=0.05, digits=3)
    capped: int = figure("joins after which the connection was capped", least=_JOIN_COUNT, digits=0)
    p99: float = figure("reaction, p99", unit=" ms", most=2 * MAX_P99_MS)
    capped_polled: int = figure(
        "joins after which the connection was capped, while status is polled",
        least=of_cell(lambda cell: cell.joins // 2), digits=0,
    )  # fmt: skip
    p99_polled: float = figure("reaction while status is polled, p99", unit=" ms", most=2 * MAX_P99_MS)
    resident: float = figure("throttler's memory", unit=" MB", most=150, digits=1)
    lag_without: float = figure("lag of the event loop before the console's start", unit=" s", digits=3)
    lag_with: float = figure("lag of the event loop with a console", unit=" s", most=MAX_LAG_SECONDS, digits=3)
    # docs/metrics.md allows a scrape_timeout of 2 s.
    scrape: float = figure("slowest scrape of the console", unit=" s", most=2.0)
    console: float = figure("console's memory", unit=" MB", most=100, digits=1)


@dataclass(frozen=True, slots=True)
class HeldCell:
    """A number of open *tunnels*. Processor time is measured for *seconds*; the reaction, for a number of *joins*."""

    topology: ClassVar[Topology] = with_crowd(paths((ETHERNET_RATE, WIFI_RATE)))
    tunnels: int
    seconds: float
    joins: int

    def __str__(self) -> str:
        return f"{self.tunnels:,} held"

    def measure(self, testbed: Testbed) -> Held:
        """Measure all figures. Raises TestbedError if the throttler or the console fails."""
        node, crowd, tunnels = testbed["proxy"], Crowd.start(testbed), self.tunnels
        # A throttler can pace only subflows that were accepted while it ran, so start it before the tunnels.
        throttler = start_with(node, UNCAPPED)
        pid, ended = throttler.process.pid, crowd.client.read().ended

        def load_policy(policy: str) -> None:
            node.write("policy.yaml", policy)
            throttler.process.signal(signal.SIGHUP)

        crowd.keep_open(tunnels)
        crowd.wait_for_joins(tunnels)
        time.sleep(SETTLE_SECONDS)
        idle = self._cores(pid)
        load_policy(FULL)
        reload = _reload_seconds(node, tunnels)
        time.sleep(SETTLE_SECONDS)
        busy = self._cores(pid)
        command = median([_status_seconds(node, throttler) for _ in range(STATUS_QUERIES)])
        unpolled = measure_reactions(testbed, self.joins, PROBE_PORT)
        poller = PeriodicCalls(lambda: ask_text(throttler.socket, {"query": "status"}, ANSWER_TIMEOUT), QUERY_INTERVAL)
        poller.start()
        try:
            polled = measure_reactions(testbed, self.joins // 2, PROBE_PORT)
        finally:
            poller.stop()
        if poller.error is not None:
            raise TestbedError(f"the throttler does not answer: {poller.error}")
        status = throttler.status()
        resident = user_memory(pid, "Rss") / 1e6
        time.sleep(SPAN_SECONDS)
        lag_without = throttler.status()["counters"]["loop"]["recent"]
        with _console_with_browsers(node, throttler) as console:
            scrapes = []
            for _ in range(SCRAPES):
                time.sleep(SPAN_SECONDS / SCRAPES)
                scrapes.append(_scrape_seconds(node, tunnels))
            lag_with = throttler.status()["counters"]["loop"]["recent"]
            console_resident = user_memory(console.pid, "Rss") / 1e6
        load_policy(UNCAPPED)
        released = _reload_seconds(node, 0)
        return Held(
            in_status=len(remote_ends(status)), ended=crowd.client.read().ended - ended,
            reload=reload, released=released, lag=status["counters"]["loop"]["longest"],
            command=command, busy=busy, idle=idle, capped=unpolled.capped, p99=unpolled.p99,
            capped_polled=polled.capped, p99_polled=polled.p99, resident=resident, lag_without=lag_without,
            lag_with=lag_with, scrape=max(scrapes), console=console_resident,
        )  # fmt: skip

    def _cores(self, pid: int) -> float:
        """Return the processor cores that *pid* uses in the cell's seconds."""
        begin, processor_seconds = time.monotonic(), tree_seconds(pid)
        time.sleep(self.seconds)
        return (tree_seconds(pid) - processor_seconds) / (time.monotonic() - begin)


def _reload_seconds(node: LiveNode, minimum: int) -> float:
    """Return the seconds until the set has *minimum* entries or more, or for 0 no entry; infinity after the timeout."""
    begin, name = time.monotonic(), f"mptcp-throttler-4-{PROXY_PORT}"
    while time.monotonic() < begin + RELOAD_TIMEOUT:
        listed = node.run(["ipset", "list", "-t", name], check=False).stdout
        found = re.search(r"^Number of entries: (\d+)$", listed, re.MULTILINE)
        count = int(found[1]) if found else 0
        if count >= minimum and (minimum or not count):
            return time.monotonic() - begin
        time.sleep(0.02)
    return math.inf


def _status_seconds(node: LiveNode, throttler: Throttler) -> float:
    """Return the seconds that ``mptcp-throttler status --json`` takes."""
    argv = throttler.command("status", "--json", "--socket", str(throttler.socket))
    begin = time.monotonic()
    node.run(argv)
    return time.monotonic() - begin


@contextmanager
def _console_with_browsers(node: LiveNode, throttler: Throttler) -> Iterator[Process]:
    """Run the console with the low priority of its systemd unit, and browsers that open its page."""
    text = f"listen: 127.0.0.1:{CONSOLE_PORT}\nstatus_socket: {throttler.socket}\nopen_to_this_host: true\n"
    config = node.write("console.yaml", text)
    argv = ["nice", "-n", "10", services.program("mptcp-console"), "run", "--config", str(config)]
    process = node.popen(argv, name="console")
    with ExitStack() as stack:
        stack.callback(process.stop)
        wait_until(lambda: "serving http" in process.output(), "the console serves", timeout=60, process=process)
        page = ["curl", "-sN", "-o", "/dev/null", f"http://127.0.0.1:{CONSOLE_PORT}/api/live"]
        browsers = [stack.enter_context(node.running(page, name="browser")) for _ in range(BROWSERS)]
        yield process
        if not all(browser.running for browser in browsers):
            raise TestbedError("the console ended the stream of a page")


def _scrape_seconds(node: LiveNode, tunnels: int) -> float:
    """Return the seconds of a query of the console's ``/metrics``; infinity if the answer lacks the *tunnels*."""
    url = f"http://127.0.0.1:{CONSOLE_PORT}/metrics"
    answer = node.run(["curl", "-sf", "-m", "20", "-w", "%{time_total}", url]).stdout
    metrics, _, seconds = answer.rpartition("\n")
    return float(seconds) if f"\nmptcp_throttler_connections {tunnels}.0\n" in metrics else math.inf


PARTS = ("joins", "rate", "held")
Cell = JoinsCell | RateCell | HeldCell


@dataclass(frozen=True, slots=True)
class Settings:
    part: tuple[str, ...] = choices("parts to measure", PARTS)
    netfilter: tuple[str, ...] = choices("netfilter adapters (parts joins and rate)", BACKENDS)
    n: tuple[int, ...] = parameter("numbers of open tunnels", "100,1000,10000", several(whole()), quick="20,200")
    rate: tuple[int, ...] = parameter("new connections per second", "250,500,750,1000", several(whole()), quick="500")
    seconds: float = parameter("seconds for which processor time is measured", "30", number(), quick="5")
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
    attempts=1,
    bed=lambda chosen, cells, seed: Testbed(cells[0].topology),
    measure=lambda testbed, turn: turn.cell.measure(testbed),
    tables=[
        _table("Reaction: from a join's third ACK to the first packet under the cap", JoinsCell, Reactions),
        _table("New connections with two subflows", RateCell, RateResult),
        _table("Tunnels held", HeldCell, Held),
    ],
)
