"""The guard: what a capped connection gets when the path that is left to it degrades, with the guard and without.

A download, or an upload, runs over Ethernet, capped, and Wi-Fi. Then Wi-Fi has a fault for some seconds: it loses
packets, slows down, loses everything, or goes down at the client. Shown are how long it takes until the connection gets
again what Wi-Fi alone gave, and how long after the end of the fault until the cap is back in force. The controls are
transfers that get little because they want little, or share: there the guard must do nothing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from types import MappingProxyType

from rich.console import Console

from mptcp_lab.testbed import LiveNode, Testbed, TestbedError, paths
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.recorder import Recorder

from .findings import Findings, Picture
from .guard_judging import (
    CAP,
    ETHERNET,
    FAULT,
    LOSS,
    SLOW,
    WARM,
    WIFI,
    Cell,
    Measured,
    after,
    aims,
    controls_table,
    draw,
    judge,
    table_of,
)
from .guard_uploads import UploadScene, slow_wifi
from .options import choice, count, counts
from .two_paths import DownloadScene, hop_shaper, slow_origin, two_paths, wifi_dropping

RTTS = (20, 60)
"""Milliseconds, on both paths."""
OPTIONS = {
    "rtt": f"RTTs of both paths in ms, default {','.join(map(str, RTTS))}",
    "fault": "of Wi-Fi: loss, rate, silence, down; nothing: only what is without a fault; default all",
    "runs": "of each, default 5",
    "direction": "down, up; default both",
}
RUNS, QUICK_RUNS = 5, 1
SLOWING_AFTER = 20.0
"""Seconds after which a client sends less by itself: its cap is in force by then."""
LOW_CAP = 1
"""Mbit/s that a client which wants less fills all the same."""
_POLICY = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24]}
  wifi: {clients: [10.77.2.0/24]}
guard: {enabled: %s}
rules: [{name: cap, paths: [ethernet], direction: %s, throttle: {rate: %d Mbit/s}}]
"""


@contextmanager
def _loss(testbed: Testbed) -> Iterator[None]:
    with wifi_dropping(testbed, f"numgen random mod 100 < {LOSS} drop"):
        yield


@contextmanager
def _rate(testbed: Testbed) -> Iterator[None]:
    slow, fast = (hop_shaper(rate, "lan") for rate in (SLOW, WIFI))
    with testbed["hop2"].changed(slow, fast):
        yield


@contextmanager
def _down(testbed: Testbed) -> Iterator[None]:
    with testbed["client"].link_down("wlan0"):
        yield


@contextmanager
def _nothing(_: Process) -> Iterator[None]:
    yield


@contextmanager
def _stopped(client: Process) -> Iterator[None]:
    client.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        client.signal(signal.SIGCONT)


@contextmanager
def _second(client: LiveNode, command: Sequence[str], _: Process) -> Iterator[None]:
    process = client.popen(command)
    try:
        yield
    finally:
        process.kill()


@contextmanager
def _rate_up(testbed: Testbed) -> Iterator[None]:
    with slow_wifi(testbed, SLOW, WIFI):
        yield


FAULTS = {"loss": _loss, "rate": _rate, "silence": wifi_dropping, "down": _down}


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Run the faults that *options* choose, then the controls."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize")
    rtts = counts(options, "rtt", RTTS[:1] if quick else RTTS)
    runs = count(options, "runs", QUICK_RUNS if quick else RUNS)
    faults = [] if options.get("fault") == "" else choice(options, "fault", FAULTS)
    scenes = [SCENES[name] for name in choice(options, "direction", SCENES)]
    measured: list[Measured] = []
    controls: dict[str, int] = {}
    for rtt, kind in product(rtts, scenes):
        with Testbed(paths(two_paths((ETHERNET, WIFI), (rtt, rtt))), seed=seed) as testbed:
            scene = kind.built(testbed, _policy(True, kind.direction))
            for fault, number, guarded in product(faults, range(runs), (True, False)):
                name = (
                    f"{kind.direction}, {rtt} ms, {fault}, {number + 1} of {runs}, guard {'on' if guarded else 'off'}"
                )
                console.print(name, style="dim", highlight=False)
                try:
                    measured.append(measure(scene, Cell(kind.direction, rtt, fault), guarded))
                except (TestbedError, ValueError) as error:
                    # What was measured before must not be lost; a run that is not there misses an aim.
                    console.print(f"  void, because {error}", style="dim", highlight=False)
            controls |= {f"{kind.direction}, {rtt} ms, {each.name}": relaxed(scene, each) for each in scene.controls()}
    planned = [Cell(kind.direction, rtt, fault) for rtt, kind, fault in product(rtts, scenes, faults)]
    asked = aims(measured, controls, planned, runs)
    data = {
        "runs": [
            {
                **asdict(m.cell),
                "guarded": m.guarded,
                "fault_at": m.fault_at,
                **asdict(m.outcome),
            }
            for m in measured
        ],
        "controls": controls,
    }
    pictures = (Picture("guard", lambda target: draw(target, measured)),) if measured else ()
    return Findings((table_of(measured), controls_table(controls)), data, pictures=pictures, aims=tuple(asked))


