# SPDX-License-Identifier: GPL-2.0-or-later
"""Claims of Detal, Paasch and Bonaventure about MiMBox (HotMiddlebox 2013), judged for our proxy.

Their converter was in the kernel. Our proxy is in user space, so most of their claims may fail here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..statistics import median, percentile
from .claims import Claim
from .columns import Results, by_round
from .findings import Aim
from .relay_judging import CLIENTS, DIRECT, LIMIT, OURS, Cell, positive_or_nan, ratios

CLOSE = 0.8
"""Minimum share of the baseline's value that counts as "close to" the baseline."""
PAPER_KB, PAPER_BUFFER = 400.0, 200_000
"""KB of memory per connection, and bytes per socket buffer, with which the paper's client had its full bandwidth."""
PERCENTS = (1, *range(5, 100, 5), 99)
"""The percentiles of the completion time that are measured."""
ROUTER = Cell(DIRECT, "mptcp2")
"""The paper's baseline: a router takes the converter's place, and the server accepts MPTCP."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: a task through one proxy, at one value of the varied parameter."""

    goodput: float = 0.0
    """Body bits per second that the client received."""
    failures: int = 0
    """Number of wrong or incomplete answers, during warm-up and measurement."""
    second_path_share: float = 0.0
    """The second path's share of the received bytes."""
    completion_times: tuple[float, ...] = ()
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
Curve = dict[int, dict[int, float]]
"""For each value of the varied parameter, the measured value of each round."""


def curve(results: MimboxResults, side: Side, name: str = "goodput") -> Curve:
    """Return the attribute *name* of each measurement of *side*."""
    values: Curve = {}
    for run in results.runs:
        cell = run.turn.cell
        if (cell.proxy, cell.client, run.part) == side:
            values.setdefault(cell.at, {})[run.turn.number] = getattr(run.measured, name)
    return dict(sorted(values.items()))


def quotients(results: MimboxResults, side: Side, other: Side) -> Curve:
    """Return the goodput of *side* divided by that of *other*; NaN if *other* had none."""
    quotient: Curve = {}
    divisors = curve(results, other)
    for at, values in curve(results, side).items():
        others = divisors.get(at, {})
        quotient[at] = {number: values[number] / (others[number] or math.nan) for number in values if number in others}
    return quotient


def values_by_round(*curves: Curve) -> dict[int, list[float]]:
    """Return all values of each round."""
    rounds: dict[int, list[float]] = {}
    for number, value in (item for each in curves for values in each.values() for item in values.items()):
        rounds.setdefault(number, []).append(value)
    return dict(sorted(rounds.items()))


def least_ratio(results: MimboxResults, side: Side, others: Sequence[Side]) -> tuple[float, ...]:
    """Return, for each round, the minimum quotient of *side* and any of *others* at any value of the parameter."""
    rounds = values_by_round(*(quotients(results, side, other) for other in others))
    return tuple(percentile(values, 0) for values in rounds.values())


def mean_ratio(results: MimboxResults, side: Side, other: Side) -> tuple[float, ...]:
    """Return, for each round, the geometric mean of the quotients at all values of the parameter."""
    # statistics.geometric_mean raises an error for 0, which a dead proxy has.
    rounds = values_by_round(quotients(results, side, other))
    return tuple(math.prod(values) ** (1 / len(values)) for values in rounds.values())


def growth(values: Curve) -> tuple[float, ...]:
    """Return each round's value at the greatest parameter / at the smallest; empty if it was not varied."""
    return ratios(values[max(values)], values[min(values)]) if len(values) > 1 else ()


def failures(results: MimboxResults) -> Aim:
    return Aim("answers that were wrong or broken off", sum(run.measured.failures for run in results.runs), most=0)


def goodput_verdicts(results: MimboxResults) -> Iterator[Aim]:
    """Yield the verdicts on section 4.1 and Figure 4, and that both paths carried data. The MTU is varied."""
    yield failures(results)
    shares: dict[tuple[str, str], list[float]] = {}
    for run in results.runs:
        if CLIENTS[run.turn.cell.client] == 2:
            shares.setdefault((run.turn.cell.proxy, run.part), []).append(run.measured.second_path_share)
    yield Aim(
        "second path's share of the bytes, minimum of the medians",
        percentile([*map(median, shares.values())], 0, default=math.nan), least=0.05,
    )  # fmt: skip
    ours, router = (OURS, "mptcp2", "connect"), (DIRECT, "mptcp2", "get")
    peers = [(LIMIT, "mptcp2", "get"), ("haproxy", "mptcp2", "get")]
    yield from judged(
        Claim("The goodput is close to that of simple IP forwarding.", "goodput, × the router, mean over the MTUs",
              mean_ratio(results, ours, router), least=CLOSE),
        Claim("The converter always outperforms those in user space.",
              "goodput, × the best of the others, at the worst MTU", least_ratio(results, ours, peers), least=1),
        Claim("A larger MSS increases goodput, because each segment costs.",
              "goodput with the largest MTU, × the smallest", growth(curve(results, ours)), least=2),
    )  # fmt: skip


