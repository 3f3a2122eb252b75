# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results and mutants of the experiments goodput, recovery, pages and steering."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from mutants import MBIT, Judge, Load, between, constant, rehearsed, series

from mptcp_bench.experiments import goodput, pages, recovery, steering
from mptcp_bench.experiments import steering_outages as outages
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.devices import payload_share
from mptcp_bench.experiments.pages_judging import NEW, OURS, Batch, Cell, Download, judge
from mptcp_bench.experiments.steering import AFTER_SECONDS, AIMS, BEFORE_SECONDS, EVENT_SECONDS
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.protocol import Protocol

Judged = Callable[[], Sequence[Aim]]


def download(
    cell: goodput.Cell, *, ethernet: float = 100, wifi: float = 30, cap: float = 5, wifi_cap: float = 30,
    single_path_cap: float = 100, fallbacks: int = 0,
) -> goodput.Measurement:  # fmt: skip
    """Return a download over links of *ethernet* and *wifi* Mbit/s, where the policy caps Ethernet to *cap* Mbit/s."""
    both = cell.client == goodput.TWO
    if cell.policy:
        ethernet = min(ethernet, cap if cell.capped else single_path_cap)
    wifi = min(wifi, wifi_cap if cell.policy else wifi) if both else 0
    if reason := goodput.invalid(cell, Protocol(int(cell.multipath), fallbacks, int(both), 0)):
        raise TestbedError(reason)
    payload = (ethernet + wifi) * MBIT * payload_share(cell.family, multipath=cell.multipath)
    return goodput.Measurement(0.99 * payload, ethernet * MBIT, wifi * MBIT)


def goodput_runs(rounds: Sequence[int] = (1, 2, 3), missing: int = 0, **change: Any) -> Judged:
    """Judge three rounds: *change* applies to *rounds*; the last *missing* rounds are left out."""

    def measure(turn: Turn[goodput.Cell]) -> goodput.Measurement | None:
        if turn.number > 3 - missing:
            return None
        return download(turn.cell, **(change if turn.number in rounds else {}))

    return lambda: goodput.SCENARIO.aims(rehearsed(goodput.SCENARIO, {}, measure))


GOODPUT = Judge(
    goodput_runs(),
    {
        "dead throttler, in one round of three": goodput_runs((1,), cap=100),
        "the wrong path is capped": goodput_runs(cap=100, wifi_cap=5),
        "both paths are capped, in one round": goodput_runs((2,), wifi_cap=5),
        "the cap is too low": goodput_runs((3,), cap=4.7),
        "second path unused": goodput_runs(wifi=0),
        "links are not shaped": goodput_runs(ethernet=1000, wifi=300, single_path_cap=1000, wifi_cap=300),
        "a single subflow and plain TCP are capped too": goodput_runs(single_path_cap=5),
        "fallback to TCP": goodput_runs(fallbacks=1),
        "a round is missing": goodput_runs(missing=1),
        "nothing measured": goodput_runs(missing=3),
    },
    refused={"fallback to TCP": "the connection fell back to plain TCP"},
)

KILLED, RESTARTED, READY, END = 5.0, 7.0, 8.0, 12.0
CAPPED, FREE_PATH = constant(5), constant(30)


def recovery_run(
    ethernet: Load = CAPPED, wifi: Load = FREE_PATH, *, changed: Mapping[str, Sequence[str]] | None = None,
    measured: bool = True, **change: float,
) -> Judged:  # fmt: skip
    """Judge a run in which the throttler is killed after 5 s and restarted after 7 s."""

    def measure(turn: Turn[str]) -> recovery.Measurement | None:
        if not measured:
            return None
        seen = series({"eth0": ethernet, "wlan0": wifi}, END)
        shares = recovery.shares_of(seen, KILLED, RESTARTED, READY, END, 5 * MBIT)
        dumps = {**dict.fromkeys(recovery.COMPARED, ()), **(changed or {})}
        others = {"sysctls_restored": 0.4, "same_caps": 0.7, "exit_code": 0, **change}
        return recovery.Measurement(dumps, **shares, **others)

    return lambda: recovery.SCENARIO.aims(rehearsed(recovery.SCENARIO, {"netfilter": "nftables"}, measure))


