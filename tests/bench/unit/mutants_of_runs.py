# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results and mutants of the experiments goodput, recovery and soak."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mutants import MBIT, Judge, Load, constant, rehearsed, series

from mptcp_bench.experiments import goodput, recovery, soak
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.devices import payload_share
from mptcp_bench.experiments.goodput import Cell
from mptcp_bench.experiments.load_crowd import CAP as CROWD_CAP
from mptcp_bench.experiments.soak import SIZES, Reading, Soak
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.protocol import Protocol

CAP = 5 * MBIT


def download(
    cell: Cell, *, ethernet: float = 100, wifi: float = 30, cap: float = 5, wifi_cap: float = 30,
    lone_cap: float = 100, fallbacks: int = 0,
) -> goodput.Measurement:  # fmt: skip
    """Return a download over links of *ethernet* and *wifi* Mbit/s, where the policy caps Ethernet to *cap* Mbit/s."""
    if cell.policy:
        ethernet = min(ethernet, cap if cell.both else lone_cap)
    wifi = min(wifi, wifi_cap if cell.policy else wifi) if cell.both else 0
    if why := goodput.void(cell, Protocol(int(cell.multipath), fallbacks, int(cell.both), 0)):
        raise TestbedError(why)
    payload = (ethernet + wifi) * MBIT * payload_share(cell.family, multipath=cell.multipath)
    return goodput.Measurement(0.99 * payload, ethernet * MBIT, wifi * MBIT)


def downloads(rounds: Sequence[int] = (1, 2, 3), missing: int = 0, **change: Any) -> Callable[[], Sequence[Aim]]:
    """Judge three rounds: *change* applies to *rounds*; the last *missing* rounds are left out."""

    def measure(turn: Turn[Cell]) -> goodput.Measurement | None:
        if turn.number > 3 - missing:
            return None
        return download(turn.cell, **(change if turn.number in rounds else {}))

    return lambda: goodput.SCENARIO.aims(rehearsed(goodput.SCENARIO, {}, measure))


GOODPUT = Judge(
    downloads(),
    {
        "dead throttler, in one round of three": downloads((1,), cap=100),
        "the wrong path is capped": downloads(cap=100, wifi_cap=5),
        "both are capped, in one round": downloads((2,), wifi_cap=5),
        "the cap is too low": downloads((3,), cap=4.7),
        "second path unused": downloads(wifi=0),
        "links are not shaped": downloads(ethernet=1000, wifi=300, lone_cap=1000, wifi_cap=300),
        "a connection of one subflow, and one of plain TCP, is capped": downloads(lone_cap=5),
        "fallback to TCP": downloads(fallbacks=1),
        "a round is missing": downloads(missing=1),
        "nothing measured": downloads(missing=3),
    },
    refused={"fallback to TCP": "the connection fell back to plain TCP"},
)

KILLED, RESTARTED, READY, END = 5.0, 7.0, 8.0, 12.0
ETHERNET, WIFI = constant(5), constant(30)
NFTABLES = {"netfilter": "nftables"}


def killed(
    ethernet: Load = ETHERNET, wifi: Load = WIFI, *, samples: bool = True,
    changed: Mapping[str, Sequence[str]] | None = None, **change: Any,
) -> Callable[[], Sequence[Aim]]:  # fmt: skip
    """Judge a run in which the throttler is killed after 5 s and restarted after 7 s."""

    def measure(turn: Turn[str]) -> recovery.Measurement:
        seen = series({"eth0": ethernet, "wlan0": wifi}, END) if samples else []
        sound = recovery.Measurement(
            recovery.shares_of(seen, KILLED, RESTARTED, READY, END, CAP),
            {**dict.fromkeys(recovery.COMPARED, ()), **(changed or {})}, sysctls_back=0.4, same_caps=0.7,
            exit_code=0,
        )  # fmt: skip
        return replace(sound, **change)

    return lambda: recovery.SCENARIO.aims(rehearsed(recovery.SCENARIO, NFTABLES, measure))


def between(start: float, end: float, then: float, otherwise: float) -> Load:
    return lambda time: then if start <= time < end else otherwise


