# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler while thousands of trickling tunnels with two subflows go through the real Squid.

For each number of tunnels, in a testbed of its own: the reload that caps every tunnel, the longest silence of the event
loop, ``status``, processor time with and without caps, the reaction to joins beside the tunnels (on another port),
memory, and SIGTERM when the throttler is idle, in a reload, and just after a start. In between, ten browsers have the
console's page open and a scraper asks it: the loop's lag and the proxy's delay are compared with those without it.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptcp_common.kernel_error import KernelError
from mptcp_common.status_client import ask, ask_text
from mptcp_lab.agent.pacing import Paced
from mptcp_lab.agent.processes import with_mounts
from mptcp_lab.agent.processors import machine_seconds, process_seconds, tree_seconds
from mptcp_lab.testbed import LiveNode, Process, Testbed, TestbedError, paths
from mptcp_lab.testbed.services import PROXY_PORT, Throttler, program, start_throttler, throttler_mounts, wait_until
from mptcp_lab.testbed.system_state import differences
from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE
from mptcp_throttler.kernel.netfilter import iptables
from mptcp_throttler.kernel.netlink import NETLINK_NETFILTER, NLA_NET_BYTEORDER, NetlinkSocket, attribute, attributes

from ..statistics import median
from .aims import Aim
from .columns import Bound, Column, Results, Row, Table
from .load_crowd import (
    CAPPED,
    FULL,
    ORIGIN_PORT,
    PROBE_PORT,
    TRICKLE,
    UNCAPPED,
    Caps,
    Crowd,
    memory_mb,
    settings_file,
    shown,
    with_crowd,
)
from .load_joins import AIM_P99_MS, Reactions, probed

RELOAD = 5.0
"""Most seconds from SIGHUP until the last set entry is added, and until the last one is removed."""
GROWTH = 12.0
"""Most growth of the reload time when there are ten times as many tunnels."""
PAUSE = 0.05
"""Longest lag of the event loop in seconds."""
STATUS_SECONDS = 0.5
"""Most seconds for ``status --json``."""
BUSY, IDLE = 0.25, 0.05
"""Most processor cores of the throttler: with caps, guard and budgets in force, and with nothing capped."""
REACTION_GROWTH = 2.0
"""Most growth of the reaction's 99th percentile with tunnels, as a multiple of the one without."""
STOP = 3.0
"""Most seconds from SIGTERM to the throttler's end."""
RESIDENT, CONSOLE_RESIDENT = 150.0, 100.0
"""Most resident memory of the throttler and of the console, in MB."""
DEAD_MB = 5.0
"""Least memory in MB of a living program."""
SET_UP = 90.0
"""Most seconds until all tunnels are established."""
TRICKLED = 0.95
"""Least bytes received, as a share of what the origin should send. With less, not all tunnels trickled, and the other
figures prove nothing."""
LAG_GROWTH, LAG_ALLOWANCE = 1.25, 0.005
"""The loop's longest lag with a console may be this factor times the one without, plus these seconds. Each query makes
the throttler fork, which takes 8 ms with 10,000 connections; the seconds are for one that coincides with other work."""
SCRAPE, SLOWEST_SCRAPE = 0.5, 2.0
"""Most seconds for a scrape: by the median, and for the slowest. The latter is the least ``scrape_timeout`` that
docs/metrics.md allows."""
CONNECTS, CONNECT_ADDED = 50, 0.005
"""CONNECT requests whose median is the proxy's delay, and most seconds that a console may add to it."""
SETTLE = 3.0
"""Seconds to wait after a change before processor time is measured."""
RELOADED = 120.0
"""If a reload takes longer than these seconds, it counts as never finished."""
STOPPED = 60.0
"""Seconds after SIGTERM at which the throttler is killed if it still runs."""
EARLY = 0.1
"""Seconds after SIGHUP in which a reload may block the event loop."""
STATUS = {"query": "status"}
ASKS = 5
ASK_INTERVAL = 0.25
"""Seconds from one query of the status socket to the next."""
ANSWERED = 60.0
"""If the status socket does not answer in these seconds, it counts as dead."""
POLL = 0.005
"""Seconds between two counts of the set's entries."""
SPAN = 10.0
"""Seconds for which the throttler's gauge keeps the longest lag of its loop."""
BROWSERS, SCRAPES = 10, 2
"""Browsers that have the console's page open, and scrapes in each span."""
CONSOLE_PORT = 8610
NOBODY, STATUS_GROUP = 65534, 54321
"""User and group of the console. The group is an unused one, in place of the throttler's."""


