# SPDX-License-Identifier: GPL-2.0-or-later
"""What Detal, Paasch and Bonaventure claim of MiMBox (HotMiddlebox 2013), and whether this holds for our proxy. Pure.

Their converter was in the kernel. Our proxy is in user space, so most of their claims can fail here. A further
aim checks that the measurement used both paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..statistics import median, percentile
from . import columns
from .aims import Aim
from .claims import Claim
from .columns import Results
from .relay_judging import CLIENTS, DIRECT, LIMIT, OURS, Cell, positive_or_nan, ratios

CLOSE = 0.8
"""Minimum share of the baseline's value that counts as "close to" the baseline."""
PAPER_KB, PAPER_BUFFER = 400.0, 200_000
"""KB per connection, and bytes per socket buffer, with which the paper's client had its full bandwidth."""
PERCENTS = (1, *range(5, 100, 5), 99)
"""Percentiles of the completion time that are measured."""


ROUTER = Cell(DIRECT, "mptcp2")
"""The paper's baseline: a router takes the converter's place, and the server accepts MPTCP."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: a task through one proxy, at one value of the varied parameter."""

    goodput: float = 0.0
    """Body bits per second that the client received."""
    failures: int = 0
    """Number of failures, during warm-up and measurement."""
    second: float = 0.0
    """The second path's share of the received bytes."""
    spread: tuple[float, ...] = ()
    """The percentiles ``PERCENTS`` of the completion time in seconds."""
    user: float = 0.0
    kernel: float = 0.0
    """User and kernel memory per connection, in bytes."""

    @property
    def memory(self) -> float:
        """Memory in KB per connection; NaN if none was measured."""
        return positive_or_nan((self.user + self.kernel) / 1e3)


MimboxResults = Results[Cell, Point]
Side = tuple[str, str, str]
"""One side of a comparison: proxy, kind of client, and task."""
Values = dict[tuple[int, int], float]
"""Values by round and varied parameter."""


def values(results: MimboxResults, side: Side, name: str = "goodput") -> Values:
    """Return the attribute *name* of each measurement of *side*, by round and varied parameter."""
    runs = (run for run in results.runs if (run.turn.cell.proxy, run.turn.cell.client, run.part) == side)
    return {(run.turn.number, run.turn.cell.at): getattr(run.measured, name) for run in runs}


def quotients(results: MimboxResults, one: Side, other: Side) -> Values:
    """Return the goodput of *one* divided by that of *other*, by round and varied parameter."""
    ours, theirs = values(results, one), values(results, other)
    return {key: ours[key] / theirs[key] if theirs[key] else math.nan for key in sorted(ours.keys() & theirs.keys())}


def by_round(fold: Callable[[list[float]], float], *every: Values) -> dict[int, float]:
    """Return one value for each round: *fold* combines all its values."""
    rounds: dict[int, list[float]] = {}
    for (number, _), value in chain.from_iterable(values.items() for values in every):
        rounds.setdefault(number, []).append(value)
    return {number: fold(measured) for number, measured in rounds.items()}


def minimum(values: Sequence[float]) -> float:
    """Return the minimum of *values*; NaN, which meets no aim, if there are none, or if one is NaN."""
    return percentile(values, 0, default=math.nan)


def least_ratio(results: MimboxResults, one: Side, others: Sequence[Side]) -> tuple[float, ...]:
    """Return, for each round, the minimum quotient of *one* and any of *others* at any varied parameter."""
    return tuple(by_round(minimum, *(quotients(results, one, other) for other in others)).values())


def mean_ratio(results: MimboxResults, one: Side, other: Side) -> tuple[float, ...]:
    """Return, for each round, the geometric mean of the quotients at all varied parameters."""
    # statistics.geometric_mean raises an error for 0, which a dead proxy has.
    rounds = by_round(lambda values: math.prod(values) ** (1 / len(values)), quotients(results, one, other))
    return tuple(rounds.values())


def growth(points: Values) -> tuple[float, ...]:
    """Return each round's value at the greatest parameter / at the smallest; empty if there is only one parameter."""
    varied = sorted({at for _, at in points})
    return ratios(at_size(points, varied[-1]), at_size(points, varied[0])) if len(varied) > 1 else ()


def at_size(points: Values, size: int) -> dict[int, float]:
    """Return the values at the varied parameter *size*, by round."""
    return {number: value for (number, at), value in points.items() if at == size}


def failures(results: MimboxResults) -> Iterator[Aim]:
    yield Aim("answers that were wrong or broken off", sum(run.measured.failures for run in results.runs), most=0)


def goodput_claims(results: MimboxResults) -> list[Claim]:
    """Return the claims of section 4.1 and Figure 4. The varied parameter is the MTU."""
    ours, router = (OURS, "mptcp2", "connect"), (DIRECT, "mptcp2", "get")
    peers = [(LIMIT, "mptcp2", "get"), ("haproxy", "mptcp2", "get")]
    return [
        Claim("The goodput is close to that of simple IP forwarding.", "goodput, × the router, mean over the MTUs",
              mean_ratio(results, ours, router), least=CLOSE),
        Claim("The converter always outperforms those in user space.",
              "goodput, × the best of the others, at the worst MTU", least_ratio(results, ours, peers), least=1),
        Claim("A larger MSS increases the goodput: segments are what costs.",
              "goodput with the largest MTU, × the smallest", growth(values(results, ours)), least=2),
    ]  # fmt: skip


