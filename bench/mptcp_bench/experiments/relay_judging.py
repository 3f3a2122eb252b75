# SPDX-License-Identifier: GPL-2.0-or-later
"""What a proxy needed to carry bytes and requests, and the aims of ours. Pure.

Processor time is of all processes of a proxy. Other programs affect it less than rates. A rate is divided by the rate
without a proxy in the same round. Ours is compared, round by round, with the peer that has the best median over the
rounds; a round in which one of them is missing does not count. The aim for such ratios is about a confidence bound of
their mean, so one round proves nothing, and a few rounds that differ much miss the aim.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from mptcp_lab.agent.processors import Usage

from ..statistics import histogram_percentiles, mean_bounds, median, median_interval
from .aims import Aim
from .relay_cells import BASE, BULK, CLIENTS, DIRECT, HELD, OTHERS, OURS, OWN, Cell, Setting

WORST = 1.0
"""Most processor time of ours, as a multiple of the best peer's."""
MULTIPATH = 1.15
"""Most cost of an MPTCP client, as a multiple of a TCP client's."""
RATES = {"get": 0.8, "connect": 0.95}
"""Least rate, as a share of the rate without a proxy."""
IDLE = 100.0
"""Most KB per idle connection, user and kernel memory together."""
NAMES = {
    "get": "GET, s/GB",
    "connect": "CONNECT, s/GB",
    "requests": "µs/request",
    "idle-get": "idle connection, kB",
    "idle-connect": "idle tunnel, kB",
    "busy": "busy connection, kB",
}
COSTS = ("get", "connect", "requests")


def positive_or_nan(cost: float) -> float:
    """Return *cost* if it is positive, otherwise NaN, which meets no aim."""
    return cost if cost > 0 else math.nan


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured values of one task of one proxy in one round."""

    setting: Setting
    cell: Cell
    task: str
    round: int
    seconds: float = 0.0
    processor: float = 0.0
    """Processor time of the proxy in seconds."""
    octets: int = 0
    answers: int = 0
    failures: int = 0
    late: tuple[float, ...] = ()
    """The 50th, 90th and 99th percentile of the seconds until a request was answered."""
    offered: float = 0.0
    """Requests that were due per second; 0 if each followed the previous answer."""
    user: float = 0.0
    kernel: float = 0.0
    """User and kernel memory in bytes per held connection."""
    failure: str = ""
    """Reason of the first failure."""

    @property
    def cost(self) -> float:
        """Seconds per GB, µs per request, or kB per connection; infinite for nothing carried, NaN if not positive."""
        if self.task in HELD:
            return positive_or_nan((self.user + self.kernel) / 1e3)
        done, unit = (self.octets, 1e9) if self.task in BULK else (self.answers, 1e6)
        if not done:
            return inf
        spent = self.processor / done * unit
        return spent if self.cell.proxy == DIRECT else positive_or_nan(spent)

    @property
    def rate(self) -> float:
        """Body bytes per second for bulk transfers, otherwise answers per second."""
        done = self.octets if self.task in BULK else self.answers
        return done / self.seconds if self.seconds else 0.0


class Rounds:
    """All measurements of a run, by setting, cell and task."""

    def __init__(self, measured: Iterable[Measured]) -> None:
        self.all = tuple(measured)

    def of(self, setting: Setting, cell: Cell, task: str) -> dict[int, Measured]:
        """Return the measurements of *cell* and *task*, by round."""
        return {m.round: m for m in self.all if (m.setting, m.cell, m.task) == (setting, cell, task)}

    def costs(self, setting: Setting, cell: Cell, task: str) -> dict[int, float]:
        return {number: m.cost for number, m in self.of(setting, cell, task).items()}

    def rates(self, setting: Setting, cell: Cell, task: str) -> dict[int, float]:
        return {number: m.rate for number, m in self.of(setting, cell, task).items()}

    def of_direct(self, setting: Setting, cell: Cell, task: str) -> tuple[float, ...]:
        """Return the rates of each round, divided by the rate without a proxy."""
        # Compare a tunnel with a plain download, too: without a proxy there are no tunnels.
        plain = self.rates(setting, Cell(DIRECT, "tcp"), "get" if task in BULK else task)
        return ratios(self.rates(setting, cell, task), plain)

    def best(self, setting: Setting, client: str, task: str) -> str | None:
        """Return the other project's proxy with the least median cost; None if no cost is known."""
        found = {peer: self.costs(setting, Cell(peer, client), task).values() for peer in OTHERS}
        there = {peer: median(list(costs)) for peer, costs in found.items() if costs}
        there = {peer: cost for peer, cost in there.items() if not math.isnan(cost)}
        return min(there, key=lambda peer: there[peer]) if there else None


