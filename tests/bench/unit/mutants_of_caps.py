# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results and mutants of the experiments onset, guard, overshoot and starvation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from mutants import Judge, Load, between, constant, rehearsed, series

from mptcp_bench.experiments import guard, onset, overshoot, starvation
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn

Judged = Callable[[], Sequence[Aim]]
ONSET, RTT = 3.5, 0.02
COMES = between(0, ONSET + 0.5, 100, 5)
WIFI, CAPPED = constant(30), constant(5)


def dips(time: float) -> float:
    """Return the rate of a path of 30 Mbit/s with the two dips of BBR while an upload is watched."""
    return 0 if any(begin <= time - ONSET < begin + 0.2 for begin in (6.5, 14.5)) else 30


@cache
def outcome(cell: onset.Cell, capped: Load, other: Load, rtt: float = RTT) -> onset.Outcome:
    samples = series({"eth0": capped, "wlan0": other}, ONSET + cell.windows.steady[1] + 0.3)
    return onset.judge(samples, cell, ONSET, rtt)


def onset_runs(
    capped: Load = COMES, other: Load = WIFI, *, rtt: float = RTT, runs: int = 3, sound: int = 2, control: str = "bbr"
) -> Judged:
    """Judge downloads and uploads with a cap of 5 Mbit/s on a path of 100 Mbit/s, and another path of 30 Mbit/s.

    The first *sound* runs are sound, the others have the given rates and round-trip time.
    """

    def measure(turn: Turn[onset.Cell]) -> onset.Outcome | None:
        if turn.number > runs:
            return None
        if turn.number > sound:
            return outcome(turn.cell, capped, other, rtt)
        return outcome(turn.cell, COMES, dips if turn.cell.direction == "up" else WIFI)

    options = {"cc": control, "rtt": "20/20", "cap": "100-5", "variant": "soft", "runs": "3", "direction": "all"}
    return lambda: onset.SCENARIO.aims(rehearsed(onset.SCENARIO, options, measure))


ONSET_JUDGE = Judge(
    onset_runs(),
    {
        "dead throttler": onset_runs(constant(100), sound=0),
        "fallback to TCP": onset_runs(constant(100), constant(0), sound=0),
        "the cap never comes in one of three runs": onset_runs(constant(100)),
        "the cap is late": onset_runs(between(0, ONSET + 16, 100, 5)),
        "the cap ends again": onset_runs(between(ONSET + 0.5, ONSET + 3, 5, 100)),
        "the wrong path is capped": onset_runs(constant(100), between(0, ONSET + 0.5, 30, 5)),
        "the other path stalls in one run of three": onset_runs(other=between(ONSET + 1, ONSET + 2, 0, 30)),
        "the other path stalls in all": onset_runs(other=between(ONSET + 1, ONSET + 2, 0, 30), sound=0),
        "an upload by another congestion control has the dips of BBR": onset_runs(control="cubic", sound=3),
        "the other path keeps three quarters": onset_runs(other=between(0, ONSET, 30, 20)),
        "second path unused": onset_runs(other=constant(0)),
        "the capped path carries nothing": onset_runs(between(0, ONSET, 100, 0)),
        "the link is as slow as the cap": onset_runs(CAPPED, sound=0),
        "the queue of the cap is long": onset_runs(rtt=0.5),
        "emulator off": onset_runs(rtt=0.0001, sound=0),
        "a run is missing": onset_runs(runs=2),
        "nothing measured": onset_runs(runs=0),
    },
    refused=dict.fromkeys(
        ("fallback to TCP", "second path unused"), "no data arrived over the other path before the cap"
    ),
)

FAULT_AT = 4.0
UNHARMED = guard.Control(30e6, 0)


def transfer(
    arm: str, relaxed: float | None = 1.0, restored: float = 1.0, *, fault: float = 0.0, cap: float = 5,
    wifi: float = 30, link: float = 33, count: int = 1,
) -> guard.Outcome:  # fmt: skip
    """Return a transfer with a fault, in which Wi-Fi carries *fault* Mbit/s.

    With the guard, the cap is relaxed *relaxed* seconds after the fault begins, and restored *restored* seconds after
    the fault ends. *link* is the rate in Mbit/s that Ethernet carries in between.
    """
    end = FAULT_AT + guard.FAULT_SECONDS
    if arm == guard.OFF:
        relaxed, count = None, 0
    ethernet = constant(cap) if relaxed is None else between(FAULT_AT + relaxed, end + restored, link, cap)
    samples = series({"eth0": ethernet, "wlan0": between(FAULT_AT, end, fault, wifi)}, end + 12)
    return guard.judge(samples, FAULT_AT, count if relaxed is not None else 0)


def guard_runs(
    change: Mapping[str, float | None] | None = None,
    *,
    runs: int = 3,
    sound: int = 2,
    off_is_on: bool = False,
    control: guard.Control | None = UNHARMED,
) -> Judged:
    """Judge *runs* runs of each arm; *change* applies to all runs but the first *sound* ones."""

    def measure(turn: Turn[guard.Cell]) -> guard.Outcome | guard.Control | None:
        if turn.cell.is_control or turn.number > runs:
            return control if turn.cell.is_control else None
        changed = change if change is not None and turn.number > sound else {}
        return cached(guard.ON if off_is_on else turn.variant, tuple(changed.items()))

    cached = cache(lambda arm, changed: transfer(arm, **dict(changed)))
    options = {"rtt": "20", "fault": "silence", "runs": "3"}
    return lambda: guard.SCENARIO.aims(rehearsed(guard.SCENARIO, options, measure))


