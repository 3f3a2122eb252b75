# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment relay, and its mutants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mutants import Judge

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.relay_cells import BASE, CLIENTS, DIRECT, HELD, KEEPING, OURS, REBUILT, Cell, Setting
from mptcp_bench.experiments.relay_judging import COSTS, Measured, Rounds, judge, machine, void
from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed import TestbedError

RUNS = 3
SECONDS = 2.0
GB = 1_000_000_000
# Processor seconds for each task, of a peer and of ours. The peer's value is the limit.
PEER, WORSE_PEER = "haproxy", "squid"
SPENT = {"get": 1.0, "connect": 0.5, "requests": 1.0}
RATE = {"get": 0.85, "connect": 0.97, "requests": 0.9}
KB = 1000.0
APART = (0.3, 0.95, 1.6)
"""Factors for the cost of sound rounds: lower on average, but with too much spread to judge."""
Change = Callable[[Measured], Measured]


def cell_of(proxy: str, client: str = "tcp") -> Cell:
    return Cell(proxy, client)


def measured(cell: Cell, task: str, number: int, setting: Setting = BASE) -> Measured:
    """Return a measurement of a proxy. Ours meets every aim."""
    found = Measured(setting, cell, task, number)
    if task in HELD:
        return replace(found, user=40 * KB, kernel=10 * KB)
    spent = SPENT[task] * {OURS: 0.95, KEEPING: 0.5, REBUILT: 0.5, PEER: 1.0, WORSE_PEER: 2.0, DIRECT: 0.0}[cell.proxy]
    spent *= 1.1 if CLIENTS[cell.client] else 1.0
    done = 1.0 if cell.proxy == DIRECT else RATE[task]
    return replace(
        found, seconds=SECONDS, processor=spent * done, octets=round(done * GB), answers=round(done * 10_000)
    )


def planned() -> list[tuple[Setting, Cell, str]]:
    # Our rebuilt proxy and the one with the host's congestion control cost least. They are no peers to compare with.
    cells = [
        *map(cell_of, (DIRECT, KEEPING, REBUILT, PEER, WORSE_PEER)),
        *(cell_of(OURS, client) for client in CLIENTS),
    ]
    return [
        (BASE, cell, task)
        for cell in cells
        for task in (*COSTS, *HELD)
        if cell.proxy != DIRECT or task in ("get", "requests")
    ]


def sound() -> Iterator[Measured]:
    for number in range(RUNS):
        for setting, cell, task in planned():
            yield measured(cell, task, number, setting)


def judged(
    change: Change = lambda m: m, keep: Callable[[Measured], bool] = lambda m: True
) -> Callable[[], Sequence[Aim]]:
    def aims() -> Sequence[Aim]:
        rounds = Rounds(change(m) for m in sound() if keep(m))
        return [*judge(rounds, planned(), RUNS), *machine(Usage(0.01, 0.2, 0.3))]

    return aims


def of_ours(task: str, client: str, change: Callable[[Measured], dict[str, Any]]) -> Callable[[], Sequence[Aim]]:
    """Judge a sound result with one task of one kind of our clients changed."""
    cell = cell_of(OURS, client)
    return judged(lambda m: replace(m, **change(m)) if (m.cell, m.task) == (cell, task) else m)


def dearer(times: float) -> Callable[[Measured], dict[str, Any]]:
    return lambda m: {"processor": m.processor * times}


def apart(m: Measured) -> dict[str, Any]:
    return {"processor": m.processor * APART[m.round]}


def slower(times: float) -> Callable[[Measured], dict[str, Any]]:
    """Do less work for the same processor time."""
    return lambda m: {"processor": m.processor / times, "octets": round(m.octets / times)}


def larger(m: Measured) -> dict[str, Any]:
    return {"user": 95 * KB}


def clients(client: str, capable: int, joins: int) -> Callable[[], Sequence[Aim]]:
    """Judge ten connections if the kernel counts *capable* by Multipath TCP and *joins* second subflows."""

    def aims() -> Sequence[Aim]:
        if why := void(cell_of(OURS, client), 10, capable, joins):
            raise TestbedError(why)
        return judged()()

    return aims


RELAY = Judge(
    judged(),
    {
        "fallback to TCP": clients("mptcp1", 9, 0),
        "second path unused": clients("mptcp2", 10, 9),
        "nothing measured": lambda: judge(Rounds(()), planned(), RUNS),
        "one round of one of them is missing": judged(
            keep=lambda m: (m.cell, m.task, m.round) != (cell_of(PEER), "get", 1)
        ),
        "an answer was broken off": judged(
            lambda m: replace(m, failures=1) if m.round == 2 and m.cell.proxy == OURS else m
        ),
        "an answer was broken off, with ours rebuilt": judged(
            lambda m: replace(m, failures=1) if m.round == 2 and m.cell.proxy == REBUILT else m
        ),
        "an answer was broken off, with the host's congestion control": judged(
            lambda m: replace(m, failures=1) if m.round == 2 and m.cell.proxy == KEEPING else m
        ),
        "dead proxy: no byte comes": of_ours("get", "tcp", lambda m: {"octets": 0, "answers": 0}),
        "a byte costs more than with the best peer": of_ours("get", "tcp", dearer(1.1)),
        "a byte in a tunnel does": of_ours("connect", "tcp", dearer(1.1)),
        "a request does": of_ours("requests", "tcp", dearer(1.1)),
        "its download is slow": of_ours("get", "tcp", slower(1.1)),
        "its tunnel is slow": of_ours("connect", "tcp", slower(1.05)),
        "one round of all": judged(keep=lambda m: m.round == 0),
        **{
            f"{client} may cost more than TCP: rounds lie far apart": of_ours("get", client, apart)
            for client in ("mptcp1", "mptcp2")
        },
        "may cost more than the best peer: rounds lie far apart": of_ours("requests", "tcp", apart),
        "may be slow: rounds lie far apart": of_ours(
            "connect", "tcp", lambda m: {"octets": round(m.octets * APART[m.round] ** 0.1)}
        ),
        **{
            f"{client} costs more than TCP: {task}": of_ours(task, client, dearer(1.1))
            for client in ("mptcp1", "mptcp2")
            for task in COSTS
        },
        **{
            f"their memory is not seen: {task}, {client}": of_ours(task, client, lambda m: {"user": 0, "kernel": 0})
            for client in CLIENTS
            for task in ("idle-get", "idle-connect")
        },
        **{f"processor time is not seen: {task}": of_ours(task, "tcp", lambda m: {"processor": 0}) for task in COSTS},
        **{
            f"idle connections are large: {task}, {client}": of_ours(task, client, larger)
            for client in CLIENTS
            for task in ("idle-get", "idle-connect")
        },
    },
    refused={
        "fallback to TCP": "ours, mptcp1: 9 of 10 connections were Multipath TCP",
        "second path unused": "ours, mptcp2: 9 of 10 connections had a second subflow",
    },
)
