# SPDX-License-Identifier: GPL-2.0-or-later
"""Correct results and mutants of onset, guard, overshoot, starvation, goodput, recovery, pages and steering."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mutants import MBIT, Load, VerdictCases, between, constant, series

from mptcp_bench.experiments import goodput, guard, onset, overshoot, pages, recovery, starvation, steering
from mptcp_bench.experiments import steering_outages as outages
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.devices import payload_share
from mptcp_bench.experiments.pages import NEW, OURS, Batch, Cell, Download, judge
from mptcp_bench.experiments.steering import AFTER_SECONDS, BEFORE_SECONDS, EVENT_SECONDS, WEIGHTS
from mptcp_lab.testbed.transfer import Protocol

ONSET_AT = 3.5
"""Seconds from the start of a transfer to its cap."""
UNTIL_ONSET = between(0, ONSET_AT + 0.5, 100, 5)
CAPPED, FREE_PATH = constant(5), constant(30)


def onset_run(turn: Turn[onset.Cell], capped: Load = UNTIL_ONSET, other: Load = FREE_PATH) -> onset.Outcome:
    """Return the outcome of a cap of 5 Mbit/s on a path of 100 Mbit/s, with another path of 30 Mbit/s."""
    samples = series({"eth0": capped, "wlan0": other}, ONSET_AT + turn.cell.periods.steady[1] + 0.3)
    return onset.judge(samples, turn.cell, ONSET_AT)


ONSET = VerdictCases(
    onset.SCENARIO,
    {"cc": "bbr", "rtt": "20/20", "cap": "100-5", "variant": "soft", "runs": "3", "direction": "all"},
    onset_run,
    {
        "dead throttler": {"capped": constant(100)},
        "fallback to TCP": {"capped": constant(100), "other": constant(0)},
        "the cap is late": {"capped": between(0, ONSET_AT + 16, 100, 5)},
        "the cap ends again": {"capped": between(ONSET_AT + 0.5, ONSET_AT + 3, 5, 100)},
        "the other path stalls": {"other": between(ONSET_AT + 1, ONSET_AT + 2, 0, 30)},
        "the other path becomes slower": {"other": between(0, ONSET_AT, 30, 20)},
    },
    {"fallback to TCP": "no data arrived over the other path before the cap"},
)

FAULT_AT = 4.0
"""Seconds from the start of a transfer to its fault."""


def guard_run(
    turn: Turn[guard.Cell], relaxed_after: float = 1.0, restored_after: float = 1.0, relaxed_rate: float = 33,
    wifi: float = 30, wifi_in_fault: float = 0, cap: float = 5, always_on: bool = False,
) -> guard.Outcome:  # fmt: skip
    """Return the outcome of a transfer with a fault of Wi-Fi.

    With the guard, the cap on Ethernet is relaxed *relaxed_after* seconds after the fault begins, and restored
    *restored_after* seconds after the fault ends. In between, Ethernet carries *relaxed_rate*. All rates are in Mbit/s.
    """
    is_on, end = always_on or turn.variant == guard.ON, FAULT_AT + guard.FAULT_SECONDS
    ethernet = between(FAULT_AT + relaxed_after, end + restored_after, relaxed_rate if is_on else cap, cap)
    samples = series({"eth0": ethernet, "wlan0": between(FAULT_AT, end, wifi_in_fault, wifi)}, end + 12)
    return guard.evaluate(samples, FAULT_AT, FAULT_AT, int(is_on))


GUARD = VerdictCases(
    guard.SCENARIO,
    {"rtt": "20", "fault": "silence", "runs": "3"},
    guard_run,
    {
        "the guard is late": {"relaxed_after": 6.5},
        "the guard opens the whole path": {"relaxed_rate": 90},
        "the cap is not restored": {"restored_after": 99},
        "dead throttler": {"relaxed_rate": 100, "cap": 100},
        "fallback to TCP": {"cap": 90, "wifi": 0},
        "the second path is slow": {"wifi": 20},
        "emulator off": {"wifi": 900, "relaxed_rate": 900},
        "the fault does not happen": {"wifi_in_fault": 30},
        "the guard is on where it should be off": {"always_on": True},
    },
    {"fallback to TCP": "no data arrived over Wi-Fi before the fault"},
)

OTHER = constant(20)
UNTIL_POLLED = between(0, overshoot.POLL_SECONDS / 2, 48, 5)


def overshoot_run(
    turn: Turn[str], capped: Load = CAPPED, other: Load = OTHER, poller: Load = UNTIL_POLLED
) -> overshoot.Outcome:
    """Return the outcome of a transfer. *capped* is Ethernet's load with our cap, our budget and the static class."""
    ethernet = poller if turn.cell == "poller" else capped
    return overshoot.judge(series({"eth0": ethernet, "wlan0": other}, overshoot.TRANSFER_SECONDS))