GUARD = Judge(
    guard_runs(),
    {
        "the guard does nothing in one of three runs": guard_runs({"relaxed": None}),
        "the guard is late": guard_runs({"relaxed": 6.5}),
        "the guard opens the whole path": guard_runs({"link": 90}),
        "the cap is not restored": guard_runs({"restored": 99}),
        "dead throttler: no cap at all": guard_runs({"relaxed": None, "cap": 100}),
        "the wrong path is capped": guard_runs({"cap": 90, "wifi": 5}),
        "fallback to TCP": guard_runs({"relaxed": None, "cap": 90, "wifi": 0}),
        "emulator off": guard_runs({"wifi": 900, "link": 900}),
        "the fault does not happen": guard_runs({"relaxed": None, "fault": 30}, sound=0),
        "the guard is on where it should be off": guard_runs(off_is_on=True),
        "the guard relaxes a cap without a fault": guard_runs(control=guard.Control(30e6, 1)),
        "without a fault nothing comes over Wi-Fi": guard_runs(control=guard.Control(0, 0)),
        "no transfer without a fault": guard_runs(control=None),
        "a run is missing": guard_runs(runs=2),
        "nothing measured": guard_runs(runs=0),
    },
    refused={"fallback to TCP": "no data arrived over Wi-Fi before the fault"},
)

BEGIN = 0.5
FULL, OTHER = constant(48), constant(20)
UNTIL_POLLED = between(0, overshoot.POLL_SECONDS / 2, 48, 5)


@cache
def transfer_beyond_cap(ethernet: Load, wifi: Load) -> overshoot.Outcome:
    """Judge a transfer that begins after half a second. The loads are functions of the time since its start."""

    def begun(load: Load) -> Load:
        return lambda time: load(time - BEGIN) if time >= BEGIN else 0

    end = BEGIN + overshoot.TRANSFER_SECONDS
    return overshoot.judge(series({"eth0": begun(ethernet), "wlan0": begun(wifi)}, end), end)


def overshoot_runs(
    changed: Mapping[str, tuple[Load, Load]] | None = None, *, left_out: str = "", runs: int = 2
) -> Judged:
    """Judge *runs* equal runs of each variant, some with *changed* loads of the capped and the other path."""
    sound = dict.fromkeys(overshoot.TITLES, (CAPPED, OTHER)) | {"none": (FULL, OTHER), "poller": (UNTIL_POLLED, OTHER)}

    def measure(turn: Turn[str]) -> overshoot.Outcome | None:
        if turn.number > runs or left_out in (turn.cell, "all"):
            return None
        return transfer_beyond_cap(*{**sound, **(changed or {})}[turn.cell])

    return lambda: overshoot.SCENARIO.aims(rehearsed(overshoot.SCENARIO, {"runs": "2"}, measure))


def capped(load: Load, wifi: Load = OTHER) -> Judged:
    """Judge these loads under our cap, our budget and the static class."""
    return overshoot_runs(dict.fromkeys(overshoot.CAPPED_FROM_THE_START, (load, wifi)))


OVERSHOOT = Judge(
    overshoot_runs(),
    {
        "dead throttler: the cap never comes": capped(FULL),
        "the wrong path is capped": capped(FULL, constant(5)),
        "the cap is late for a new client": capped(between(0, 1.5, 48, 5)),
        "the cap is a tenth too high": capped(constant(5.5)),
        "the capped path is hardly used": capped(constant(3)),
        "a burst that later rates compensate": capped(between(0, 0.5, 40, 4.6)),
        "a burst in the middle": capped(between(8, 9.5, 40, 4.6)),
        "second path unused": capped(CAPPED, constant(0)),
        "fallback to TCP": capped(FULL, constant(0)),
        "emulator off": capped(CAPPED, constant(900)),
        "the link is as slow as the cap": overshoot_runs({"none": (CAPPED, OTHER)}),
        "the poller caps from the start": overshoot_runs({"poller": (CAPPED, OTHER)}),
        **{f"without {variant}": overshoot_runs(left_out=variant) for variant in overshoot.TITLES},
        "a run of each is missing": overshoot_runs(runs=1),
        "nothing measured": overshoot_runs(left_out="all"),
        "no byte came": capped(constant(0)),
    },
    refused={"no byte came": "no data arrived over eth0"},
)


def starvation_runs(ethernet: float = 5.0, wifi: float = 20.0, *, runs: int = 2, last: float | None = None) -> Judged:
    """Judge runs over a path of 50 Mbit/s with a cap of 5 Mbit/s, and a path of 20 Mbit/s.

    They carry *ethernet* and *wifi* Mbit/s; in the last run, Wi-Fi carries *last*.
    """

    def measure(turn: Turn[starvation.Layout]) -> Mapping[str, starvation.Carried] | None:
        if turn.number > runs:
            return None
        other = wifi if last is None or turn.number < runs else last
        return starvation.judge(series({"eth0": constant(ethernet), "wlan0": constant(other)}, 10), turn.cell, 1.0)

    options = {"layout": "vanished-4", "runs": "2"}
    return lambda: starvation.SCENARIO.aims(rehearsed(starvation.SCENARIO, options, measure))


STARVATION = Judge(
    starvation_runs(),
    {
        "dead throttler": starvation_runs(50),
        "the wrong path is capped": starvation_runs(50, 5),
        "the capped path starves": starvation_runs(4.7),
        "the other path starves in one of two runs": starvation_runs(last=16),
        "second path unused": starvation_runs(wifi=0),
        "emulator off": starvation_runs(wifi=1000),
        "fallback to TCP": starvation_runs(50, 0),
        "nothing measured": starvation_runs(runs=0),
    },
)