RECOVERY = Judge(
    recovery_run(),
    {
        "dead throttler": recovery_run(constant(100)),
        "the wrong path is capped": recovery_run(constant(100), constant(5)),
        "second path unused": recovery_run(wifi=constant(0)),
        "fallback to TCP": recovery_run(constant(100), constant(0)),
        "links are not shaped": recovery_run(wifi=constant(300)),
        "the cap is too low": recovery_run(constant(4)),
        "the cap ends with the throttler": recovery_run(between(KILLED, RESTARTED, 100, 5)),
        "the cap is not restored": recovery_run(between(RESTARTED, END + 1, 100, 5), same_caps=math.inf),
        "there is no cap for a moment": recovery_run(between(RESTARTED, RESTARTED + 0.5, 20, 5)),
        "nothing arrives for 0.4 s": recovery_run(*(between(7.05, 7.45, 0, rate) for rate in (5, 30))),
        "slower afterwards": recovery_run(wifi=between(READY, END + 1, 26, 30)),
        **{f"there are {name}": recovery_run(changed={name: ("tc class",)}) for name in recovery.COMPARED},
        "the sysctls are not restored": recovery_run(sysctls_restored=math.inf),
        "the throttler ends with an error": recovery_run(exit_code=1),
        "the throttler is ended by a signal": recovery_run(exit_code=-9),
        "nothing measured": recovery_run(measured=False),
    },
)

Rates = tuple[Load, Load, float]
"""Rates of both paths in Mbit/s, and the batch's duration in seconds."""
CAPPED_RATES: Rates = (constant(5), constant(20), 4.0)
UNCAPPED_RATES: Rates = (constant(45), constant(15), 1.5)
STATIC_RATES: Rates = (constant(5), constant(10), 8.0)
SECONDS = (0.1, 0.12, 0.1)
"""Seconds of downloads by a client with one path: mean and longest of its first ones, and mean of the later ones."""


@cache
def batch(cell: Cell, capped: Load, other: Load, seconds: float) -> Batch:
    """Return a batch that takes *seconds*. The paths carry *capped* and *other*, from 0.1 s after the first sample."""
    samples = series({"eth0": capped, "wlan0": other}, seconds + 1, 0.02)
    files = [Download(0.1, 0.3), Download(0.2, 0.1 + seconds)]
    return judge(samples, cell, files, joins=150)


def page_loads(
    changed: Mapping[str, Rates] | None = None, *, first: Sequence[float] = SECONDS, known: Sequence[float] = SECONDS,
    runs: int = 2,
) -> Judged:  # fmt: skip
    """Judge batches, with the rates in *changed* for some variants.

    *first* and *known* are the times of a client with one path, as in ``SECONDS``, when it is new and when it is known.
    """
    rates = {"none": UNCAPPED_RATES, NEW: CAPPED_RATES, OURS: CAPPED_RATES, "static": STATIC_RATES, **(changed or {})}
    lone = {NEW: first, OURS: known}

    def measure(turn: Turn[Cell]) -> Batch | None:
        if turn.number > runs:
            return None
        found = batch(turn.cell, *rates[turn.variant])
        times = lone.get(turn.variant, SECONDS)
        return replace(found, first=times[0], first_longest=times[1], later=times[2]) if turn.cell.lone else found

    return lambda: pages.SCENARIO.aims(rehearsed(pages.SCENARIO, {"size": "100k", "runs": "2"}, measure))


def known_client(capped: Load, other: Load = CAPPED_RATES[1], seconds: float = 4.0) -> Judged:
    return page_loads({OURS: (capped, other, seconds)})


