# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler under the load of thousands of slow tunnels with two subflows through the real Squid.

For each number of tunnels, in a separate testbed, the experiment measures the reload that caps every tunnel, the
longest lag of the event loop, ``status``, processor time with and without caps, the reaction to joins of other
connections (on another port), memory, and the time to stop after SIGTERM, when idle and during a reload. Before the
stop, ten browsers have the console's page open and a scraper polls its metrics: the event loop's lag is compared with
the lag without the console.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from mptcp_common.status_client import ask, ask_text
from mptcp_lab.agent.pacing import Paced
from mptcp_lab.agent.processes import with_mounts
from mptcp_lab.agent.processors import tree_seconds
from mptcp_lab.testbed import LiveNode, Process, Testbed, TestbedError, paths
from mptcp_lab.testbed.model import Topology
from mptcp_lab.testbed.services import PROXY_PORT, Throttler, program, start_throttler, throttler_mounts, wait_until
from mptcp_lab.testbed.system_state import differences
from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE

from ..statistics import median
from .columns import Column, Row, Table
from .load_crowd import (
    CAPPED,
    FULL,
    PROBE_PORT,
    TRICKLE,
    UNCAPPED,
    Crowd,
    settings_file,
    shown,
    with_crowd,
)
from .load_joins import AIM_P99_MS, Reactions, reactions
from .relay_load import user_memory

RELOAD = 5.0
"""Maximum seconds from SIGHUP until the last set entry is added, and until the last set entry is removed."""
PAUSE = 0.05
"""Maximum lag of the event loop in seconds."""
STATUS_SECONDS = 0.5
"""Maximum seconds for ``status --json``."""
BUSY, IDLE = 0.25, 0.05
"""Maximum processor cores of the throttler: with caps, guard and budgets in force, and with nothing capped."""
REACTION_GROWTH = 2.0
"""Maximum of the reaction's 99th percentile with tunnels, divided by the 99th percentile without tunnels."""
STOP = 3.0
"""Maximum seconds from SIGTERM to the throttler's exit."""
RESIDENT, CONSOLE_RESIDENT = 150.0, 100.0
"""Maximum resident memory of the throttler and of the console, in MB."""
DEAD_MB = 5.0
"""Minimum memory in MB of a program that runs. A smaller value means that the program is dead."""
TRICKLED = 0.95
"""Minimum of the bytes received, as a share of the bytes that the origin should send. With fewer bytes, some tunnels
carried no data, and the other figures prove nothing."""
LAG_GROWTH, LAG_ALLOWANCE = 1.25, 0.005
"""The event loop's longest lag with a console may be this factor times the lag without a console, plus these seconds.
Each query makes the throttler fork, which takes 8 ms with 10,000 connections; the seconds allow for a fork at the same
time as other work."""
SLOWEST_SCRAPE = 2.0
"""Maximum seconds for a scrape: the minimum ``scrape_timeout`` that docs/metrics.md allows."""
SETTLE = 3.0
"""Seconds to wait after a change before processor time is measured."""
RELOADED = 120.0
"""If a reload takes longer than this number of seconds, it counts as never finished."""
STOPPED = 60.0
"""Seconds after SIGTERM at which the throttler is killed if it still runs."""
ASKS = 5
"""Number of ``status --json`` commands whose median time is measured."""
ASK_INTERVAL = 0.25
"""Seconds from one query of the status socket to the next."""
ANSWERED = 60.0
"""If the status socket does not answer within this number of seconds, it counts as dead."""
SPAN = 10.0
"""Seconds for which the throttler's gauge keeps the longest lag of the event loop."""
BROWSERS, SCRAPES = 10, 2
"""Number of browsers that have the console's page open, and number of scrapes in each span."""
CONSOLE_PORT = 8610
NOBODY, STATUS_GROUP = 65534, 54321
"""User and group of the console. An unused group replaces the throttler's group."""
NO_REACTIONS = Reactions.of(())


