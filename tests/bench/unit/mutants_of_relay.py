# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment relay, and its mutants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, nan

from mutants import VerdictCases, simulated_results

from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.findings import Aim
from mptcp_bench.experiments.relay import SCENARIO
from mptcp_bench.experiments.relay_judging import CLIENTS, DIRECT, OTHERS, OURS, TASKS, Cell, Outcome

PEER = "haproxy"
OPTIONS = {"processors": "shared", "links": "fast", "proxies": ",".join((OURS, *OTHERS)), "runs": "3"}
COST = {OURS: 0.95, PEER: 1.0, "squid": 2.0, "nginx": 1.5}
RATE = {"get": 0.85, "connect": 0.97, "requests": 0.9}
SPREAD = (0.3, 0.95, 1.6)
"""Factors for the cost in each round: below 1 on average, but with too much spread for a verdict."""
Change = Callable[[Turn[Cell], str, Outcome], Outcome | None]


def outcome(cell: Cell, task: str) -> Outcome:
    """Return a measurement of our proxy or another proxy that meets every aim."""
    if cell.proxy == DIRECT:
        return Outcome(None, 1.0)
    # HAProxy has no tunnels, so that Squid is the best peer for them.
    cost = COST[PEER] if (cell.proxy, task) == ("squid", "connect") else COST[cell.proxy]
    return Outcome(cost * (1.1 if CLIENTS[cell.client] else 1.0), RATE[task])


def judged(change: Change = lambda turn, task, sound: sound) -> Callable[[], Sequence[Aim]]:
    def measure(turn: Turn[Cell]) -> dict[str, Outcome] | None:
        tasks = {task: change(turn, task, outcome(turn.cell, task)) for task in turn.cell.tasks}
        return {task: measured for task, measured in tasks.items() if measured is not None} or None

    return lambda: SCENARIO.aims(simulated_results(SCENARIO, OPTIONS, measure))


def of_ours(
    client: str, task: str, *, cost: float = 1, rate: float = 1, spread: float = 0
) -> Callable[[], Sequence[Aim]]:
    """Judge a result in which one kind of our clients has a multiple of *cost* and *rate* in a task.

    The multiples of the rounds also differ by the factors in ``SPREAD``, to the power *spread*.
    """

    def change(turn: Turn[Cell], each: str, sound: Outcome) -> Outcome:
        if (turn.cell.proxy, turn.cell.client, each) != (OURS, client, task):
            return sound
        factor = SPREAD[turn.number - 1] ** spread
        return replace(sound, cost=(sound.cost or 0) * cost * factor, rate=sound.rate * rate * factor)

    return judged(change)


RELAY = VerdictCases(
    judged(),
    {
        "nothing measured": judged(lambda turn, task, sound: None),
        "one round of a peer is missing": judged(
            lambda turn, task, sound: None if (turn.cell.proxy, turn.number) == (PEER, 1) else sound
        ),
        "our proxy broke off an answer": judged(
            lambda turn, task, sound: replace(sound, failures=int(turn.cell.proxy == OURS))
        ),
        "nginx costs least": judged(
            lambda turn, task, sound: replace(sound, cost=0.9) if turn.cell.proxy == "nginx" else sound
        ),
        "no byte arrives through our proxy": of_ours("tcp", "get", cost=inf, rate=0),
        **{f"{task} costs more than with the best peer": of_ours("tcp", task, cost=1.1) for task in TASKS},
        "our download is slow": of_ours("tcp", "get", rate=0.9),
        "our tunnel is slow": of_ours("tcp", "connect", rate=0.95),
        "may cost more than TCP: the rounds differ much": of_ours("mptcp1", "get", spread=1),
        "may cost more than the best peer: the rounds differ much": of_ours("tcp", "requests", spread=1),
        "may be slow: the rounds differ much": of_ours("tcp", "connect", spread=0.1),
        **{
            f"{client} costs more than TCP: {task}": of_ours(client, task, cost=1.1)
            for client in ("mptcp1", "mptcp2")
            for task in TASKS
        },
        **{f"processor time is not measured: {task}": of_ours("tcp", task, cost=nan) for task in TASKS},
    },
)
