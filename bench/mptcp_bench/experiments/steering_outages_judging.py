# SPDX-License-Identifier: GPL-2.0-or-later
"""Judge a transfer during an outage of one path. Pure.

The application's bytes are the ones that it has read in order; a path's bytes are counted at the client's interface. A
mode is compared with the same outage without a mode: it must neither be slower nor make the application wait longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from rich.table import Table

from mptcp_lab.testbed.recorder import Sample, longest_gap, mean_rate, rates

from ..statistics import fmean
from .aims import Aim, no_less
from .steering_cells import BY_ORDER, LOST_RATE, NONE, Cell
from .tables import mean, new_table

APPLICATION = "application"
"""Name of the counter of the bytes that the application has got."""
MIN_PROGRESS = 1_000_000
"""Bits/s. If the application gets less in 0.1 s, it stands still."""
SETTLE = 2.0
"""Seconds after the failure that are left out of the rate, if the outage is at least twice as long."""
SLOWER = 0.15
"""Non-inferiority margin: the share by which a mode may be slower than the same outage without it. Two runs without a
mode differ by as much."""
SWITCHED = 1.0
"""Most seconds that the application may stand still."""
FIRST_ALONE = 1.05 * LOST_RATE
"""Most Mbit/s before the failure, in any run, if a mode with an order must use only its first path."""
FLIPS = 2
"""Most changes of one subflow's backup flag."""
BACK = 0.5
"""If the failed path carries this share of its earlier rate, it is back."""
BACK_WINDOW = 0.5
"""Seconds for which the failed path must carry that share."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The recorded transfer. Times are in seconds on the samples' clock."""

    samples: tuple[Sample, ...]
    flags: tuple[tuple[float, Mapping[str, bool]], ...]
    """Each sample's time and, by path, whether the proxy had made the path's subflow a backup."""
    failed: float
    restored: float
    lost: str
    """The client's device on the path that failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The judged values of one transfer with an outage."""

    before: float
    """Rate of the application before the outage, Mbit/s."""
    during: float
    """Rate of the application in the outage, Mbit/s; without its first ``SETTLE`` seconds if it is long."""
    still: float
    """Longest time in seconds that the application stood still, beginning in the outage or lasting into it."""
    back: float
    """Seconds from the end of the outage until the failed path carries data again; infinite if never."""
    after: float
    """Rate of the application after the outage, Mbit/s."""
    flips: int
    """Number of changes since the failure of the backup flag that changed most often."""


def outcome(watched: Watched) -> Outcome:
    """Judge one transfer.

    Raises ValueError if there are too few samples, or if the application got nothing before the failure: a comparison
    of two transfers without a byte would find neither slower.
    """
    samples, failed, restored = watched.samples, watched.failed, watched.restored
    end = samples[-1].time
    begin = failed + SETTLE if restored - failed >= 2 * SETTLE else failed
    before = mean_rate(samples, APPLICATION, max(0.5, failed - 3), failed) / 1e6
    if before <= 0:
        raise ValueError("the application had nothing before the failure")
    return Outcome(
        before,
        mean_rate(samples, APPLICATION, begin, restored) / 1e6,
        longest_gap(samples, [APPLICATION], MIN_PROGRESS, failed, restored + SWITCHED),
        _back(watched),
        mean_rate(samples, APPLICATION, restored, end) / 1e6,
        _flips(watched),
    )


def _back(watched: Watched) -> float:
    samples, restored = watched.samples, watched.restored
    before = mean_rate(samples, watched.lost, max(0.5, watched.failed - 3), watched.failed)
    there = [each for each in rates(samples) if each.time > restored]
    for number, each in enumerate(there):
        window = [later.bits[watched.lost] for later in there[number:] if later.time <= each.time + BACK_WINDOW]
        if each.bits[watched.lost] >= BACK * before and fmean(window) >= BACK * before:
            return each.time - restored
    return inf


def _flips(watched: Watched) -> int:
    found: dict[str, int] = {}
    last: dict[str, bool] = {}
    for time, flags in watched.flags:
        for path, flag in flags.items():
            if time > watched.failed and path in last and last[path] != flag:
                found[path] = found.get(path, 0) + 1
            last[path] = flag
    return max(found.values(), default=0)