@dataclass(slots=True)
class Held:
    """Measurements while a number of tunnels is open. Times are in seconds; infinity if it did not happen."""

    two_subflows: int = 0
    """Number of connections with two subflows according to the proxy's kernel."""
    shown: int = 0
    """Number of connections with two subflows according to ``status``."""
    ended: int = 0
    """Number of tunnels that ended although they should not."""
    idle: float = math.nan
    """Processor cores of the throttler with nothing capped."""
    busy: float = math.nan
    """Processor cores of the throttler with caps, guard and budget in force."""
    trickled: float = math.nan
    """Bytes that the crowd's client received while :attr:`busy` was measured, as a share of the expected bytes."""
    reload: float = math.inf
    """Time from SIGHUP until the last set entry existed."""
    released: float = math.inf
    """Time from SIGHUP until the last set entry was removed."""
    lag: float = math.nan
    """Longest lag of the event loop since the start, from the throttler's own gauge; NaN without this gauge."""
    command: float = math.inf
    """Median time of ``mptcp-throttler status --json``."""
    alone: Reactions = NO_REACTIONS
    """Reactions to joins without tunnels."""
    beside: Reactions = NO_REACTIONS
    """Reactions to joins with tunnels."""
    asked: Reactions = NO_REACTIONS
    """Reactions to joins with tunnels and under constant status queries."""
    resident: float = math.nan
    """Memory of the throttler in MB."""
    stop: float = 0.0
    """Longest time from SIGTERM to the exit, of the cases measured."""
    left: tuple[str, ...] = ()
    """Kernel state that differs after a stop from the state before the first start, and exit codes other than 0."""
    lag_alone: float = math.inf
    """Longest lag of the event loop in some spans, without a console."""
    lag_beside: float = math.inf
    """Longest lag of the event loop in some spans, with a console."""
    scrape: float = math.inf
    """Longest time of an answer of the console's ``/metrics``; infinity for an answer that lacks connections."""
    console: float = math.nan
    """Memory of the console in MB."""


@dataclass(frozen=True, slots=True)
class HeldCell:
    """A number of open *tunnels*, with windows of *seconds*, *joins* joins, and *spans* of ten seconds for the lag."""

    topology: ClassVar[Topology] = with_crowd(paths((ETHERNET_RATE, WIFI_RATE)))
    tunnels: int
    seconds: float
    joins: int
    spans: int

    def __str__(self) -> str:
        return f"{self.tunnels:,} held"

    def measure(self, testbed: Testbed) -> Held:
        return Examination(testbed, self).held()