def goodput_aims(results: MimboxResults) -> Iterator[Aim]:
    """Yield the aims that all answers were right, and that both paths carried data."""
    yield from failures(results)
    second: dict[tuple[str, str], list[float]] = {}
    for run in results.runs:
        if CLIENTS[run.turn.cell.client] == 2:
            second.setdefault((run.turn.cell.proxy, run.part), []).append(run.measured.second)
    yield Aim("share of the second path, median of each, least", minimum([*map(median, second.values())]), least=0.05)


def http_claims(results: MimboxResults) -> list[Claim]:
    """Return the claims of section 4.3 and Figure 5. The varied parameter is the file's size."""
    ours, router = (OURS, "mptcp1", "each"), (DIRECT, "mptcp1", "each")
    peers = [("haproxy", "mptcp1", "each"), ("squid", "tcp", "each")]
    return [
        Claim("It sustains a similar number of requests as plain IP forwarding.",
              "requests/s, × the router, mean over the sizes", mean_ratio(results, ours, router), least=CLOSE),
        Claim("It outperforms HAProxy and Squid at every size.",
              "requests/s, × the best of the others, at the worst size", least_ratio(results, ours, peers), least=1),
        Claim("For large files the cost of new connections is negligible.",
              "requests/s of the largest file, × the router, by the same of the smallest",
              growth(quotients(results, ours, router)), least=1),
    ]  # fmt: skip


def memory_claims(results: MimboxResults) -> list[Claim]:
    """Return the claims of section 4.4 and Figure 6. The varied parameter is the limit of a socket's buffer."""
    ours, router = values(results, (OURS, "mptcp2", "connect")), values(results, (DIRECT, "mptcp2", "get"))
    sizes = sorted({at for _, at in ours})
    best, direct = by_round(max, ours), by_round(max, router)
    return [
        Claim("A buffer that is too small costs bandwidth (Figure 6).",
              "goodput with the smallest buffer, × the greatest",
              ratios(at_size(ours, sizes[0]), best) if len(sizes) > 1 else (), most=0.9),
        # Only a measurement with a larger buffer can show that a larger one does not help.
        Claim("200 KB for each socket give the client the highest performance.",
              "goodput with 200 KB, × the greatest",
              ratios(at_size(ours, PAPER_BUFFER), best) if sizes and sizes[-1] > PAPER_BUFFER else (), least=0.95),
        Claim("It is what the client has without a proxy.", "goodput with 200 KB, × the router's greatest",
              ratios(at_size(ours, PAPER_BUFFER), direct), least=0.95),
        Claim("A connection that is busy then takes 400 KB in all.",
              "user and kernel memory of a busy connection, 200 KB",
              tuple(values(results, (OURS, "mptcp2", "busy"), "memory").values()), " kB", most=PAPER_KB),
    ]  # fmt: skip


def memory_aims(results: MimboxResults) -> Iterator[Aim]:
    """Yield the aims that all answers were right, and that the memory of all busy connections was measured."""
    yield from failures(results)
    memory = values(results, (OURS, "mptcp2", "busy"), "memory").values()
    yield Aim("busy connections without measured memory", sum(map(math.isnan, memory)), most=0)


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays of one round through a proxy or the router (medians in seconds)."""

    syn: float
    """Time from the incoming SYN to the outgoing SYN."""
    answer: float
    """Time from the client's SYN to the SYN+ACK sent to the client; for a router, from incoming to outgoing SYN+ACK."""
    data: float
    """Time from an incoming data segment to the outgoing segment with these data."""


Delayed = Results[Cell, Delays]
PAPER_DELAYS = {"SYN": ("syn", 17.5, "SYN in to SYN out"), "SYN+ACK": ("answer", 41.6, "SYN in to SYN+ACK out"),
                "segment of data": ("data", 16.0, "data in to data out")}  # fmt: skip
"""The paper's Table 1: for each delay the name of our value, the paper's mean in µs, and how we measure our value."""


def delays(results: Delayed, cell: Cell, name: str) -> dict[int, float]:
    """Return the delay *name* of *cell*, by round."""
    return {number: getattr(measured, name) for number, measured in columns.by_round(results, cell).items()}


def delay_claims(results: Delayed) -> list[Claim]:
    """Return the claims of section 4.2 and Table 1. The limits are twice the paper's times: our machine is different.

    The paper has means. We use the medians of each round, because other programs affect medians less.
    """
    ours = Cell(OURS, "mptcp2")
    syn, data = delays(results, ours, "syn"), delays(results, ours, "data")
    limit, router = delays(results, Cell(LIMIT, "mptcp2"), "data"), delays(results, ROUTER, "data")
    return [
        *(
            Claim(f"A {what} takes {paper:g} µs (within a factor of 2).", how,
                  tuple(1e6 * value for value in delays(results, ours, name).values()), " µs", most=2 * paper)
            for what, (name, paper, how) in PAPER_DELAYS.items()
        ),
        Claim("A converter in user space delays data more.", "data, × the least relay in user space",
              ratios(data, limit), most=1),
        Claim("Data is delayed less than a SYN.", "SYN, × data", ratios(syn, data), least=1),
        Claim("It delays data more than a router.", "data, × the router", ratios(data, router), least=1.5),
    ]  # fmt: skip


Claimed = Callable[[Results[Any, Any]], Sequence[Claim]]
Aims = Callable[[Results[Any, Any]], Iterable[Aim]]
"""Functions that return claims, and that yield aims, of a result."""
