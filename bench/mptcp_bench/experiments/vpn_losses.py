# SPDX-License-Identifier: GPL-2.0-or-later
"""Table 1 of "Multipath Transport for Virtual Private Networks": its Gilbert-Elliott losses, as pings observe them.

The paper's loss rates are those of pings, which cross a path twice. In one direction, half as many packets are lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.crossing import missing_numbers, packet_delays

from .claims import Claim
from .columns import RUNS, Results, Table, Turn, columns_of, figure
from .parameters import parameter, whole
from .scenario import Scenario
from .vpn_cells import GOOD_LOSS, loss_of

PACKETS = 10_000
"""Packets per round and direction, as many as the paper's pings."""
RATE = 100_000_000
"""Rate of the paths in bits per second, which is so high that a shaper loses nothing."""
MAX_DIFFERENCE = 0.5
"""Maximum difference from a rate of the paper in percentage points, because the paper rounds its rates to whole
percent."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``."""

    runs: int = parameter(f"rounds of {PACKETS:,} packets", "10", whole(), quick="2")


@dataclass(frozen=True, slots=True)
class Lost:
    """Losses over one path, as shares."""

    pings: float = figure("of pings, %", scale=100)
    """Share of lost packets if each crosses the path in both directions, as pings do."""
    short: float = figure("bursts of one or two, %", scale=100)
    """Share of bursts with only one or two packets."""


@contextmanager
def losses_bed(chosen: Settings, cells: Sequence[str], seed: int) -> Iterator[Testbed]:
    """Build a testbed with a path for each kind of loss."""
    directions = {loss: Direction(RATE, 500, loss=loss_of(loss)) for loss in GOOD_LOSS}
    emulated = [EmulatedPath(loss, direction, direction) for loss, direction in directions.items()]
    with Testbed(paths(emulated), seed=seed) as testbed:
        yield testbed


def measure(testbed: Testbed, turn: Turn[str]) -> dict[str, Lost]:
    """Send packets in both directions over the path of each loss, and return the losses."""
    losses = {}
    for hop in testbed.topology.hops:
        arrived = [packet_delays(testbed, way, PACKETS, hop.client_device) for way in ("down", "up")]
        both = [missing_numbers(numbers, PACKETS) for numbers in arrived]
        down, up = (len(numbers) / PACKETS for numbers in both)
        lengths = [length for numbers in both for length in bursts(numbers)]
        short = sum(length <= 2 for length in lengths) / max(1, len(lengths))
        losses[hop.path.name] = Lost(1 - (1 - down) * (1 - up), short)
    return losses


def bursts(numbers: Sequence[int]) -> list[int]:
    """Return the lengths of the sequences of consecutive *numbers*, which ascend."""
    sequences = np.split(np.array(numbers), np.flatnonzero(np.diff(numbers) > 1) + 1)
    return [len(sequence) for sequence in sequences if len(sequence)]


def claims(results: Results[str, Lost]) -> list[Claim]:
    """Return the claims of Table 1."""
    found = []
    for loss, good in GOOD_LOSS.items():
        measured, percent = results.of("losses", part=loss), float(loss.removeprefix("ge"))
        pings, short = ([100 * getattr(each, name) for each in measured] for name in ("pings", "short"))
        low, high = percent - MAX_DIFFERENCE, percent + MAX_DIFFERENCE
        paper = f"With 1 - k of {good:.1%} the observed loss rate is {percent:g} %."
        found.append(Claim(paper, f"lost of pings, {loss}", tuple(pings), " %", low, high, by="mean"))
        paper = "Most of the bursts (more than 90 %) have no more than two packets."
        found.append(Claim(paper, f"bursts of one or two, {loss}", tuple(short), " %", least=90, by="mean"))
    return found


LOSSES: Table[str, Lost] = Table(
    "Table 1: losses in bursts, as pings observe them",
    (RUNS, *columns_of(Lost)),
    (("1 - k", lambda row: f"{GOOD_LOSS[row.part]:.1%}"), ("the paper", lambda row: f"{row.part[2:]} %")),
)
SCENARIO: Scenario[Settings, str, Testbed, Lost] = Scenario(
    settings=Settings,
    needs=("root", "namespaces", "veth", "tbf"),
    cells=lambda chosen: ["losses"],
    parts=lambda cell: list(GOOD_LOSS),
    bed=losses_bed,
    measure=measure,
    tables=(LOSSES,),
    verdicts=lambda results: (claim.judged for claim in claims(results)),
)