def ratios(values: Mapping[int, float], others: Mapping[int, float]) -> tuple[float, ...]:
    """Return the ratio for each round that both have, if the value of *others* is finite and not 0."""
    # A peer that carried nothing has an infinite cost. Divided by it, our cost would be 0.
    there = {number: other for number, other in others.items() if other and math.isfinite(other)}
    return tuple(values[number] / there[number] for number in sorted(values) if number in there)


def judge(rounds: Rounds, planned: Sequence[tuple[Setting, Cell, str]], runs: int) -> list[Aim]:
    """Return the aims after *runs* rounds of all *planned* measurements. Only the first setting is compared."""
    least = min((len(rounds.of(*each)) for each in planned), default=0)
    base = planned[0][0] if planned else BASE
    failures = {ours: sum(m.failures for m in rounds.all if (m.cell.proxy in OWN) is ours) for ours in (True, False)}
    aims = [
        Aim("rounds of everything", least, least=runs),
        Aim("our answers that were wrong or broken off", failures[True], most=0),
        Aim("others' answers that were wrong or broken off", failures[False]),
    ]
    ours = {client: Cell(OURS, client) for client in CLIENTS}
    for task in COSTS:
        tcp = rounds.costs(base, ours["tcp"], task)
        best = rounds.best(base, "tcp", task)
        if tcp and best is not None:
            compared = ratios(tcp, rounds.costs(base, Cell(best, "tcp"), task))
            aims.append(Aim(f"{NAMES[task]}, × the best peer, upper bound", mean_bounds(compared)[1], most=WORST))
        for client, subflows in CLIENTS.items():
            there = rounds.costs(base, ours[client], task)
            if subflows and tcp and there:
                name = f"{NAMES[task]}, {subflows} subflow{'s' * (subflows > 1)}, × TCP, upper bound"
                aims.append(Aim(name, mean_bounds(ratios(there, tcp))[1], most=MULTIPATH))
        if task in RATES and tcp and rounds.of(base, Cell(DIRECT, "tcp"), "get"):
            share = mean_bounds(rounds.of_direct(base, ours["tcp"], task))[0]
            aims.append(Aim(f"{task.upper()}, rate × direct, lower bound", share, least=RATES[task]))
    for task in ("idle-get", "idle-connect"):
        for client in CLIENTS:
            held = list(rounds.costs(base, ours[client], task).values())
            if held:
                aims.append(Aim(f"{NAMES[task]}, {client}", median_or_nan(held), most=IDLE))
    return aims


def median_or_nan(values: Sequence[float]) -> float:
    """Return the median; for no values NaN, which meets no aim."""
    return median(values, default=math.nan)


def machine(usage: Usage) -> list[Aim]:
    """Return the machine's load during the run, as figures without an aim."""
    found = [
        Aim("machine: processor time stolen, share", usage.stolen),
        Aim("machine: processor time idle, share", usage.idle),
    ]
    if usage.waiting is not None:
        found.append(Aim("machine: time in which programs waited, share", usage.waiting))
    return found


def void(cell: Cell, connections: int, capable: int, joins: int) -> str | None:
    """Return how the connections that the proxy's kernel accepted differ from *cell*'s kind; None if they do not."""
    subflows = CLIENTS[cell.client]
    if subflows == 0 and capable:
        return f"{cell}: {capable} connections were Multipath TCP"
    if subflows and capable < connections:
        return f"{cell}: {capable} of {connections} connections were Multipath TCP"
    if subflows == 1 and joins:
        return f"{cell}: {joins} second subflows"
    if subflows == 2 and joins < connections:
        return f"{cell}: {joins} of {connections} connections had a second subflow"
    return None


STEPS = 32


def taken(late: Sequence[int], percents: Sequence[float]) -> tuple[float, ...]:
    """Return percentiles, in seconds, of the histogram *late* of native/relay_load.c; infinite if it is empty.

    A value is the middle of its bucket, which is at most a thirty-second of the value wide.
    """
    return histogram_percentiles(late, percents, lambda number: _middle(number) / 1e9)


def _middle(number: int) -> float:
    """Return the middle of a bucket in nanoseconds."""
    if number < 2 * STEPS:
        return number + 0.5
    shift = number // STEPS - 1
    return (number - shift * STEPS + 0.5) * (1 << shift)


def spread(values: Sequence[float], digits: int, draw: random.Random) -> str:
    """Return the median of *values* with its interval as text; "-" for no values."""
    if not values:
        return "-"
    text = _rounded(median(values), digits)
    if len(values) < 2:
        return text
    low, high = (_rounded(bound, digits) for bound in median_interval(values, draw))
    return f"{text} ({low} to {high})"


def _rounded(value: float, digits: int) -> str:
    # Adding 0.0 removes the sign of a value just below zero that is rounded to 0.
    return f"{round(value, digits) + 0.0:.{digits}f}"
