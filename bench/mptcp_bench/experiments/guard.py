# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard: what a capped connection gets when its other path degrades, with the guard and without.

A download or an upload uses Ethernet, which is capped, and Wi-Fi. Then Wi-Fi has a fault for some seconds: it loses
some packets, slows down, loses all packets, or goes down at the client. The experiment shows the time until the
connection regains the rate that Wi-Fi had, and the time from the end of the fault until the cap is in force again.
Uploads are also run with the cap lifted by hand at the moment of the fault: what they still lack is the client's doing.
The controls are transfers that are slow for another reason, or that share the paths: during them the guard must do
nothing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product

from rich.console import Console

from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.recorder import Recorder, mean_rate
from mptcp_lab.testbed.services import mptcp_command, python_command, wait_until

from .attempts import Attempts
from .devices import DEVICES, POLICY_PATHS
from .findings import Findings
from .guard_drawing import pictures
from .guard_judging import (
    ARMS,
    CAP,
    ETHERNET,
    FAULT,
    LOSS,
    SLOW,
    WARM,
    WIFI,
    Arm,
    Cell,
    Measured,
    Unharmed,
    after,
    aims,
    controls_table,
    judge,
    table_of,
)
from .options import MOST_RTT, choice, count, counts
from .setup import Setup
from .two_paths import slow_origin, slow_wifi, two_paths, wifi_dropping
from .upload_recorder import UploadRecorder

RTTS = (20, 60)
"""RTTs of both paths in milliseconds."""
OPTIONS = {
    "rtt": f"RTTs of both paths in ms, default {','.join(map(str, RTTS))}",
    "fault": "of Wi-Fi: loss, rate, silence, down; nothing: only what is without a fault; default all",
    "runs": "of each, default 5",
    "direction": "down, up; default both",
}
RUNS, QUICK_RUNS = 5, 1
SLOWING_AFTER = 20.0
"""Seconds after which a client sends less by itself. By then its cap is in force."""
STILL_SENT = 2.0
"""Most seconds that such a client needs to send the data that it had buffered."""
LOW_CAP = 1
"""Mbit/s: a cap so low that a client which sends little still reaches it."""
_POLICY = POLICY_PATHS + "guard: {enabled: %s}\nrules: [%s]\n"
_RULE = "{name: cap, paths: [ethernet], direction: %s, throttle: {rate: %d Mbit/s}}"


SLOWING = """
import socket, sys, time
host, port, url, full, rate = sys.argv[1], *sys.argv[2:4], *map(float, sys.argv[4:])
connection = socket.create_connection((host, int(port)))
connection.sendall(f"PUT {url} HTTP/1.1\\r\\nHost: sink\\r\\nContent-Length: 1000000000\\r\\n\\r\\n".encode())
began, piece = time.monotonic(), bytes(65536)
while time.monotonic() < began + full:
    connection.sendall(piece)
began, sent = time.monotonic(), 0
while True:
    due = int((time.monotonic() - began) * rate / 8)
    if due > sent:
        connection.sendall(bytes(due - sent))
        sent = due
    time.sleep(0.005)
"""
"""A program that uploads at full speed for SECONDS, then at RATE bits/s. Arguments: HOST PORT URL SECONDS RATE."""


@contextmanager
def _stopped(client: Process) -> Iterator[None]:
    client.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        client.signal(signal.SIGCONT)


FAULTS: dict[str, Callable[[Testbed, str], AbstractContextManager[None]]] = {
    "loss": lambda testbed, _: wifi_dropping(testbed, f"numgen random mod 100 < {LOSS} drop"),
    "rate": lambda testbed, direction: slow_wifi(testbed, "lan" if direction == "down" else "wan", SLOW, WIFI),
    "silence": lambda testbed, _: wifi_dropping(testbed),
    "down": lambda testbed, _: testbed["client"].link_down("wlan0"),
}
"""Context managers that make a fault of Wi-Fi, for transfers in the given direction."""
DIRECTIONS = ("down", "up")


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Run the faults that *options* choose, then the controls."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize")
    rtts = counts(options, "rtt", RTTS[:1] if quick else RTTS, most=MOST_RTT)
    runs = count(options, "runs", QUICK_RUNS if quick else RUNS)
    faults = [] if options.get("fault") == "" else choice(options, "fault", FAULTS)
    directions = choice(options, "direction", DIRECTIONS)
    measured: list[Measured] = []
    controls: dict[str, Unharmed] = {}
    attempts = Attempts(console)
    for rtt, direction in product(rtts, directions):
        there = [(Cell(direction, rtt, fault), number) for fault, number in product(faults, range(1, runs + 1))]
        topology = paths(two_paths((ETHERNET, WIFI), (rtt, rtt)))
        with (
            attempts.keeping(f"{direction}, {rtt} ms", measured, controls),
            Testbed(topology, seed=seed) as testbed,
        ):
            down = direction == "down"
            setup = GuardSetup.built(testbed, _policy(True, direction), down=down, up=not down)
            for (cell, number), arm in product(there, ARMS[direction]):
                name = f"{direction}, {rtt} ms, {cell.fault}, {number} of {runs}, guard {arm}"
                console.print(name, style="dim", highlight=False)
                one = attempts.of(partial(measure, setup, cell, arm), name, check=testbed.check_emulation)
                measured += [one] if one else []
            for each in setup.controls():
                name = f"{direction}, {rtt} ms, {each.name}"
                control = attempts.of(partial(unharmed, setup, each), name, check=testbed.check_emulation)
                if control is not None:
                    controls[name] = control
    planned = [Cell(direction, rtt, fault) for rtt, direction, fault in product(rtts, directions, faults)]
    asked = aims(measured, controls, planned, runs)
    data = {
        "runs": [{**asdict(m.cell), "guard": m.arm, "fault_at": m.fault_at, **asdict(m.outcome)} for m in measured],
        "controls": {name: asdict(control) for name, control in controls.items()},
    }
    tables = (table_of(measured), controls_table(controls))
    return attempts.judged(Findings(tables, data, pictures=pictures(measured), aims=tuple(asked)))


