# SPDX-License-Identifier: GPL-2.0-or-later
"""Table 1 of "Multipath Transport for Virtual Private Networks": its Gilbert-Elliott losses, as pings observe them.

The paper's rates are of pings, which cross a path twice. In one direction, half as many packets are lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from rich.console import Console

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.ends import ends, lost_of
from mptcp_lab.testbed.features import need

from ..statistics import mean_or_nan
from .aims import Aim, aims_table
from .attempts import Attempts
from .findings import Findings
from .mimbox_bed import claims_table
from .options import count
from .tables import mean, new_table
from .vpn_cells import GOOD_LOSS, Claim, loss_of

TITLE = "Table 1: losses in bursts, as pings observe them"
PACKETS = 10_000
"""Packets per round and direction, as many as the paper's pings."""
RUNS, QUICK_RUNS = 10, 2
OPTIONS = {"runs": f"rounds of {PACKETS:,} packets, default {RUNS}"}
FAST = 100_000_000
"""Rate of the paths in bits per second, so high that a shaper loses nothing."""

HALF = 0.5
"""Most difference from a rate of the paper in percentage points, because the paper rounds its rates to whole
percent."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Losses over one path in one round, as shares."""

    loss: str
    round: int
    one_way: float
    """Share of packets lost in one direction, the mean of both directions."""
    pings: float
    """Share of packets lost that cross the path in both directions, as pings do."""
    short: float
    """Share of bursts with only one or two packets."""


def bursts(lost: Sequence[int]) -> list[int]:
    """Return the lengths of the runs of consecutive numbers in *lost*, which is ascending."""
    lengths: list[int] = []
    for number, one in enumerate(lost):
        if number and one == lost[number - 1] + 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Measure all kinds of loss, each over its own path, in several rounds."""
    need("root", "namespaces", "veth", "tbf")
    runs = count(options, "runs", QUICK_RUNS if quick else RUNS)
    attempts = Attempts(console)
    found: list[Lost] = []
    for number in range(runs):
        name = f"round {number + 1}"
        console.print(name, style="dim", highlight=False)
        with Testbed(paths(_emulated()), seed=seed + number) as testbed:
            once = partial(measured, testbed, number)
            found += attempts.of(once, name, check=testbed.check_emulation) or []
    claims, aims = loss_claims(found), loss_aims(found, runs)
    head = ("1 - k", "the paper", "one way, %", "of pings, %", "bursts of one or two, %")
    table = new_table("Losses", head, head[:2])
    for loss, good in GOOD_LOSS.items():
        own = [each for each in found if each.loss == loss]
        row = ([each.one_way for each in own], [each.pings for each in own], [each.short for each in own])
        shown = (mean(values, 100) if values else "" for values in row)
        table.add_row(f"{good:.1%}", f"{loss.removeprefix('ge')} %", *shown)
    tables = (claims_table(TITLE, claims), table, aims_table(TITLE, aims))
    return attempts.judged(Findings(tables, {"losses": [asdict(each) for each in found]}, aims=tuple(aims)))


def _emulated() -> list[EmulatedPath]:
    directions = {loss: Direction(FAST, 500, loss=loss_of(loss)) for loss in GOOD_LOSS}
    return [EmulatedPath(loss, one, one) for loss, one in directions.items()]


def measured(testbed: Testbed, number: int) -> list[Lost]:
    """Send packets in both directions over the path of each loss, and return the losses."""
    found = []
    for loss, end in ends(testbed).items():
        gone = [lost_of(end.arrivals(direction, PACKETS), PACKETS) for direction in ("down", "up")]
        down, up = (len(each) / PACKETS for each in gone)
        lengths = [length for each in gone for length in bursts(each)]
        short = sum(length <= 2 for length in lengths) / max(1, len(lengths))
        found.append(Lost(loss, number, (down + up) / 2, 1 - (1 - down) * (1 - up), short))
    return found


def loss_claims(found: Sequence[Lost]) -> list[Claim]:
    """Return the claims of Table 1."""
    claims = []
    for loss, good in GOOD_LOSS.items():
        own = [each for each in found if each.loss == loss]
        percent = float(loss.removeprefix("ge"))
        pings, short = tuple(100 * each.pings for each in own), tuple(100 * each.short for each in own)
        paper = f"With 1 - k of {good:.1%} the observed loss rate is {percent:g} %."
        claims.append(Claim(paper, f"lost of pings, {loss}", pings, " %", least=percent - HALF, most=percent + HALF))
        paper = "Most of the bursts (more than 90 %) have no more than two packets."
        claims.append(Claim(paper, f"bursts of one or two, {loss}", short, " %", least=90))
    return claims


def loss_aims(found: Sequence[Lost], runs: int) -> list[Aim]:
    """Return the aims that *runs* rounds were measured, over paths with the intended loss."""
    rounds = min((sum(each.loss == loss for each in found) for loss in GOOD_LOSS), default=0)
    aims = [Aim("rounds of everything", rounds, least=runs)]
    for loss in GOOD_LOSS:
        model = loss_of(loss)
        assert model is not None
        lost = mean_or_nan([each.one_way for each in found if each.loss == loss])
        aims.append(Aim(f"lost one way, {loss}, × what the model says", lost / model.mean, least=0.8, most=1.2))
    return aims
