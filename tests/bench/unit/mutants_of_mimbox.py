# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results of the experiments mimbox-goodput, -delay, -http and -memory, and their mutants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mutants import Judge

from mptcp_bench.experiments import mimbox_delay, mimbox_goodput, mimbox_http, mimbox_memory
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.mimbox_bed import Declared
from mptcp_bench.experiments.mimbox_judging import (
    EACH,
    buffer_aims,
    delay_aims,
    delay_claims,
    goodput_aims,
    http_aims,
    sound,
)
from mptcp_bench.experiments.mimbox_points import FEWEST, PERCENTS, Claim, Delays, HeldMemory, Point, Points
from mptcp_bench.experiments.relay_cells import CLIENTS, DIRECT, LIMIT, OURS, Cell

RUNS = FEWEST
SECONDS = 2.0
PEERS = {DIRECT: 1.0, OURS: 0.9, LIMIT: 0.8, "haproxy": 0.7, "squid": 0.6}
"""Goodput relative to no proxy. Ours is close to it, and ahead of all other proxies."""
Change = Callable[[Point], Mapping[str, Any]]


@dataclass(frozen=True)
class Judged:
    """Judgement of measurements: a call returns all aims, including those of the claims."""

    own: Callable[[], Sequence[Aim]]
    claims: Callable[[], Sequence[Claim]]

    def __call__(self) -> Sequence[Aim]:
        return [*self.own(), *(claim.aim for claim in self.claims())]


def point(cell: Cell, task: str, at: int, number: int, octets: float) -> Point:
    """Return a sound point at which *octets* would arrive without a proxy."""
    proxied, subflows = cell.proxy != DIRECT, CLIENTS[cell.client]
    return Point(
        cell, task, at, number, SECONDS, octets=round(octets * PEERS[cell.proxy]), answers=100, opened=10, renewed=1.0,
        multipath=10 if subflows else 0, joined=10 if subflows == 2 else 0, packet=at + 10.0,
        second=0.4 if subflows == 2 else 0.0, passed=1.02 if proxied else 0.0, spread=tuple(p / 1e3 for p in PERCENTS),
        kernel=1.2 * at,
    )  # fmt: skip


def points(declared: Declared, values: Sequence[int], octets: Callable[[int], float]) -> Iterator[Point]:
    for number in range(RUNS):
        for at in values:
            for cell, task in declared.tasks:
                yield point(cell, task, at, number, octets(at))


def judge_of(
    declared: Declared,
    values: Sequence[int],
    octets: Callable[[int], float],
    own: Callable[[Points], Sequence[Aim]],
    besides: Sequence[Point] = (),
) -> Callable[..., Judged]:
    """Return a function that judges sound points, some of them changed or left out."""
    planned = [(cell, task, at) for cell, task in declared.tasks for at in values]

    def judging(change: Change = lambda p: {}, keep: Callable[[Point], bool] = lambda p: True) -> Judged:
        def found() -> Points:
            there = [*points(declared, values, octets), *besides]
            return Points(replace(p, **change(p)) for p in there if keep(p))

        def aims() -> Sequence[Aim]:
            there = found()
            return [*sound(there, planned, RUNS), *own(there)]

        return Judged(aims, lambda: declared.claims(found()))

    return judging


def ours(change: Change) -> Change:
    return lambda p: change(p) if p.cell.proxy == OURS else {}


def multipath(change: Mapping[str, Any], clients: Sequence[str] = ("mptcp1", "mptcp2")) -> Change:
    return lambda p: change if p.cell.client in clients else {}


def common(judging: Callable[..., Judged]) -> dict[str, Judged]:
    """Return the mutants that all of these experiments share."""
    return {
        "nothing measured": judging(keep=lambda p: False),
        "a round of one of them is missing": judging(keep=lambda p: (p.cell.proxy, p.round) != (OURS, 1)),
        "an answer was broken off": judging(ours(lambda p: {"failures": int(p.round == 2)})),
        "fallback to TCP": judging(multipath({"multipath": 0})),
        "proxy replaced by direct": judging(ours(lambda p: {"passed": 0.0})),
        "the router is a proxy": judging(lambda p: {"passed": 1.0} if p.cell.proxy == DIRECT else {}),
    }


