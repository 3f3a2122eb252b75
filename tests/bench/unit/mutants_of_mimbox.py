# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results of the experiments mimbox-goodput, -delay, -http and -memory, and their mutants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mutants import Judge, rehearsed

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.claims import FEWEST, Claim
from mptcp_bench.experiments.columns import Results, Turn
from mptcp_bench.experiments.mimbox import DELAY, GOODPUT, HTTP, MEMORY
from mptcp_bench.experiments.mimbox_judging import (
    EACH,
    PERCENTS,
    Cell,
    Delays,
    Point,
    delay_claims,
    goodput_claims,
    http_claims,
    memory_claims,
)
from mptcp_bench.experiments.relay_judging import CLIENTS, DIRECT, LIMIT, OURS
from mptcp_bench.experiments.scenario import Scenario

SPEED = {DIRECT: 1.0, OURS: 0.9, LIMIT: 0.8, "haproxy": 0.7, "squid": 0.6}
"""Goodput relative to no proxy. Our proxy is close to 1 and ahead of all other proxies."""
Change = Callable[[Turn[Cell], Point], Mapping[str, Any] | None]
"""Returns the changed fields of a measurement, or None if the measurement is missing."""


@dataclass(frozen=True)
class Rehearsal:
    """A result of synthetic measurements. Calling it returns all its aims."""

    scenario: Scenario[Any, Any, Any, Any]
    made: Callable[[], Results[Any, Any]]
    claims_of: Callable[[Results[Any, Any]], Sequence[Claim]]

    def __call__(self) -> Sequence[Aim]:
        return self.scenario.aims(self.made())

    def claims(self) -> Sequence[Claim]:
        return self.claims_of(self.made())


def point(cell: Cell, task: str, octets: float) -> Point:
    """Return a sound measurement. Without a proxy, *octets* bytes would arrive."""
    subflows = CLIENTS[cell.client]
    return Point(
        2.0, octets=round(octets * SPEED[cell.proxy]), opened=10, multipath=10 if subflows else 0,
        joined=10 if subflows == 2 else 0, packet=cell.at + 10.0, second=0.4 if subflows == 2 else 0.0,
        spread=tuple(p / 1e3 for p in PERCENTS),
        user=150e3 if task == "busy" else 0.0, kernel=100e3 if task == "busy" else 1.2 * cell.at,
    )  # fmt: skip


def same(turn: Turn[Cell], one: Point) -> Mapping[str, Any]:
    return {}


def rehearsal(
    scenario: Scenario[Any, Cell, Any, Point],
    options: Mapping[str, str],
    claims: Callable[[Results[Cell, Point]], Sequence[Claim]],
    octets: Callable[[Cell], float],
) -> Callable[..., Rehearsal]:
    """Return a function that simulates *scenario* with sound measurements, some of them changed or left out."""

    def judging(change: Change = same) -> Rehearsal:
        def of(turn: Turn[Cell]) -> Mapping[str, Point] | None:
            there = {task: point(turn.cell, task, octets(turn.cell)) for task in turn.cell.tasks}
            changed = {task: change(turn, one) for task, one in there.items()}
            return {task: replace(there[task], **each) for task, each in changed.items() if each is not None} or None

        return Rehearsal(scenario, lambda: rehearsed(scenario, options, of), claims)

    return judging


def ours(change: Callable[[Point], Mapping[str, Any]]) -> Change:
    return lambda turn, one: change(one) if turn.cell.proxy == OURS else {}


def multipath(change: Mapping[str, Any]) -> Change:
    return lambda turn, one: change if CLIENTS[turn.cell.client] else {}


def sized(at: int, share: float) -> Change:
    def change(turn: Turn[Cell], one: Point) -> Mapping[str, Any]:
        return {"octets": round(one.octets * share)} if (turn.cell.proxy, turn.cell.at) == (OURS, at) else {}

    return change


def common(judging: Callable[..., Rehearsal]) -> dict[str, Rehearsal]:
    """Return the mutants that all of these experiments share."""
    return {
        "nothing measured": judging(lambda turn, one: None),
        "a round of one of them is missing": judging(
            lambda turn, one: None if (turn.cell.proxy, turn.number) == (OURS, 1) else {}
        ),
        "an answer was broken off": judging(
            lambda turn, one: {"failures": 1} if (turn.cell.proxy, turn.number) == (OURS, 2) else {}
        ),
        "fallback to TCP": judging(multipath({"multipath": 0})),
    }


