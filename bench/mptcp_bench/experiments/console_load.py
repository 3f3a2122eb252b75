# SPDX-License-Identifier: GPL-2.0-or-later
"""The console beside 10,000 tunnels: what it costs, and how it affects throttler and proxy, also if it hangs or dies.

The crowd of the experiment ``scale`` opens the tunnels once, and the throttler caps each on its first path. The
throttler's own gauge gives the longest lag of its event loop in spans of ten seconds. These phases are compared:
without a console; with a console that browsers, a scraper and a page's table query all the time; after this console
ended; while another console is stopped (SIGSTOP); and after that console was killed.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from mptcp_common.status_client import ask
from mptcp_lab.testbed import LiveNode, Process, Testbed, TestbedError, paths
from mptcp_lab.testbed.features import missing, need
from mptcp_lab.testbed.services import Throttler, program, start_throttler, wait_until
from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE

from ..statistics import fmean
from .aims import aims_table
from .console_load_browser import browser
from .console_load_clients import Repeating, Streams, rows, scrape
from .console_load_judging import (
    AFTER,
    BEFORE,
    HUNG,
    KILLED,
    NEVER_ENDED,
    NO_TABLE,
    NOTHING_PUSHED,
    SCRAPE_SECONDS,
    SPAN,
    WITH,
    Ended,
    Phase,
    Plan,
    Pushed,
    Reloads,
    Top,
    UnderLoad,
    judge,
)
from .console_load_top import watched
from .findings import Findings
from .options import count
from .scale import SETTLE, window
from .scale_crowd import Crowd, with_crowd
from .scale_policy import FULL, UNCAPPED, Caps, settings_file
from .scale_watch import Entries

OPTIONS = {
    "n": "tunnels held, default 10000",
    "spans": "of ten seconds in each phase, default 6",
    "browsers": "that have the page open, default 10",
    "reloads": "that cap every tunnel, default 10",
    "pages": "times that Chromium loads the table, default 5; 0: leave it out",
    "refreshes": "of top, default 10",
}
PORT: Final = 8610
ROWS_SECONDS, CAPS_SECONDS = 2.0, 0.5
"""Seconds between two requests, and between two counts of caps. A page requests its table every two seconds."""
CAPPED_WITHIN: Final = 120.0
SHOWN_WITHIN: Final = 30.0
CHROMIUM_WITHIN: Final = 60.0
NOBODY, STATUS_GROUP = 65534, 54321
"""User and group of the console. The group is an unused one, in place of the throttler's."""
DESCRIPTORS: Final = 1024
"""Limit of open files, as LimitNOFILE in the console's systemd unit."""
ENDS_WITHIN: Final = 30.0


def plan(options: Mapping[str, str], quick: bool) -> Plan:
    """Read *options*. Raises OptionError for an invalid one."""
    return Plan(
        tunnels=count(options, "n", 100 if quick else 10_000),
        spans=count(options, "spans", 1 if quick else 6),
        browsers=count(options, "browsers", 3 if quick else 10),
        reloads=count(options, "reloads", 2 if quick else 10),
        pages=count(options, "pages", 2 if quick else 5, least=0),
        refreshes=count(options, "refreshes", 3 if quick else 10),
    )


