"""The guard: what a capped connection gets when the path that is left to it degrades, with the guard and without.

A download runs over Ethernet, capped, and Wi-Fi. Then Wi-Fi loses packets, slows down, swallows everything, or goes
down at the client; some seconds later it heals. Shown are how long it takes until the connection gets again what Wi-Fi
alone gave, and how long after the healing until the cap is back in force. The controls are transfers that get little
because they want little, or share: there the guard must do nothing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from .. import style
from ..paper.statistics import Interval, mean_interval
from ..recorder import Sample, mean_rate, rates
from ..testbed import Testbed, TestbedError, paths
from ..testbed.plan import tbf
from ..testbed.process import Process
from . import Picture, Result
from .scene import need
from .two_paths import DEVICES, QUEUE_MS, DownloadScene, slow_origin, two_paths, wifi_dropping

ETHERNET, WIFI, CAP = 100, 30, 5
"""Mbit/s."""
RTTS = (20, 60)
"""Milliseconds, on both paths."""
OPTIONS = {
    "rtt": f"RTTs of both paths in ms, default {','.join(map(str, RTTS))}",
    "fault": "what befalls Wi-Fi: loss, rate, silence, down; default all",
    "runs": "of each, default 5",
}
RUNS, QUICK_RUNS = 5, 1
WARM, ILL, WELL = 4.0, 8.0, 12.0
"""Seconds before the fault, until it heals, and after."""
RECOVERED, LONGEST = 0.8, 2.0
"""What the connection is to get again, as a share of Wi-Fi's rate before, and the seconds within which."""
SLOW = 5
"""Mbit/s of Wi-Fi with the fault ``rate``."""
LOSS = 30
"""Percent of Wi-Fi's packets with the fault ``loss``."""
SPAN = 0.5
"""Seconds over which a rate is taken."""
SHOWN = ("recovered", "during", "in_force", "relaxations")
_POLICY = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24]}
  wifi: {clients: [10.77.2.0/24]}
guard: {enabled: %s}
rules: [{name: cap, paths: [ethernet], throttle: {rate: %d Mbit/s}}]
"""


@contextmanager
def _loss(testbed: Testbed) -> Iterator[None]:
    with wifi_dropping(testbed, f"numgen random mod 100 < {LOSS} drop"):
        yield


@contextmanager
def _rate(testbed: Testbed) -> Iterator[None]:
    slow, fast = (_shaper(rate, "lan") for rate in (SLOW, WIFI))
    with testbed["hop2"].changed(slow, fast):
        yield


def _shaper(rate: int, device: str) -> list[str]:
    """Return the command that sets the rate, Mbit/s, of a hop: below netem where that emulates the path."""
    replace = f"tc qdisc replace dev {device}"
    shaper = " ".join(tbf(rate * 1_000_000, QUEUE_MS))
    return ["sh", "-c", f"{replace} parent 1:1 handle 10: {shaper} 2>/dev/null || {replace} root {shaper}"]


@contextmanager
def _down(testbed: Testbed) -> Iterator[None]:
    with testbed["client"].link_down("wlan0"):
        yield


@contextmanager
def _nothing(_: Process) -> Iterator[None]:
    yield


FAULTS = {"loss": _loss, "rate": _rate, "silence": wifi_dropping, "down": _down}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One download with a fault. Times in seconds."""

    before: float
    """Wi-Fi's rate before, bits/s."""
    during: float
    """What the connection got from ``LONGEST`` after the fault until it healed, as a share of that."""
    recovered: float
    """From the fault until the connection gets ``RECOVERED`` of that; the whole time of the fault if never."""
    in_force: float
    """From the healing until Ethernet is back at its cap for good."""
    relaxations: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One run, with its samples for the picture."""

    rtt: int
    fault: str
    guarded: bool
    outcome: Outcome
    fault_at: float
    samples: tuple[Sample, ...]


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Result:
    """Run the faults that *options* choose, then the controls."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize")
    try:
        rtts = [
            int(word) for word in options.get("rtt", str(RTTS[0]) if quick else ",".join(map(str, RTTS))).split(",")
        ]
        runs = int(options.get("runs", QUICK_RUNS if quick else RUNS))
        faults = {name: FAULTS[name] for name in options.get("fault", ",".join(FAULTS)).split(",") if name}
    except (ValueError, KeyError):
        known = "; ".join(f"{name}=… ({what})" for name, what in OPTIONS.items())
        raise TestbedError(f"run guard: --set takes {known}") from None
    measured: list[Measured] = []
    controls: dict[str, int] = {}
    for rtt in rtts:
        with Testbed(paths(two_paths((ETHERNET, WIFI), (rtt, rtt))), seed=seed) as testbed:
            scene = Scene.built(testbed, _policy(guarded=True))
            for fault in faults:
                for number in range(runs):
                    console.print(f"{rtt} ms, {fault}, {number + 1} of {runs}", style="dim", highlight=False)
                    measured += [scene.run(rtt, fault, guarded) for guarded in (True, False)]
            controls |= {f"{rtt} ms, {name}": count for name, count in scene.controls()}
    table, failures = judged(measured)
    failures += [f"{name}: no relaxation, was {count}" for name, count in controls.items() if count]
    data = {
        "runs": [
            {"rtt": m.rtt, "fault": m.fault, "guarded": m.guarded, "fault_at": m.fault_at, **asdict(m.outcome)}
            for m in measured
        ],
        "controls": controls,
    }
    pictures = (Picture("guard", lambda target: draw(target, measured)),) if measured else ()
    return Result((table, controls_table(controls)), data, tuple(failures), pictures)