OVERSHOOT = VerdictCases(
    overshoot.SCENARIO,
    {"runs": "2"},
    overshoot_run,
    {
        "dead throttler": {"capped": constant(48)},
        "the cap is late for a new client": {"capped": between(0, 1.5, 48, 5)},
        "the capped path is hardly used": {"capped": constant(3)},
        "a burst that later rates compensate": {"capped": between(0, 0.5, 40, 4.6)},
        "second path unused": {"other": constant(0)},
        "emulator off": {"other": constant(900)},
        "the poller caps from the start": {"poller": CAPPED},
        "no byte arrived": {"capped": constant(0)},
    },
    {"no byte arrived": "no data arrived over eth0"},
)


def starvation_run(
    turn: Turn[starvation.Layout], ethernet: float = 5, wifi: float = 20
) -> Mapping[str, starvation.PathRate]:
    """Return the rates of a path of 50 Mbit/s with a cap of 5 Mbit/s, and of a path of 20 Mbit/s."""
    return starvation.judge(series({"eth0": constant(ethernet), "wlan0": constant(wifi)}, 10), turn.cell, 1.0)


STARVATION = VerdictCases(
    starvation.SCENARIO,
    {"layout": "vanished-4", "runs": "2"},
    starvation_run,
    {
        "dead throttler": {"ethernet": 50},
        "the capped path starves": {"ethernet": 4.7},
        "second path unused": {"wifi": 0},
        "emulator off": {"wifi": 1000},
    },
)


def goodput_run(
    turn: Turn[goodput.Cell], ethernet: float = 100, wifi: float = 30, cap: float = 5, wifi_cap: float = 30,
    single_path_cap: float = 100, fallbacks: int = 0,
) -> goodput.Measurement:  # fmt: skip
    """Return a download over links of *ethernet* and *wifi* Mbit/s. The policy's caps are in Mbit/s, too."""
    cell, both = turn.cell, turn.cell.client == goodput.TWO
    if cell.policy:
        ethernet = min(ethernet, cap if cell.is_capped else single_path_cap)
    wifi = min(wifi, wifi_cap if cell.policy else wifi) if both else 0
    goodput.check_protocol(cell, Protocol(int(cell.is_multipath), fallbacks, int(both), 0))
    payload = (ethernet + wifi) * MBIT * payload_share(cell.family, multipath=cell.is_multipath)
    # Rounds differ, so that a mean has an interval.
    return goodput.Measurement((0.99 + turn.number / 1e4) * payload, ethernet * MBIT, wifi * MBIT)


GOODPUT = VerdictCases(
    goodput.SCENARIO,
    {},
    goodput_run,
    {
        "dead throttler": {"cap": 100},
        "both paths are capped": {"wifi_cap": 5},
        "the cap is too low": {"cap": 4.7},
        "second path unused": {"wifi": 0},
        "links are not shaped": {"ethernet": 1000, "wifi": 300, "single_path_cap": 1000, "wifi_cap": 300},
        "a single subflow and plain TCP are capped too": {"single_path_cap": 5},
        "fallback to TCP": {"fallbacks": 1},
    },
    {"fallback to TCP": "the connection fell back to plain TCP"},
)

KILLED, RESTARTED, READY, END = 5.0, 7.0, 8.0, 12.0
"""Times in seconds at which the throttler is killed, restarted and ready, and at which a run ends."""
LINE_FIELDS = ("after_kill", "after_restart", "at_stop", "after_stop", "after_cleanup")
"""Fields for lines of the system's state. They must be empty."""


