# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler under the load of thousands of slow tunnels with two subflows through the real Squid.

For each number of tunnels, the experiment measures the reload that caps every tunnel, the longest lag of the event
loop, ``status``, processor time with and without caps, the reaction to joins of other connections (on another port),
memory, and the time to stop after SIGTERM during a reload. Before the stop, ten browsers have the console's page open
and a scraper polls its metrics: the event loop's lag is compared with the lag without the console.
"""

from __future__ import annotations

import json
import math
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar

from mptcp_common.status_client import ask, ask_text
from mptcp_lab.agent.counters import Paced
from mptcp_lab.agent.processors import tree_seconds
from mptcp_lab.testbed import LiveNode, Process, Testbed, TestbedError, paths
from mptcp_lab.testbed.model import Topology
from mptcp_lab.testbed.services import PROXY_PORT, Throttler, program, wait_until
from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE

from ..statistics import fmean, median
from .columns import Row, figure, of_cell
from .load_crowd import (
    CAPPED,
    FULL,
    KILL_TIMEOUT,
    MAX_P99_MS,
    PROBE_PORT,
    TRICKLE,
    UNCAPPED,
    Crowd,
    reactions,
    remote_ends,
    start_with,
    with_crowd,
)
from .relay_load import user_memory

MAX_LAG_SECONDS = 0.05
"""Maximum lag of the event loop in seconds. A gauge that stays at 0 measures nothing."""
MIN_RSS_MB = 5.0
"""Minimum memory in MB of a program that runs. A smaller value means that the program is dead."""
MAX_REACTION_RATIO = 2.0
"""Maximum of the reaction's 99th percentile with tunnels, divided by the 99th percentile without tunnels."""
MAX_LAG_RATIO, LAG_ALLOWANCE_SECONDS = 1.25, 0.005
"""The event loop's longest lag with a console may be this factor times the lag without a console, plus these seconds,
which allow for a fork at the same time as other work."""
SETTLE_SECONDS = 3.0
"""Seconds to wait after a change before processor time is measured."""
RELOAD_TIMEOUT, ANSWER_TIMEOUT = 120.0, 60.0
"""Seconds after which a reload counts as unfinished, and seconds for an answer of the status socket."""
STATUS_QUERIES, QUERY_INTERVAL = 5, 0.25
"""Number of ``status --json`` commands whose median time is measured, and seconds between two queries of a poller."""
SPAN_SECONDS = 10.0
"""Seconds for which the throttler's gauge keeps the longest lag of the event loop."""
BROWSERS, SCRAPES = 10, 2
"""Number of browsers that have the console's page open, and number of scrapes in each span."""
CONSOLE_PORT = 8610
_TUNNEL_COUNT, _JOIN_COUNT = of_cell(lambda cell: cell.tunnels), of_cell(lambda cell: cell.joins)


def _max_reaction(row: Row[HeldCell, Held]) -> float:
    return MAX_REACTION_RATIO * fmean(row.values("p99_without"))


def _max_lag(row: Row[HeldCell, Held]) -> float:
    return MAX_LAG_RATIO * fmean(row.values("lag_without")) + LAG_ALLOWANCE_SECONDS