RECOVERY = Judge(
    killed(),
    {
        "dead throttler": killed(ethernet=constant(100)),
        "the wrong path is capped": killed(ethernet=constant(100), wifi=constant(5)),
        "second path unused": killed(wifi=constant(0)),
        "fallback to TCP": killed(ethernet=constant(100), wifi=constant(0)),
        "links are not shaped": killed(wifi=constant(300)),
        "the cap is too low": killed(ethernet=constant(4)),
        "the cap goes with the throttler": killed(ethernet=between(KILLED, RESTARTED, 100, 5)),
        "the cap never comes back": killed(ethernet=between(RESTARTED, END + 1, 100, 5), same_caps=math.inf),
        "there is no cap for a moment": killed(ethernet=between(RESTARTED, RESTARTED + 0.5, 20, 5)),
        "nothing arrives for 0.4 s": killed(*(between(7.05, 7.45, 0, rate) for rate in (5, 30))),
        "slower afterwards": killed(wifi=between(READY, END + 1, 26, 30)),
        **{f"there are {when}": killed(changed={when: ("tc class",)}) for when in recovery.COMPARED},
        "nobody puts the sysctls back": killed(sysctls_back=math.inf),
        "it ends with an error": killed(exit_code=1),
        "it ends by a signal": killed(exit_code=-9),
        "it does not end": killed(exit_code=math.nan),
        "no sample was taken": killed(samples=False),
        "nothing measured": lambda: recovery.SCENARIO.aims(rehearsed(recovery.SCENARIO, NFTABLES, lambda turn: None)),
    },
    refused={"no sample was taken": "no two samples between 3.00 s and 5.00 s"},
)

TUNNELS, CHURN, INTERVAL, COUNT = 1_000, 50, 30.0, 120


def reading(number: int) -> Reading:
    """Return a reading of a throttler that meets every aim: it warms up for a while and is then stable."""
    time = INTERVAL * (number + 1)
    sizes = {name: 1_000.0 * min(1.0, 0.8 + number / 100) for name in SIZES}
    return Reading(time, TUNNELS - 10, TUNNELS + round(CHURN * time), 0, 0, 500, 0, CROWD_CAP, sizes)


def soaked(
    change: Callable[[int, Reading], dict[str, Any]] = lambda number, one: {}, *, count: int = COUNT, ended: int = 0,
    left: Sequence[str] = (),
) -> Callable[[], Sequence[Aim]]:  # fmt: skip
    """Judge *count* readings, each with the fields that *change* returns for it."""
    readings = [replace(one, **change(number, one)) for number, one in enumerate(map(reading, range(count)))]
    found = Soak(tuple(readings), ended, 0.1, tuple(left))
    return lambda: soak.SCENARIO.aims(rehearsed(soak.SCENARIO, {}, lambda turn: found))


def growing(name: str) -> Callable[[], Sequence[Aim]]:
    """Judge readings in which the size *name* increases by a fifth from the second third to the last."""
    return soaked(lambda number, one: {"sizes": {**one.sizes, name: 1_000 * (1 + 0.006 * number)}})


SOAK = Judge(
    soaked(),
    {
        "dead throttler": soaked(count=0),
        "it died half-way": soaked(count=60),
        "nothing can be read of it": soaked(lambda n, one: {"sizes": dict.fromkeys(SIZES, math.nan)}),
        **{f"growing: {name}": growing(name) for name in SIZES},
        "the proxy ends tunnels": soaked(ended=1),
        "plain TCP, second path unused: no connection has two": soaked(lambda n, one: {"checked": 0}),
        "the tunnels do not stand": soaked(lambda n, one: {"standing": 900}),
        "none is replaced": soaked(lambda n, one: {"opened": TUNNELS}),
        "one connection is missed once": soaked(lambda n, one: {"missed": int(n == 70)}),
        "one is invented once": soaked(lambda n, one: {"invented": int(n == 70)}),
        "the cap is on the other path, or never came": soaked(lambda n, one: {"wrong": 500}),
        "one cap is wrong once": soaked(lambda n, one: {"wrong": int(n == 70)}),
        "the cap is half of what it should be for much of the time": soaked(
            lambda n, one: {"ceil": CROWD_CAP / (1 + n % 2)}
        ),
        "the cap is twice what it should be": soaked(lambda n, one: {"ceil": 2 * CROWD_CAP}),
        "something is left": soaked(left=("tc",)),
        "nothing measured": lambda: soak.SCENARIO.aims(rehearsed(soak.SCENARIO, {}, lambda turn: None)),
    },
)