@dataclass(frozen=True, slots=True)
class Window:
    """Processor cores that programs used over one span of time."""

    throttler: float
    squid: float
    crowd: float
    """The crowd's client and origin."""
    others: float
    """Unrelated programs. On a busy machine, the measurement is not reliable."""
    trickled: float
    """Bytes that the crowd's client received, as a share of what the origin should send; NaN without tunnels."""


NO_WINDOW = Window(math.nan, math.nan, math.nan, math.nan, math.nan)
NO_REACTIONS = Reactions.of(())


@dataclass(slots=True)
class Held:
    """Measurements while a number of tunnels is held. Times are seconds, infinite if never."""

    set_up: float = math.inf
    two_subflows: int = 0
    """Number of connections with two subflows, by the proxy's kernel."""
    shown: int = 0
    """The same by ``status``."""
    ended: int = 0
    """Number of tunnels that ended although they should not."""
    idle: Window = NO_WINDOW
    """With nothing capped."""
    busy: Window = NO_WINDOW
    """With caps, guard and budget in force."""
    reload: float = math.inf
    """From SIGHUP until the last set entry existed."""
    released: float = math.inf
    """From SIGHUP until the last set entry was removed."""
    silence: float = math.inf
    """Longest time until the status socket sent its first byte, during a reload."""
    lag: float = math.nan
    """Longest lag of the event loop since the start, by the throttler's own gauge; NaN without one."""
    command: float = math.inf
    """Median of ``mptcp-throttler status --json``."""
    answer: float = math.inf
    """Median of the status socket's answers."""
    alone: Reactions = NO_REACTIONS
    """To joins without tunnels."""
    beside: Reactions = NO_REACTIONS
    asked: Reactions = NO_REACTIONS
    """Beside the tunnels, while ``status`` is asked all the time."""
    resident: float = math.nan
    """Memory of the throttler in MB."""
    stop: float = 0.0
    """From SIGTERM to the end, at the slowest of four moments."""
    left: tuple[str, ...] = ()
    """Kernel dumps that differed afterwards from those before the first start, and exit codes other than 0."""
    lag_alone: float = math.inf
    """Longest lag of the event loop in ten seconds, without a console."""
    lag_beside: float = math.inf
    """The same with a console."""
    trickled_beside: float = math.nan
    """:attr:`Window.trickled` with a console."""
    connect_alone: float = math.inf
    """Median time of a CONNECT through the proxy, without a console."""
    connect_beside: float = math.inf
    scrape: float = math.inf
    """Median of the console's ``/metrics``; a scrape that lacks connections is infinite."""
    slowest_scrape: float = math.inf
    console: float = math.nan
    """Memory of the console in MB."""