def recovery_run(
    turn: Turn[str], ethernet: Load = CAPPED, wifi: Load = FREE_PATH, **change: Any
) -> recovery.Measurement:
    """Return the measurement of a run in which the throttler is killed after 5 s and restarted after 7 s."""
    samples = series({"eth0": ethernet, "wlan0": wifi}, END)
    shares = recovery.shares_of(samples, KILLED, RESTARTED, READY, END, 5 * MBIT)
    empty: dict[str, Any] = dict.fromkeys(LINE_FIELDS, ())
    return recovery.Measurement(**{**empty, **shares, "restored": 0.4, "same_caps": 0.7, "exit_code": 0, **change})


RECOVERY = VerdictCases(
    recovery.SCENARIO,
    {"netfilter": "nftables"},
    recovery_run,
    {
        "dead throttler": {"ethernet": constant(100)},
        "second path unused": {"wifi": constant(0)},
        "links are not shaped": {"wifi": constant(300)},
        "the cap is too low": {"ethernet": constant(4)},
        "the cap ends with the throttler": {"ethernet": between(KILLED, RESTARTED, 100, 5)},
        "no data arrives for 0.4 s": {"ethernet": between(7.05, 7.45, 0, 5), "wifi": between(7.05, 7.45, 0, 30)},
        "Wi-Fi is slower after the restart": {"wifi": between(READY, END + 1, 26, 30)},
        "nothing is restored": {"restored": math.inf, "same_caps": math.inf},
        "the system's state differs": dict.fromkeys(LINE_FIELDS, ("tc class",)),
        "the throttler ends with an error": {"exit_code": 1},
        "the throttler is ended by a signal": {"exit_code": -9},
    },
)

Rates = tuple[Load, Load, float]
"""Rates of both paths in Mbit/s, and the batch's duration in seconds."""
CAPPED_RATES: Rates = (constant(5), constant(20), 4.0)
UNCAPPED_RATES: Rates = (constant(45), constant(15), 1.5)
STATIC_RATES: Rates = (constant(5), constant(10), 8.0)


def pages_run(
    turn: Turn[Cell], new: Rates = CAPPED_RATES, known: Rates = CAPPED_RATES, first: float = 0.1, later: float = 0.1
) -> Batch:
    """Return a batch that begins 0.1 s after the first sample.

    With our throttler, the downloads of a client with one path take *first* and *later* seconds.
    """
    rates = {"none": UNCAPPED_RATES, NEW: new, OURS: known, "static": STATIC_RATES}
    capped, other, seconds = rates[turn.variant]
    samples = series({"eth0": capped, "wlan0": other}, seconds + 1, 0.02)
    found = judge(samples, [Download(0.1, 0.3), Download(0.2, 0.1 + seconds)])
    if not turn.cell.lone:
        return found
    return replace(found, first=0.1, later=0.1) if turn.variant == "none" else replace(found, first=first, later=later)


PAGES = VerdictCases(
    pages.SCENARIO,
    {"size": "100k", "runs": "2"},
    pages_run,
    {
        "dead throttler": {"new": UNCAPPED_RATES, "known": UNCAPPED_RATES},
        "the cap is a second late": {"known": (between(0, 1.1, 50, 5), constant(20), 4.0)},
        "a burst that later rates compensate": {"known": (between(0, 0.6, 20, 2), constant(20), 4.0)},
        "second path unused": {"known": (constant(5), constant(0), 24.0)},
        "a client with one path waits at first": {"first": 0.5},
        "a client with one path always waits": {"later": 0.3},
    },
)

Loads = tuple[Load, Load]
"""Rates in Mbit/s over Ethernet and Wi-Fi."""
RESTORED, STOP = BEFORE_SECONDS + EVENT_SECONDS, BEFORE_SECONDS + EVENT_SECONDS + AFTER_SECONDS


def steady(ethernet: float, wifi: float) -> Loads:
    return constant(ethernet), constant(wifi)