class Scene(DownloadScene):
    """Downloads under the cap."""

    __slots__ = ()

    def run(self, rtt: int, fault: str, guarded: bool) -> Measured:
        """Download, harm, heal."""
        self.load(_policy(guarded))
        count = self._relaxations()
        with self.downloading() as (_client, recorder):
            time.sleep(max(0.0, WARM - recorder.now))
            fault_at = recorder.now
            with FAULTS[fault](self.testbed):
                time.sleep(max(0.0, fault_at + ILL - recorder.now))
            time.sleep(max(0.0, fault_at + ILL + WELL - recorder.now))
            samples = recorder.samples
        outcome = judge(samples, fault_at, self._relaxations() - count)
        return Measured(rtt, fault, guarded, outcome, fault_at, tuple(samples))

    def controls(self) -> Iterator[tuple[str, int]]:
        """Yield what is no harm, and how often the guard relaxed a cap for it all the same."""
        self.load(_policy(guarded=True))
        for name, more, happening in (
            ("nothing happens", (), _nothing),
            ("the client reads 6 Mbit/s", ("--limit-rate", "750k"), _nothing),
            ("the client stops reading", (), self._stopped),
            ("the origin sends 10 Mbit/s", (), self._slow_origin),
            ("a second download comes and goes", (), self._second),
        ):
            count = self._relaxations()
            with self.downloading(*more) as (client, _recorder):
                time.sleep(WARM)
                with happening(client):
                    time.sleep(ILL / 2)
                time.sleep(ILL / 2)
            yield name, self._relaxations() - count

    @contextmanager
    def _stopped(self, client: Process) -> Iterator[None]:
        client.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            client.signal(signal.SIGCONT)

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

    def _relaxations(self) -> int:
        return int(self.throttler.status()["counters"]["guard"]["relaxations"])


def _policy(guarded: bool) -> str:
    return _POLICY % (str(guarded).lower(), CAP)


def judge(samples: Sequence[Sample], fault_at: float, relaxations: int) -> Outcome:
    """Judge a download that was harmed at *fault_at*. Raises ValueError where there are too few samples."""
    before = mean_rate(samples, "wlan0", fault_at - 2, fault_at)
    healed = fault_at + ILL

    def total(start: float, end: float) -> float:
        return sum(mean_rate(samples, device, start, end) for device in DEVICES) / before

    starts = [s.time for s in samples if fault_at <= s.time <= healed - SPAN - 0.2]
    recovered = next((t + SPAN for t in starts if total(t, t + SPAN + 0.01) >= RECOVERED), healed)
    capped_from = healed
    for sample in samples:
        with suppress(ValueError):
            start = sample.time
            if start >= healed and mean_rate(samples, "eth0", start, start + 1.01) > CAP * 1e6 * 1.1:
                capped_from = start + 1
    return Outcome(
        before=before,
        during=total(fault_at + LONGEST, healed),
        recovered=recovered - fault_at,
        in_force=capped_from - healed,
        relaxations=relaxations,
    )