SMALL_MTU, LARGE_MTU = 296, 9000
goodput = rehearsal(
    GOODPUT, {"mtu": f"{SMALL_MTU},{LARGE_MTU}", "runs": str(FEWEST)}, goodput_claims, lambda cell: cell.at * 1e4
)
MIMBOX_GOODPUT = Judge(
    goodput(),
    common(goodput)
    | {
        "second path unused: no join": goodput(multipath({"joined": 0})),
        "second path unused: it carries nothing": goodput(multipath({"second": 0.0})),
        "second path unused through one proxy": goodput(ours(lambda one: {"second": 0.0})),
        "MSS not changed": goodput(lambda turn, one: {"packet": 1514.0}),
        "slow proxy": goodput(ours(lambda one: {"octets": one.octets // 2})),
        "dead proxy": goodput(ours(lambda one: {"octets": 0})),
        "a relay in user space is faster": goodput(
            lambda turn, one: {"octets": one.octets * 2} if (turn.cell.proxy, turn.cell.at) == (LIMIT, 296) else {}
        ),
        "segments cost nothing": goodput(lambda turn, one: {"octets": round(1e6 * SPEED[turn.cell.proxy])}),
    },
)

LARGE_FILE = 1_000_000
http = rehearsal(HTTP, {"size": f"1000,{LARGE_FILE}", "runs": str(FEWEST)}, http_claims, lambda cell: cell.at * 1e3)
MIMBOX_HTTP = Judge(
    http(),
    common(http)
    | {
        "slow proxy": http(ours(lambda one: {"octets": one.octets // 2})),
        "Squid is faster": http(lambda turn, one: {"octets": one.octets * 2} if turn.cell.proxy == "squid" else {}),
        "large files are slower": http(sized(LARGE_FILE, 0.5)),
    },
)


def carried(cell: Cell) -> float:
    """Return the bytes that would arrive over slow paths without a proxy. Here every proxy is as fast as the router."""
    return (0.5 if cell.at == 25_000 else 1.0) * 1e7 / SPEED[cell.proxy]


memory = rehearsal(MEMORY, {"buffer": f"25000,{EACH},1000000", "runs": str(FEWEST)}, memory_claims, carried)


def busy(**change: float) -> Change:
    return lambda turn, one: change if turn.cell.tasks == ("busy",) else {}


MIMBOX_MEMORY = Judge(
    memory(),
    common(memory)
    | {
        "second path unused: no join": memory(multipath({"joined": 0})),
        "buffer never filled": memory(ours(lambda one: {"kernel": 0.0})),
        "buffers are not limited": memory(sized(25_000, 1.9)),
        "200 KB are too little": memory(sized(EACH, 0.9)),
        "the proxy is slower at every size": memory(ours(lambda one: {"octets": round(one.octets * 0.9)})),
        "busy connections are large": memory(busy(user=310e3)),
        "their memory is not seen": memory(busy(user=0.0, kernel=0.0)),
    },
)

MICRO = 1e-6
DELAYS = {DIRECT: (5.0, 5.0, 5.0), LIMIT: (100.0, 20.0, 20.0), OURS: (30.0, 40.0, 19.0)}


def delay(change: Callable[[Turn[Cell]], Mapping[str, Any] | None] = lambda turn: {}) -> Rehearsal:
    def of(turn: Turn[Cell]) -> Delays | None:
        syn, answer, data = (value * MICRO for value in DELAYS[turn.cell.proxy])
        one = Delays(100, syn, answer, data, 2.0 if turn.cell.client == "mptcp2" else 1.0)
        changed = change(turn)
        return None if changed is None else replace(one, **changed)

    return Rehearsal(DELAY, lambda: rehearsed(DELAY, {}, of), delay_claims)


def of_ours(**values: float) -> Rehearsal:
    changed = {name: value * MICRO for name, value in values.items()}
    return delay(lambda turn: changed if turn.cell.proxy == OURS else {})


MIMBOX_DELAY = Judge(
    delay(),
    {
        "nothing measured": delay(lambda turn: None),
        "a round is missing": delay(lambda turn: None if (turn.cell.proxy, turn.number) == (LIMIT, 1) else {}),
        "few requests": delay(lambda turn: {"requests": 99}),
        "second path unused": delay(lambda turn: {"subflows": 1.0}),
        "second path unused through one proxy": delay(
            lambda turn: {"subflows": 1.0} if turn.cell.proxy == OURS else {}
        ),
        "proxy replaced by direct": of_ours(syn=5.0, answer=5.0, data=5.0),
        "a SYN waits": of_ours(syn=36.0),
        "a SYN+ACK waits": of_ours(answer=84.0),
        "data waits": of_ours(data=33.0),
        "data waits longer than in a simple relay": of_ours(data=21.0),
        "a SYN is faster than data": of_ours(syn=18.0),
    },
)
