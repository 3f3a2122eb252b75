# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether an emulated path behaves as it was configured, judged by the packets that leave it.

The emulator's own counters are not used. Round trips and arrivals are measured at both ends of a path, throughput by
the devices' counters. On paths of 100 Mbit/s:

- Round-trip time, idle and with 80 % load in both directions: the median is within 0.5 ms, the 99th percentile within
  2 ms. With jitter under load each packet waits for the one before it, so the median misses that
  (docs/emulation.md). That aim is therefore wider, up to the longest delay, and its name says so.
- Loss of 100,000 packets, uniform and Gilbert-Elliott, in either direction: the rate and the mean length of a burst are
  within 10 %.
- No packet overtakes an earlier one, even with jitter.
- The same seed loses the same packets, another seed loses others.
- Two paths at full rate in both directions at once: each direction carries at least 0.97 of its link's rate.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from rich.console import Console

from mptcp_lab.agent.processors import process_seconds
from mptcp_lab.emulation.model import Direction, EmulatedPath, GilbertElliott, Loss, UniformLoss
from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.ends import PING_INTERVAL, ends, lost_of, reordered
from mptcp_lab.testbed.features import missing, need

from .aims import Aim, aims_table
from .emulation_judging import (
    OVERLOAD,
    Distribution,
    asked,
    capacity,
    delays,
    losses,
    mean_run,
    order,
    repeats,
)
from .findings import Findings

RATE = 100_000_000
LOADED = 0.8
PACKETS = 100_000
REPEATED = 20_000
SETTLE = 1.5
"""Seconds until the load programs run at their rate."""
UNIFORM = UniformLoss(0.01)
BURSTS = GilbertElliott(p=0.02, r=0.5, one_minus_h=0.8, one_minus_k=0.001)


def symmetric(name: str, delay: int, jitter: int = 0, loss: Loss | None = None) -> EmulatedPath:
    """Return a path with equal directions; times are in microseconds."""
    direction = Direction(RATE, delay, jitter, loss)
    return EmulatedPath(name, direction, direction)


TIMED = (symmetric("1 ms", 1_000), symmetric("8 ms", 8_000), symmetric("30 ms", 30_000))
JITTER = symmetric("8 ± 2 ms", 8_000, 2_000)
LOSSY = (symmetric("uniform", 8_000, loss=UNIFORM), symmetric("bursts", 8_000, loss=BURSTS))
CAPACITY = (symmetric("1 ms", 1_000), symmetric("8 ms", 8_000))


def _delays(testbed: Testbed, count: int) -> tuple[list[Aim], dict[str, Any]]:
    aims, data = [], {}
    for path, end in zip((*TIMED, JITTER), ends(testbed).values(), strict=True):
        idle = Distribution.of(end.ping(count))
        with end.loaded(LOADED * RATE, seconds=SETTLE + count * PING_INTERVAL + 1):
            time.sleep(SETTLE)
            loaded = Distribution.of(end.ping(count))
        data[path.name] = {"asked": asdict(asked(path)), "idle": asdict(idle), "loaded": asdict(loaded)}
        aims += delays(path, idle, loaded)
    return aims, data


def _order(testbed: Testbed) -> tuple[list[Aim], dict[str, Any]]:
    aims, data = [], {}
    for name in (TIMED[1].name, JITTER.name):
        for direction in ("down", "up"):
            numbers = ends(testbed)[name].arrivals(direction, REPEATED)
            data[f"{name} {direction}"] = {"received": len(numbers), "reordered": reordered(numbers)}
            aims += order(f"{name} {direction}", numbers, REPEATED)
    return aims, data


def _losses(testbed: Testbed) -> tuple[list[Aim], dict[str, Any], dict[str, list[int]]]:
    aims, data, lost = [], {}, {}
    for path, end in zip(LOSSY, ends(testbed).values(), strict=True):
        loss = path.down.loss
        assert loss is not None
        for direction in ("down", "up"):
            what = f"{path.name} {direction}"
            numbers = end.arrivals(direction, PACKETS)
            lost[what] = lost_of(numbers, PACKETS)
            share, run, _ = found = losses(what, loss, numbers, PACKETS)
            data[what] = {
                "loss": (share.value or 0.0) / 100, "asked": loss.mean, "run": run.value, "run_asked": mean_run(loss),
            }  # fmt: skip
            aims += found
    return aims, data, lost


def _repeats(seed: int, before: dict[str, list[int]]) -> list[Aim]:
    aims = []
    for other in (seed, seed + 1):
        with Testbed(paths(LOSSY), seed=other) as testbed:
            for name, end in ends(testbed).items():
                for direction in ("down", "up"):
                    again = lost_of(end.arrivals(direction, REPEATED), REPEATED)
                    first = [number for number in before[f"{name} {direction}"] if number < REPEATED]
                    aims.append(repeats(f"{name} {direction}", first, again, same_seed=other == seed))
    return aims


def _capacity(testbed: Testbed, seconds: float) -> tuple[list[Aim], dict[str, Any]]:
    """Overload both paths in both directions. Measure the rate that arrives, and the emulators' processor time."""
    both = list(ends(testbed).values())
    client, core = testbed["client"], testbed["core"]
    emulators = [process.pid for process in testbed.emulation.processes.values()]
    lasting = 2 * SETTLE + seconds + 1
    with both[0].loaded(OVERLOAD * RATE, lasting), both[1].loaded(OVERLOAD * RATE, lasting):
        time.sleep(2 * SETTLE)
        start, cost = time.monotonic(), sum(map(process_seconds, emulators))
        before = client.counters(), core.counters()
        time.sleep(seconds)
        after = client.counters(), core.counters()
        elapsed = time.monotonic() - start
        cost = (sum(map(process_seconds, emulators)) - cost) / elapsed
    shares = {}
    for path_ends in both:
        for name, side, device in (("down", 0, path_ends.device), ("up", 1, path_ends.far_device)):
            octets = after[side][device].received - before[side][device].received
            shares[f"{path_ends.device} {name}"] = octets * 8 / elapsed / RATE
    return capacity(shares), {"shares": shares, "processors": cost if emulators else None}


def run(console: Console, seed: int, quick: bool) -> Findings:
    """Measure everything. With *quick*, send fewer echo requests and use the full rate for a shorter time."""
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
    return Findings(
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
