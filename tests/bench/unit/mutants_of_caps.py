# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results and mutants of the experiments onset and guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from mutants import MBIT, Judge, Load, constant, rehearsed, series

from mptcp_bench.experiments import guard
from mptcp_bench.experiments import onset as onset_experiment
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.guard import FAULT
from mptcp_bench.experiments.onset import DOWN
from mptcp_lab.testbed.recorder import Sample

ONSET, RTT = 3.5, 0.02


def step(at: float, before: float, then: float) -> Load:
    return lambda time: before if time < at else then


COMES = step(ONSET + 0.5, 100, 5)
WIFI, CAPPED = constant(30), constant(5)


def onset(
    capped: Load = COMES, other: Load = WIFI, *, rtt: float = RTT, runs: int = 3, sound: int = 2
) -> Callable[[], Sequence[Aim]]:
    """Judge runs with a cap of 5 Mbit/s on a path of 100 Mbit/s, and another path of 30 Mbit/s.

    The first *sound* runs are sound, the others have the given rates and round-trip time.
    """

    @cache
    def run(is_sound: bool) -> onset_experiment.Outcome:
        ethernet, wifi, measured = (COMES, WIFI, RTT) if is_sound else (capped, other, rtt)
        samples = series({"eth0": ethernet, "wlan0": wifi}, ONSET + DOWN.steady[1] + 0.3)
        return onset_experiment.judge(samples, "eth0", "wlan0", ONSET, 5 * MBIT, 30 * MBIT, measured)

    def judged() -> Sequence[Aim]:
        options = {"cc": "cubic", "rtt": "20/20", "cap": "100-5", "variant": "soft", "runs": "3"}
        results = rehearsed(
            onset_experiment.SCENARIO, options, lambda turn: run(turn.number <= sound) if turn.number <= runs else None
        )
        return onset_experiment.SCENARIO.aims(results)

    return judged


ONSET_JUDGE = Judge(
    onset(),
    {
        "dead throttler": onset(constant(100), sound=0),
        "fallback to TCP": onset(constant(100), constant(0), sound=0),
        "the cap never comes in one of three runs": onset(constant(100)),
        "it comes late": onset(step(ONSET + 6, 100, 5)),
        "the cap ends again": onset(lambda t: 5 if ONSET + 0.5 <= t < ONSET + 3 else 100),
        "the wrong path is capped": onset(constant(100), step(ONSET + 0.5, 30, 5)),
        "the other path stalls in one run of three": onset(other=lambda t: 0 if ONSET + 1 <= t < ONSET + 2 else 30),
        "it does in all": onset(other=lambda t: 0 if ONSET + 1 <= t < ONSET + 2 else 30, sound=0),
        "it keeps three quarters": onset(other=step(ONSET, 30, 20)),
        "second path unused": onset(other=constant(0)),
        "the capped path carries nothing": onset(step(ONSET, 100, 0)),
        "the link was as slow as the cap": onset(CAPPED, sound=0),
        "the queue of the cap is long": onset(rtt=0.5),
        "emulator off": onset(rtt=0.0001, sound=0),
        "a run is missing": onset(runs=2),
        "nothing measured": onset(runs=0),
    },
    refused={
        "fallback to TCP": "nothing came over the other path before the cap",
        "second path unused": "nothing came over the other path before the cap",
    },
)


FAULT_AT = 4.0


def recorded(
    relaxed: float | None, capped: float = 1.0, *, fault: float = 0.0, cap: float = 5, wifi: float = 30,
    link: float = 33,
) -> list[Sample]:  # fmt: skip
    """Return samples of a transfer with a fault.

    Its cap is relaxed *relaxed* seconds after the fault begins, and restored *capped* seconds after the fault ends.
    *link* is the rate in Mbit/s that Ethernet carries in between.
    """
    ended = FAULT_AT + FAULT

    def ethernet(time: float) -> float:
        return link if relaxed is not None and FAULT_AT + relaxed <= time < ended + capped else cap

    def second(time: float) -> float:
        return fault if FAULT_AT <= time < ended else wifi

    return series({"eth0": ethernet, "wlan0": second}, ended + guard.AFTER)


def transfer(relaxed: float | None, capped: float = 1.0, *, count: int = 1, **loads: float) -> guard.Outcome:
    return guard.judge(recorded(relaxed, capped, **loads), FAULT_AT, count)


def guarded(
    with_guard: Callable[[], guard.Outcome] = lambda: transfer(1.0),
    without: Callable[[], guard.Outcome] = lambda: transfer(None, count=0),
    *,
    runs: int = 3,
    relaxations: int = 0,
    controls: bool = True,
    at_first: float = 30,
    faulty: bool = False,
) -> Callable[[], Sequence[Aim]]:
    """Judge *runs* runs of each arm. The last run has the given outcome; if *faulty*, all runs have it."""

    def judged() -> Sequence[Aim]:
        arms = {guard.ON: with_guard, guard.OFF: without}
        usual = {guard.ON: transfer(1.0), guard.OFF: transfer(None, count=0)}
        last = cache(lambda arm: arms[arm]())

        def measure(turn: Turn[guard.Cell]) -> guard.Outcome | guard.Unharmed | None:
            if turn.cell.is_control:
                return guard.Unharmed(relaxations, at_first * MBIT) if controls else None
            if turn.number > runs:
                return None
            return last(turn.variant) if turn.number == 3 or faulty else usual[turn.variant]

        options = {"rtt": "20", "fault": "silence", "runs": "3"}
        return guard.SCENARIO.aims(rehearsed(guard.SCENARIO, options, measure))

    return judged


def unharmed(count: int) -> Callable[[], guard.Outcome]:
    return lambda: transfer(None, fault=30, count=count)


GUARD = Judge(
    guarded(),
    {
        "the guard does nothing in one of three runs": guarded(lambda: transfer(None, count=0)),
        "it is late": guarded(lambda: transfer(6.5)),
        "it opens the whole path": guarded(lambda: transfer(1.0, link=90)),
        "the cap never comes back": guarded(lambda: transfer(1.0, 99)),
        "dead throttler: no cap at all": guarded(
            lambda: transfer(None, cap=100, count=0), lambda: transfer(None, cap=100, count=0)
        ),
        "the wrong path is capped": guarded(
            lambda: transfer(1.0, cap=90, wifi=5), lambda: transfer(None, cap=90, wifi=5, count=0)
        ),
        "fallback to TCP": guarded(lambda: transfer(None, cap=90, wifi=0, count=0)),
        "emulator off": guarded(
            lambda: transfer(1.0, wifi=900, link=900), lambda: transfer(None, wifi=900, link=900, count=0)
        ),
        "second path hardly used": guarded(lambda: transfer(1.0, wifi=3)),
        "second path unused": guarded(lambda: transfer(1.0, wifi=0)),
        "the fault does not happen": guarded(unharmed(0), unharmed(0), faulty=True),
        "the guard is on where it should be off": guarded(without=lambda: transfer(1.0)),
        "it relaxes a cap without a fault": guarded(relaxations=1),
        "without a fault nothing comes over Wi-Fi": guarded(at_first=0),
        "no transfer without a fault": guarded(controls=False),
        "a run is missing": guarded(runs=2),
        "nothing measured": guarded(runs=0),
    },
    refused={
        "fallback to TCP": "nothing came over Wi-Fi before the fault",
        "second path unused": "nothing came over Wi-Fi before the fault",
    },
)  # fmt: skip
