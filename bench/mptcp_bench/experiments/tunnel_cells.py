# SPDX-License-Identifier: GPL-2.0-or-later
"""The cells of the experiment ``tunnel``, and the paths of their downloads. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mptcp_lab.emulation.model import Direction, EmulatedPath, GilbertElliott, Loss, UniformLoss

from .options import choice, count, positive

PARTS = ("goodput", "rates", "loss", "silence", "change", "call", "cost")
OPTIONS = {
    "cells": f"which of {', '.join(PARTS)}; default all",
    "runs": "of each, default 5 of goodput and 3 of the others",
    "seconds": "that a download takes at the sum of its paths, default 7",
}
SECONDS = 7.0
RUNS, MANY_RUNS, QUICK_RUNS = 3, 5, 1
CONTROLS = ("cubic", "bbr")
VARIANTS = ("alone", "ours", "weights", "mptcp")
"""Each path alone, both at the same time; our splitter; a 50/50 split; OpenVPN over MPTCP."""
PEER_RUNS: Mapping[str, Mapping[str, int]] = {
    "goodput": {"weights": 3, "mptcp": 3},
    "rates": {"weights": 1, "mptcp": 1},
    "loss": {"weights": 0, "mptcp": 1},
}
"""Most runs of the variants that are only compared, by part. These variants have no aims."""
PATHS = ("a", "b")
RANDOM = UniformLoss(0.01)
BURSTS = GilbertElliott(p=0.002, r=0.2)
"""Bursts of losses: 1 % in the long run, on average five packets in a row."""
INNER_MTU = 1400
PAYLOAD = (INNER_MTU - 20 - 32) / (INNER_MTU + 8 + 28 + 14)
"""TCP payload (with timestamps) as a share of the bytes that a link counts, which include OpenVPN's 8 bytes, IPv4, UDP
and Ethernet."""
LITTLE = 40
"""If both paths together have at most these Mbit/s, both congestion controls are measured, at the same time."""


@dataclass(frozen=True, slots=True)
class PathPair:
    """Two paths. *rates* are in Mbit/s, *rtts* and *jitter* in ms; *losses* apply in both directions."""

    rates: tuple[int, int]
    rtts: tuple[int, int] = (20, 20)
    losses: tuple[Loss | None, Loss | None] = (None, None)
    jitter: int = 0

    def __str__(self) -> str:
        return f"{self.rates[0]} + {self.rates[1]}, {self.rtts[0]}/{self.rtts[1]} ms"

    def paths(self) -> list[EmulatedPath]:
        """Return the paths in the form that the testbed needs."""
        each = zip(("ethernet", "wifi"), self.rates, self.rtts, self.losses, strict=True)
        return [
            EmulatedPath(name, *[Direction(rate * 1_000_000, rtt * 500, self.jitter * 1000, loss)] * 2)
            for name, rate, rtt, loss in each
        ]

    def octets(self, seconds: float) -> dict[str, int]:
        """Return the sizes of files that take *seconds*, by path, and over both (``sum``)."""
        rates = dict(zip(PATHS, self.rates, strict=True)) | {"sum": sum(self.rates)}
        return {name: round(rate * 1e6 * PAYLOAD / 8 * seconds) for name, rate in rates.items()}


@dataclass(frozen=True, slots=True)
class Cell:
    """Downloads over one pair of paths. *part* selects their aims."""

    part: str
    over: PathPair
    name: str
    controls: tuple[str, ...] = CONTROLS


def download_cells(part: str) -> Iterator[Cell]:
    """Yield the cells of the part ``goodput``, ``rates`` or ``loss``."""
    if part == "goodput":
        pairs = [PathPair((10, 10), (20, rtt)) for rtt in (20, 60, 100)]
    elif part == "rates":
        pairs = [PathPair((10, 5)), PathPair((30, 10)), PathPair((30, 10), (20, 60)), PathPair((100, 30))]
    else:
        for kind, loss in (("1 %", RANDOM), ("bursts", BURSTS)):
            yield Cell(part, PathPair((10, 10), losses=(None, loss)), f"{kind} on one path")
            yield Cell(part, PathPair((10, 10), losses=(loss, loss)), f"{kind} on both")
        return
    for pair in pairs:
        yield Cell(part, pair, str(pair), CONTROLS if sum(pair.rates) <= LITTLE else CONTROLS[:1])


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned runs. If *runs* is None, each part has its own default. *seconds* is a download's duration."""

    parts: tuple[str, ...]
    runs: int | None
    seconds: float
    quick: bool

    def runs_of(self, part: str) -> int:
        if self.runs is not None:
            return self.runs
        return QUICK_RUNS if self.quick else MANY_RUNS if part == "goodput" else RUNS

    def turns(self, part: str) -> Iterator[tuple[int, str]]:
        """Yield the round and the variant of each download in a cell of *part*, in order."""
        for number in range(self.runs_of(part)):
            for variant in VARIANTS:
                if number < PEER_RUNS[part].get(variant, self.runs_of(part)):
                    yield number, variant

    def cells(self) -> Iterator[Cell]:
        """Yield the cells of all chosen parts with downloads; if quick, only the first cell of each part."""
        for part in self.parts:
            if part in ("goodput", "rates", "loss"):
                yield from list(download_cells(part))[: 1 if self.quick else None]


def plan(options: Mapping[str, str], quick: bool) -> Plan:
    """Return the plan that *options* choose. Raises OptionError for an invalid option."""
    runs = count(options, "runs", RUNS) if "runs" in options else None
    return Plan(tuple(choice(options, "cells", PARTS)), runs, positive(options, "seconds", SECONDS), quick)