PAGES = Judge(
    page_loads(),
    {
        "dead throttler": page_loads({NEW: UNCAPPED_RATES, OURS: UNCAPPED_RATES}),
        "the wrong path is capped": known_client(constant(45), constant(5), 3.0),
        "fallback to TCP": page_loads(dict.fromkeys((NEW, OURS), (constant(45), constant(0), 4.0))),
        "the cap never comes for a new client": page_loads({NEW: UNCAPPED_RATES}),
        "the cap is a second late": known_client(between(0, 1.1, 50, 5)),
        "a burst that later rates compensate": known_client(between(0, 0.6, 20, 2)),
        "second path unused": known_client(constant(5), constant(0), 24.0),
        "both paths are capped": known_client(constant(5), constant(5), 12.0),
        "a client with one path waits at first": page_loads(first=(0.5, 0.7, 0.1)),
        "a client with one path always waits": page_loads(first=(0.3, 0.3, 0.3), known=(0.3, 0.3, 0.3)),
        "a batch is missing": page_loads(runs=1),
        "nothing measured": page_loads(runs=0),
    },
)

Loads = tuple[Load, Load]
"""Rates in Mbit/s over Ethernet and Wi-Fi."""
RESTORED, STOP = BEFORE_SECONDS + EVENT_SECONDS, BEFORE_SECONDS + EVENT_SECONDS + AFTER_SECONDS


def steady(ethernet: float, wifi: float) -> Loads:
    return constant(ethernet), constant(wifi)


def takeover(delay: float = 0.5, back: float = 1.0) -> Loads:
    """Ethernet takes over *delay* s after Wi-Fi falls silent; Wi-Fi is used again *back* s after the silence."""
    return between(BEFORE_SECONDS + delay, RESTORED + back, 100, 0), between(BEFORE_SECONDS, RESTORED + back, 0, 30)


def slow_origin(ethernet: float, wifi: float) -> Loads:
    """Both paths are full, except while the origin is slow and they carry *ethernet* and *wifi*."""
    return between(BEFORE_SECONDS + 0.5, RESTORED, ethernet, 100), between(BEFORE_SECONDS + 0.5, RESTORED, wifi, 30)


SOUND_LOADS: Mapping[str, Loads] = {
    "active-standby": takeover(),
    "priority-based": slow_origin(0, 15),
    "load-balancing 70/30": steady(69, 30),
    "load-balancing 50/50": steady(30, 30),
    "load-balancing 60/40, paced": steady(12, 8),
    "load-balancing 85/15, paced": steady(10.2, 1.8),
    "smallest-delay": steady(99, 29),
    "no rule": steady(99, 29),
}
ACTIVE, ORDER = "active-standby", "priority-based"
BALANCING = tuple(kind for kind in AIMS if kind.startswith("load-balancing"))


@cache
def findings(kind: str, ethernet: Load, wifi: Load) -> dict[str, steering.Finding]:
    return steering.findings(kind, series({"eth0": ethernet, "wlan0": wifi}, STOP), BEFORE_SECONDS)


def mode_runs(changed: Mapping[str, Loads] | None = None, *, runs: int = 2, left_out: str = "") -> Judged:
    """Judge *runs* runs of each mode, with the loads of *changed*."""
    loads = {**SOUND_LOADS, **(changed or {})}

    def measure(turn: Turn[steering.Cell]) -> dict[str, steering.Finding] | None:
        kind = turn.cell.kind
        return None if kind == left_out or turn.number > runs else findings(kind, *loads[kind])

    options = {"part": "modes", "rtt": "20/20", "runs": "2"}
    return lambda: steering.SCENARIO.aims(rehearsed(steering.SCENARIO, options, measure))


@cache
def transfer_with_outage(before: float = 28, during: float = 19, still: float = 0.6) -> outages.Outage:
    """Return an outage from 8 to 16 s. The application stands still for *still* s. *before*, *during*: its Mbit/s."""
    rate, moves = between(8, 16, during, before), between(8, 8 + still, 0, 1)
    loads = {outages.APPLICATION: lambda time: rate(time) * moves(time)}
    return outages.judge(series(loads, 28), 8, 16)


