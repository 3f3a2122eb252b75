# SPDX-License-Identifier: GPL-2.0-or-later
"""Table 1 of "Multipath Transport for Virtual Private Networks": its Gilbert-Elliott losses, as pings observe them.

The paper's rates are of pings, which cross a path twice. In one direction, half as many packets are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial

from rich.console import Console

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.ends import ends, lost_of
from mptcp_lab.testbed.features import need

from .aims import aims_table
from .attempts import Attempts
from .claims import claims_table
from .findings import Findings
from .options import count
from .tables import mean, new_table
from .vpn_cells import GOOD_LOSS, loss_of
from .vpn_judging import Lost, bursts, loss_aims, loss_claims

TITLE = "Table 1: losses in bursts, as pings observe them"
PACKETS = 10_000
"""Packets per round and direction, as many as the paper's pings."""
RUNS, QUICK_RUNS = 10, 2
OPTIONS = {"runs": f"rounds of {PACKETS:,} packets, default {RUNS}"}
FAST = 100_000_000
"""Rate of the paths in bits per second, so high that a shaper loses nothing."""


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