def judged(*claims: Claim) -> Iterator[Aim]:
    return (claim.judged for claim in claims)


def http_verdicts(results: MimboxResults) -> Iterator[Aim]:
    """Yield the verdicts on section 4.3 and Figure 5. The file's size is varied."""
    yield failures(results)
    ours, router = (OURS, "mptcp1", "each"), (DIRECT, "mptcp1", "each")
    peers = [("haproxy", "mptcp1", "each"), ("squid", "tcp", "each")]
    yield from judged(
        Claim("The converter sustains a similar number of requests as IP forwarding.",
              "requests/s, × the router, mean over the sizes", mean_ratio(results, ours, router), least=CLOSE),
        Claim("The converter outperforms HAProxy and Squid at all sizes.",
              "requests/s, × the best of the others, at the worst size", least_ratio(results, ours, peers), least=1),
        Claim("For large files the cost of new connections is negligible.",
              "requests/s of the largest file, × the router, divided by that of the smallest",
              growth(quotients(results, ours, router)), least=1),
    )  # fmt: skip


def memory_verdicts(results: MimboxResults) -> Iterator[Aim]:
    """Yield the verdicts on section 4.4 and Figure 6. The buffer is varied."""
    yield failures(results)
    memory = curve(results, (OURS, "mptcp2", "busy"), "memory").get(PAPER_BUFFER, {})
    ours, router = curve(results, (OURS, "mptcp2", "connect")), curve(results, (DIRECT, "mptcp2", "get"))
    best, direct = (
        {number: max(values) for number, values in values_by_round(each).items()} for each in (ours, router)
    )
    at_paper_buffer = ours.get(PAPER_BUFFER, {})
    yield from judged(
        Claim("A buffer that is too small costs bandwidth (Figure 6).",
              "goodput with the smallest buffer, × the greatest",
              ratios(ours[min(ours)], best) if len(ours) > 1 else (), most=0.9),
        # Only a measurement with a larger buffer can show that a larger one does not help.
        Claim("200 KB for each socket give the client the highest performance.",
              "goodput with 200 KB, × the greatest",
              ratios(at_paper_buffer, best) if max(ours, default=0) > PAPER_BUFFER else (), least=0.95),
        Claim("Without a proxy, the client has the same goodput.", "goodput with 200 KB, × the router's greatest",
              ratios(at_paper_buffer, direct), least=0.95),
        Claim("A connection that is busy then takes 400 KB in all.",
              "user and kernel memory of a busy connection, 200 KB", tuple(memory.values()), " kB", most=PAPER_KB),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays of one round through a proxy or the router (medians in seconds)."""

    syn: float
    """Time from the incoming SYN to the outgoing SYN."""
    answer: float
    """Time from the client's SYN to the SYN+ACK sent to the client; for a router, from incoming to outgoing SYN+ACK."""
    data: float
    """Time from an incoming data segment to the outgoing segment with these data."""


PAPER_DELAYS = {"SYN": ("syn", 17.5, "SYN in to SYN out"), "SYN+ACK": ("answer", 41.6, "SYN in to SYN+ACK out"),
                "segment of data": ("data", 16.0, "data in to data out")}  # fmt: skip
"""The paper's Table 1: for each delay the name of our value, the paper's mean in µs, and how we measure our value."""


def delay_verdicts(results: Results[Cell, Delays]) -> Iterator[Aim]:
    """Yield the verdicts on section 4.2 and Table 1. The limits are twice the paper's times: our machine is different.

    The paper has means. We use the median of each round, because other programs affect it less.
    """

    def delays(cell: Cell, name: str) -> dict[int, float]:
        return {number: getattr(measured, name) for number, measured in by_round(results, cell).items()}

    ours = Cell(OURS, "mptcp2")
    data = delays(ours, "data")
    yield from judged(
        *(
            Claim(f"A {what} takes {paper:g} µs (within a factor of 2).", how,
                  tuple(1e6 * value for value in delays(ours, name).values()), " µs", most=2 * paper)
            for what, (name, paper, how) in PAPER_DELAYS.items()
        ),
        Claim("A converter in user space delays data more.", "data, × the least relay in user space",
              ratios(data, delays(Cell(LIMIT, "mptcp2"), "data")), most=1),
        Claim("Data is delayed less than a SYN.", "SYN, × data", ratios(delays(ours, "syn"), data), least=1),
        Claim("The converter delays data more than routers.", "data, × the router",
              ratios(data, delays(ROUTER, "data")), least=1.5),
    )  # fmt: skip
