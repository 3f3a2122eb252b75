# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment tunnel, and its mutants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from mutants import MBIT, Judge

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.tunnel_cells import CONTROLS, PARTS, PAYLOAD, Cell, plan
from mptcp_bench.experiments.tunnel_judging import (
    BESIDE,
    CALLS,
    CHANGES,
    OURS,
    AfterChange,
    Call,
    Cost,
    Measured,
    Poll,
    Silence,
    Transfer,
    aims,
    silence,
)

CELLS = tuple(plan({}, quick=False).cells())
RUNS = 3
LOSSY = 0.6
"""Share of a path's rate that remains with loss."""
Ours = Callable[[Cell, tuple[float, float]], float]
"""Bits/s of a download through the tunnel, as a function of the cell and of each path's own rate."""
BEGAN, ENDED = 5.0, 8.0


def alone(cell: Cell) -> tuple[float, float]:
    a, b = (
        rate * MBIT * PAYLOAD * (0.98 if loss is None else LOSSY)
        for rate, loss in zip(cell.over.rates, cell.over.losses, strict=True)
    )
    return a, b


def transfers(ours: Ours = lambda _, each: 0.95 * sum(each), machine: float = 1.0) -> list[Transfer]:
    """Return transfers. *machine*: rate of the machine relative to the links."""
    found = []
    for cell in CELLS:
        each = tuple(machine * rate for rate in alone(cell))
        for control in cell.controls:
            for _ in range(RUNS):
                found.append(Transfer(cell.name, control, "alone", each))
                found.append(Transfer(cell.name, control, "ours", (ours(cell, (each[0], each[1])),)))
    return found


def polls(left: int | None, after: float = 0.3, back: float = 0.1) -> list[Poll]:
    """Return both ends' verdicts during an outage; both take path *left* for dead meanwhile."""
    found = []
    for step in range(600):
        time = step * 0.02
        lives = [path != left or not BEGAN + after <= time < ENDED + back for path in range(2)]
        found.append(Poll(time, lives, lives))
    return found


def call(where: str, p99: float, loss: float = 0.0) -> list[Call]:
    return [Call(control, where, (p99,) * 300, loss) for control in CONTROLS for _ in range(RUNS)]


def sound() -> Measured:
    delays = dict(zip(CALLS, (0.011, 0.061, 0.025), strict=True))
    return Measured(
        transfers(),
        [silence(polls(1), 1, BEGAN, ENDED, 0.3)] * RUNS,
        [AfterChange(change, control, 9.5, 10.0) for change in CHANGES for control in CONTROLS] * RUNS,
        [each for where in CALLS for each in call(where, delays[where], 0.01 * (where == BESIDE))],
        [Cost(150, 50, 4, 600 * MBIT)] * RUNS,
    )


def judged(**wrong: object) -> Callable[[], Sequence[Aim]]:
    """Judge a sound result in which the parts *wrong* are replaced."""

    def judged() -> Sequence[Aim]:
        return aims(replace(sound(), **wrong), CELLS, PARTS, dict.fromkeys(CHANGES, CONTROLS))  # type: ignore[arg-type]

    return judged


def downloads(ours: Ours) -> Callable[[], Sequence[Aim]]:
    return judged(transfers=transfers(ours))


def silent(**wrong: float) -> Callable[[], Sequence[Aim]]:
    return judged(silences=[replace(Silence(0.3, 0.3, 0.1, 0.3), **wrong)] * RUNS)


def calls(p99: float, loss: float) -> Callable[[], Sequence[Aim]]:
    return judged(calls=[each for each in sound().calls if each.where != OURS] + call(OURS, p99, loss))


TUNNEL = Judge(
    judged(),
    {
        "second path unused": downloads(lambda _, each: each[0]),
        "it is the only one that is used": downloads(lambda _, each: each[1]),
        "50/50 over unequal paths": downloads(lambda _, each: 2 * min(each)),
        "a lossy path stalls the other": downloads(lambda _, each: max(each) / 2),
        "only BBR gets little over lossy paths": downloads(lambda _, each: 0.8 * sum(each)),
        "no byte came": downloads(lambda *_: 0.0),
        "emulator off": judged(transfers=transfers(machine=20)),
        "a silent path is never left": judged(silences=[silence(polls(None), 1, BEGAN, ENDED, 3.0)] * RUNS),
        "the wrong path is left": judged(silences=[silence(polls(0), 1, BEGAN, ENDED, 3.0)] * RUNS),
        "it is left late": judged(silences=[silence(polls(1, after=0.6), 1, BEGAN, ENDED, 0.3)] * RUNS),
        "by the relay alone": silent(proxy=inf),
        "by the proxy alone": silent(relay=inf),
        "it is used again late": judged(silences=[silence(polls(1, back=1.5), 1, BEGAN, ENDED, 0.3)] * RUNS),
        "it is never used again": judged(silences=[silence(polls(1, back=99), 1, BEGAN, ENDED, 0.3)] * RUNS),
        "the stream loses a second": silent(lost=1.0),
        "a change is not followed": judged(
            steady=[AfterChange(change, control, 5.0, 10.0) for change in CHANGES for control in CONTROLS]
        ),
        "a call waits in a queue": calls(0.061, 0.0),
        "a call loses more than over one path": calls(0.025, 0.02),
        "packets are dear in the kernel": judged(costs=[Cost(250, 100, 4, 600 * MBIT)]),
        "packets are dear in the resequencer": judged(costs=[Cost(150, 50, 28.6, 600 * MBIT)]),
        "little is carried": judged(costs=[Cost(150, 50, 4, 300 * MBIT)]),
        "nothing measured": judged(transfers=[], silences=[], steady=[], calls=[], costs=[]),
    },
)
