# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler while 100, 1,000 and 10,000 trickling tunnels with two subflows go through the real Squid.

For each number of tunnels, newly opened in one testbed, this measures: the reload that caps every tunnel, the longest
silence of the event loop, ``status``, processor time with and without caps, the reaction to a join beside the tunnels
(on another port), memory, and SIGTERM when the throttler is idle, in a reload, and just after a start. Then, in a
testbed with emulated paths, a download is capped softly beside some tunnels. Each figure is shown with its aim.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from mptcp_lab.agent.processes import with_mounts
from mptcp_lab.agent.processors import tree_seconds
from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.services import Throttler, program, start_throttler, throttler_mounts, wait_until
from mptcp_lab.testbed.system_state import differences
from mptcp_lab.testbed.topologies import ETHERNET_RATE, SECOND_CLIENT_NETWORKS, WIFI_RATE

from . import scale_soft
from .attempts import Attempts
from .findings import Findings
from .options import OptionError, count, counts, positive, yes
from .reaction import probed
from .reaction_judging import reactions
from .relay_memory import user_memory
from .scale_crowd import TRICKLE, Crowd, with_crowd
from .scale_judging import Held, ProcessorShares, Rig, Stop, judge, judge_soft, nothing, table
from .scale_policy import CAPPED, FULL, PROBE_PORT, UNCAPPED, Caps, settings_file
from .scale_watch import Asking, Entries, answer, operators_environment

NUMBERS, QUICK_NUMBERS = (100, 1000, 10_000), (20, 100)
OPTIONS = {
    "n": f"tunnels held, ascending, default {','.join(map(str, NUMBERS))}",
    "seconds": "over which processor time is taken, default 30",
    "reactions": "joins measured for each number, default 200; half as many while status is asked",
    "beside": "tunnels held beside the download that is capped softly, default 5000; 0: leave it out",
    "runs": "of that download, with none held and with these, default 5",
    "throttler": "yes, or no: only the rig, with what it costs by itself",
}
SETTLE = 3.0
"""Seconds to wait after a change before processor time is measured."""
RELOADED = 120.0
"""If a reload takes longer than these seconds, it counts as never finished."""
STOPPED = 60.0
"""Seconds after SIGTERM at which the throttler is killed if it still runs."""
EARLY = 0.1
"""Seconds after SIGHUP in which a reload may block the event loop."""
ASKS = 5
ASK_PAUSE = 0.2
"""Seconds from an answer of the status socket to the next query."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the options choose."""

    numbers: tuple[int, ...]
    seconds: float
    reactions: int
    beside: int
    runs: int
    throttler: bool

    @property
    def asked(self) -> int:
        return self.reactions // 2


@dataclass
class Found:
    """What the experiment has measured so far; it stays if a later step fails."""

    rigs: list[Rig] = field(default_factory=list)
    none: tuple[float, ...] = ()
    held: list[Held] = field(default_factory=list)


