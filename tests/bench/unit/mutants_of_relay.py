# SPDX-License-Identifier: GPL-2.0-or-later
"""Correct results and mutants of relay, home, middleboxes, mimbox-goodput, mimbox-http, mimbox-memory, mimbox-delay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, nan
from typing import Any

from mutants import VerdictCases

from mptcp_bench.experiments import home, middleboxes, mimbox, relay
from mptcp_bench.experiments.claims import FEWEST
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.middleboxes import REQUEST_BEHAVIOURS, SURVIVED, StatusCheck
from mptcp_bench.experiments.mimbox_judging import PAPER_BUFFER, PERCENTS, Delays, Point
from mptcp_bench.experiments.relay_judging import CLIENTS, DIRECT, LIMIT, OURS, TASKS, Cell, Outcome
from mptcp_bench.experiments.scenario import Scenario

PEER = "haproxy"
"""The best of the other proxies."""
COST = {OURS: 0.95, PEER: 1.0, "squid": 2.0, "nginx": 1.5}
"""Cost of a transfer through each proxy over TCP."""
RATE = {"get": 0.85, "connect": 0.97, "requests": 0.9}
"""Rate of each task relative to no proxy."""
SPREAD = (0.3, 0.95, 1.6)
"""Factors for the cost in each round: below 1 on average, but with too much spread for a verdict."""


def correct_outcome(cell: Cell, task: str) -> Outcome:
    """Return a measurement of our proxy or another proxy that meets every aim."""
    if cell.proxy == DIRECT:
        return Outcome(None, 1.0)
    # HAProxy has no tunnels, so that Squid is the best peer for them.
    cost = COST[PEER] if (cell.proxy, task) == ("squid", "connect") else COST[cell.proxy]
    return Outcome(cost * (1.1 if CLIENTS[cell.client] else 1.0), RATE[task])


def relay_run(
    turn: Turn[Cell], proxy: str = OURS, client: str = "", task: str = "", failures: int = 0, cost: float = 1,
    rate: float = 1, spread: float = 0, has_first_round: bool = True,
) -> dict[str, Outcome]:  # fmt: skip
    """Return the outcomes of a round, with changes for *proxy*: for one *client* and *task*, or for all of them.

    *cost* and *rate* are factors on the correct values. Another factor is that of ``SPREAD`` to the power *spread*.
    """
    outcomes = {each: correct_outcome(turn.cell, each) for each in turn.cell.tasks}
    if turn.cell.proxy != proxy or client not in ("", turn.cell.client):
        return outcomes
    factor = SPREAD[turn.number - 1] ** spread
    for each, correct in outcomes.items():
        if task in ("", each):
            outcomes[each] = Outcome((correct.cost or 0) * cost * factor, correct.rate * rate * factor, failures)
    return outcomes if has_first_round or turn.number > 1 else {}


RELAY = VerdictCases(
    relay.SCENARIO,
    {"processors": "shared", "links": "fast", "proxies": ",".join(COST), "runs": "3"},
    relay_run,
    {
        "one round of a peer is missing": {"proxy": PEER, "has_first_round": False},
        "an answer was broken off by our proxy": {"failures": 1},
        "nginx costs least": {"proxy": "nginx", "cost": 0.6},
        "no byte arrives through our proxy": {"client": "tcp", "task": "get", "cost": inf, "rate": 0},
        "our download is slow": {"client": "tcp", "task": "get", "rate": 0.9},
        "our tunnel is slow": {"client": "tcp", "task": "connect", "rate": 0.95},
        "possibly costs more than TCP: the rounds differ much": {"client": "mptcp1", "task": "get", "spread": 1},
        "possibly costs more than a peer: the rounds differ much": {"client": "tcp", "task": "requests", "spread": 1},
        "is possibly slow: the rounds differ much": {"client": "tcp", "task": "connect", "spread": 0.1},
        **{
            f"{client} costs more than {other}: {task}": {"client": client, "task": task, "cost": 1.1}
            for client, other in (("tcp", "with the best peer"), ("mptcp1", "TCP"), ("mptcp2", "TCP"))
            for task in TASKS
        },
        **{f"processor time is not measured: {task}": {"client": "tcp", "task": task, "cost": nan} for task in TASKS},
    },
)

CORRECT_HOME: Mapping[str, Mapping[str, float]] = {
    "goodput": {"eth0": 38.0, "wlan0": 19.0, "forwarder": 55.0, "squid": 55.0},
    "first byte": {"nat": 5.0, "forwarder": 8.0, "squid": 8.0},
    "banner": {"nat": 1.0, "forwarder": 3.0, "squid": 3000.0},
    "outage": {"pause": 0.7, "request": 3.1, "later": 0.1, "back": 1.2},
    "crowd": {"answered": home.DEVICES, "direct": 0, "seconds": 8.0},
    "cost": {"forwarder": 3.0, "squid": 3.0},
}


def home_run(turn: Turn[str], part: str = "goodput", **changes: float) -> home.Values:
    """Return the correct values of a part, with *changes* if it is *part*."""
    return home.Values({**CORRECT_HOME[turn.cell], **(changes if turn.cell == part else {})})


HOME = VerdictCases(
    home.SCENARIO,
    {},
    home_run,
    {
        "second path unused": {"forwarder": 38.0},
        "links are not shaped": {"forwarder": 900.0},
        "the forwarder waits for the device's first bytes": {"part": "banner", "forwarder": 3000.0},
        "the forwarder is slow": {"part": "first byte", "forwarder": 11.0},
        "a running download stops": {"part": "outage", "pause": 8.0},
        "the first new request uses the silent uplink": {"part": "outage", "request": 6.0},
        "all new requests use the silent uplink": {"part": "outage", "later": 3.1},
        "a running download does not return": {"part": "outage", "back": 60.0},
        "a device has no answer": {"part": "crowd", "answered": home.DEVICES - 1},
        "a device is answered twice": {"part": "crowd", "answered": home.DEVICES + 1},
        "a connection bypasses the parent": {"part": "crowd", "direct": 1},
        "the forwarder costs more than Squid": {"part": "cost", "forwarder": 4.0},
    },
)

TIMES = [0.25 * step for step in range(17)]
BOTH, FIRST = {"ethernet": 2_000_000, "wifi": 6_000_000}, {"ethernet": 8_000_000, "wifi": 1_000}


def checks(kernel: int, status: int, capped: int) -> list[StatusCheck]:
    """Return checks with these numbers of subflows: in the kernel, in the status, and capped in the status."""
    return [StatusCheck(time, kernel, status, capped) for time in TIMES]


def middleboxes_run(turn: Turn[str], missing: str = "", **change: Any) -> middleboxes.Download | None:
    """Return a download with *change*; None if the middlebox is at the place *missing*."""
    changed = int(turn.cell != "nothing" and (turn.variant != "wifi" or turn.cell not in REQUEST_BEHAVIOURS))
    if turn.cell in SURVIVED:
        found = middleboxes.Download(True, 4.0, 0, BOTH, checks(2, 2, 1), changed)
    else:
        found = middleboxes.Download(True, 4.0, 1, FIRST, checks(1, 1, 0), changed)
    return None if turn.variant == missing else replace(found, **change)


MIDDLEBOXES = VerdictCases(
    middleboxes.SCENARIO,
    {},
    middleboxes_run,
    {
        "downloads are cut short or changed": {"whole": False},
        "the second path is not used": {"carried": FIRST},
        "all connections fall back": {"fallbacks": 1},
        "plain TCP": {"checks": checks(0, 0, 0)},
        "dead throttler": {"checks": checks(2, 0, 0)},
        "a connection that fell back has two subflows in the status": {"checks": checks(1, 2, 0)},
        "the tracker is blinded after a second": {"checks": [StatusCheck(t, 2, 2 if t < 1 else 1, 0) for t in TIMES]},
        "the only subflow is capped": {"checks": checks(1, 1, 1)},
        "the emulation has no middlebox": {"changed": 0},
        "the status is not checked": {"checks": []},
        "one place is left out": {"missing": "wifi"},
    },
)

SPEED = {DIRECT: 1.0, OURS: 0.9, LIMIT: 0.8, "haproxy": 0.7, "squid": 0.6}
"""Goodput relative to no proxy. Our proxy is close to 1 and ahead of all other proxies."""
SMALL_MTU, LARGE_FILE, SMALL_BUFFER = 296, 1_000_000, 25_000
"""Sizes in bytes."""
RUNS = {"runs": str(FEWEST)}
Change = Callable[[Turn[Cell], Point], Mapping[str, Any] | None]
"""Returns the changed fields of a measurement, or None if the measurement is missing."""


def scaled_goodput(factor: float, proxy: str = OURS, at: int | None = None) -> Change:
    """Return the change of the goodput of *proxy*, at one or all values of the varied parameter."""

    def change(turn: Turn[Cell], point: Point) -> Mapping[str, Any]:
        changed = turn.cell.proxy == proxy and at in (None, turn.cell.at)
        return {"goodput": point.goodput * factor} if changed else {}

    return change


def busy(**change: float) -> Change:
    """Return the change of busy connections."""
    return lambda turn, point: change if turn.cell.tasks == ("busy",) else {}


def mimbox_cases(
    scenario: Scenario[Any, Cell, Any, Point],
    options: Mapping[str, str],
    goodput: Callable[[Cell], float],
    mutants: Mapping[str, Change],
) -> VerdictCases:
    """Return the cases of *scenario*. *goodput* returns the goodput without a proxy."""

    def measure(turn: Turn[Cell], change: Change = lambda turn, point: {}) -> Mapping[str, Point]:
        cell, points = turn.cell, {}
        for task in cell.tasks:
            second, memory = 0.4 * (CLIENTS[cell.client] == 2), 125e3 * (task == "busy")
            point = Point(goodput(cell) * SPEED[cell.proxy], 0, second, PERCENTS, memory, memory)
            if (changed := change(turn, point)) is not None:
                points[task] = replace(point, **changed)
        return points

    common: dict[str, Change] = {
        "a round of our proxy is missing": lambda turn, point: (
            None if (turn.cell.proxy, turn.number) == (OURS, 1) else {}
        ),
        "an answer was broken off": lambda turn, point: {"failures": int(turn.number == 2)},
    }
    changes = {name: {"change": change} for name, change in {**common, **mutants}.items()}
    return VerdictCases(scenario, {**RUNS, **options}, measure, changes)


MIMBOX_GOODPUT = mimbox_cases(
    mimbox.GOODPUT,
    {"mtu": f"{SMALL_MTU},9000"},
    lambda cell: cell.at * 1e4,
    {
        "second path unused through one proxy": lambda turn, point: {
            "second_path_share": 0.4 * (turn.cell.proxy != OURS)
        },
        "slow proxy": scaled_goodput(0.5),
        "dead proxy": scaled_goodput(0.0),
        "a relay in user space is faster": scaled_goodput(2, LIMIT, SMALL_MTU),
        "segments cost nothing, or the MSS is not changed": lambda turn, point: {"goodput": SPEED[turn.cell.proxy]},
    },
)
MIMBOX_HTTP = mimbox_cases(
    mimbox.HTTP,
    {"size": f"1000,{LARGE_FILE}"},
    lambda cell: cell.at * 1e3,
    {
        "slow proxy": scaled_goodput(0.5),
        "Squid is faster": scaled_goodput(2, "squid"),
        "large files are slow": scaled_goodput(0.5, at=LARGE_FILE),
    },
)
MIMBOX_MEMORY = mimbox_cases(
    mimbox.MEMORY,
    {"buffer": f"{SMALL_BUFFER},{PAPER_BUFFER},1000000"},
    # Over slow paths, every proxy is as fast as the router.
    lambda cell: (0.5 if cell.at == SMALL_BUFFER else 1.0) * 1e7 / SPEED[cell.proxy],
    {
        "buffers are not limited": scaled_goodput(1.9, at=SMALL_BUFFER),
        "200 KB are too little": scaled_goodput(0.9, at=PAPER_BUFFER),
        "the proxy is slower at every size": scaled_goodput(0.9),
        "busy connections are large": busy(user=310e3),
    },
)

DELAYS = {DIRECT: (5.0, 5.0, 5.0), LIMIT: (100.0, 20.0, 20.0), OURS: (30.0, 40.0, 19.0)}
"""Delays of SYN, SYN+ACK and data in µs."""


def delay_run(turn: Turn[Cell], missing: str = "", ours: tuple[float, ...] = DELAYS[OURS]) -> Delays | None:
    """Return the delays of a proxy, which for our proxy are *ours*; None in the first round of the proxy *missing*."""
    values = {**DELAYS, OURS: ours}[turn.cell.proxy]
    return None if (turn.cell.proxy, turn.number) == (missing, 1) else Delays(*(1e-6 * value for value in values))


MIMBOX_DELAY = VerdictCases(
    mimbox.DELAY,
    {},
    delay_run,
    {
        "a round of the simple relay is missing": {"missing": LIMIT},
        "our proxy only routes": {"ours": DELAYS[DIRECT]},
        "a SYN waits": {"ours": (36.0, 40.0, 19.0)},
        "a SYN+ACK waits": {"ours": (30.0, 84.0, 19.0)},
        "data waits": {"ours": (30.0, 40.0, 33.0)},
        "data waits longer than in a simple relay": {"ours": (30.0, 40.0, 21.0)},
        "a SYN is faster than data": {"ours": (18.0, 40.0, 19.0)},
    },
)
