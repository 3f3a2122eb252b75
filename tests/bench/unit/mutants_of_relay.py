# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment relay, and its mutants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mutants import Judge, rehearsed

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.relay import SCENARIO
from mptcp_bench.experiments.relay_judging import CARRIED, CLIENTS, DIRECT, HELD, OURS, OWN, Carried, Cell, void
from mptcp_lab.testbed import TestbedError

PEER = "haproxy"
# Our rebuilt proxy and the one with the host's congestion control cost least. They are not peers to compare with.
OPTIONS = {"offloads": "off", "proxies": ",".join((*OWN, "squid", PEER)), "runs": "3"}
COST = {**dict.fromkeys(OWN, 0.5), OURS: 0.95, PEER: 1.0, "squid": 2.0}
RATE = {"get": 0.85, "connect": 0.97, "requests": 0.9}
APART = (0.3, 0.95, 1.6)
"""Factors for the cost in each round: below 1 on average, but with too much spread for a verdict."""
NAN = float("nan")
Change = Callable[[Turn[Cell], Carried], Carried | None]


def carried(turn: Turn[Cell]) -> Carried:
    """Return a measurement of our proxy or another proxy that meets every aim."""
    cell = turn.cell
    if cell.proxy == DIRECT:
        return Carried(rates=dict.fromkeys(cell.tasks, 1.0))
    dearer = 1.1 if CLIENTS[cell.client] else 1.0
    costs = {task: 50.0 if task in HELD else COST[cell.proxy] * dearer for task in cell.tasks}
    if cell.proxy == "squid":
        # HAProxy has no tunnels, so that Squid is the best peer for them.
        costs["connect"] = COST[PEER]
    return Carried(costs, rates={task: RATE.get(task, 0.9) for task in cell.tasks})


def judged(change: Change = lambda turn, one: one) -> Callable[[], Sequence[Aim]]:
    return lambda: SCENARIO.aims(rehearsed(SCENARIO, OPTIONS, lambda turn: change(turn, carried(turn))))


def of_ours(
    client: str, task: str, *, cost: float = 1, rate: float = 1, apart: float = 0
) -> Callable[[], Sequence[Aim]]:
    """Judge a result in which one kind of our clients has a multiple of *cost* and *rate* in a task.

    The multiples of the rounds also differ by the factors in ``APART``, to the power *apart*.
    """

    def change(turn: Turn[Cell], one: Carried) -> Carried:
        if (turn.cell.proxy, turn.cell.client) != (OURS, client):
            return one
        times = APART[turn.number - 1] ** apart

        def changed(values: Mapping[str, float], by: float) -> dict[str, float]:
            return {each: value * (by * times if each == task else 1) for each, value in values.items()}

        return replace(one, costs=changed(one.costs, cost), rates=changed(one.rates, rate))

    return judged(change)


def failing(proxy: str) -> Callable[[], Sequence[Aim]]:
    return judged(lambda turn, one: replace(one, failures=1) if (turn.number, turn.cell.proxy) == (2, proxy) else one)


def clients(client: str, capable: int, joins: int) -> Callable[[], Sequence[Aim]]:
    """Judge ten connections if the kernel counts *capable* Multipath TCP connections and *joins* second subflows."""

    def aims() -> Sequence[Aim]:
        if why := void(client, 10, capable, joins):
            raise TestbedError(why)
        return judged()()

    return aims


RELAY = Judge(
    judged(),
    {
        "fallback to TCP": clients("mptcp1", 9, 0),
        "second path unused": clients("mptcp2", 10, 9),
        "the TCP client speaks Multipath TCP": clients("tcp", 1, 0),
        "the second path is used where one is meant": clients("mptcp1", 10, 1),
        "nothing measured": judged(lambda turn, one: None),
        "one round of a peer is missing": judged(
            lambda turn, one: None if (turn.cell.proxy, turn.number) == (PEER, 1) else one
        ),
        **{f"an answer was broken off by {proxy}": failing(proxy) for proxy in OWN},
        "dead proxy: no byte comes": of_ours("tcp", "get", cost=float("inf"), rate=0),
        **{f"{task} costs more than with the best peer": of_ours("tcp", task, cost=1.1) for task in CARRIED},
        "its download is slow": of_ours("tcp", "get", rate=0.9),
        "its tunnel is slow": of_ours("tcp", "connect", rate=0.95),
        "one round of all": judged(lambda turn, one: one if turn.number == 1 else None),
        "may cost more than TCP: rounds lie far apart": of_ours("mptcp1", "get", apart=1),
        "may cost more than the best peer: rounds lie far apart": of_ours("tcp", "requests", apart=1),
        "may be slow: rounds lie far apart": of_ours("tcp", "connect", apart=0.1),
        **{
            f"{client} costs more than TCP: {task}": of_ours(client, task, cost=1.1)
            for client in ("mptcp1", "mptcp2")
            for task in CARRIED
        },
        **{f"processor time is not seen: {task}": of_ours("tcp", task, cost=NAN) for task in CARRIED},
        **{
            f"idle connections are {what}: {task}, {client}": of_ours(client, task, cost=times)
            for what, times in (("large", 2.1), ("not seen", NAN))
            for client in CLIENTS
            for task in HELD
        },
    },
    refused={
        "fallback to TCP": "9 of 10 connections were Multipath TCP",
        "second path unused": "9 of 10 connections had a second subflow",
        "the TCP client speaks Multipath TCP": "1 connections were Multipath TCP",
        "the second path is used where one is meant": "1 second subflows",
    },
)
