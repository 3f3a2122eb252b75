# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results of the experiments mimbox-goodput, -delay, -http and -memory, and their mutants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mutants import VerdictCases, simulated_results

from mptcp_bench.experiments.claims import FEWEST
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.findings import Aim
from mptcp_bench.experiments.mimbox import DELAY, GOODPUT, HTTP, MEMORY
from mptcp_bench.experiments.mimbox_judging import PAPER_BUFFER, PERCENTS, Delays, Point
from mptcp_bench.experiments.relay_judging import CLIENTS, DIRECT, LIMIT, OURS, Cell
from mptcp_bench.experiments.scenario import Scenario

SPEED = {DIRECT: 1.0, OURS: 0.9, LIMIT: 0.8, "haproxy": 0.7, "squid": 0.6}
"""Goodput relative to no proxy. Our proxy is close to 1 and ahead of all other proxies."""
SMALL_MTU, LARGE_FILE, SMALL_BUFFER = 296, 1_000_000, 25_000
Change = Callable[[Turn[Cell], Point], Mapping[str, Any] | None]
"""Returns the changed fields of a measurement, or None if the measurement is missing."""


def times(factor: float, proxy: str = OURS, at: int | None = None) -> Change:
    """Return the change of the goodput of *proxy*, at one or all values of the varied parameter."""

    def change(turn: Turn[Cell], point: Point) -> Mapping[str, Any]:
        changed = turn.cell.proxy == proxy and at in (None, turn.cell.at)
        return {"goodput": point.goodput * factor} if changed else {}

    return change


def cases_of(
    scenario: Scenario[Any, Cell, Any, Point],
    options: Mapping[str, str],
    goodput: Callable[[Cell], float],
    mutants: Mapping[str, Change],
) -> VerdictCases:
    """Return the cases of *scenario* with *mutants*. Without a proxy, a measurement has *goodput*."""

    def judged(change: Change) -> Sequence[Aim]:
        def measure(turn: Turn[Cell]) -> Mapping[str, Point] | None:
            cell, points = turn.cell, {}
            for task in cell.tasks:
                second, memory = 0.4 * (CLIENTS[cell.client] == 2), 125e3 * (task == "busy")
                point = Point(goodput(cell) * SPEED[cell.proxy], 0, second, PERCENTS, memory, memory)
                if (changed := change(turn, point)) is not None:
                    points[task] = replace(point, **changed)
            return points or None

        return scenario.aims(simulated_results(scenario, {"runs": str(FEWEST), **options}, measure))

    return VerdictCases(
        partial(judged, times(1)), {name: partial(judged, each) for name, each in {**COMMON, **mutants}.items()}
    )


COMMON: dict[str, Change] = {
    "nothing measured": lambda turn, point: None,
    "a round of our proxy is missing": lambda turn, point: None if (turn.cell.proxy, turn.number) == (OURS, 1) else {},
    "an answer was broken off": lambda turn, point: {"failures": int(turn.number == 2)},
}
"""Mutants of each figure."""


def busy(**change: float) -> Change:
    return lambda turn, point: change if turn.cell.tasks == ("busy",) else {}


MIMBOX_GOODPUT = cases_of(
    GOODPUT,
    {"mtu": f"{SMALL_MTU},9000"},
    lambda cell: cell.at * 1e4,
    {
        "second path unused through one proxy": lambda turn, point: {
            "second_path_share": 0.4 * (turn.cell.proxy != OURS)
        },
        "slow proxy": times(0.5),
        "dead proxy": times(0.0),
        "a relay in user space is faster": times(2, LIMIT, SMALL_MTU),
        "segments cost nothing, or the MSS is not changed": lambda turn, point: {"goodput": SPEED[turn.cell.proxy]},
    },
)
MIMBOX_HTTP = cases_of(
    HTTP,
    {"size": f"1000,{LARGE_FILE}"},
    lambda cell: cell.at * 1e3,
    {"slow proxy": times(0.5), "Squid is faster": times(2, "squid"), "large files are slow": times(0.5, at=LARGE_FILE)},
)
MIMBOX_MEMORY = cases_of(
    MEMORY,
    {"buffer": f"{SMALL_BUFFER},{PAPER_BUFFER},1000000"},
    # Over slow paths, every proxy is as fast as the router.
    lambda cell: (0.5 if cell.at == SMALL_BUFFER else 1.0) * 1e7 / SPEED[cell.proxy],
    {
        "buffers are not limited": times(1.9, at=SMALL_BUFFER),
        "200 KB are too little": times(0.9, at=PAPER_BUFFER),
        "the proxy is slower at every size": times(0.9),
        "busy connections are large": busy(user=310e3),
    },
)

DELAYS = {DIRECT: (5.0, 5.0, 5.0), LIMIT: (100.0, 20.0, 20.0), OURS: (30.0, 40.0, 19.0)}
"""Delays of SYN, SYN+ACK and data in µs."""


def delays(missing: tuple[str, ...] = (), *ours: float) -> Callable[[], Sequence[Aim]]:
    """Judge the delays, or other delays *ours* of our proxy. The first round of the *missing* proxies is lacking."""

    def measure(turn: Turn[Cell]) -> Delays | None:
        proxy = turn.cell.proxy
        values = ours if ours and proxy == OURS else DELAYS[proxy]
        return None if proxy in missing and turn.number == 1 else Delays(*(1e-6 * value for value in values))

    return lambda: DELAY.aims(simulated_results(DELAY, {}, measure))


MIMBOX_DELAY = VerdictCases(
    delays(),
    {
        "a round of all is missing": delays((DIRECT, LIMIT, OURS)),
        "a round of the simple relay is missing": delays((LIMIT,)),
        "our proxy only routes": delays((), *DELAYS[DIRECT]),
        "a SYN waits": delays((), 36.0, 40.0, 19.0),
        "a SYN+ACK waits": delays((), 30.0, 84.0, 19.0),
        "data waits": delays((), 30.0, 40.0, 33.0),
        "data waits longer than in a simple relay": delays((), 30.0, 40.0, 21.0),
        "a SYN is faster than data": delays((), 18.0, 40.0, 19.0),
    },
)