class Examination:
    """One testbed with one crowd, and throttlers that run one after another."""

    def __init__(self, testbed: Testbed, cell: HeldCell) -> None:
        self._testbed, self._cell, self._node = testbed, cell, testbed["proxy"]
        self._crowd = Crowd.built(testbed, cell.tunnels)
        self._policy = testbed.directory / "policy.yaml"
        self._settings = settings_file(testbed, self._policy)
        self._before = self._crowd.state()
        self._found = Held()

    def held(self) -> Held:
        """Measure all figures, first without tunnels. Raises TestbedError if a throttler does not start."""
        found, crowd, tunnels, joins = self._found, self._crowd, self._cell.tunnels, self._cell.joins
        throttler = self._start(FULL)
        found.alone = reactions(self._testbed, joins, PROBE_PORT)
        self._stop("after the reactions without tunnels", throttler)
        # A throttler can pace only subflows that were accepted while it ran, so start it before the crowd.
        throttler = self._start(UNCAPPED)
        pid, ended = throttler.process.pid, crowd.client.read().ended
        crowd.hold(tunnels)
        found.two_subflows = crowd.joined(tunnels)
        time.sleep(SETTLE)
        found.idle, _ = self._used(pid)
        self._load(throttler, CAPPED)
        found.reload = self._entries_reach(tunnels)
        time.sleep(SETTLE)
        self._load(throttler, UNCAPPED)
        found.released = self._entries_reach(0)
        self._load(throttler, FULL)
        self._entries_reach(tunnels)
        time.sleep(SETTLE)
        found.busy, found.trickled = self._used(pid)
        found.command = median([timed(lambda: self._command(throttler)) for _ in range(ASKS)])
        found.beside = reactions(self._testbed, joins, PROBE_PORT)

        def query() -> None:
            with suppress(OSError, ValueError):
                ask_text(throttler.socket, {"query": "status"}, ANSWERED)

        asking = Paced(query, ASK_INTERVAL)
        asking.start()
        try:
            found.asked = reactions(self._testbed, joins // 2, PROBE_PORT)
        finally:
            asking.stop()
        with suppress(TestbedError, KeyError):
            status = throttler.status()
            found.shown, found.lag = len(shown(status)), status["counters"]["loop"]["longest"]
        found.resident = user_memory(pid, "Rss") / 1e6
        found.lag_alone, scrapes = self._longest_lag(throttler), list[float]()
        with console_with_browsers(self._node, throttler) as console:
            time.sleep(SETTLE)
            found.lag_beside = self._longest_lag(throttler, lambda: scrapes.append(scrape(self._node, tunnels)))
            found.console = user_memory(console.pid, "Rss") / 1e6
        found.scrape = max(scrapes)
        self._stop("idle", throttler)
        crowd.hold(0)
        throttler = self._start(UNCAPPED)
        crowd.hold(tunnels)
        time.sleep(SETTLE)
        self._load(throttler, CAPPED)
        time.sleep(min(found.reload, RELOADED) / 2)
        self._stop("in mid-reload", throttler)
        found.ended = crowd.client.read().ended - ended
        return found

    def _start(self, policy: str) -> Throttler:
        self._policy.write_text(policy)
        return start_throttler(self._node, self._settings)

    def _load(self, throttler: Throttler, policy: str) -> None:
        self._policy.write_text(policy)
        throttler.process.signal(signal.SIGHUP)

    def _entries_reach(self, wanted: int) -> float:
        """Return the seconds until the set has at least *wanted* entries (for 0: no entry); infinity if it does not."""
        begin, name = time.monotonic(), f"mptcp-throttler-4-{PROXY_PORT}"
        while time.monotonic() < begin + RELOADED:
            listed = self._node.run(["ipset", "list", "-t", name], check=False).stdout
            found = re.search(r"^Number of entries: (\d+)$", listed, re.MULTILINE)
            count = int(found[1]) if found else 0
            if count >= wanted and (wanted or not count):
                return time.monotonic() - begin
            time.sleep(0.02)
        return math.inf

    def _command(self, throttler: Throttler) -> None:
        argv = throttler.command("status", "--json", "--socket", str(throttler.socket))
        # Remove a developer's setting that operators do not have. It would make Python compile its modules each time.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        json.loads(self._node.run(argv, env=environment).stdout)

    def _used(self, pid: int) -> tuple[float, float]:
        """Return the processor cores that *pid* used in the cell's seconds, and the received / the expected bytes."""
        client, begin = self._crowd.client, time.monotonic()
        before, used = client.read(), tree_seconds(pid)
        time.sleep(self._cell.seconds)
        span = time.monotonic() - begin
        owed = before.standing * TRICKLE * span
        trickled = (client.read().octets - before.octets) / owed if owed else math.nan
        return (tree_seconds(pid) - used) / span, trickled

    def _longest_lag(self, throttler: Throttler, work: Callable[[], None] = lambda: None) -> float:
        """Return the loop's longest lag in some spans (infinity if unknown); call *work* ``SCRAPES`` times in each."""
        longest = 0.0
        for _ in range(self._cell.spans):
            for _ in range(SCRAPES):
                work()
                time.sleep(SPAN / SCRAPES)
            try:
                longest = max(longest, ask(throttler.socket, {"query": "summary"}, ANSWERED)["loop"]["recent"])
            except (OSError, KeyError, TypeError, ValueError):
                return math.inf
        return longest

    def _stop(self, moment: str, throttler: Throttler) -> None:
        """Stop *throttler*, kill it after ``STOPPED`` seconds, and remove the kernel state that it left."""
        process, begin = throttler.process, time.monotonic()
        process.signal(signal.SIGTERM)
        try:
            wait_until(lambda: not process.running, f"the throttler ends, {moment}", timeout=STOPPED)
            took = time.monotonic() - begin
        except TestbedError:
            process.kill()
            took = math.inf
        left = differences(self._before, self._crowd.state())
        if left or math.isinf(took):
            argv = [program("mptcp-throttler"), "cleanup", "--config", str(self._settings)]
            self._node.run(with_mounts(argv, throttler_mounts(self._node)), check=False, timeout=120)
        if process.returncode != 0:
            # Check the exit code, because a throttler that crashed earlier also seems to stop immediately.
            left.append(f"exit code {process.returncode}")
        self._found.stop = max(self._found.stop, took)
        self._found.left += tuple(f"{moment}: {each}" for each in left)


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that *call* takes; infinity if it raises an error."""
    begin = time.monotonic()
    try:
        call()
    except (TestbedError, OSError, ValueError):
        return math.inf
    return time.monotonic() - begin


@contextmanager
def console_with_browsers(node: LiveNode, throttler: Throttler) -> Iterator[Process]:
    """Run the console as its systemd unit would (as nobody, with low priority), and browsers that open its page."""
    os.chown(throttler.socket, 0, STATUS_GROUP)
    for directory in (node.directory, throttler.socket.parent):
        directory.chmod(0o755)
    text = f"listen: 127.0.0.1:{CONSOLE_PORT}\nstatus_socket: {throttler.socket}\nopen_to_this_host: true\n"
    config = node.write("console.yaml", text)
    rights = [f"--reuid={NOBODY}", f"--regid={NOBODY}", f"--groups={STATUS_GROUP}", "--no-new-privs"]
    prefix = ["nice", "-n", "10", "prlimit", "--nofile=1024", "setpriv", *rights, "--bounding-set=-all"]
    argv = [*prefix, program("mptcp-console"), "run", "--config", str(config)]
    process = node.popen(argv, name="console")
    with ExitStack() as stack:
        stack.callback(process.stop)
        wait_until(lambda: "serving http" in process.output(), "the console serves", timeout=60, process=process)
        page = ["curl", "-sN", "-o", "/dev/null", f"http://127.0.0.1:{CONSOLE_PORT}/api/live"]
        browsers = [stack.enter_context(node.running(page, name="browser")) for _ in range(BROWSERS)]
        yield process
        if not all(browser.running for browser in browsers):
            raise TestbedError("the console ended the stream of a page")


def scrape(node: LiveNode, tunnels: int) -> float:
    """Return the seconds of a query of the console's ``/metrics``; infinity if it failed or lacks connections."""
    url = f"http://127.0.0.1:{CONSOLE_PORT}/metrics"
    try:
        text = node.run(["curl", "-sf", "-m", "20", "-w", "%{time_total}", url]).stdout
    except TestbedError:
        return math.inf
    metrics, _, seconds = text.rpartition("\n")
    return float(seconds) if f"\nmptcp_throttler_connections {tunnels}.0\n" in metrics else math.inf


def _of(heading: str, part: str, name: str, **more: Any) -> Column[HeldCell, Held]:
    """Return a column with the attribute *name* of the reactions *part*."""
    return Column(heading, lambda row: [getattr(getattr(each, part), name) for each in row.measured], **more)


def _tunnels(row: Row[HeldCell, Held]) -> int:
    return row.cell.tunnels


def _growth(part: str) -> Callable[[Row[HeldCell, Held]], list[float]]:
    return lambda row: [getattr(each, part).p99 / each.alone.p99 for each in row.measured]


TABLE: Table[Any, Held] = Table(
    "Tunnels held",
    [
        Column("tunnels with two subflows", "two_subflows", least=_tunnels, digits=0),
        Column("connections with two subflows in status", "shown", least=_tunnels, digits=0),
        Column("tunnels that ended", "ended", most=0, digits=0),
        Column("trickled under caps, of what it should", "trickled", least=TRICKLED),
        Column("reload, to the last set entry", "reload", unit=" s", most=RELOAD),
        Column("reload, until none is left", "released", unit=" s", most=RELOAD),
        # The lag must be above 0: a gauge that stays at 0 measures nothing.
        Column("event loop silent, by its gauge", "lag", unit=" s", least=1e-9, most=PAUSE, digits=3),
        Column("status --json, median", "command", unit=" s", most=STATUS_SECONDS, digits=3),
        Column("cores: caps, guard, budgets", "busy", most=BUSY, digits=3),
        Column("cores: nothing capped", "idle", most=IDLE, digits=3),
        _of("reactions with none held", "alone", "capped", least=lambda row: row.cell.joins, digits=0),
        _of("reaction of a join with none held, p99", "alone", "p99", most=AIM_P99_MS, unit=" ms"),
        _of("reactions seen", "beside", "capped", least=lambda row: row.cell.joins, digits=0),
        _of("reaction of a join, median", "beside", "median", unit=" ms"),
        _of("reaction of a join, p99", "beside", "p99", unit=" ms"),
        Column("reaction of a join, p99, × with none held", _growth("beside"), most=REACTION_GROWTH),
        _of("reactions seen while status is asked", "asked", "capped", least=lambda row: row.cell.joins // 2, digits=0),
        _of("reaction while status is asked, p99", "asked", "p99", unit=" ms"),
        Column("reaction while status is asked, p99, × with none held", _growth("asked"), most=REACTION_GROWTH),
        Column("RSS", "resident", unit=" MB", least=DEAD_MB, most=RESIDENT, digits=1),
        Column("SIGTERM, idle or in mid-reload", "stop", unit=" s", most=STOP),
        Column(
            "SIGTERM: dumps or exit code wrong", lambda row: [len(each.left) for each in row.measured], most=0, digits=0
        ),
        Column("loop lag without a console", "lag_alone", unit=" s", least=1e-9, most=PAUSE, digits=3),
        Column("loop lag with a console", "lag_beside", unit=" s", least=1e-9, digits=3),
        Column(
            f"loop lag with a console, beyond {LAG_GROWTH} × without",
            lambda row: [each.lag_beside - LAG_GROWTH * each.lag_alone for each in row.measured],
            unit=" s", most=LAG_ALLOWANCE, digits=3,
        ),
        Column("console: scrape, slowest", "scrape", unit=" s", most=SLOWEST_SCRAPE),
        Column("console: RSS", "console", unit=" MB", least=DEAD_MB, most=CONSOLE_RESIDENT, digits=1),
    ],
    labels=[("held", lambda row: str(row.cell))],
    of=lambda row: isinstance(row.cell, HeldCell),
    beside=True,
)  # fmt: skip
