# SPDX-License-Identifier: GPL-2.0-or-later
"""How much overflows to the later path in the priority-based mode: the first path must be full before it opens.

One download runs through the real proxy and throttler for each combination of rates, RTTs and demand. The demand is the
rate at which the origin sends: less than the first path carries, more than it, or more than both. In the last seconds
the origin sends half of what the first path carries, and the later path must close. Rates count what arrives at the
client, on the wire. Shares are of what arrived over both paths; the later path's opening is judged by the demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from mptcp_lab.testbed.plan import tbf
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate, windows

from .columns import CELL, RUNS, Column, Table
from .devices import DEVICES, policy
from .setup import Setup
from .two_paths import QUEUE_MS, slow_origin

RULES = "[{name: steered, steer: {mode: priority-based, order: [ethernet, wifi]}}]"
SETTLED, END = 5.0, 14.0
"""Begin and end in seconds of the time over which shares of an overflow are measured."""
STEP = 0.5
OPEN, OVER = 0.3, 0.02
"""The later path is open if it carries this share of the overflow, and closed if it carries less than this share of
everything."""
CLOSING = 8.0
"""Seconds of the halved demand after ``END``."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the options."""

    links: tuple[float, float]
    """Rates of the first and the later path in Mbit/s."""
    delays: tuple[float, float]
    """RTTs of the first and the later path in ms."""
    demand: int
    """Demand in percent of the first link's rate; 0 for more than both links."""

    @property
    def bed(self) -> str:
        return "{:g}/{:g} Mbit/s, {:g}/{:g} ms".format(*self.links, *self.delays)

    @property
    def rates(self) -> tuple[int, int]:
        return round(self.links[0]), round(self.links[1])

    @property
    def rtts(self) -> tuple[float, float]:
        return self.delays

    @property
    def rate(self) -> int:
        """Rate at which the origin sends, in Mbit/s."""
        return round(self.links[0] * self.demand / 100) if self.demand else round(4 * sum(self.links))

    def __str__(self) -> str:
        demand = f"{self.demand} %" if self.demand else "full"
        return "{:g}/{:g} Mbit/s, {:g}/{:g} ms, ".format(*self.links, *self.delays) + demand

    def measure(self, setup: Setup) -> Overflow:
        """Run one download."""
        if setup.throttler.status()["policy"]["rules"] != ["steered"]:
            setup.load_between(policy(RULES), ["steered"])
        half = ["tc", "qdisc", "replace", "dev", "eth0", "root", *tbf(round(self.links[0] / 2 * 1e6), QUEUE_MS)]
        with (
            slow_origin(setup.testbed, self.rate),
            setup.client.running(setup.download),
            Recorder(setup.client, DEVICES) as recorder,
        ):
            recorder.wait(END + 0.2)
            changed = recorder.now
            setup.testbed["origin"].run(half)
            recorder.wait(changed + CLOSING)
            samples = recorder.samples
        return overflow(samples, self.links, self.rate, changed)


@dataclass(frozen=True, slots=True)
class Overflow:
    """The judged values of one download."""

    first: float
    """Rate of the first path, as a share of the rate that it could have carried."""
    excess: float
    """Rate of the later path beyond the overflow, in percentage points of the total rate."""
    opened: float
    """Seconds until the later path carried its part; 0 without an overflow."""
    closed: float
    """Seconds from the end of the demand until the later path carried nothing."""


def overflow(samples: Sequence[Sample], links: tuple[float, float], demand: float, changed: float) -> Overflow:
    """Judge a download of *demand* over *links* (Mbit/s). *changed* is when the demand was halved."""

    def rate(path: int, start: float, end: float) -> float:
        return mean_rate(samples, DEVICES[path], start, end) / 1e6

    first, later = rate(0, SETTLED, END), rate(1, SETTLED, END)
    total = first + later
    due = max(0.0, min(demand, sum(links)) - links[0])
    steps = zip(*(windows(samples, (device,), STEP) for device in DEVICES), strict=True)
    over_time = [(begin + STEP, on_first / 1e6, on_later / 1e6) for (begin, on_first), (_, on_later) in steps]
    opens = (time for time, _, carried in over_time if carried > OPEN * due)
    closes = (
        time - changed
        for time, other, carried in over_time
        if time >= changed + STEP and carried < OVER * (other + 0.1)
    )
    return Overflow(
        first / min(total, links[0]),
        100 * max(0.0, later - max(0.0, total - links[0])) / total,
        next(opens, inf) if due else 0.0,
        next(closes, inf),
    )


TABLE: Table[Any, Overflow] = Table(
    "Overflow: first path's use and what the later one has beyond",
    (
        RUNS,
        Column("first path", "first", least=0.95),
        Column("excess, points", "excess", most=5),
        Column("opened s", "opened", most=2),
        Column("closed s", "closed", most=5),
    ),
    (CELL,),
    of=lambda row: isinstance(row.cell, Cell),
)