@dataclass
class Found:
    """What the experiment has measured so far; it stays if a later step fails."""

    two_subflows: int = 0
    phases: dict[str, Phase] = field(default_factory=dict)
    reloads: dict[str, Reloads] = field(default_factory=dict)
    pushed: Pushed = NOTHING_PUSHED
    reloading: Pushed = NOTHING_PUSHED
    shown: tuple[float, ...] = ()
    scrapes: tuple[float, ...] = ()
    rows: tuple[float, ...] = ()
    largest: float = math.nan
    pages: tuple[float, ...] | None = None
    top: Top = NO_TABLE
    resident: float = math.nan
    ended: Ended = NEVER_ENDED
    tunnels_ended: int = 0

    def load(self, tunnels: int) -> UnderLoad:
        return UnderLoad(tunnels, **vars(self))


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Hold the tunnels, and let the console run, end, hang and be killed. *seed* has no effect."""
    asked = plan(options, quick)
    need("root", "mptcp", "mptcp-pm", "htb", "tbf", "ipset", "iptables-legacy", "squid", "ss", "gcc")
    found, failures = Found(), tuple[str, ...]()
    with Testbed(with_crowd(paths((ETHERNET_RATE, WIFI_RATE)))) as testbed:
        try:
            Examination(testbed, asked, console, found).run()
        except TestbedError as error:
            # If a later phase fails, keep the measurements of earlier ones.
            if not found.phases:
                raise
            failures = (str(error),)
    load = found.load(asked.tunnels)
    aims = judge(load, asked)
    data = {"plan": asdict(asked), "load": asdict(load)}
    return Findings((aims_table("Console", aims),), data, failures, aims=tuple(aims))


class Examination:
    """One crowd, one throttler, and the consoles beside them."""

    def __init__(self, testbed: Testbed, asked: Plan, console: Console, found: Found) -> None:
        self._testbed, self._plan, self._console, self._found = testbed, asked, console, found
        self._node = testbed["proxy"]
        self._crowd = Crowd.built(testbed, asked.tunnels)
        self._policy = self._node.write("policy.yaml", FULL.text())
        self._throttler = start_throttler(self._node, settings_file(testbed, self._policy))
        self._entries = Entries(self._node)
        testbed.scope.callback(self._entries.close)

    def run(self) -> None:
        found, tunnels = self._found, self._plan.tunnels
        took = self._crowd.hold(tunnels)
        self._say(f"{tunnels:,} tunnels stand after {took:.1f} s")
        found.two_subflows = self._crowd.joined(tunnels).two_subflows
        self._entries.come(tunnels, CAPPED_WITHIN)
        ended = self._crowd.client.read().ended
        found.phases[BEFORE] = self._phase(BEFORE)
        self._reloads(BEFORE, self._reload)
        process = start_console(self._node, self._throttler)
        with Streams(self._node, PORT, self._plan.browsers) as streams:
            self._watched(streams)
            self._reloaded(streams)
            self._in_chromium()
            found.resident = peak(process.pid)
        begin = time.monotonic()
        code = process.stop(ENDS_WITHIN)
        found.ended = Ended(time.monotonic() - begin, code)
        found.phases[AFTER] = self._phase(AFTER)
        self._say("top")
        argv = self._throttler.command("top", "--socket", str(self._throttler.socket))
        found.top = watched(argv, tunnels, self._plan.refreshes, within=30 + 5 * self._plan.refreshes)
        process = start_console(self._node, self._throttler)
        with Streams(self._node, PORT, self._plan.browsers):
            time.sleep(SETTLE)
            process.signal(signal.SIGSTOP)
            found.phases[HUNG] = self._phase(HUNG)
            process.kill()
            found.phases[KILLED] = self._phase(KILLED)
        found.tunnels_ended = self._crowd.client.read().ended - ended

    def _say(self, what: str) -> None:
        self._console.print(what, style="dim", highlight=False)

    def _phase(self, name: str) -> Phase:
        """Observe throttler and crowd for the planned spans, after they have settled."""
        self._say(f"loop lag, caps and trickle {name}")
        pid = self._throttler.process.pid
        lags, windows, late = [], [], None
        time.sleep(SETTLE)
        with Repeating(self._node, CAPS_SECONDS, self._entries.count) as caps:
            for _ in range(self._plan.spans):
                windows.append(window(self._crowd, pid, SPAN))
                recent, late = lag(self._throttler)
                lags.append(recent)
        return Phase(
            tuple(lags),
            late,
            min(caps.results),
            max(caps.results),
            fmean(each.trickled for each in windows),
            fmean(each.machine for each in windows),
        )

    def _watched(self, streams: Streams) -> None:
        """Query the console like a scraper and like a page's table, beside the browsers, during one phase."""
        node, tunnels = self._node, self._plan.tunnels
        time.sleep(SETTLE)
        with ExitStack() as stack:
            scrapes = stack.enter_context(Repeating(node, SCRAPE_SECONDS, partial(scrape, PORT, tunnels)))
            table = stack.enter_context(Repeating(node, ROWS_SECONDS, partial(rows, PORT, tunnels)))
            before = streams.read()
            self._found.phases[WITH] = self._phase(WITH)
            self._found.pushed = before.until(streams.read())
        self._found.scrapes, self._found.rows = tuple(scrapes.results), tuple(each for each, _ in table.results)
        self._found.largest = max((octets for _, octets in table.results), default=math.nan)

    def _reloaded(self, streams: Streams) -> None:
        """Lift every cap and set it again. Record what browsers receive meanwhile, and when they know all caps."""
        shown: list[float] = []
        before = streams.read()
        self._reloads(WITH, lambda: shown.append(self._shown(streams)))
        time.sleep(max(0.0, before.time + SPAN - time.monotonic()))
        self._found.reloading = before.until(streams.read())
        self._found.shown = tuple(shown)

    def _reloads(self, name: str, reload: Callable[[], None]) -> None:
        """Call *reload*, which lifts every cap and sets it again, several times. Read the loop's lag after each."""
        self._say(f"reloads that cap all, {name}")
        lags = []
        _, before = lag(self._throttler)
        after = before
        for _ in range(self._plan.reloads):
            reload()
            recent, after = lag(self._throttler)
            lags.append(recent)
        self._found.reloads[name] = Reloads(tuple(lags), None if before is None or after is None else after - before)

    def _reload(self) -> None:
        self._load(UNCAPPED)
        self._entries.gone(CAPPED_WITHIN)
        self._load(FULL)
        self._entries.come(self._plan.tunnels, CAPPED_WITHIN)

    def _shown(self, streams: Streams) -> float:
        """Return the seconds from a reload's last kernel entry until all browsers show all caps; infinite if never."""
        tunnels, begin = self._plan.tunnels, time.monotonic()
        self._load(UNCAPPED)
        self._entries.gone(CAPPED_WITHIN)
        if math.isinf(streams.all_with(0, begin, SHOWN_WITHIN)):
            return math.inf
        begin = time.monotonic()
        self._load(FULL)
        self._entries.come(tunnels, CAPPED_WITHIN)
        there = time.monotonic()
        # The throttler decides before it writes the entry, so the console may know a cap before the kernel has it.
        return max(0.0, streams.all_with(tunnels, begin, SHOWN_WITHIN) - there)

    def _load(self, caps: Caps) -> None:
        self._policy.write_text(caps.text())
        self._throttler.process.signal(signal.SIGHUP)

    def _in_chromium(self) -> None:
        if not self._plan.pages:
            return
        if (lack := missing("chromium")) is not None:
            self._say(f"no Chromium: {lack}")
            return
        self._say("the table in Chromium")
        tunnels, found = self._plan.tunnels, []
        try:
            with browser(self._node) as chromium:
                chromium.watch(f"{tunnels:,} ", min(50, tunnels))
                for _ in range(self._plan.pages):
                    found.append(chromium.seconds(f"http://127.0.0.1:{PORT}/#connections", CHROMIUM_WITHIN))
        except TestbedError as error:
            self._say(str(error))
        self._found.pages = tuple(found)