def takeover(delay: float = 0.5, back: float = 1.0) -> Loads:
    """Return loads: Ethernet is used from *delay* s after Wi-Fi falls silent until *back* s after the silence."""
    return between(BEFORE_SECONDS + delay, RESTORED + back, 100, 0), between(BEFORE_SECONDS, RESTORED + back, 0, 30)


def slow_origin(ethernet: float, wifi: float) -> Loads:
    """Return loads of full paths. While the origin is slow, they carry *ethernet* and *wifi*."""
    return between(BEFORE_SECONDS + 0.5, RESTORED, ethernet, 100), between(BEFORE_SECONDS + 0.5, RESTORED, wifi, 30)


CORRECT_LOADS: Mapping[str, Loads] = {
    "active-standby": takeover(),
    "priority-based": slow_origin(0, 15),
    "load-balancing 70/30": steady(69, 30),
    "load-balancing 50/50": steady(30, 30),
    "paced load-balancing 60/40": steady(12, 8),
    "paced load-balancing 85/15": steady(10.2, 1.8),
    "smallest-delay": steady(99, 29),
    "no rule": steady(99, 29),
}
ACTIVE, ORDER = "active-standby", "priority-based"


def outage(before: float, during: float, standstill: float) -> outages.Outage:
    """Return an outage from 8 to 16 s. The application receives *before* Mbit/s, then nothing for *standstill* s."""
    rate, factor = between(8, 16, during, before), between(8, 8 + standstill, 0, 1)
    return outages.outage_values(series({outages.APPLICATION: lambda time: rate(time) * factor(time)}, 28), 8, 16)


def steering_run(
    turn: Turn[Any], changed: Mapping[str, Loads] | None = None, before: float = 28, during: float = 19,
    standstill: float = 0.6,
) -> Any:  # fmt: skip
    """Return the outcome of a mode with the loads in *changed*, or of an outage with these values in a mode."""
    if isinstance(turn.cell, steering.Cell):
        kind = turn.cell.kind
        loads = dict(zip(("eth0", "wlan0"), (changed or {}).get(kind, CORRECT_LOADS[kind]), strict=True))
        return steering.judge(kind, series(loads, STOP), BEFORE_SECONDS)
    if turn.cell.mode == outages.NONE:
        return outage(28, 19, 1.4)
    # Rounds differ, so that a mean has an interval.
    return outage(before, during + turn.number / 100, standstill)


def all_modes(loads: Loads, kinds: Sequence[str] = tuple(CORRECT_LOADS)) -> dict[str, Any]:
    """Return a change: all modes, or the *kinds*, have *loads*."""
    return {"changed": dict.fromkeys(kinds, loads)}


STEERING = VerdictCases(
    steering.SCENARIO,
    {"rtt": "20/20", "runs": "2", "mode": f"none,{ACTIVE},{ORDER},smallest-delay", "fault": "silent", "outage": "8",
     "load": "full,upload"},
    steering_run,
    {
        "dead throttler": all_modes(steady(100, 30)),
        "Ethernet is unused": all_modes(steady(0, 30)),
        "plain TCP over Ethernet": all_modes(steady(100, 0)),
        "emulator off": all_modes(steady(900, 270)),
        "the standby is late": {"changed": {ACTIVE: takeover(delay=1.5)}},
        "the active path is never used again": {"changed": {ACTIVE: takeover(back=AFTER_SECONDS)}},
        "the second path stays in use": {"changed": {ORDER: slow_origin(1, 14)}},
        "less than the origin sends": {"changed": {ORDER: slow_origin(0, 10)}},
        "paced downloads get less than the origin sends": all_modes(steady(6, 4), list(steering.PACED)),
        "shares swing for longer than ten seconds": all_modes(
            (between(0, STOP / 2, 0, 2), between(0, STOP / 2, 2, 0)), list(WEIGHTS)
        ),
        "slower in an outage than without a mode": {"during": 15},
        "the application stands still in an outage": {"standstill": 1.6},
        "no data arrives": {"before": 0, "during": 0},
    },
    {"no data arrives": "the application received no data before the failure"},
)  # fmt: skip
