# SPDX-License-Identifier: GPL-2.0-or-later
"""Table 1 of "Multipath Transport for Virtual Private Networks": its Gilbert-Elliott losses, as pings observe them.

The paper's loss rates are those of pings, which cross a path twice. In one direction, half as many packets are lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.crossing import crossed, lost

from .claims import Claim, Claims
from .columns import RUNS, Column, Results, Row, Table, Turn
from .parameters import parameter, whole
from .scenario import Scenario
from .vpn_cells import GOOD_LOSS, loss_of

PACKETS = 10_000
"""Packets per round and direction, as many as the paper's pings."""
FAST = 100_000_000
"""Rate of the paths in bits per second, which is so high that a shaper loses nothing."""
HALF = 0.5
"""Maximum difference from a rate of the paper in percentage points, because the paper rounds its rates to whole
percent."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``."""

    runs: int = parameter(f"rounds of {PACKETS:,} packets", "10", whole(), quick="2")


@dataclass(frozen=True, slots=True)
class Lost:
    """Losses over one path, as shares."""

    one_way: float
    """Share of packets that are lost in one direction; the mean of both directions."""
    pings: float
    """Share of lost packets if each crosses the path in both directions, as pings do."""
    short: float
    """Share of bursts with only one or two packets."""


@contextmanager
def built(chosen: Settings, cells: Sequence[str], seed: int) -> Iterator[Testbed]:
    """Build a testbed with a path for each kind of loss."""
    directions = {loss: Direction(FAST, 500, loss=loss_of(loss)) for loss in GOOD_LOSS}
    with Testbed(paths([EmulatedPath(loss, one, one) for loss, one in directions.items()]), seed=seed) as testbed:
        yield testbed


def measure(testbed: Testbed, turn: Turn[str]) -> dict[str, Lost]:
    """Send packets in both directions over the path of each loss, and return the losses."""
    found = {}
    for hop in testbed.topology.hops:
        ways = ("down", "up")
        gone = [lost(crossed(testbed, way, PACKETS, hop.client_device), PACKETS) for way in ways]
        down, up = (len(each) / PACKETS for each in gone)
        lengths = [length for each in gone for length in bursts(each)]
        short = sum(length <= 2 for length in lengths) / max(1, len(lengths))
        found[hop.path.name] = Lost((down + up) / 2, 1 - (1 - down) * (1 - up), short)
    return found


def bursts(gone: Sequence[int]) -> list[int]:
    """Return the lengths of the sequences of consecutive numbers in *gone*, which is ascending."""
    lengths: list[int] = []
    for number, one in enumerate(gone):
        if number and one == gone[number - 1] + 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def claims(results: Results[str, Lost]) -> list[Claim]:
    """Return the claims of Table 1."""
    found = []
    for loss, good in GOOD_LOSS.items():
        own, percent = results.of("losses", part=loss), float(loss.removeprefix("ge"))
        pings, short = tuple(100 * each.pings for each in own), tuple(100 * each.short for each in own)
        paper = f"With 1 - k of {good:.1%} the observed loss rate is {percent:g} %."
        found.append(Claim(paper, f"lost of pings, {loss}", pings, " %", percent - HALF, percent + HALF, by="mean"))
        paper = "Most of the bursts (more than 90 %) have no more than two packets."
        found.append(Claim(paper, f"bursts of one or two, {loss}", short, " %", least=90, by="mean"))
    return found


def _by_model(row: Row[str, Lost]) -> list[float]:
    model = loss_of(row.part)
    assert model is not None
    return [lost / model.mean for lost in row.values("one_way")]


LOSSES: Table[str, Lost] = Table(
    "Losses",
    (
        RUNS,
        Column("one way, %", "one_way", scale=100),
        Column("× the model", _by_model, aim="lost one way, × what the model says", least=0.8, most=1.2),
        Column("of pings, %", "pings", scale=100),
        Column("bursts of one or two, %", "short", scale=100),
    ),
    (("1 - k", lambda row: f"{GOOD_LOSS[row.part]:.1%}"), ("the paper", lambda row: f"{row.part[2:]} %")),
)
SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "namespaces", "veth", "tbf"),
    cells=lambda chosen: ["losses"],
    parts=lambda cell: list(GOOD_LOSS),
    bed=built,
    measure=measure,
    tables=(Claims("Table 1: losses in bursts, as pings observe them", (), claims=claims), LOSSES),
    name=lambda row: row.part,
)
