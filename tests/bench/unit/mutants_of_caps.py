# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results and mutants of the experiments onset, guard, overshoot and starvation."""

from __future__ import annotations

from collections.abc import Mapping

from mutants import Load, VerdictCases, between, constant, series

from mptcp_bench.experiments import guard, onset, overshoot, starvation
from mptcp_bench.experiments.columns import Turn

ONSET = 3.5
UNTIL_ONSET = between(0, ONSET + 0.5, 100, 5)
WIFI, CAPPED = constant(30), constant(5)


def onset_run(turn: Turn[onset.Cell], capped: Load = UNTIL_ONSET, other: Load = WIFI) -> onset.Outcome:
    """Judge a cap of 5 Mbit/s on a path of 100 Mbit/s, with another path of 30 Mbit/s."""
    samples = series({"eth0": capped, "wlan0": other}, ONSET + turn.cell.windows.steady[1] + 0.3)
    return onset.judge(samples, turn.cell, ONSET)


ONSET_CASES = VerdictCases(
    onset.SCENARIO,
    {"cc": "bbr", "rtt": "20/20", "cap": "100-5", "variant": "soft", "runs": "3", "direction": "all"},
    onset_run,
    {
        "dead throttler": {"capped": constant(100)},
        "fallback to TCP": {"capped": constant(100), "other": constant(0)},
        "the cap is late": {"capped": between(0, ONSET + 16, 100, 5)},
        "the cap ends again": {"capped": between(ONSET + 0.5, ONSET + 3, 5, 100)},
        "the other path stalls": {"other": between(ONSET + 1, ONSET + 2, 0, 30)},
        "the other path keeps three quarters": {"other": between(0, ONSET, 30, 20)},
    },
    {"fallback to TCP": "no data arrived over the other path before the cap"},
)

FAULT_AT, UNHARMED = 4.0, guard.Control(30e6, 0)


def guard_run(
    turn: Turn[guard.Cell], relaxed: float = 1.0, restored: float = 1.0, fault: float = 0, cap: float = 5,
    wifi: float = 30, link: float = 33, off_is_on: bool = False, control: guard.Control = UNHARMED,
) -> guard.Outcome | guard.Control:  # fmt: skip
    """Judge a transfer with a fault, in which Wi-Fi carries *fault* Mbit/s.

    With the guard, the cap is relaxed *relaxed* seconds after the fault begins, and restored *restored* seconds after
    the fault ends. *link* is the rate in Mbit/s that Ethernet carries in between.
    """
    if turn.cell.is_control:
        return control
    is_on, end = off_is_on or turn.variant == guard.ON, FAULT_AT + guard.FAULT_SECONDS
    ethernet = between(FAULT_AT + relaxed, end + restored, link if is_on else cap, cap)
    samples = series({"eth0": ethernet, "wlan0": between(FAULT_AT, end, fault, wifi)}, end + 12)
    return guard.judge(samples, FAULT_AT, FAULT_AT, int(is_on))


GUARD = VerdictCases(
    guard.SCENARIO,
    {"rtt": "20", "fault": "silence", "runs": "3"},
    guard_run,
    {
        "the guard is late": {"relaxed": 6.5},
        "the guard opens the whole path": {"link": 90},
        "the cap is not restored": {"restored": 99},
        "dead throttler: no cap at all": {"link": 100, "cap": 100},
        "fallback to TCP": {"cap": 90, "wifi": 0},
        "second path slow": {"wifi": 20},
        "emulator off": {"wifi": 900, "link": 900},
        "the fault does not happen": {"fault": 30},
        "the guard is on where it should be off": {"off_is_on": True},
        "the guard relaxes a cap without a fault": {"control": guard.Control(30e6, 1)},
        "without a fault no data arrives over Wi-Fi": {"control": guard.Control(0, 0)},
    },
    {"fallback to TCP": "no data arrived over Wi-Fi before the fault"},
)

FULL, OTHER = constant(48), constant(20)
UNTIL_POLLED = between(0, overshoot.POLL_SECONDS / 2, 48, 5)


def overshoot_run(
    turn: Turn[str], capped: Load = CAPPED, other: Load = OTHER, none: Load = FULL, poller: Load = UNTIL_POLLED
) -> overshoot.Outcome:
    """Judge a transfer. *capped* is Ethernet's load with our cap, our budget and the static class."""
    ethernet = {"none": none, "poller": poller}.get(turn.cell, capped)
    return overshoot.judge(series({"eth0": ethernet, "wlan0": other}, overshoot.TRANSFER_SECONDS))


OVERSHOOT = VerdictCases(
    overshoot.SCENARIO,
    {"runs": "2"},
    overshoot_run,
    {
        "dead throttler": {"capped": FULL},
        "the cap is late for a new client": {"capped": between(0, 1.5, 48, 5)},
        "the capped path is hardly used": {"capped": constant(3)},
        "a burst that later rates compensate": {"capped": between(0, 0.5, 40, 4.6)},
        "second path unused": {"other": constant(0)},
        "emulator off": {"other": constant(900)},
        "the link is as slow as the cap": {"none": CAPPED},
        "the poller caps from the start": {"poller": CAPPED},
        "no byte arrived": {"capped": constant(0)},
    },
    {"no byte arrived": "no data arrived over eth0"},
)


def starvation_run(
    turn: Turn[starvation.Layout], ethernet: float = 5, wifi: float = 20
) -> Mapping[str, starvation.PathRate]:
    """Judge a path of 50 Mbit/s with a cap of 5 Mbit/s, and a path of 20 Mbit/s."""
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
