# SPDX-License-Identifier: GPL-2.0-or-later
"""How much overflows to the later path in the priority-based mode: the first path must be full before it opens.

One download runs through the real proxy and throttler for each combination of rates, RTTs and demand. The demand is the
rate at which the origin sends: less than the first path carries, more than it, or more than both. In the last seconds
the origin sends half of what the first path carries, and the later path must close. Rates count what arrives at the
client, on the wire. Shares are of what arrived over both paths; the later path's opening is judged by the demand.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from math import inf

from rich.console import Console
from rich.table import Table

from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.plan import tbf
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate

from ..statistics import fmean
from .aims import Aim
from .attempts import Attempts
from .devices import DEVICES
from .findings import Findings
from .options import counts, listed, refused, rtts
from .setup import Setup
from .steering_cells import POLICY
from .tables import mean, new_table
from .two_paths import QUEUE_MS, slow_origin, two_paths

LINKS, DELAYS, DEMANDS = "15/60,60/150,50/10", "1/80,80/1,20/60,60/20,35/19", (50, 150, 300, 0)
QUICK = {"links": "15/60", "delays": "35/19", "demand": "150"}
OPTIONS = {
    "links": f"in overflow: Mbit/s of the first and the later path, default {LINKS}",
    "delays": f"in overflow: their RTTs in ms, default {DELAYS}",
    "demand": "in overflow: percent of the first path's rate, 0 for more than both carry, default "
    + ",".join(map(str, DEMANDS)),
}
RULES = "[{name: steered, steer: {mode: priority-based, order: [ethernet, wifi]}}]"
SETTLED, END, CLOSING = 5.0, 14.0, 8.0
"""Begin and end in seconds of the time over which shares are measured, and seconds of the halved demand after it."""
STEP = 0.5
BEGUN, OVER = 0.3, 0.02
"""The later path is open if it carries this share of the overflow, and closed if it carries less than this share of
everything."""
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
    def rate(self) -> int:
        """Rate at which the origin sends, in Mbit/s."""
        return round(self.links[0] * self.demand / 100) if self.demand else round(4 * sum(self.links))

    def __str__(self) -> str:
        demand = f"{self.demand} %" if self.demand else "full"
        return "{:g}/{:g} Mbit/s, {:g}/{:g} ms, ".format(*self.links, *self.delays) + demand


@dataclass(frozen=True, slots=True)
class Outcome:
    """The judged values of one download."""

    first: float
    """Rate of the first path, as a share of the rate that it could have carried."""
    excess: float
    """Rate of the later path beyond the overflow, in percentage points of the total rate."""
    opened: float
    """Seconds until the later path carried its part; 0 without an overflow."""
    closed: float
    """Seconds from the end of the demand until the later path carried nothing."""


def outcome(cell: Cell, samples: Sequence[Sample], changed: float) -> Outcome:
    """Judge one download. *changed* is when the demand was halved."""

    def rate(path: int, start: float, end: float) -> float:
        return mean_rate(samples, DEVICES[path], start, end) / 1e6

    first, later = rate(0, SETTLED, END), rate(1, SETTLED, END)
    total = first + later
    due = max(0.0, min(cell.rate, sum(cell.links)) - cell.links[0])
    steps = [STEP * number / 5 for number in range(int(5 * (samples[-1].time - 2 * STEP) / STEP))]
    opens = (step + STEP for step in steps if rate(1, step, step + STEP) > BEGUN * due)
    closes = (
        step - changed + STEP
        for step in steps
        if step >= changed and rate(1, step, step + STEP) < OVER * (rate(0, step, step + STEP) + 0.1)
    )
    return Outcome(
        first / min(total, cell.links[0]),
        100 * max(0.0, later - max(0.0, total - cell.links[0])) / total,
        next(opens, inf) if due else 0.0,
        next(closes, inf),
    )


def cells(options: Mapping[str, str]) -> list[Cell]:
    """Return the cells that *options* choose. Raises OptionError for an invalid option."""
    try:
        links = [rtts(each) for each in listed(options, "links", LINKS)]
        delays = [rtts(each) for each in listed(options, "delays", DELAYS)]
    except ValueError:
        raise refused(OPTIONS) from None
    return [Cell(*each) for each in product(links, delays, counts(options, "demand", DEMANDS, least=0))]


def measure(setup: Setup, cell: Cell) -> Outcome:
    """Run one download. Raises EmulationError if the paths were not as asked."""
    half = ["tc", "qdisc", "replace", "dev", "eth0", "root", *tbf(round(cell.links[0] / 2 * 1e6), QUEUE_MS)]
    with (
        slow_origin(setup.testbed, cell.rate),
        setup.client.running(setup.download),
        Recorder(setup.client, DEVICES) as recorder,
    ):
        time.sleep(max(0.0, END + 0.2 - recorder.now))
        changed = recorder.now
        setup.testbed["origin"].run(half)
        time.sleep(CLOSING)
        samples = recorder.samples
    setup.testbed.check_emulation()
    return outcome(cell, samples, changed)


def run(console: Console, seed: int, options: Mapping[str, str], runs: int, attempts: Attempts) -> Findings:
    """Run each cell that *options* choose *runs* times."""
    chosen = cells(options)
    measured: dict[Cell, list[Outcome]] = {each: [] for each in chosen}
    for links, delays in dict.fromkeys((each.links, each.delays) for each in chosen):
        there = [each for each in chosen if (each.links, each.delays) == (links, delays)]
        name = "{:g}/{:g} Mbit/s, {:g}/{:g} ms".format(*links, *delays)
        topology = paths(two_paths([round(each) for each in links], delays))
        with attempts.keeping(name, measured), Testbed(topology, seed=seed) as testbed:
            setup = Setup.built(testbed, POLICY % "[]")
            setup.load_between(POLICY % RULES, ["steered"])
            for cell, number in product(there, range(1, runs + 1)):
                console.print(f"{cell}, {number} of {runs}", style="dim", highlight=False)
                one = attempts.of(partial(measure, setup, cell), str(cell), check=testbed.check_emulation)
                measured[cell] += [one] if one else []
    data = {"overflow": [{"cell": str(cell), **asdict(each)} for cell, ones in measured.items() for each in ones]}
    return Findings((table_of(measured),), data, aims=tuple(aims(measured, runs)))


def table_of(measured: Mapping[Cell, Sequence[Outcome]]) -> Table:
    columns = ("cell", "runs", "first path", "excess, points", "opened s", "closed s")
    table = new_table("Overflow: first path's use and what the later one has beyond", columns, left=("cell",))
    for cell, ones in measured.items():
        values = [[getattr(one, name) for one in ones] for name in ("first", "excess", "opened", "closed")]
        shown = [mean(each, digits=2) if ones else "" for each in values]
        table.add_row(str(cell), str(len(ones)), *shown)
    return table


def aims(measured: Mapping[Cell, Sequence[Outcome]], runs: int) -> list[Aim]:
    """Return the aims of all cells, for the means of *runs* planned runs each."""
    found = []
    for cell, ones in measured.items():
        found.append(Aim(f"{cell}: runs", len(ones), least=runs))
        if ones:
            found += [
                Aim(f"{cell}: first path", fmean([one.first for one in ones]), least=FIRST),
                Aim(f"{cell}: excess, points", fmean([one.excess for one in ones]), most=EXCESS),
                Aim(f"{cell}: opened s", fmean([one.opened for one in ones]), most=OPENED),
                Aim(f"{cell}: closed s", fmean([one.closed for one in ones]), most=CLOSED),
            ]
    return found
