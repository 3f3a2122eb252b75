# SPDX-License-Identifier: GPL-2.0-or-later
"""How much overflows to the later path in the priority-based mode: the first path must be full before it opens.

One download runs through the real proxy and throttler for each combination of rates, RTTs and demand. The demand is the
rate at which the origin sends: less than the first path carries, more than it, or more than both. In the last seconds
the origin sends half of what the first path carries, and the later path must close. Rates count what arrives at the
client, on the wire. Shares are of what arrived over both paths; the later path's opening is judged by the demand.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from mptcp_lab.testbed.plan import tbf
from mptcp_lab.testbed.recorder import Recorder

from .columns import CELL, RUNS, Column, Table
from .devices import DEVICES, policy
from .setup import Setup
from .steering_judging import END, Overflow, overflow
from .two_paths import QUEUE_MS, slow_origin

RULES = "[{name: steered, steer: {mode: priority-based, order: [ethernet, wifi]}}]"
CLOSING = 8.0
"""Seconds of the halved demand after ``END``."""
FIRST, EXCESS, OPENED, CLOSED = 0.95, 5.0, 2.0, 5.0
"""Least used share of the first path; most percentage points that the later path may carry beyond the overflow; most
seconds until the later path is open, and until it is closed."""


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
            time.sleep(CLOSING)
            samples = recorder.samples
        return overflow(samples, self.links, self.rate, changed)


TABLE: Table[Any, Overflow] = Table(
    "Overflow: first path's use and what the later one has beyond",
    (
        RUNS,
        Column("first path", "first", least=FIRST),
        Column("excess, points", "excess", most=EXCESS),
        Column("opened s", "opened", most=OPENED),
        Column("closed s", "closed", most=CLOSED),
    ),
    (CELL,),
    of=lambda row: isinstance(row.cell, Cell),
)