def judged(measured: Sequence[Measured]) -> tuple[Table, list[str]]:
    """Return the table, and what of the aims was missed by the means of the guarded runs."""
    table = Table(title="Wi-Fi fails while Ethernet is capped", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in (
        "RTT",
        "Wi-Fi",
        "guard",
        "runs",
        "Wi-Fi before",
        "gets again after s",
        "then",
        "cap back after s",
        "n",
    ):
        table.add_column(title, justify="left" if title in ("Wi-Fi", "guard") else "right", no_wrap=True)
    failures = []
    words = {
        "loss": f"loses {LOSS} %",
        "rate": f"slows to {SLOW} Mbit/s",
        "silence": "swallows all",
        "down": "goes down",
    }
    for rtt, fault in dict.fromkeys((m.rtt, m.fault) for m in measured):
        for guarded in (True, False):
            chosen = [m.outcome for m in measured if (m.rtt, m.fault, m.guarded) == (rtt, fault, guarded)]
            means = {f.name: mean_interval([float(getattr(o, f.name)) for o in chosen]) for f in fields(Outcome)}
            table.add_row(
                f"{rtt} ms", words[fault], "on" if guarded else "off", str(len(chosen)),
                _shown(means["before"], 1e-6), *(_shown(means[name]) for name in SHOWN),
            )  # fmt: skip
            if guarded:
                where = f"{rtt} ms, {words[fault]}"
                if means["recovered"].mean > LONGEST:
                    failures.append(f"{where}: recovers within {LONGEST} s, was {means['recovered'].mean:.2f}")
                if means["in_force"].mean >= WELL - 1.5:
                    failures.append(f"{where}: the cap is back after the healing, was not within {WELL:g} s")
    return table, failures


def _shown(interval: Interval, scale: float = 1.0) -> str:
    half = "" if interval.half is None else f" ± {interval.half * scale:.2f}"
    return f"{interval.mean * scale:.2f}{half}"


def controls_table(controls: Mapping[str, int]) -> Table:
    table = Table(title="What is no harm", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("control")
    table.add_column("relaxations", justify="right")
    for name, count in controls.items():
        table.add_row(name, str(count))
    return table


def draw(target: Path, measured: Sequence[Measured]) -> None:
    """Draw the first fault of each kind at the first RTT, with the guard."""
    shown = [m for m in measured if m.guarded and m.rtt == measured[0].rtt]
    kinds = list(dict.fromkeys(m.fault for m in shown))
    figure = style.new_figure(11, 2.3 * len(kinds) + 1)
    panels = figure.subplots(len(kinds), 1, sharex=True, squeeze=False)[:, 0]
    figure.subplots_adjust(left=0.065, right=0.985, top=1 - 1.1 / (2.3 * len(kinds) + 1), bottom=0.09, hspace=0.35)
    for axes, fault in zip(panels, kinds, strict=True):
        chosen = next(m for m in shown if m.fault == fault)
        series = [rate for rate in rates(chosen.samples) if rate.time - chosen.fault_at >= -2]
        times = [rate.time - chosen.fault_at for rate in series]
        for device, path in zip(DEVICES, (style.ETHERNET, style.WIFI), strict=True):
            style.draw_path(axes, times, [rate.bits[device] / 1e6 for rate in series], path)
        for moment in (0, ILL):
            axes.axvline(moment, color=style.INK, linestyle=style.DASHED, linewidth=1, zorder=4)
        axes.set_title(f"Wi-Fi: {fault}", loc="left", fontsize=10, color=style.INK)
        axes.set_xlim(-2, ILL + WELL)
        style.dress(axes, "seconds since the fault" if fault == kinds[-1] else "", "Mbit/s")
    panels[0].legend(loc="upper right", frameon=False)
    heading = f"Ethernet capped at {CAP} Mbit/s, RTT {measured[0].rtt} ms; between the dashed lines Wi-Fi is ill"
    style.heading(figure, "The guard", heading, left=0.065)
    style.save(figure, target)