def aims(measured: Sequence[tuple[Cell, Outcome]], planned: Sequence[Cell], runs: int) -> list[Aim]:
    """Return the aims of the *planned* cells, with *runs* planned runs each.

    A mode is compared with the same outage without a mode, if that was measured: by non-inferiority for several runs
    of each. With one run of each, it is compared with a bound, and means are not compared.
    """
    found = []
    for cell in planned:
        outcomes, beside = ([each for of, each in measured if of == which] for which in (cell, cell.unsteered))
        found.append(Aim(f"{cell}: runs", len(outcomes), least=runs))
        if outcomes and cell != cell.unsteered:
            found += _compared(cell, outcomes, beside)
    return found


def _compared(cell: Cell, outcomes: Sequence[Outcome], beside: Sequence[Outcome]) -> list[Aim]:
    found = []
    steered, without = ([each.during for each in there] for there in (outcomes, beside))
    if min(len(steered), len(without)) > 1 and any(without):
        found.append(no_less(f"{cell}: Mbit/s, × without a mode", steered, without, SLOWER))
    elif without:
        # Use a fixed bound for a single run, and if the rate without a mode is 0, so that no ratio exists.
        found.append(Aim(f"{cell}: Mbit/s", fmean(steered), least=round((1 - SLOWER) * fmean(without), 2)))
    # priority-based is judged only for uploads: for downloads at full speed, as paced ones begin, it uses both paths.
    if cell.mode == "active-standby" or (cell.mode in BY_ORDER and cell.load == "upload"):
        before = max(each.before for each in outcomes)
        found.append(Aim(f"{cell}: Mbit/s before the failure, by the first path alone", before, most=FIRST_ALONE))
    if cell.load != "upload":
        # Without an order, a mode may stand still as long as the kernel does without a mode.
        most = max([SWITCHED, *([each.still for each in beside] if cell.mode not in BY_ORDER else [])])
        still = fmean(each.still for each in outcomes)
        found.append(Aim(f"{cell}: stands still for s", still, most=round(most, 2)))
    found.append(Aim(f"{cell}: flips", max(each.flips for each in outcomes), most=FLIPS))
    return found


def table_of(measured: Sequence[tuple[Cell, Outcome]]) -> Table:
    """Return the table of all cells, as means over their runs."""
    columns = ("load", "fault", "outage s", "mode", "Mbit/s before", "in it", "stands still s", "back s", "flips")
    table = new_table("Outages under the steering modes", columns, left=("load", "fault", "mode"))
    for cell in dict.fromkeys(cell for cell, _ in measured):
        outcomes = [each for of, each in measured if of == cell]
        means = [mean([getattr(e, name) for e in outcomes], digits=1) for name in ("before", "during", "still", "back")]
        flips = "" if cell.mode == NONE else str(max(each.flips for each in outcomes))
        table.add_row(cell.load, cell.fault, str(cell.outage), cell.mode, *means, flips)
    return table


def beside_each_other(measured: Sequence[tuple[Cell, Outcome]]) -> Table:
    """Return a table with a column for each mode: rate in the outage, seconds still, seconds until it was back."""
    modes = tuple(dict.fromkeys(cell.mode for cell, _ in measured))
    title = "Beside each other: Mbit/s in the outage, seconds that it stood still, seconds until the path was back"
    table = new_table(title, ("load", "fault", "outage s", *modes), left=("load", "fault"))
    shown = ("during", "still", "back")
    for outage in dict.fromkeys(cell.unsteered for cell, _ in measured):
        each = [[seen for of, seen in measured if (of.unsteered, of.mode) == (outage, mode)] for mode in modes]
        table.add_row(
            outage.load,
            outage.fault if outage.lost == "initial" else f"{outage.fault}, {outage.lost}",
            str(outage.outage),
            *(", ".join(mean([getattr(e, name) for e in seen], digits=1) for name in shown if seen) for seen in each),
        )
    return table