@dataclass(frozen=True, slots=True)
class Held:
    """Measurements while tunnels are open. Times are in seconds, reactions in ms; infinity if they did not end."""

    two_subflows: int = figure("tunnels with two subflows", least=_TUNNEL_COUNT, digits=0)
    in_status: int = figure("connections with two subflows in status", least=_TUNNEL_COUNT, digits=0)
    ended: int = figure("tunnels closed by the proxy", most=0, digits=0)
    received: float = figure("bytes received under caps / expected bytes", least=0.95)
    reload: float = figure("time from a reload to the last set entry", unit=" s", most=5.0)
    released: float = figure("time from a reload until the set is empty", unit=" s", most=5.0)
    lag: float = figure("longest lag of the event loop", unit=" s", least=1e-9, most=MAX_LAG_SECONDS, digits=3)
    command: float = figure("status --json, median", unit=" s", most=0.5, digits=3)
    busy: float = figure("cores used with caps, guard and budgets", most=0.25, digits=3)
    idle: float = figure("cores used without caps", most=0.05, digits=3)
    joins_without: int = figure("reactions without tunnels", least=_JOIN_COUNT, digits=0)
    p99_without: float = figure("reaction without tunnels, p99", unit=" ms", most=MAX_P99_MS)
    joins: int = figure("reactions with tunnels", least=_JOIN_COUNT, digits=0)
    p99: float = figure("reaction with tunnels, p99", unit=" ms", most=_max_reaction)
    joins_polled: int = figure("reactions while polled", least=of_cell(lambda cell: cell.joins // 2), digits=0)
    p99_polled: float = figure("reaction while polled, p99", unit=" ms", most=_max_reaction)
    resident: float = figure("throttler's memory", unit=" MB", least=MIN_RSS_MB, most=150, digits=1)
    lag_without: float = figure(
        "lag of the event loop without a console", unit=" s", least=1e-9, most=MAX_LAG_SECONDS, digits=3
    )
    lag_with: float = figure("lag of the event loop with a console", unit=" s", least=1e-9, most=_max_lag, digits=3)
    # docs/metrics.md allows a scrape_timeout of 2 s.
    scrape: float = figure("slowest scrape of the console", unit=" s", most=2.0)
    console: float = figure("console's memory", unit=" MB", least=MIN_RSS_MB, most=100, digits=1)
    stop: float = figure("time from SIGTERM during a reload to the exit", unit=" s", most=3.0)
    remnants: tuple[str, ...] = figure("changed dumps after SIGTERM", most=0, digits=0)
    """Kernel state that differs after the stop from the state before the start, and an exit code other than 0."""


@dataclass(frozen=True, slots=True)
class HeldCell:
    """A number of open *tunnels*. Processor time is measured for *seconds*, the reaction with *joins* joins."""

    topology: ClassVar[Topology] = with_crowd(paths((ETHERNET_RATE, WIFI_RATE)))
    tunnels: int
    seconds: float
    joins: int

    def __str__(self) -> str:
        return f"{self.tunnels:,} held"

    def measure(self, testbed: Testbed) -> Held:
        """Measure all figures, first without tunnels. Raises TestbedError if the throttler or the console fails."""
        node, crowd, tunnels = testbed["proxy"], Crowd.start(testbed), self.tunnels
        before = crowd.state()
        # A throttler can pace only subflows that were accepted while it ran, so start it before the tunnels.
        throttler = start_with(node, FULL)
        pid, ended = throttler.process.pid, crowd.client.read().ended

        def load(policy: str) -> None:
            node.write("policy.yaml", policy)
            throttler.process.signal(signal.SIGHUP)

        without = reactions(testbed, self.joins, PROBE_PORT)
        load(UNCAPPED)
        crowd.keep_open(tunnels)
        two_subflows = crowd.wait_for_joins(tunnels)
        time.sleep(SETTLE_SECONDS)
        idle, _ = self._usage(crowd, pid)
        load(CAPPED)
        reload = _reload_seconds(node, tunnels)
        time.sleep(SETTLE_SECONDS)
        load(UNCAPPED)
        released = _reload_seconds(node, 0)
        load(FULL)
        _reload_seconds(node, tunnels)
        time.sleep(SETTLE_SECONDS)
        busy, received = self._usage(crowd, pid)
        command = median([_status_seconds(node, throttler) for _ in range(STATUS_QUERIES)])
        with_tunnels = reactions(testbed, self.joins, PROBE_PORT)

        def query() -> None:
            with suppress(OSError, ValueError):
                ask_text(throttler.socket, {"query": "status"}, ANSWER_TIMEOUT)

        poller = Paced(query, QUERY_INTERVAL)
        poller.start()
        try:
            polled = reactions(testbed, self.joins // 2, PROBE_PORT)
        finally:
            poller.stop()
        status = throttler.status()
        resident = user_memory(pid, "Rss") / 1e6
        lag_without, scrapes = self._longest_lag(throttler), list[float]()
        with _console_with_browsers(node, throttler) as console:
            time.sleep(SETTLE_SECONDS)
            lag_with = self._longest_lag(throttler, lambda: scrapes.append(_scrape_seconds(node, tunnels)))
            console_resident = user_memory(console.pid, "Rss") / 1e6
        load(UNCAPPED)
        _reload_seconds(node, 0)
        load(CAPPED)
        time.sleep(min(reload, RELOAD_TIMEOUT) / 2)
        begin = time.monotonic()
        throttler.process.stop(KILL_TIMEOUT)
        stop = time.monotonic() - begin
        return Held(
            two_subflows=two_subflows, in_status=len(remote_ends(status)), ended=crowd.client.read().ended - ended,
            received=received, reload=reload, released=released, lag=status["counters"]["loop"]["longest"],
            command=command, busy=busy, idle=idle, joins_without=without.capped, p99_without=without.p99,
            joins=with_tunnels.capped, p99=with_tunnels.p99, joins_polled=polled.capped,
            p99_polled=polled.p99, resident=resident, lag_without=lag_without, lag_with=lag_with, scrape=max(scrapes),
            console=console_resident, stop=stop,
            remnants=crowd.remnants(before, throttler),
        )  # fmt: skip

    def _usage(self, crowd: Crowd, pid: int) -> tuple[float, float]:
        """Return the processor cores that *pid* used in the cell's seconds, and the received / the expected bytes."""
        begin, before, processor_seconds = time.monotonic(), crowd.client.read(), tree_seconds(pid)
        time.sleep(self.seconds)
        span = time.monotonic() - begin
        expected = before.open * TRICKLE * span
        received = (crowd.client.read().octets - before.octets) / expected if expected else math.nan
        return (tree_seconds(pid) - processor_seconds) / span, received

    def _longest_lag(self, throttler: Throttler, work: Callable[[], None] = lambda: None) -> float:
        """Return the event loop's longest lag in the cell's seconds; call *work* ``SCRAPES`` times in each span."""
        longest = 0.0
        for _ in range(math.ceil(self.seconds / SPAN_SECONDS)):
            for _ in range(SCRAPES):
                work()
                time.sleep(SPAN_SECONDS / SCRAPES)
            try:
                longest = max(longest, ask(throttler.socket, {"query": "summary"}, ANSWER_TIMEOUT)["loop"]["recent"])
            except OSError as error:
                raise TestbedError(f"the throttler does not answer: {error}") from error
        return longest


def _reload_seconds(node: LiveNode, minimum: int) -> float:
    """Return the seconds until the set has at least *minimum* entries (for 0: no entry); infinity if it does not."""
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
    json.loads(node.run(argv).stdout)
    return time.monotonic() - begin


@contextmanager
def _console_with_browsers(node: LiveNode, throttler: Throttler) -> Iterator[Process]:
    """Run the console with the low priority of its systemd unit, and browsers that open its page."""
    text = f"listen: 127.0.0.1:{CONSOLE_PORT}\nstatus_socket: {throttler.socket}\nopen_to_this_host: true\n"
    config = node.write("console.yaml", text)
    argv = ["nice", "-n", "10", program("mptcp-console"), "run", "--config", str(config)]
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
    """Return the seconds of a query of the console's ``/metrics``; infinity if the answer lacks connections."""
    url = f"http://127.0.0.1:{CONSOLE_PORT}/metrics"
    text = node.run(["curl", "-sf", "-m", "20", "-w", "%{time_total}", url]).stdout
    metrics, _, seconds = text.rpartition("\n")
    return float(seconds) if f"\nmptcp_throttler_connections {tunnels}.0\n" in metrics else math.inf