def plan(options: Mapping[str, str], quick: bool) -> Plan:
    """Return the plan that *options* choose. Raises OptionError for an invalid option."""
    numbers = counts(options, "n", QUICK_NUMBERS if quick else NUMBERS)
    if numbers != sorted(set(numbers)):
        raise OptionError(f"--set n={options['n']}: allowed are numbers of which each is greater than the one before")
    return Plan(
        numbers=tuple(numbers),
        seconds=positive(options, "seconds", 5 if quick else 30),
        reactions=count(options, "reactions", 20 if quick else 200, least=4),
        beside=count(options, "beside", 50 if quick else 5000, least=0),
        runs=count(options, "runs", 1 if quick else 5),
        throttler=yes(options, "throttler", True),
    )


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Hold each number of tunnels, then download beside some. *seed* affects only the emulated paths."""
    asked = plan(options, quick)
    need("root", "mptcp", "mptcp-pm", "htb", "tbf", "ipset", "iptables-legacy", "squid", "ss", "gcc")
    if asked.beside:
        need("apache2", "curl", "mptcpize", "bpf-pacing")
    found, attempts = Found(), Attempts(console)
    with Testbed(with_crowd(paths((ETHERNET_RATE, WIFI_RATE)))) as testbed:
        crowd = Crowd.built(testbed, asked.numbers[-1])
        if asked.throttler:
            Examination(testbed, crowd, asked, console, found).run()
        else:
            for number in asked.numbers:
                found.rigs.append(rig(crowd, number, None, asked.seconds, console))
    kept = scale_soft.Kept((), ())
    if asked.throttler and asked.beside:
        try:
            kept = scale_soft.measure(asked.beside, asked.runs, seed, console, attempts)
        except TestbedError as error:
            # Keep the measurements of earlier parts. The missing runs miss an aim.
            console.print(f"soft cap: {error}", style="dim", highlight=False)
    aims = judge(found.rigs, found.none, found.held, asked.reactions, asked.asked)
    soft = judge_soft(asked.beside, kept.none, kept.held) if asked.throttler else []
    tables = [table("At scale", aims), *([table("A download is capped softly", soft)] if soft else [])]
    aims += soft
    data: dict[str, Any] = {
        "plan": asdict(asked),
        "rigs": [asdict(each) for each in found.rigs],
        "reactions_with_none": found.none,
        "held": [asdict(each) for each in found.held],
        "soft": asdict(kept),
    }
    return attempts.judged(Findings(tuple(tables), data, aims=tuple(aims)))


def rig(crowd: Crowd, number: int, pid: int | None, seconds: float, console: Console) -> Rig:
    """Hold *number* tunnels. Return the seconds until they were established, and the idle cost."""
    set_up = crowd.hold(number)
    sockets = crowd.joined(number)
    console.print(f"{number:,} tunnels stand after {set_up:.1f} s", style="dim", highlight=False)
    time.sleep(SETTLE)
    return Rig(number, set_up, sockets.two_subflows, window(crowd, pid, seconds))


def window(crowd: Crowd, pid: int | None, seconds: float) -> ProcessorShares:
    """Return the processor shares of all programs over *seconds*. *pid* is the throttler's."""
    begin, octets = time.monotonic(), crowd.client.read().octets
    daemon, programs, machine = _cpu(pid), crowd.processor_seconds(), _machine_seconds()
    standing = crowd.client.read().standing
    time.sleep(seconds)
    span = time.monotonic() - begin
    after = crowd.processor_seconds()
    owed = standing * TRICKLE * span
    shares = {name: (after[name] - programs[name]) / span for name in programs}
    return ProcessorShares(
        daemon=(_cpu(pid) - daemon) / span if pid is not None and Path(f"/proc/{pid}").exists() else math.nan,
        machine=(_machine_seconds() - machine) / span,
        # Without tunnels the share is NaN, which misses its aim.
        trickled=(crowd.client.read().octets - octets) / owed if owed else math.nan,
        **shares,
    )


def _cpu(pid: int | None) -> float:
    return math.nan if pid is None else tree_seconds(pid)