@dataclass(frozen=True, slots=True)
class Control:
    """A transfer without a fault, during which the guard must do nothing."""

    name: str
    happening: Callable[[Process], AbstractContextManager[None]] = _nothing
    arguments: Sequence[str] = ()
    """Of the client: more of them for a download, all for an upload."""
    cap: int = CAP
    after: float = WARM
    """Seconds until it happens."""


class Scene(DownloadScene):
    """Downloads under the cap."""

    __slots__ = ()
    direction = "down"
    faults = FAULTS

    def transfer(self, _cap: float, arguments: Sequence[str]) -> AbstractContextManager[tuple[Process, Recorder]]:
        return self.downloading(*arguments)

    def controls(self) -> Iterator[Control]:
        yield Control("nothing happens")
        yield Control("the client reads 6 Mbit/s", arguments=("--limit-rate", "750k"))
        yield Control("the client stops reading", _stopped)
        yield Control("the origin sends 10 Mbit/s", self._slow_origin)
        yield Control("a second download comes and goes", partial(_second, self.client, self.download))

    @contextmanager
    def _slow_origin(self, _: Process) -> Iterator[None]:
        with slow_origin(self.testbed, 10):
            yield


class Uploads(UploadScene):
    """Uploads under the cap."""

    __slots__ = ()
    direction = "up"
    faults = MappingProxyType({**FAULTS, "rate": _rate_up})

    def transfer(self, cap: float, arguments: Sequence[str]) -> AbstractContextManager[tuple[Process, Recorder]]:
        return self.sending(cap, arguments)

    def controls(self) -> Iterator[Control]:
        slowing = self.slowing(SLOWING_AFTER, 10e6)
        yield Control("nothing happens")
        yield Control("the client sends 10 Mbit/s at last", arguments=slowing, after=SLOWING_AFTER)
        yield Control("the same under a cap of 1 Mbit/s", arguments=slowing, cap=LOW_CAP, after=SLOWING_AFTER)
        yield Control("the client stops sending", _stopped)
        yield Control("a second upload comes and goes", partial(_second, self.client, self.upload()))


SCENES: dict[str, type[Scene | Uploads]] = {"down": Scene, "up": Uploads}


def measure(scene: Scene | Uploads, cell: Cell, guarded: bool) -> Measured:
    """Transfer, let Wi-Fi have the fault for a while, and watch."""
    scene.load(_policy(guarded, scene.direction))
    before = _relaxations(scene)
    with scene.transfer(CAP, ()) as (_client, recorder):
        time.sleep(max(0.0, WARM - recorder.now))
        fault_at = recorder.now
        with scene.faults[cell.fault](scene.testbed):
            time.sleep(max(0.0, fault_at + FAULT - recorder.now))
        time.sleep(max(0.0, fault_at + FAULT + after(scene.direction) - recorder.now))
        samples = tuple(recorder.samples)
    return Measured(cell, guarded, judge(samples, fault_at, _relaxations(scene) - before), fault_at, samples)


def relaxed(scene: Scene | Uploads, control: Control) -> int:
    """Return how often the guard relaxed a cap though there was no fault."""
    scene.load(_policy(True, scene.direction, control.cap))
    before = _relaxations(scene)
    with scene.transfer(control.cap, control.arguments) as (client, recorder):
        time.sleep(max(0.0, control.after - recorder.now))
        with control.happening(client):
            time.sleep(FAULT / 2)
        time.sleep(FAULT / 2)
    return _relaxations(scene) - before


def _relaxations(scene: Scene | Uploads) -> int:
    return int(scene.throttler.status()["counters"]["guard"]["relaxations"])


def _policy(guarded: bool, direction: str = "down", cap: int = CAP) -> str:
    return _POLICY % (str(guarded).lower(), direction, cap)
