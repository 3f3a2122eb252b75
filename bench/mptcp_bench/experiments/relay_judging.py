# SPDX-License-Identifier: GPL-2.0-or-later
"""The cost of bytes and requests in a proxy, and the aims of our proxy. Pure.

Processor time is that of all processes of a proxy. Other programs affect it less than they affect rates. A rate is
divided by the rate without a proxy in the same round. Our proxy is compared with the best peer of each round; a round
that lacks one of them does not count. The aims for such ratios bound the confidence interval of their mean, so that one
round proves nothing, and a few rounds with large differences miss the aim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..statistics import exact_median_interval, mean_bounds, median
from .columns import Results, by_round
from .findings import Aim

DIRECT, OURS, LIMIT = "direct", "ours", "splice"
OTHERS = ("squid", "haproxy", "nginx")
"""Proxies of other projects, with which ours is compared."""
PROXIES = (DIRECT, OURS, *OTHERS, LIMIT)
CLIENTS = {"tcp": 0, "mptcp1": 1, "mptcp2": 2}
"""Number of MPTCP subflows per connection, by kind of client."""
BULK = ("get", "connect")
TASKS = (*BULK, "requests")
MAX_COST = 1.0
"""Maximum processor time of our proxy, as a multiple of the best peer's."""
MAX_MULTIPATH_COST = 1.15
"""Maximum cost of an MPTCP client, as a multiple of a TCP client's."""
MIN_RATES = {"get": 0.8, "connect": 0.95}
"""Minimum rate, as a share of the rate without a proxy."""
NAMES = {"get": "GET, s/GB", "connect": "CONNECT, s/GB", "requests": "µs/request"}


@dataclass(frozen=True, slots=True)
class Setting:
    """The processors and links of a run."""

    own_processor: bool = False
    """Whether the proxy has its own processor (``relay_bed``)."""
    slow: bool = False
    """Whether the clients' links are the bottleneck, and not the machine."""

    def __str__(self) -> str:
        own = "own processor" if self.own_processor else "shared processors"
        return own + ", slow links" * self.slow


BASE = Setting()