class Entries:
    """The number of entries in the proxy's IPv4 set, read without listing them, as by ``ipset list -t``.

    Attributes are those of linux/netfilter/ipset/ip_set.h: IPSET_ATTR_FLAGS with the flag for a listing without
    entries, and IPSET_ATTR_ELEMENTS within IPSET_ATTR_DATA.
    """

    def __init__(self, node: LiveNode) -> None:
        with node.entered():
            self._netlink = NetlinkSocket(NETLINK_NETFILTER)
        flags = attribute(6 | NLA_NET_BYTEORDER, struct.pack("!I", 1 << 2))
        self._request = iptables.header(f"mptcp-throttler-4-{PROXY_PORT}", is_ipv6=False) + flags

    def close(self) -> None:
        self._netlink.close()

    def count(self) -> int:
        """Return the number of entries; 0 if the set does not exist."""
        total = 0
        with suppress(KernelError):
            for message in self._netlink.dump(iptables.CMD_LIST, self._request, "count set entries"):
                data = dict(attributes(message, 4)).get(7, b"")
                total += int.from_bytes(dict(attributes(data)).get(24, b""), "big")
        return total

    def until(self, wanted: int) -> float:
        """Return the seconds until there are *wanted* entries or more; for 0, none; infinite after ``RELOADED``."""
        begin, passed = time.monotonic(), 0.0
        while passed < RELOADED:
            found = self.count()
            passed = time.monotonic() - begin
            if found >= wanted and (wanted or not found):
                return passed
            time.sleep(POLL)
        return math.inf


@dataclass(frozen=True, slots=True)
class HeldCell:
    """*tunnels* that are held, with windows of *seconds*, *joins* joins, and *spans* of ten seconds for the lag."""

    tunnels: int
    seconds: float
    joins: int
    spans: int

    def __str__(self) -> str:
        return f"{self.tunnels:,} held"

    @contextmanager
    def bed(self, seed: int) -> Iterator[Testbed]:
        with Testbed(with_crowd(paths((ETHERNET_RATE, WIFI_RATE)))) as testbed:
            yield testbed

    def measure(self, bed: Testbed, variant: str) -> Held:
        return Examination(bed, self).held()


