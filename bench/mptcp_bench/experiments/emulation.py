"""Whether an emulated path is what was asked for, judged by what comes out of it.

Nothing of the emulator's own counting is used: round trips and arrivals are measured at both ends of a path, throughput
by the devices' counters. On paths of 100 Mbit/s:

- round-trip time, idle and with 80 % load in both directions: median within 0.5 ms, 99th percentile within 2 ms;
  with jitter under load the median misses that, since each packet waits for the one before it (docs/emulation.md):
  there the aim is a wider one, up to the longest delay, and says so;
- loss of 100,000 packets, uniform and Gilbert-Elliott, in either direction: within 10 %; mean length of a burst too;
- no packet before one that was sent earlier, with jitter too;
- the same seed loses the same packets, another seed others;
- two paths at full rate in both directions at once: each direction at least 0.97 of its link.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import sqrt
from pathlib import Path as File
from statistics import fmean
from typing import Any

from rich.console import Console

from mptcp_lab.emulation.model import Direction, GilbertElliott, Loss, Path, UniformLoss
from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.ends import PING_INTERVAL, ends, lost_of, reordered
from mptcp_lab.testbed.features import missing

from ..statistics import median, percentile
from . import Result
from .scene import Aim, aims_table, need

RATE = 100_000_000
LOADED = 0.8
PACKETS = 100_000
REPEATED = 20_000
SETTLE = 1.5
"""Seconds until the programs that make the load run at their rate."""
MEDIAN_WITHIN, P99_WITHIN = 0.5, 2.0
LOSS_WITHIN = 0.1
FULL = 0.97
OVERLOAD = 1.03

UNIFORM = UniformLoss(0.01)
BURSTS = GilbertElliott(p=0.02, r=0.5, one_minus_h=0.8, one_minus_k=0.001)


def symmetric(name: str, delay: int, jitter: int = 0, loss: Loss | None = None) -> Path:
    """Return a path with the same in both directions; times in microseconds."""
    direction = Direction(RATE, delay, jitter, loss)
    return Path(name, direction, direction)


TIMED = (symmetric("1 ms", 1_000), symmetric("8 ms", 8_000), symmetric("30 ms", 30_000))
JITTER = symmetric("8 ± 2 ms", 8_000, 2_000)
LOSSY = (symmetric("uniform", 8_000, loss=UNIFORM), symmetric("bursts", 8_000, loss=BURSTS))
CAPACITY = (symmetric("1 ms", 1_000), symmetric("8 ms", 8_000))


@dataclass(frozen=True, slots=True)
class Distribution:
    """Milliseconds."""

    median: float
    p99: float
    most: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Distribution:
        return Distribution(median(values), percentile(values, 99), max(values), len(values))


def asked(path: Path) -> Distribution:
    """Return the round trip that *path* asks for, idle: twice a delay drawn evenly has a triangular distribution."""
    jitter = path.down.jitter
    middle = path.rtt / 1e3
    # P(sum > s) = (2j - s)^2 / 8j^2 for s from 0 to 2j.
    return Distribution(middle, middle + jitter * (2 - sqrt(0.08)) / 1e3, middle + 2 * jitter / 1e3, 0)


def run_lengths(lost: Sequence[int]) -> list[int]:
    """Return the lengths of the runs of consecutive numbers in *lost*, which is in order."""
    if not lost:
        return []
    lengths = [1]
    for before, after in pairwise(lost):
        if after == before + 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def mean_run(loss: Loss) -> float:
    """Return how many packets in a row are lost on average: losses over beginnings of runs, in the long run."""
    if isinstance(loss, UniformLoss):
        return 1 / (1 - loss.probability)
    bad = loss.p / (loss.p + loss.r)
    after_bad = (1 - loss.r) * loss.one_minus_h + loss.r * loss.one_minus_k
    after_good = (1 - loss.p) * loss.one_minus_k + loss.p * loss.one_minus_h
    both = bad * loss.one_minus_h * after_bad + (1 - bad) * loss.one_minus_k * after_good
    return loss.mean / (loss.mean - both)


def _within(what: str, value: float, middle: float, margin: float, unit: str) -> Aim:
    return Aim(what, value, unit, least=round(middle - margin, 3), most=round(middle + margin, 3))


def _delays(testbed: Testbed, count: int) -> tuple[list[Aim], dict[str, Any]]:
    aims, data = [], {}
    for path, place in zip((*TIMED, JITTER), ends(testbed).values(), strict=True):
        want = asked(path)
        idle = Distribution.of(place.ping(count))
        with place.loaded(LOADED * RATE, seconds=SETTLE + count * PING_INTERVAL + 1):
            time.sleep(SETTLE)
            loaded = Distribution.of(place.ping(count))
        data[path.name] = {"asked": asdict(want), "idle": asdict(idle), "loaded": asdict(loaded)}
        aims.append(_within(f"{path.name} each way: RTT idle, median", idle.median, want.median, MEDIAN_WITHIN, " ms"))
        aims.append(_within(f"{path.name} each way: RTT idle, p99", idle.p99, want.p99, P99_WITHIN, " ms"))
        # With jitter a packet between others waits for the one before: the median nears the longest delay.
        most, wider = (want.most, " (wider aim: up to the longest delay)") if path.down.jitter else (want.median, "")
        for name, value, margin in (("median", loaded.median, MEDIAN_WITHIN), ("p99", loaded.p99, P99_WITHIN)):
            what = f"{path.name} each way: RTT with 80 % load, {name}{wider}"
            aims.append(Aim(what, value, " ms", least=want.median - margin, most=most + margin))
    return aims, data


def _order(testbed: Testbed) -> tuple[list[Aim], dict[str, Any]]:
    aims, data = [], {}
    for name in (TIMED[1].name, JITTER.name):
        for direction in ("down", "up"):
            numbers = ends(testbed)[name].arrivals(direction, REPEATED)
            late = reordered(numbers)
            data[f"{name} {direction}"] = {"received": len(numbers), "reordered": late}
            aims.append(Aim(f"{name} {direction}: out of order", late, most=0))
            aims.append(Aim(f"{name} {direction}: lost of {REPEATED}", REPEATED - len(numbers), most=0))
    return aims, data


def _losses(testbed: Testbed) -> tuple[list[Aim], dict[str, Any], dict[str, list[int]]]:
    aims, data, lost = [], {}, {}
    for path, place in zip(LOSSY, ends(testbed).values(), strict=True):
        loss = path.down.loss
        assert loss is not None
        for direction in ("down", "up"):
            what = f"{path.name} {direction}"
            numbers = place.arrivals(direction, PACKETS)
            gone = lost[what] = lost_of(numbers, PACKETS)
            share, run = len(gone) / PACKETS, fmean(run_lengths(gone) or [0])
            data[what] = {"loss": share, "asked": loss.mean, "run": run, "run_asked": mean_run(loss)}
            aims.append(_within(f"{what}: loss", 100 * share, 100 * loss.mean, 100 * LOSS_WITHIN * loss.mean, " %"))
            aims.append(_within(f"{what}: lost in a row", run, mean_run(loss), LOSS_WITHIN * mean_run(loss), ""))
            aims.append(Aim(f"{what}: out of order", reordered(numbers), most=0))
    return aims, data, lost


def _repeats(seed: int, before: dict[str, list[int]]) -> list[Aim]:
    aims = []
    for other, what in ((seed, "same seed"), (seed + 1, "another seed")):
        with Testbed(paths(LOSSY), seed=other) as testbed:
            for name, place in ends(testbed).items():
                for direction in ("down", "up"):
                    again = lost_of(place.arrivals(direction, REPEATED), REPEATED)
                    first = [number for number in before[f"{name} {direction}"] if number < REPEATED]
                    shared = len(set(first) & set(again)) / len(set(first) | set(again))
                    least, most = (1.0, None) if other == seed else (None, 0.5)
                    aims.append(Aim(f"{name} {direction}: losses shared, {what}", shared, least=least, most=most))
    return aims


def _processor_seconds(pid: int) -> float:
    # proc(5): utime and stime are the 14th and 15th field; the name in parentheses may hold anything.
    fields = File(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _capacity(testbed: Testbed, seconds: float) -> tuple[list[Aim], dict[str, Any]]:
    """Measure what arrives, and what the emulators cost, while both paths are overloaded in both directions."""
    both = list(ends(testbed).values())
    client, core = testbed["client"], testbed["core"]
    emulators = [process.pid for process in testbed.emulation.processes.values()]
    lasting = 2 * SETTLE + seconds + 1
    with both[0].loaded(OVERLOAD * RATE, lasting), both[1].loaded(OVERLOAD * RATE, lasting):
        time.sleep(2 * SETTLE)
        start, cost = time.monotonic(), sum(map(_processor_seconds, emulators))
        before = client.counters(), core.counters()
        time.sleep(seconds)
        after = client.counters(), core.counters()
        elapsed = time.monotonic() - start
        cost = (sum(map(_processor_seconds, emulators)) - cost) / elapsed
    shares = {}
    for place in both:
        for name, side, device in (("down", 0, place.device), ("up", 1, place.far_device)):
            octets = after[side][device].received - before[side][device].received
            shares[f"{place.device} {name}"] = octets * 8 / elapsed / RATE
    aims = [Aim(f"{name}, all four directions full: share of the link", share, least=FULL)
            for name, share in shares.items()]  # fmt: skip
    return aims, {"shares": shares, "processors": cost if emulators else None}


def run(console: Console, seed: int, quick: bool) -> Result:
    """Measure everything; *quick* means fewer echo requests and a shorter time at full rate."""
    need("root", "namespaces", "veth", "tbf", "ethtool")
    if missing("netem") is not None:
        need("gcc", "nfqueue")
    count = 300 if quick else 1500
    with console.status("delay") as status:
        with Testbed(paths((*TIMED, JITTER)), seed=seed) as testbed:
            kind, repeatable = testbed.emulation.kind, testbed.emulation.repeatable
            delays, delay_data = _delays(testbed, count)
            status.update("order")
            order, order_data = _order(testbed)
        status.update("loss")
        with Testbed(paths(LOSSY), seed=seed) as testbed:
            losses, loss_data, lost = _losses(testbed)
        repeats: list[Aim] = []
        if repeatable:
            status.update("the same seed again, and another")
            repeats = _repeats(seed, lost)
        status.update("full rate")
        with Testbed(paths(CAPACITY), seed=seed) as testbed:
            capacity, capacity_data = _capacity(testbed, 4 if quick else 15)
    groups = {"Delay": delays, "Order": order, "Loss": losses, "Seed": repeats, "Full rate": capacity}
    cost = capacity_data["processors"]
    title = f"Full rate, {kind}" + (f": {cost:.2f} processors for both emulators" if cost is not None else "")
    return Result(
        tables=tuple(aims_table(title if n == "Full rate" else n, aims) for n, aims in groups.items() if aims),
        data={
            "emulator": kind,
            "repeatable": repeatable,
            "delay": delay_data,
            "order": order_data,
            "loss": loss_data,
            "capacity": capacity_data,
        },
        aims=tuple(aim for aims in groups.values() for aim in aims),
    )