@dataclass(frozen=True, slots=True)
class Cell:
    """A proxy and the kind of its clients, in a setting."""

    proxy: str
    client: str
    setting: Setting = BASE
    tasks: tuple[str, ...] = ()
    """The measured tasks, one after another."""
    at: int = 0
    """The value, in bytes, that ``mimbox-…`` varies: an MTU, a file's size, or the limit of a socket's buffer."""

    def __str__(self) -> str:
        setting = f", {self.setting}" if self.setting != BASE else ""
        return f"{self.proxy}, {self.client}{setting}" + (f", {self.at:,}" if self.at else "")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The measurement of one task of a cell."""

    cost: float | None
    """Seconds per GB, or µs per request: see :func:`cost`; None without a proxy."""
    rate: float
    """Body bytes per second of bulk transfers, otherwise answers per second."""
    failures: int = 0


def cost(task: str, processor: float, octets: int, answers: int) -> float:
    """Return the processor time of *task*: s/GB, or µs per answer. *processor* is in seconds.

    The value is infinity if nothing was transferred; NaN, which meets no aim, if no processor time was measured.
    """
    amount, unit = (octets, 1e9) if task in BULK else (answers, 1e6)
    return positive_or_nan(processor / amount * unit) if amount else math.inf


def positive_or_nan(value: float) -> float:
    """Return *value* if it is positive, otherwise NaN, which meets no aim."""
    return value if value > 0 else math.nan


RelayResults = Results[Cell, Outcome]


def values_by_round(results: RelayResults, cell: Cell, task: str, name: str = "cost") -> dict[int, float]:
    """Return the attribute *name* of the measurements of *task*, by round."""
    values = {number: getattr(each, name) for number, each in by_round(results, cell, task).items()}
    return {number: value for number, value in values.items() if value is not None}


def shares_of_direct(results: RelayResults, cell: Cell, task: str) -> tuple[float, ...]:
    """Return the rate of each round, divided by the rate without a proxy."""
    # Without a proxy there are no tunnels, so that a tunnel is compared with a plain download.
    plain = "get" if task in BULK else task
    direct = [each for each in results.cells if (each.proxy, each.setting) == (DIRECT, cell.setting)]
    if not direct:
        return ()
    return ratios(values_by_round(results, cell, task, "rate"), values_by_round(results, direct[0], plain, "rate"))


def best_peer_costs(results: RelayResults, cell: Cell, task: str) -> dict[int, float]:
    """Return the lowest cost of another project's proxy for *cell*'s clients, by round."""
    costs: dict[int, float] = {}
    for peer in results.cells:
        if peer.proxy in OTHERS and (peer.client, peer.setting) == (cell.client, cell.setting):
            for number, value in values_by_round(results, peer, task).items():
                costs[number] = min(value, costs.get(number, math.inf))
    return costs


def ratios(values: Mapping[int, float], others: Mapping[int, float]) -> tuple[float, ...]:
    """Return the ratio for each round that both contain, if the value of *others* is finite and not 0."""
    # If a peer transferred nothing, its cost is infinite. Our cost, divided by this cost, would be 0.
    usable = {number: other for number, other in others.items() if other and math.isfinite(other)}
    return tuple(values[number] / usable[number] for number in sorted(values) if number in usable)


def verdicts(results: RelayResults) -> Iterator[Aim]:
    """Yield the aims. Only proxies of the first setting are compared."""
    failures = [(run.turn.cell.proxy == OURS, run.measured.failures) for run in results.runs]
    yield Aim("our answers that were wrong or broken off", sum(n for ours, n in failures if ours), most=0)
    yield Aim("others' answers that were wrong or broken off", sum(n for ours, n in failures if not ours))
    base = results.cells[0].setting if results.cells else BASE
    ours = {each.client: each for each in results.cells if (each.proxy, each.setting) == (OURS, base)}
    for task in TASKS:
        yield from _task_aims(results, ours, task)


def _task_aims(results: RelayResults, ours: Mapping[str, Cell], task: str) -> Iterator[Aim]:
    """Yield the aims for *task*: our cost as a multiple of the best peer's and of TCP's, and our rate."""
    plain = ours.get("tcp")
    tcp = values_by_round(results, plain, task) if plain else {}
    if plain is None or not tcp:
        return
    if best := best_peer_costs(results, plain, task):
        yield Aim(f"{NAMES[task]}, × the best peer, upper bound", mean_bounds(ratios(tcp, best))[1], most=MAX_COST)
    for client, subflows in CLIENTS.items():
        if subflows and client in ours and (multipath := values_by_round(results, ours[client], task)):
            name = f"{NAMES[task]}, {subflows} subflow{'s' * (subflows > 1)}, × TCP, upper bound"
            yield Aim(name, mean_bounds(ratios(multipath, tcp))[1], most=MAX_MULTIPATH_COST)
    if task in MIN_RATES and (shares := shares_of_direct(results, plain, task)):
        yield Aim(f"{task.upper()}, rate × direct, lower bound", mean_bounds(shares)[0], least=MIN_RATES[task])


def protocol_error(client: str, connections: int, capable: int, joins: int) -> str | None:
    """Return how the accepted connections differ from those of the kind *client*; None if they do not differ."""
    subflows = CLIENTS[client]
    if subflows == 0 and capable:
        return f"{capable} connections were Multipath TCP"
    if subflows and capable < connections:
        return f"{capable} of {connections} connections were Multipath TCP"
    if subflows == 1 and joins:
        return f"{joins} second subflows"
    if subflows == 2 and joins < connections:
        return f"{joins} of {connections} connections had a second subflow"
    return None


def spread(values: Sequence[float], digits: int) -> str:
    """Return the median of *values* as text, with its interval if there are six values or more; "-" for no values."""
    if not values:
        return "-"
    interval = exact_median_interval(values) or ()
    # Adding 0.0 removes the sign of -0.0, to which values just below zero are rounded.
    middle, *bounds = (f"{round(value, digits) + 0.0:.{digits}f}" for value in (median(values), *interval))
    return f"{middle} ({' to '.join(bounds)})" if bounds else middle