@dataclass(frozen=True, slots=True)
class Control:
    """A transfer without a fault, during which the guard must do nothing."""

    name: str
    happening: Callable[[Process], AbstractContextManager[object]] = nullcontext
    arguments: Sequence[str] = ()
    """Arguments of the client: for a download these are added to the command, for an upload they replace it."""
    cap: int = CAP
    after: float = WARM
    """Seconds of the transfer until *happening* begins."""
    before: bool = True
    """Whether the guard must do nothing also before *happening* begins."""


class GuardSetup(Setup):
    """Transfers under the cap, in one direction."""

    __slots__ = ()

    @property
    def direction(self) -> str:
        return "down" if self.download else "up"

    @contextmanager
    def transferring(self, cap: float, arguments: Sequence[str]) -> Iterator[tuple[Process, Recorder]]:
        """Start a transfer; yield it and a recorder of its paths, for an upload when *cap* (Mbit/s) is in force."""
        if self.direction == "down":
            with (
                self.client.running([*self.download, *arguments]) as process,
                Recorder(self.client, DEVICES) as recorder,
            ):
                yield process, recorder
        else:
            with self.client.running(arguments or self.upload) as process:
                wait_until(lambda: self._in_force(cap), "the cap is in force", timeout=30)
                with UploadRecorder(self.proxy, self.client) as recorder:
                    yield process, recorder

    def _in_force(self, cap: float) -> bool:
        status = self.throttler.status()
        rates = [each["rate"] for each in status["classes"] if each["direction"] == "up"]
        return bool(status["counters"]["upload_entries"]) and rates == [cap * 1_000_000]

    def controls(self) -> Iterator[Control]:
        yield Control("nothing happens")
        if self.direction == "down":
            yield Control("the client reads 6 Mbit/s", arguments=("--limit-rate", "750k"))
            yield Control("the client stops reading", _stopped)
            yield Control("the origin sends 10 Mbit/s", lambda _: slow_origin(self.testbed, 10))
            yield Control("a second download comes and goes", lambda _: self.client.running(self.download))
        else:
            slowing = self._slowing(SLOWING_AFTER, 10e6)
            yield Control("the client sends 10 Mbit/s at last", arguments=slowing, after=SLOWING_AFTER)
            # At full speed, Ethernet's data arrives so late that Wi-Fi waits for it and carries half its rate. Then the
            # guard is right to act, so it is not watched in that time.
            yield Control(
                "the same under a cap of 1 Mbit/s",
                arguments=slowing,
                cap=LOW_CAP,
                after=SLOWING_AFTER + STILL_SENT,
                before=False,
            )
            yield Control("the client stops sending", _stopped)
            yield Control("a second upload comes and goes", lambda _: self.client.running(self.upload))

    def _slowing(self, full: float, rate: float) -> list[str]:
        """Return the command of a client that sends *rate* bits/s after *full* seconds at full speed."""
        host, port = self.proxy_url.removeprefix("http://").rstrip("/").rsplit(":", 1)
        return mptcp_command(python_command(SLOWING, host, port, self.upload[-1], str(full), str(rate)))


def measure(setup: GuardSetup, cell: Cell, arm: Arm) -> Measured:
    """Run a transfer with a fault of Wi-Fi and judge it. Raises EmulationError if the paths were not as asked."""
    setup.load_between(_policy(arm is Arm.ON, cell.direction), ["cap"])
    before = _relaxations(setup)
    with setup.transferring(CAP, ()) as (_client, recorder):
        time.sleep(max(0.0, WARM - recorder.now))
        until = recorder.now
        with FAULTS[cell.fault](setup.testbed, cell.direction):
            # Under load the fault's command takes a second. Data that arrives until then is no recovery.
            fault_at = recorder.now
            if arm is Arm.LIFTED:
                setup.load(_POLICY % ("false", ""))
            time.sleep(max(0.0, fault_at + FAULT - recorder.now))
        time.sleep(max(0.0, fault_at + FAULT + after(cell.direction, arm) - recorder.now))
        samples = recorder.samples
    setup.testbed.check_emulation()
    return Measured(cell, arm, judge(samples, fault_at, _relaxations(setup) - before, until), fault_at, samples)


def unharmed(setup: GuardSetup, control: Control) -> Unharmed:
    """Return the guard's relaxations during *control*, and Wi-Fi's rate before it. Raises EmulationError."""
    setup.load_between(_policy(True, setup.direction, control.cap), ["cap"])
    before = _relaxations(setup)
    with setup.transferring(control.cap, control.arguments) as (client, recorder):
        time.sleep(max(0.0, control.after - recorder.now))
        samples = recorder.samples
        if not control.before:
            before = _relaxations(setup)
        with control.happening(client):
            time.sleep(FAULT / 2)
        time.sleep(FAULT / 2)
    setup.testbed.check_emulation()
    first = min(WARM / 2, samples[-1].time / 2)
    return Unharmed(_relaxations(setup) - before, mean_rate(samples, "wlan0", first, min(control.after, SLOWING_AFTER)))


def _relaxations(setup: Setup) -> int:
    return int(setup.throttler.status()["counters"]["guard"]["relaxations"])


def _policy(guarded: bool, direction: str, cap: int = CAP) -> str:
    return _POLICY % (str(guarded).lower(), _RULE % (direction, cap))