class Examination:
    """One testbed with one crowd, and throttlers that run one after another."""

    def __init__(self, testbed: Testbed, cell: HeldCell) -> None:
        self._testbed, self._cell, self._node = testbed, cell, testbed["proxy"]
        self._crowd = Crowd.built(testbed, cell.tunnels)
        self._policy = testbed.directory / "policy.yaml"
        self._settings = settings_file(testbed, self._policy)
        self._entries = Entries(self._node)
        testbed.scope.callback(self._entries.close)
        self._before = self._crowd.state()
        self._found = Held()

    def held(self) -> Held:
        """Measure everything, first without tunnels. Raises TestbedError if a throttler does not start."""
        found, crowd, tunnels, joins = self._found, self._crowd, self._cell.tunnels, self._cell.joins
        throttler = self._start(FULL)
        found.alone = self._reactions(joins)
        self._stop("after the reactions without tunnels", throttler)
        # A throttler can pace only subflows that were accepted while it ran, so start it before the crowd.
        throttler = self._start(UNCAPPED)
        pid, ended = throttler.process.pid, crowd.client.read().ended
        found.set_up = crowd.hold(tunnels)
        found.two_subflows = crowd.joined(tunnels)
        time.sleep(SETTLE)
        found.idle = self._window(pid, lambda: time.sleep(self._cell.seconds))
        self._load(throttler, CAPPED)
        found.reload = self._entries.until(tunnels)
        time.sleep(SETTLE)
        self._load(throttler, UNCAPPED)
        found.released = self._entries.until(0)
        # Query during another reload, because queries would slow down the timed one.
        with asking(throttler.socket) as silences:
            self._load(throttler, FULL)
            self._entries.until(tunnels)
            time.sleep(1)
        found.silence = max(silences)
        time.sleep(SETTLE)
        found.busy = self._window(pid, lambda: time.sleep(self._cell.seconds))
        found.command = median([timed(lambda: self._command(throttler)) for _ in range(ASKS)])
        found.answer = median([timed(lambda: ask_text(throttler.socket, STATUS, ANSWERED)) for _ in range(ASKS)])
        found.beside = self._reactions(joins)
        with asking(throttler.socket):
            found.asked = self._reactions(joins // 2)
        with suppress(TestbedError, KeyError):
            status = throttler.status()
            found.shown, found.lag = len(shown(status)), status["counters"]["loop"]["longest"]
        found.resident = memory_mb(pid)
        self._beside_a_console(throttler)
        self._stop("idle", throttler)
        self._stop("just started", self._start(CAPPED))
        throttler = self._start(UNCAPPED)
        self._load(throttler, CAPPED)
        time.sleep(EARLY)
        self._stop("as a reload begins", throttler)
        crowd.hold(0)
        throttler = self._start(UNCAPPED)
        crowd.hold(tunnels)
        time.sleep(SETTLE)
        self._load(throttler, CAPPED)
        time.sleep(min(found.reload, RELOADED) / 2)
        self._stop("in mid-reload", throttler)
        found.ended = crowd.client.read().ended - ended
        return found

    def _beside_a_console(self, throttler: Throttler) -> None:
        """Watch loop and proxy without a console, then with one whose page is open in browsers and that is scraped."""
        found, scrapes = self._found, list[float]()
        found.lag_alone = self._longest_lag(throttler)
        found.connect_alone = self._connect()

        def watch() -> None:
            found.lag_beside = self._longest_lag(throttler, lambda: scrapes.append(scrape(self._node, tunnels)))

        tunnels = self._cell.tunnels
        with console_with_browsers(self._node, throttler) as console:
            time.sleep(SETTLE)
            found.trickled_beside = self._window(throttler.process.pid, watch).trickled
            found.connect_beside = self._connect()
            found.console = memory_mb(console.pid)
        found.scrape, found.slowest_scrape = median(scrapes), max(scrapes)

    def _start(self, caps: Caps) -> Throttler:
        self._policy.write_text(caps.text())
        return start_throttler(self._node, self._settings)

    def _load(self, throttler: Throttler, caps: Caps) -> None:
        self._policy.write_text(caps.text())
        throttler.process.signal(signal.SIGHUP)

    def _reactions(self, count: int) -> Reactions:
        return Reactions.of(probed(self._testbed, count, PROBE_PORT))

    def _command(self, throttler: Throttler) -> None:
        argv = throttler.command("status", "--json", "--socket", str(throttler.socket))
        # An operator has no such setting of a developer, which would make Python compile its modules each time.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        json.loads(self._node.run(argv, env=environment).stdout)

    def _window(self, pid: int, work: Callable[[], None]) -> Window:
        """Return what was used while *work* ran. *pid* is the throttler's."""
        client = self._crowd.client
        standing, octets, begin = client.read().standing, client.read().octets, time.monotonic()
        before = self._used(pid)
        work()
        span = time.monotonic() - begin
        throttler, squid, crowd, machine = (
            (late - early) / span for late, early in zip(self._used(pid), before, strict=True)
        )
        owed = standing * TRICKLE * span
        return Window(
            throttler=throttler,
            squid=squid,
            crowd=crowd,
            others=machine - squid - crowd - (throttler if math.isfinite(throttler) else 0.0),
            trickled=(client.read().octets - octets) / owed if owed else math.nan,
        )

    def _used(self, pid: int) -> tuple[float, ...]:
        """Return the processor seconds of throttler, Squid, crowd and the whole machine so far."""
        crowd = self._crowd
        own = sum(process_seconds(each.process.pid) for each in (crowd.client, crowd.origin))
        throttler = tree_seconds(pid) if Path(f"/proc/{pid}").exists() else math.nan
        return throttler, tree_seconds(crowd.proxy.process.pid), own, machine_seconds()

    def _longest_lag(self, throttler: Throttler, meanwhile: Callable[[], None] = lambda: None) -> float:
        """Return the loop's longest lag in some spans, infinite if unknown; call *meanwhile* several times in each."""
        longest = 0.0
        for _ in range(self._cell.spans):
            for _ in range(SCRAPES):
                meanwhile()
                time.sleep(SPAN / SCRAPES)
            try:
                longest = max(longest, ask(throttler.socket, {"query": "summary"}, ANSWERED)["loop"]["recent"])
            except (OSError, KeyError, TypeError, ValueError):
                return math.inf
        return longest

    def _connect(self) -> float:
        """Return the median seconds of a CONNECT from the client to the crowd's origin, infinite if one is refused."""
        target = f"{self._testbed['origin'].service_address()}:{ORIGIN_PORT}"
        request = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()

        def connect() -> None:
            with self._testbed["client"].entered():
                client = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            with client:
                client.settimeout(ANSWERED)
                client.connect((self._node.service_address(), PROXY_PORT))
                client.sendall(request)
                if not client.recv(12).endswith(b" 200"):
                    raise ConnectionRefusedError

        return median([timed(connect) for _ in range(CONNECTS)])

    def _stop(self, moment: str, throttler: Throttler) -> None:
        """End *throttler*, by force after ``STOPPED`` seconds, and remove what it left behind."""
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
            # Check the exit code, because a throttler that had crashed earlier also seems to end at once.
            left.append(f"exit code {process.returncode}")
        self._found.stop = max(self._found.stop, took)
        self._found.left += tuple(f"{moment}: {each}" for each in left)


@contextmanager
def asking(path: Path) -> Iterator[list[float]]:
    """Ask the status socket at *path* all the time. Yield the list of the seconds until each answer's first byte.

    The silence ends when the event loop has accepted, the daemon has forked a child to answer, and the child has sent
    its first byte. It is therefore at least as long as the event loop's own silence at that moment.
    """
    silences: list[float] = []
    paced = Paced(lambda: silences.append(timed(lambda: first_byte(path))), ASK_INTERVAL)
    paced.start()
    try:
        yield silences
    finally:
        paced.stop()


def first_byte(path: Path) -> None:
    """Wait for the first byte of the status socket at *path*. Raises OSError if it does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(ANSWERED)
        asked.connect(str(path))
        # Send the query at once: for a client without a query the daemon would wait 0.2 s.
        asked.sendall(json.dumps(STATUS).encode() + b"\n")
        if not asked.recv(1):
            raise ConnectionResetError


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that *call* takes; infinite if it raises an error."""
    begin = time.monotonic()
    try:
        call()
    except (TestbedError, OSError, ValueError):
        return math.inf
    return time.monotonic() - begin


@contextmanager
def console_with_browsers(node: LiveNode, throttler: Throttler) -> Iterator[Process]:
    """Run the console like its unit, as far as a namespace allows: as nobody, with low priority; and its browsers."""
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
    """Return the seconds that the console's ``/metrics`` took; infinite if it failed or lacks connections."""
    url = f"http://127.0.0.1:{CONSOLE_PORT}/metrics"
    try:
        text = node.run(["curl", "-sf", "-m", "20", "-w", "%{time_total}", url]).stdout
    except TestbedError:
        return math.inf
    metrics, _, seconds = text.rpartition("\n")
    return float(seconds) if is_whole(metrics, tunnels) else math.inf


def is_whole(metrics: str, tunnels: int) -> bool:
    """Return whether *metrics* show that the throttler answers and has *tunnels* connections."""
    found = re.search(r"^mptcp_throttler_connections (\S+)$", metrics, re.MULTILINE)
    return "\nmptcp_throttler_up 1.0\n" in metrics and found is not None and float(found[1]) == tunnels


def _of(
    heading: str, part: str, name: str, least: Bound = None, most: Bound = None, **more: Any
) -> Column[HeldCell, Held]:
    """Return a column of the attribute *name* of a window or of reactions."""
    return Column(
        heading, lambda row: [getattr(getattr(each, part), name) for each in row.measured],
        least=least, most=most, **more,
    )  # fmt: skip


def _tunnels(row: Row[HeldCell, Held]) -> int:
    return row.cell.tunnels


def _growth(part: str) -> Callable[[Row[HeldCell, Held]], list[float]]:
    return lambda row: [getattr(each, part).p99 / each.alone.p99 for each in row.measured]


TABLE: Table[Any, Held] = Table(
    "Tunnels held",
    [
        Column("set-up", "set_up", unit=" s", most=SET_UP),
        Column("tunnels with two subflows", "two_subflows", least=_tunnels, digits=0),
        Column("connections with two subflows in status", "shown", least=_tunnels, digits=0),
        Column("tunnels that ended", "ended", most=0, digits=0),
        _of("trickled, of what it should", "idle", "trickled", TRICKLED),
        _of("trickled under caps, of what it should", "busy", "trickled", TRICKLED),
        Column("reload, to the last set entry", "reload", unit=" s", most=RELOAD),
        Column("reload, until none is left", "released", unit=" s", most=RELOAD),
        Column("status socket silent in a reload", "silence", unit=" s", most=STATUS_SECONDS, digits=3),
        # The lag must be above 0: a gauge that stays at 0 measures nothing.
        Column("event loop silent, by its gauge", "lag", unit=" s", least=1e-9, most=PAUSE, digits=3),
        Column("status --json, median", "command", unit=" s", most=STATUS_SECONDS, digits=3),
        Column("status socket, median", "answer", unit=" s", most=STATUS_SECONDS, digits=3),
        _of("cores: caps, guard, budgets", "busy", "throttler", most=BUSY, digits=3),
        _of("cores: nothing capped", "idle", "throttler", most=IDLE, digits=3),
        _of("cores for Squid", "busy", "squid"),
        _of("cores for the crowd's own programs", "busy", "crowd"),
        _of("cores for everything else", "busy", "others"),
        _of("reactions with none held", "alone", "capped", lambda row: row.cell.joins, digits=0),
        _of("reaction of a join with none held, p99", "alone", "p99", most=AIM_P99_MS, unit=" ms"),
        _of("reactions seen", "beside", "capped", lambda row: row.cell.joins, digits=0),
        _of("reaction of a join, median", "beside", "median", unit=" ms"),
        _of("reaction of a join, p99", "beside", "p99", unit=" ms"),
        Column("reaction of a join, p99, × with none held", _growth("beside"), most=REACTION_GROWTH),
        _of("reactions seen while status is asked", "asked", "capped", lambda row: row.cell.joins // 2, digits=0),
        _of("reaction while status is asked, p99", "asked", "p99", unit=" ms"),
        Column("reaction while status is asked, p99, × with none held", _growth("asked"), most=REACTION_GROWTH),
        Column("RSS", "resident", unit=" MB", least=DEAD_MB, most=RESIDENT, digits=1),
        Column("SIGTERM, slowest of four moments", "stop", unit=" s", most=STOP),
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
        Column("trickled with a console, of what it should", "trickled_beside", least=TRICKLED),
        Column("CONNECT without a console", "connect_alone", unit=" s", digits=4),
        Column(
            "CONNECT with a console, longer by", lambda row: [x.connect_beside - x.connect_alone for x in row.measured],
            unit=" s", most=CONNECT_ADDED, digits=4,
        ),
        Column("console: scrape, median", "scrape", unit=" s", most=SCRAPE),
        Column("console: scrape, slowest", "slowest_scrape", unit=" s", most=SLOWEST_SCRAPE),
        Column("console: RSS", "console", unit=" MB", least=DEAD_MB, most=CONSOLE_RESIDENT, digits=1),
    ],
    labels=[("held", lambda row: str(row.cell))],
    of=lambda row: isinstance(row.cell, HeldCell),
    beside=True,
)  # fmt: skip


def growth(results: Results[Any, Any]) -> Iterator[Aim]:
    """Yield the aims for the growth of the reload time, for each number that is ten times another."""
    reloads = {
        cell.tunnels: median([each.reload for each in held])
        for cell in results.cells
        if isinstance(cell, HeldCell) and (held := results.of(cell))
    }
    for number, reload in reloads.items():
        if number * 10 in reloads:
            more = reloads[number * 10]
            value = more / reload if reload > 0 and math.isfinite(more) else math.inf
            yield Aim(f"{number * 10:,} held: reload, growth from a tenth", value, "-fold", most=GROWTH)