def start_console(node: LiveNode, throttler: Throttler) -> Process:
    """Start the console like its unit, as far as a namespace allows: as nobody, with low priority."""
    os.chown(throttler.socket, 0, STATUS_GROUP)
    for directory in (node.directory, throttler.socket.parent):
        directory.chmod(0o755)
    text = f"listen: 127.0.0.1:{PORT}\nstatus_socket: {throttler.socket}\nopen_to_this_host: true\n"
    config = node.write("console.yaml", text)
    rights = [f"--reuid={NOBODY}", f"--regid={NOBODY}", f"--groups={STATUS_GROUP}", "--no-new-privs"]
    prefix = ["nice", "-n", "10", "prlimit", f"--nofile={DESCRIPTORS}", "setpriv", *rights, "--bounding-set=-all"]
    argv = [*prefix, program("mptcp-console"), "run", "--config", str(config)]
    process = node.popen(argv, name="console")
    wait_until(lambda: "serving http" in process.output(), "the console serves", timeout=60, process=process)
    return process


def lag(throttler: Throttler) -> tuple[float, int | None]:
    """Return the loop's longest lag of the last ten seconds, infinite if unknown, and the count of late iterations."""
    try:
        loop = ask(throttler.socket, {"query": "summary"}, 30.0)["loop"]
        return float(loop["recent"]), int(loop["late"])
    except (OSError, KeyError, TypeError, ValueError):
        return math.inf, None


def peak(pid: int) -> float:
    """Return the greatest resident set of *pid* in MB (10^6), proc(5) status; NaN if it has ended."""
    try:
        status: Mapping[str, Any] = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        return int(status["VmHWM"].split()[0]) * 1024 / 1e6
    except (OSError, KeyError):
        return math.nan