def outages_of(
    runs: int = 2, *, unsteered: int = 2, planned: int = 2, mode: str = ACTIVE, load: str = "full",
    once: Mapping[str, float] | None = None, without: Mapping[str, float] | None = None, **change: float,
) -> Judged:  # fmt: skip
    """Judge *runs* runs of an outage in a mode, changed by *change*, and *unsteered* runs without a mode.

    *once* changes only the last run, *without* those without a mode.
    """

    def measure(turn: Turn[outages.Cell]) -> outages.Outage | None:
        if turn.cell.mode == outages.NONE:
            return transfer_with_outage(**(without or {})) if turn.number <= unsteered else None
        last = once if once and turn.number == runs else {}
        return transfer_with_outage(**change, **last) if turn.number <= runs else None

    options = {"part": "outages", "mode": f"none,{mode}", "fault": "silent", "outage": "8", "load": load}
    return lambda: steering.SCENARIO.aims(rehearsed(steering.SCENARIO, {**options, "runs": str(planned)}, measure))


STEERING = Judge(
    lambda: [
        *mode_runs()(), *outages_of()(), *outages_of(load="upload")(),
        *outages_of(mode="smallest-delay", still=1.3, without={"still": 1.4})(),
        *outages_of(1, unsteered=1, planned=1, mode=ORDER, during=17)(),
    ],
    {
        "modes: dead throttler": mode_runs(dict.fromkeys(SOUND_LOADS, steady(100, 30))),
        "modes: the other path is preferred": mode_runs({kind: loads[::-1] for kind, loads in SOUND_LOADS.items()}),
        "modes: Ethernet is unused": mode_runs(dict.fromkeys(SOUND_LOADS, steady(0, 30))),
        "modes: plain TCP over Ethernet": mode_runs(dict.fromkeys(SOUND_LOADS, steady(100, 0))),
        "modes: emulator off": mode_runs(dict.fromkeys(SOUND_LOADS, steady(900, 270))),
        "modes: the standby is late": mode_runs({ACTIVE: takeover(delay=1.5)}),
        "modes: the active path is never used again": mode_runs({ACTIVE: takeover(back=AFTER_SECONDS)}),
        "modes: the standby carries data before": mode_runs({ACTIVE: (constant(1), SOUND_LOADS[ACTIVE][1])}),
        "modes: the second path stays in use": mode_runs({ORDER: slow_origin(1, 14)}),
        "modes: less than the origin sends": mode_runs({ORDER: slow_origin(0, 10)}),
        "modes: paced downloads get less than the origin sends": mode_runs(dict.fromkeys(BALANCING[2:], steady(6, 4))),
        "modes: shares swing for longer than ten seconds": mode_runs(
            dict.fromkeys(BALANCING, (between(0, STOP / 2, 0, 2), between(0, STOP / 2, 2, 0)))
        ),
        **{f"modes: no run of {kind}": mode_runs(left_out=kind) for kind in SOUND_LOADS},
        "modes: nothing measured": mode_runs(runs=0),
        "outages: dead throttler, second path unused": outages_of(during=0, still=8),
        "outages: slower than without a mode": outages_of(during=15),
        "outages: two runs leave open whether the mode is slower": outages_of(once={"during": 15}),
        "outages: slower in single runs": outages_of(1, unsteered=1, planned=1, mode=ORDER, during=15, still=1.4),
        "outages: an upload is slower than without a mode": outages_of(load="upload", during=15),
        "outages: the application stands still": outages_of(still=1.4),
        "outages: it waits longer than without a mode": outages_of(mode="smallest-delay", still=1.6, during=15),
        "outages: the standby carries as well": outages_of(before=47),
        "outages: an upload uses both paths": outages_of(load="upload", before=47),
        "outages: runs are missing": outages_of(1, unsteered=1),
        "outages: uploads are missing": outages_of(1, unsteered=1, load="upload"),
        "outages: runs of a mode without an order are missing": outages_of(1, unsteered=1, mode="smallest-delay"),
        "outages: nothing measured": outages_of(0, unsteered=0, planned=1, mode=ORDER),
        "outages: nothing arrives": outages_of(before=0, during=0),
    },
    refused={"outages: nothing arrives": "the application received no data before the failure"},
)  # fmt: skip