SMALL_MTU, LARGE_MTU = 296, 9000
_goodput = judge_of(mimbox_goodput.DECLARED, (SMALL_MTU, LARGE_MTU), lambda at: at * 1e4, goodput_aims)
MIMBOX_GOODPUT = Judge(
    _goodput(),
    common(_goodput)
    | {
        "the TCP client speaks Multipath TCP": _goodput(multipath({"multipath": 10}, ("tcp",))),
        "second path unused: no join": _goodput(multipath({"joined": 0})),
        "second path unused: it carries nothing": _goodput(multipath({"second": 0.0})),
        "second path unused through one proxy": _goodput(ours(lambda p: {"second": 0.0})),
        "MSS not changed": _goodput(lambda p: {"packet": 1514.0}),
        "slow proxy": _goodput(ours(lambda p: {"octets": p.octets // 2})),
        "dead proxy": _goodput(ours(lambda p: {"octets": 0})),
        "a relay in user space is faster": _goodput(
            lambda p: {"octets": p.octets * 2} if (p.cell.proxy, p.at) == (LIMIT, SMALL_MTU) else {}
        ),
        "segments cost nothing": _goodput(lambda p: {"octets": round(1e6 * PEERS[p.cell.proxy])}),
    },
)

SMALL_FILE, LARGE_FILE = 1_000, 1_000_000
_http = judge_of(mimbox_http.DECLARED, (SMALL_FILE, LARGE_FILE), lambda at: at * 1e3, http_aims)
MIMBOX_HTTP = Judge(
    _http(),
    common(_http)
    | {
        "the TCP client speaks Multipath TCP": _http(multipath({"multipath": 10}, ("tcp",))),
        "connections are kept": _http(lambda p: {"renewed": 0.02}),
        "slow proxy": _http(ours(lambda p: {"octets": p.octets // 2})),
        "Squid is faster": _http(lambda p: {"octets": p.octets * 2} if p.cell.proxy == "squid" else {}),
        "large files are slower": _http(ours(lambda p: {"octets": p.octets // (1 + (p.at == LARGE_FILE))})),
    },
)

SIZES = (25_000, EACH, 1_000_000)
_CARRIED = {25_000: 0.5, EACH: 1.0, 1_000_000: 1.0}
_BUSY = [
    replace(point(Cell(OURS, "mptcp2"), "busy", EACH, number, 0), user=150e3, kernel=100e3) for number in range(RUNS)
]
KEPT = [f"idle {what}, {client}" for what in ("connection", "tunnel") for client in ("tcp", "mptcp2")]


def idle(large: str = "", unseen: str = "") -> list[HeldMemory]:
    return [
        HeldMemory(name, 90.0 if name == large else 30.0, 20.0) if name != unseen else HeldMemory(name, 0, 0)
        for name in KEPT
        for _ in range(RUNS)
    ]


def _memory_judge(large: str = "", unseen: str = "") -> Callable[..., Judged]:
    def own(found: Points) -> Sequence[Aim]:
        return buffer_aims(found, idle(large, unseen) if found.all else ())

    return judge_of(mimbox_memory.DECLARED, SIZES, lambda at: _CARRIED[at] * 1e7, own, _BUSY)


def _level(p: Point) -> int:
    """Return the octets of ours and of the router, which are equal because a slow path is the bottleneck."""
    return round(_CARRIED[p.at] * 1e7)


def _memory(
    change: Change = lambda p: {}, large: str = "", unseen: str = "", keep: Callable[[Point], bool] = lambda p: True
) -> Judged:
    return _memory_judge(large, unseen)(lambda p: {"octets": _level(p)} | dict(change(p)), keep)


def _sized(at: int, share: float) -> Change:
    return ours(lambda p: {"octets": round(_level(p) * share)} if p.at == at else {})


MIMBOX_MEMORY = Judge(
    _memory(),
    common(lambda change=lambda p: {}, keep=lambda p: True: _memory(change, keep=keep))
    | {
        "second path unused: no join": _memory(multipath({"joined": 0})),
        "buffer never filled": _memory(ours(lambda p: {"kernel": 0.0})),
        "buffers are not limited": _memory(_sized(25_000, 1.9)),
        "200 KB are too little": _memory(_sized(EACH, 0.9)),
        "the proxy is slower at every size": _memory(ours(lambda p: {"octets": round(_level(p) * 0.9)})),
        "busy connections are large": _memory(lambda p: {"user": 310e3} if p.task == "busy" else {}),
        "their memory is not seen": _memory(lambda p: {"user": 0.0, "kernel": 0.0} if p.task == "busy" else {}),
        **{f"large: {name}": _memory(large=name) for name in KEPT},
        **{f"not seen: {name}": _memory(unseen=name) for name in KEPT},
    },
)

MICRO = 1e-6
DELAYS = {DIRECT: (5.0, 5.0, 5.0), LIMIT: (100.0, 20.0, 20.0), OURS: (30.0, 40.0, 19.0)}


def delays(change: Callable[[Delays], Mapping[str, Any]] = lambda d: {}) -> Iterator[Delays]:
    for number in range(RUNS):
        for cell in mimbox_delay.CELLS:
            syn, answer, data = (value * MICRO for value in DELAYS[cell.proxy])
            each = Delays(cell, number, 100, syn, answer, data, 2.0 if cell.client == "mptcp2" else 1.0)
            yield replace(each, **change(each))


def _delay(
    change: Callable[[Delays], Mapping[str, Any]] = lambda d: {}, keep: Callable[[Delays], bool] = lambda d: True
) -> Judged:
    def found() -> list[Delays]:
        return [each for each in delays(change) if keep(each)]

    return Judged(lambda: delay_aims(found(), mimbox_delay.CELLS, RUNS), lambda: delay_claims(found()))


def _of_ours(**values: float) -> Judged:
    return _delay(lambda d: {name: value * MICRO for name, value in values.items()} if d.cell.proxy == OURS else {})


MIMBOX_DELAY = Judge(
    _delay(),
    {
        "nothing measured": _delay(keep=lambda d: False),
        "a round is missing": _delay(keep=lambda d: (d.cell.proxy, d.round) != (LIMIT, 0)),
        "few requests": _delay(lambda d: {"requests": 99}),
        "second path unused": _delay(lambda d: {"subflows": 1.0}),
        "second path unused through one proxy": _delay(lambda d: {"subflows": 1.0} if d.cell.proxy == OURS else {}),
        "proxy replaced by direct": _of_ours(syn=5.0, answer=5.0, data=5.0),
        "a SYN waits": _of_ours(syn=36.0),
        "a SYN+ACK waits": _of_ours(answer=84.0),
        "data waits": _of_ours(data=33.0),
        "data waits longer than in a simple relay": _of_ours(data=21.0),
        "a SYN is faster than data": _of_ours(syn=18.0),
    },
)
