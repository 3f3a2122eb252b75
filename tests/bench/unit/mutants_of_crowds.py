# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment crowds, and its mutants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mutants import Judge, rehearsed

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.crowds import ALL, ALONE, ARMS, BUSY, COMPARED, SCENARIO, Measured

RUNS, WORKERS, REQUESTS, BEFORE = 3, 2, 100, 70_000_000
OPENED = {ALL: 7500}
STANDING = OPENED | dict.fromkeys(BUSY, 4)
ANSWERS = 800.0
"""Answers per second of a busy client: each of four connections gets one every 5 ms."""
QUICK, SLOW = 0.004, 0.006
"""Latency of nine in ten requests, and of one in ten, in seconds."""


def seconds(factor: float = 1.0, slow: float = 1.0) -> tuple[float, ...]:
    """Return latencies of requests in seconds: *factor* times those without load, the slower ones also times *slow*."""
    return tuple(factor * (SLOW * slow if number % 10 == 0 else QUICK) for number in range(REQUESTS))


def measured(arm: str, number: int) -> Measured:
    return Measured(
        # The latencies differ between rounds. Within a round, all latencies are scaled alike.
        seconds=seconds((1 + number / 10) * (1 if arm == ALONE else 1.05 + number / 100)),
        failed=0,
        multipath=REQUESTS,
        opened=OPENED.get(arm, STANDING.get(arm, 0)),
        standing=STANDING.get(arm, 0),
        descriptors=0.001 + STANDING.get(arm, 0) / WORKERS / 20_000,
        memory=BEFORE + 30_000 * STANDING.get(arm, 0),
        before=BEFORE,
        answers=ANSWERS if arm in COMPARED else 0.0,
        octets=1e6 if arm in BUSY else 0.0,
    )


def crowds(
    *,
    beside: Mapping[str, Any] | None = None,
    in_round: int | None = None,
    but: str = ALONE,
    runs: int = RUNS,
    without: Sequence[str] = (),
) -> Callable[[], Sequence[Aim]]:
    """Judge *runs* rounds. The fields in *beside* change in all arms except *but*, or only in the round *in_round*."""

    def of(turn: Turn[str]) -> Measured | None:
        arm, number = turn.cell, turn.number
        if number > runs or arm in without:
            return None
        wrong = beside is not None and arm != but and in_round in (None, number)
        return replace(measured(arm, number), **(beside or {}) if wrong else {})

    return lambda: SCENARIO.aims(rehearsed(SCENARIO, {"runs": str(RUNS)}, of))


CROWDS = Judge(
    crowds(),
    {
        "each request waits": crowds(beside={"seconds": seconds(3)}),
        "one in ten does": crowds(beside={"seconds": seconds(slow=4)}),
        "each waits in one round of three": crowds(beside={"seconds": seconds(8)}, in_round=1),
        "a busy client's requests go first": crowds(beside={"answers": 3 * ANSWERS}),
        "nobody is busy": crowds(beside={"answers": 0.0, "octets": 0.0}, in_round=1),
        "nothing is answered": crowds(beside={"seconds": (), "failed": REQUESTS}, but=""),
        "one request is refused": crowds(beside={"failed": 1}, but="", in_round=2),
        "fallback to TCP": crowds(beside={"multipath": 0}, but=""),
        "one connection falls back": crowds(beside={"multipath": REQUESTS - 1}, but="", in_round=1),
        "descriptors are nearly exhausted": crowds(beside={"descriptors": 0.95}, but=""),
        "what is allowed is closed": crowds(beside={"standing": 400}),
        "a connection takes 100 kB": crowds(beside={"memory": BEFORE + 7500 * 100_000}),
        "memory grows from round to round": crowds(beside={"memory": 450_000_000}, in_round=RUNS),
        "one round has no interval": crowds(runs=1),
        **{f"without {arm}": crowds(without=(arm,)) for arm in ARMS},
        "nothing measured": crowds(without=ARMS),
    },
)
