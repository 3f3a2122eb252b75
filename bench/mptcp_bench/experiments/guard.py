"""The guard: what a capped connection gets when the path that is left to it degrades, with the guard and without.

A download, or an upload, runs over Ethernet, capped, and Wi-Fi. Then Wi-Fi has a fault for some seconds: it loses
packets, slows down, loses everything, or goes down at the client. Shown are how long it takes until the connection gets
again what Wi-Fi alone gave, and how long after the end of the fault until the cap is back in force. The controls are
transfers that get little because they want little, or share: there the guard must do nothing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from itertools import product

from rich.console import Console

from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.process import Process

from ..recorder import Recorder, Sample
from . import Picture, Result
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
from .options import choice, refused
from .scene import missed, need
from .shown import finite
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
def _rate_up(testbed: Testbed) -> Iterator[None]:
    with slow_wifi(testbed, SLOW, WIFI):
        yield


FAULTS = {"loss": _loss, "rate": _rate, "silence": wifi_dropping, "down": _down}


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Result:
    """Run the faults that *options* choose, then the controls."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize")
    try:
        rtts = [
            int(word) for word in options.get("rtt", str(RTTS[0]) if quick else ",".join(map(str, RTTS))).split(",")
        ]
        runs = int(options.get("runs", QUICK_RUNS if quick else RUNS))
        named = [] if options.get("fault") == "" else choice(options, "fault", FAULTS)
        faults = {name: FAULTS[name] for name in named}
        scenes = [SCENES[name] for name in choice(options, "direction", SCENES)]
    except ValueError:
        raise refused("guard", OPTIONS) from None
    measured: list[Measured] = []
    controls: dict[str, int] = {}
    for rtt, kind in product(rtts, scenes):
        with Testbed(paths(two_paths((ETHERNET, WIFI), (rtt, rtt))), seed=seed) as testbed:
            scene = kind.built(testbed, _policy(True, kind.direction))
            for fault in faults:
                for number in range(runs):
                    console.print(
                        f"{kind.direction}, {rtt} ms, {fault}, {number + 1} of {runs}", style="dim", highlight=False
                    )
                    measured += [scene.run(rtt, fault, guarded) for guarded in (True, False)]
            controls |= {f"{kind.direction}, {rtt} ms, {name}": count for name, count in scene.controls()}
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
        "aims": [{**asdict(aim), "met": aim.met} for aim in asked],
    }
    pictures = (Picture("guard", lambda target: draw(target, measured)),) if measured else ()
    return Result((table_of(measured), controls_table(controls)), finite(data), missed(asked), pictures)


class Scene(DownloadScene):
    """Downloads under the cap."""

    __slots__ = ()
    direction = "down"

    def run(self, rtt: int, fault: str, guarded: bool) -> Measured:
        """Download with a fault."""
        self.load(_policy(guarded))
        count = _relaxations(self)
        with self.downloading() as (_client, recorder):
            fault_at, samples = _with_fault(self.testbed, recorder, FAULTS[fault], after(self.direction))
        outcome = judge(samples, fault_at, _relaxations(self) - count)
        return Measured(Cell(self.direction, rtt, fault), guarded, outcome, fault_at, samples)

    def controls(self) -> Iterator[tuple[str, int]]:
        """Yield transfers without a fault, and how often the guard relaxed a cap all the same."""
        self.load(_policy(guarded=True))
        for name, more, happening in (
            ("nothing happens", (), _nothing),
            ("the client reads 6 Mbit/s", ("--limit-rate", "750k"), _nothing),
            ("the client stops reading", (), _stopped),
            ("the origin sends 10 Mbit/s", (), self._slow_origin),
            ("a second download comes and goes", (), self._second),
        ):
            count = _relaxations(self)
            with self.downloading(*more) as (client, _recorder):
                time.sleep(WARM)
                with happening(client):
                    time.sleep(FAULT / 2)
                time.sleep(FAULT / 2)
            yield name, _relaxations(self) - count

    @contextmanager
    def _slow_origin(self, _: Process) -> Iterator[None]:
        with slow_origin(self.testbed, 10):
            yield

    @contextmanager
    def _second(self, _: Process) -> Iterator[None]:
        process = self.client.popen(self.download)
        try:
            yield
        finally:
            process.kill()


class Uploads(UploadScene):
    """Uploads under the cap."""

    __slots__ = ()
    direction = "up"

    def run(self, rtt: int, fault: str, guarded: bool) -> Measured:
        """Upload with a fault."""
        self.load(_policy(guarded, self.direction))
        count = _relaxations(self)
        with self.sending(CAP) as (_client, recorder):
            faults = {**FAULTS, "rate": _rate_up}
            fault_at, samples = _with_fault(self.testbed, recorder, faults[fault], after(self.direction))
        outcome = judge(samples, fault_at, _relaxations(self) - count)
        return Measured(Cell(self.direction, rtt, fault), guarded, outcome, fault_at, samples)

    def controls(self) -> Iterator[tuple[str, int]]:
        """Yield transfers without a fault, and how often the guard relaxed a cap all the same."""
        for name, cap, command, happening in (
            ("nothing happens", CAP, None, _nothing),
            ("the client sends 10 Mbit/s at last", CAP, self.slowing(SLOWING_AFTER, 10e6), _nothing),
            ("the same under a cap of 1 Mbit/s", LOW_CAP, self.slowing(SLOWING_AFTER, 10e6), _nothing),
            ("the client stops sending", CAP, None, _stopped),
            ("a second upload comes and goes", CAP, None, self._second),
        ):
            self.load(_policy(True, self.direction, cap))
            count = _relaxations(self)
            with self.sending(cap, command) as (client, recorder):
                time.sleep(WARM if command is None else max(0.0, SLOWING_AFTER - recorder.now))
                with happening(client):
                    time.sleep(FAULT / 2)
                time.sleep(FAULT / 2)
            yield name, _relaxations(self) - count

    @contextmanager
    def _second(self, _: Process) -> Iterator[None]:
        process = self.client.popen(self.upload())
        try:
            yield
        finally:
            process.kill()


SCENES: dict[str, type[Scene | Uploads]] = {"down": Scene, "up": Uploads}


def _with_fault(
    testbed: Testbed, recorder: Recorder, fault: Callable[[Testbed], AbstractContextManager[None]], watched: float
) -> tuple[float, tuple[Sample, ...]]:
    """Let Wi-Fi have the fault, and watch; return when it began, and all samples."""
    time.sleep(max(0.0, WARM - recorder.now))
    fault_at = recorder.now
    with fault(testbed):
        time.sleep(max(0.0, fault_at + FAULT - recorder.now))
    time.sleep(max(0.0, fault_at + FAULT + watched - recorder.now))
    return fault_at, tuple(recorder.samples)


@contextmanager
def _stopped(client: Process) -> Iterator[None]:
    client.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        client.signal(signal.SIGCONT)


def _relaxations(scene: Scene | Uploads) -> int:
    return int(scene.throttler.status()["counters"]["guard"]["relaxations"])


def _policy(guarded: bool, direction: str = "down", cap: int = CAP) -> str:
    return _POLICY % (str(guarded).lower(), direction, cap)
