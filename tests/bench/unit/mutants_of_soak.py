# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment soak, and its mutants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mutants import Judge

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.soak_judging import CAP, ProcessSize, Reading, Soak, judge

TUNNELS, CHURN, INTERVAL, COUNT = 1_000, 50, 30.0, 120


def sample(number: int) -> Reading:
    """Return a reading of a throttler that meets every aim: it warms up for a while and is then stable."""
    time = INTERVAL * (number + 1)
    warm = min(1.0, 0.8 + number / 100)
    return Reading(
        time=time,
        standing=TUNNELS - 10,
        opened=TUNNELS + round(CHURN * time),
        daemon=ProcessSize(90.0 * warm, 40),
        proxy=ProcessSize(300.0 * warm, 2_500),
        bpf=1_000_000.0,
        entries=2_500,
        classes=5,
        shown=1_500,
        missed=0,
        invented=0,
        checked=500,
        wrong=0,
        ceil=CAP,
    )


def soaked(change: Callable[[int, Reading], dict[str, Any]] = lambda number, one: {}, **more: Any) -> Soak:
    samples = tuple(replace(one, **change(number, one)) for number, one in enumerate(map(sample, range(COUNT))))
    sound = Soak(INTERVAL * COUNT, INTERVAL, TUNNELS, CHURN, samples, ended=0, cores=0.1, left=())
    return replace(sound, **more)


def judged(
    change: Callable[[int, Reading], dict[str, Any]] = lambda number, one: {}, **more: Any
) -> Callable[[], Sequence[Aim]]:
    return lambda: judge(soaked(change, **more))


def growing(number: int, value: float) -> float:
    """Return *value*, increased by a fifth from the second third of the samples to the last."""
    return value * (1 + 0.006 * number)


SOAK = Judge(
    judged(),
    {
        "dead throttler": judged(samples=()),
        "it died half-way": judged(samples=soaked().samples[:60]),
        "nothing can be read of it": judged(lambda n, s: {"daemon": ProcessSize(), "bpf": math.nan}),
        "its memory grows": judged(lambda n, s: {"daemon": replace(s.daemon, resident=growing(n, 90.0))}),
        "its descriptors grow": judged(lambda n, s: {"daemon": replace(s.daemon, descriptors=growing(n, 40))}),
        "its maps grow": judged(lambda n, s: {"bpf": growing(n, 1e6)}),
        "entries are left": judged(lambda n, s: {"entries": round(growing(n, 2_500))}),
        "classes are left": judged(lambda n, s: {"classes": 5 + n // 10}),
        "connections are left": judged(lambda n, s: {"shown": round(growing(n, 1_500))}),
        "the proxy grows": judged(
            lambda n, s: {"proxy": ProcessSize(growing(n, 300.0), growing(n, 2_500))},
        ),
        "the proxy ends tunnels": judged(ended=1),
        "plain TCP, second path unused: no connection has two": judged(lambda n, s: {"checked": 0}),
        "the tunnels do not stand": judged(lambda n, s: {"standing": 900}),
        "none is replaced": judged(lambda n, s: {"opened": TUNNELS}),
        "one connection is missed once": judged(lambda n, s: {"missed": int(n == 70)}),
        "one is invented once": judged(lambda n, s: {"invented": int(n == 70)}),
        "the cap is on the other path, or never came": judged(lambda n, s: {"wrong": 500}),
        "one cap is wrong once": judged(lambda n, s: {"wrong": int(n == 70)}),
        "the cap is half of what it should be for much of the time": judged(lambda n, s: {"ceil": CAP / (1 + n % 2)}),
        "the cap is twice what it should be": judged(lambda n, s: {"ceil": 2 * CAP}),
        "something is left": judged(left=("tc",)),
    },
)