def _machine_seconds() -> float:
    """Return the seconds that all processors have worked since boot, without idle time and disk waits; proc(5)."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


class Examination:
    """One testbed with one crowd, and throttlers that run one after another."""

    def __init__(self, testbed: Testbed, crowd: Crowd, asked: Plan, console: Console, found: Found) -> None:
        self._testbed, self._crowd, self._plan, self._console, self._found = testbed, crowd, asked, console, found
        self._policy = testbed.directory / "policy.yaml"
        self._settings = settings_file(testbed, self._policy)
        self._node = testbed["proxy"]
        self._entries = Entries(self._node)
        testbed.scope.callback(self._entries.close)
        self._before = self._crowd.state()

    def run(self) -> None:
        """Measure everything: first without tunnels, then with each number of them."""
        throttler = self._start(FULL)
        self._say("0 held: reaction")
        self._found.none = self._reactions(self._plan.reactions)
        self._stop("after the first reactions", throttler)
        for number in self._plan.numbers:
            # A throttler can pace only subflows that were accepted while it ran, so each throttler gets a new crowd.
            self._crowd.hold(0)
            try:
                throttler = self._start(UNCAPPED)
            except TestbedError as error:
                self._say(f"{number:,} held: {error}")
                self._found.rigs.append(rig(self._crowd, number, None, self._plan.seconds, self._console))
                self._found.held.append(nothing(number))
                return
            self._examine(number, throttler)

    def _examine(self, number: int, throttler: Throttler) -> None:
        """Hold *number* tunnels, and measure *throttler* until it ends."""
        crowd, seconds, pid = self._crowd, self._plan.seconds, throttler.process.pid
        ended = crowd.client.read().ended
        self._found.rigs.append(rig(crowd, number, pid, seconds, self._console))
        self._say(f"{number:,} held: reload")
        self._load(throttler, CAPPED)
        half, reload = self._entries.come(number, RELOADED)
        time.sleep(SETTLE)
        self._load(throttler, UNCAPPED)
        released = self._entries.gone(RELOADED)
        # Query during another reload, because queries would slow down the timed one.
        with Asking(throttler.socket, ASK_PAUSE) as asking:
            self._load(throttler, CAPPED)
            self._entries.come(number, RELOADED)
            time.sleep(1)
        self._say(f"{number:,} held: processor time under caps, guard and budget")
        self._load(throttler, FULL)
        time.sleep(SETTLE)
        busy = window(crowd, pid, seconds)
        commands = tuple(_timed(lambda: self._command(throttler)) for _ in range(ASKS))
        answers = tuple(_timed(lambda: json.loads(answer(throttler.socket))) for _ in range(ASKS))
        self._say(f"{number:,} held: reaction")
        reactions = self._reactions(self._plan.reactions)
        with Asking(throttler.socket, ASK_PAUSE):
            asked = self._reactions(self._plan.asked)
        status = self._status(throttler)
        loop = status.get("counters", {}).get("loop", {})
        resident, proportional = (user_memory(pid, kind) / 1e6 for kind in ("Rss", "Pss"))
        self._say(f"{number:,} held: SIGTERM")
        stops = [self._stop("idle", throttler)]
        kept_limits = crowd.sockets().limited
        stops.append(self._started_and_stopped("just started", CAPPED, None, 0.0))
        stops.append(self._started_and_stopped("as a reload begins", UNCAPPED, CAPPED, EARLY))
        crowd.hold(0)
        stops.append(self._started_and_stopped("in mid-reload", UNCAPPED, CAPPED, min(reload, RELOADED) / 2, number))
        self._found.held.append(
            Held(
                tunnels=number,
                shown=shown(status),
                half=half,
                reload=reload,
                released=released,
                longest=loop.get("longest"),
                late=loop.get("late"),
                silence=max(asking.silences, default=math.inf),
                commands=commands,
                answers=answers,
                busy=busy,
                reactions=reactions,
                asked=asked,
                stops=tuple(stops),
                resident=resident,
                proportional=proportional,
                kept_limits=kept_limits,
                ended=crowd.client.read().ended - ended,
            )
        )

    def _say(self, what: str) -> None:
        self._console.print(what, style="dim", highlight=False)

    def _start(self, caps: Caps) -> Throttler:
        self._policy.write_text(caps.text())
        return start_throttler(self._node, self._settings)

    def _load(self, throttler: Throttler, caps: Caps) -> None:
        self._policy.write_text(caps.text())
        throttler.process.signal(signal.SIGHUP)

    def _reactions(self, count: int) -> tuple[float, ...]:
        """Return the delays of up to *count* joins in milliseconds, without joins whose entry did not come."""
        try:
            samples = probed(self._testbed, count, PROBE_PORT)
        except TestbedError as error:
            self._say(f"reaction: {error}")
            return ()
        return tuple(reactions(samples))

    def _command(self, throttler: Throttler) -> None:
        argv = throttler.command("status", "--json", "--socket", str(throttler.socket))
        json.loads(self._node.run(argv, env=operators_environment()).stdout)

    def _status(self, throttler: Throttler) -> dict[str, Any]:
        with suppress(TestbedError, ValueError):
            return throttler.status()
        return {}

    def _stop(self, moment: str, throttler: Throttler) -> Stop:
        """End *throttler*, by force after ``STOPPED`` seconds, and remove what it left behind."""
        process = throttler.process
        begin = time.monotonic()
        process.signal(signal.SIGTERM)
        try:
            wait_until(lambda: not process.running, f"the throttler ends, {moment}", timeout=STOPPED)
        except TestbedError:
            process.kill()
        passed = time.monotonic() - begin
        found = tuple(differences(self._before, self._crowd.state()))
        if found or passed >= STOPPED:
            argv = [program("mptcp-throttler"), "cleanup", "--config", str(self._settings)]
            self._node.run(with_mounts(argv, throttler_mounts(self._node)), check=False, timeout=120)
        if process.returncode != 0:
            # Check the exit code, because a throttler that had crashed earlier also seems to end at once.
            found += (f"exit code {process.returncode}",)
        return Stop(moment, math.inf if passed >= STOPPED else passed, found)

    def _started_and_stopped(
        self, moment: str, first: Caps, then: Caps | None, after: float, number: int | None = None
    ) -> Stop:
        """Start a throttler with *first*, hold *number* tunnels, load *then*, and end it *after* these seconds."""
        try:
            throttler = self._start(first)
        except TestbedError as error:
            return Stop(moment, math.inf, (str(error),))
        if number is not None:
            self._crowd.hold(number)
            time.sleep(SETTLE)
        if then is not None:
            self._load(throttler, then)
        time.sleep(after)
        return self._stop(moment, throttler)


def _timed(call: Callable[[], object]) -> float:
    """Return the seconds that *call* takes; infinite if it raises an error."""
    begin = time.monotonic()
    try:
        call()
    except (TestbedError, OSError, ValueError):
        return math.inf
    return time.monotonic() - begin


def shown(status: Mapping[str, Any]) -> int:
    """Return the number of the crowd's connections that *status* shows with at least two subflows."""
    prefixes = tuple(f"10.77.{network}." for network in SECOND_CLIENT_NETWORKS)

    def theirs(subflows: Sequence[Mapping[str, Any]]) -> int:
        return sum(1 for each in subflows if each["remote"].startswith(prefixes))

    return sum(1 for connection in status.get("connections", ()) if theirs(connection["subflows"]) >= 2)
