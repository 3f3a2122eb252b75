# SPDX-License-Identifier: GPL-2.0-or-later
"""A tunnel over two paths: unmodified OpenVPN over ``mptcp-tunnel``, compared with the alternatives.

A download runs through OpenVPN, without cipher, over emulated paths. The variants are: each path alone; our splitter,
whose daemons are restarted for each download, so that it has to learn the paths again; over paths without loss, a 50/50
split; and Multipath TCP for OpenVPN's connection, with this host's default congestion control. Variants alternate
within a run. Two congestion controls are used inside, each in its own testbed. Further parts are a path that falls
silent, paths that change, a call during a download, and the cost of a packet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import nan
from typing import Any

from mptcp_lab.emulation.model import GilbertElliott, UniformLoss
from mptcp_lab.testbed import UNSHAPED, Testbed
from mptcp_lab.testbed.transfer import Added

from ..statistics import median
from . import tunnel_cost, tunnel_parts
from .columns import Column, Row, Table, Turn, columns_of
from .parameters import number, parameter, whole, words, yes_or_no
from .scenario import Scenario
from .tunnel_cost import Cost
from .tunnel_parts import (
    CALLS,
    CHANGES,
    JITTER,
    ONE_PATH_BUSY,
    ONE_PATH_IDLE,
    OURS_BUSY,
    AfterChange,
    Call,
    Silence,
)  # fmt: skip
from .vpn_bed import NEEDS, Bed, download, running_vpn, set_control, vpn_bed
from .vpn_cells import CONTROLS, PathPair, Vpn

DOWNLOADS = ("goodput", "rates", "loss")
VPNS = {
    "a alone": Vpn("udp"), "b alone": Vpn("udp b"), "ours": Vpn("tunnel"), "weights": Vpn("weights 50/50"),
    "mptcp": Vpn("mptcp"),
}  # fmt: skip
"""The VPN of each variant of a download. The VPN over MPTCP has this host's default congestion control outside."""
LOSSES: Mapping[str, GilbertElliott] = {"1 %": UniformLoss(0.01), "bursts": GilbertElliott(p=0.002, r=0.2)}
"""Losses of 1 % in the long run. A burst has on average five packets in a row."""
EQUAL = PathPair((10, 10))
CELLS: Mapping[str, Mapping[str, PathPair]] = {
    "goodput": {str(pair): pair for pair in (PathPair((10, 10), (20, rtt)) for rtt in (20, 60, 100))},
    "rates": {
        str(pair): pair
        for pair in (PathPair((10, 5)), PathPair((30, 10)), PathPair((30, 10), (20, 60)), PathPair((100, 30)))
    },
    "loss": {
        f"{kind} on {place}": PathPair((10, 10), losses=(loss if place == "both" else None, loss))
        for kind, loss in LOSSES.items()
        for place in ("one path", "both")
    },
    "silence": {"a path is silent": EQUAL},
    "change": {change: PathPair((10, 10), (40, 40), jitter=10) if change == JITTER else EQUAL for change in CHANGES},
    "call": {"call beside a download": PathPair((10, 10), (20, 60))},
    "cost": {"cost": EQUAL},
}
"""The paths of each cell, by part and name."""
LEARNING_SECONDS = 4.0
"""Length of the download from which the daemons learn the paths' rates. Real tunnels run for days."""
MIN_FILE_SECONDS = 16.0
"""Minimum time for which the data of a file suffice."""
MIN_SHARES = {"goodput": 0.9, "rates": 0.85, "loss": 0.85}
"""Minimum goodput of a download through the tunnel, as a share of the sum of both paths alone; over lossy paths with
BBR inside."""
MIN_LOSSY_SHARE = 0.97
"""Minimum goodput over lossy paths, as a share of the better path alone. The difference to 1 is for noise."""
MIN_CHANGED_SHARE = 0.8
"""Minimum goodput from three seconds after a change on, as a share of the available rate."""
MAX_CALL_DELAY_MS = 20
MAX_KERNEL_NS = 300.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``."""

    cells: tuple[str, ...] = parameter(
        f"parts to measure: a list of {', '.join(CELLS)}", ",".join(CELLS), words(*CELLS)
    )
    runs: int = parameter("number of runs per variant", "3", whole(), quick="1")
    seconds: float = parameter("duration of a download at the sum of both rates, seconds", "7", number())
    first: bool = parameter("whether to measure only the first cell of each part", "no", yes_or_no, quick="yes")


@dataclass(frozen=True, slots=True)
class Cell:
    """The measurements over one pair of paths, with one congestion control inside. *part* selects the aims."""

    part: str
    name: str
    over: PathPair = EQUAL
    control: str = CONTROLS[0]

    def __str__(self) -> str:
        return self.name if self.part in ("silence", "cost") else f"{self.name}, {self.control}"


def cells(chosen: Settings) -> list[Cell]:
    cells = {
        part: [
            Cell(part, name, pair, control)
            for name, pair in CELLS[part].items()
            for control in (CONTROLS[:1] if part in ("silence", "cost") else CONTROLS)
        ]
        for part in chosen.cells
    }
    return [cell for part in cells.values() for cell in (part[:1] if chosen.first else part)]


def variants(chosen: Settings, cell: Cell) -> tuple[str, ...]:
    if cell.part in DOWNLOADS:
        return tuple(each for each in VPNS if each != "weights" or cell.part != "loss")
    return CALLS if cell.part == "call" else ("",)


def tunnel_bed(chosen: Settings, cells: Sequence[Cell], seed: int) -> AbstractContextManager[Bed | Testbed]:
    """Return the testbed of one cell; for the cost, with unshaped paths."""
    [cell] = cells
    if cell.part == "cost":
        return Testbed(UNSHAPED, seed=seed)
    octets = round(sum(cell.over.rates) * 1e6 / 8 * max(MIN_FILE_SECONDS, 2 * chosen.seconds))
    return vpn_bed(cell.over.paths(), seed, chosen.seconds, octets)


def measure(bed: Bed | Testbed, turn: Turn[Cell]) -> Any:
    cell = turn.cell
    if isinstance(bed, Testbed):
        return tunnel_cost.measure(bed)
    set_control(bed.testbed["origin"], cell.control)
    if cell.part == "silence":
        return tunnel_parts.fall_silent(bed)
    if cell.part == "change":
        return tunnel_parts.measure_change(bed, cell.name)
    if cell.part == "call":
        return tunnel_parts.call(bed, turn.variant)
    # The VPN is freshly started, so that our daemons have to learn the paths again. If the paths' rates differ, they
    # learn from an earlier download.
    vpn, counters = VPNS[turn.variant], Added(bed.client, bed.server)
    with running_vpn(bed, vpn):
        return download(bed, vpn, counters, LEARNING_SECONDS if cell.part == "rates" else 0.0)


Of = Row[Cell, Any]


def _goodput(heading: str, variant: str) -> Column[Cell, Any]:
    def values(row: Of) -> list[float]:
        return [point.goodput for point in row.other_runs(variant)]

    return Column(heading, values, by="median", scale=1e-6, digits=1)


def _divided_by(fold: Callable[[list[float]], float]) -> Any:
    """Return a function that divides a row's rates by the result of *fold* for the median rates of both paths alone."""

    def values(row: Of) -> list[float]:
        alone = [[point.goodput for point in row.other_runs(variant)] for variant in ("a alone", "b alone")]
        return [rate / fold([median(rates, default=nan) for rates in alone]) for rate in row.values("goodput")]

    return values


def _excess(variant: str, name: str) -> Any:
    """Return a function that computes how much a row's median of *name* exceeds the median under *variant*."""

    def values(row: Of) -> list[float]:
        others = [float(getattr(each, name)) for each in row.other_runs(variant)]
        return [median(row.values(name)) - median(others)] if others and row.measured else []

    return values


def _ours(row: Of) -> bool:
    return row.variant == OURS_BUSY


def _table(title: str, part: str, columns: Sequence[Column[Cell, Any]], *labels: Any) -> Table[Cell, Any]:
    return Table(title, columns, labels, of=lambda row: row.cell.part == part)


INSIDE = ("inside", lambda row: row.cell.control)
GOODPUT: Table[Cell, Any] = Table(
    "Goodput of a download through OpenVPN",
    (
        _goodput("a alone", "a alone"),
        _goodput("b alone", "b alone"),
        _goodput("ours", "ours"),
        _goodput("50/50", "weights"),
        _goodput("over MPTCP", "mptcp"),
        Column(
            "ours / sum", _divided_by(sum), by="median", digits=3, aim="goodput / sum of both paths alone",
            least=lambda row: MIN_SHARES[row.cell.part],
            judged=lambda row: row.cell.part != "loss" or row.cell.control == "bbr",
        ),
        Column(
            "", _divided_by(max), by="median", aim="goodput / best path alone", least=MIN_LOSSY_SHARE,
            judged=lambda row: row.cell.part == "loss",
        ),
    ),
    (("paths, Mbit/s", lambda row: row.cell.name), INSIDE),
    of=lambda row: row.cell.part in DOWNLOADS and row.variant == "ours",
)  # fmt: skip
SILENCE = _table("A silent path", "silence", columns_of(Silence), INSIDE)
SHARE: Column[Cell, Any] = Column(
    "share", "share", by="median", aim="goodput / what is there, after 3 s", digits=3, least=MIN_CHANGED_SHARE
)
CHANGED = ("change", lambda row: row.cell.name)
CHANGE = _table("Paths that change", "change", (*columns_of(AfterChange), SHARE), CHANGED, INSIDE)
CALL = _table(
    "A call beside a download",
    "call",
    (
        *columns_of(Call),
        Column(
            "", _excess(ONE_PATH_IDLE, "p99"), aim="p99 of the delay beyond one path's idle, ms", scale=1e3,
            most=MAX_CALL_DELAY_MS, judged=_ours,
        ),
        Column(
            "", _excess(ONE_PATH_BUSY, "loss"), most=0.0, judged=_ours,
            aim="lost beyond what one path loses beside a download, share",
        ),
    ),
    ("call", lambda row: row.variant),
    INSIDE,
)  # fmt: skip
KERNEL: Column[Cell, Any] = Column("", "kernel", by="median", aim="splitter and joiner, ns/packet", most=MAX_KERNEL_NS)
COST = _table("Cost of a packet", "cost", (*columns_of(Cost), KERNEL), ("cost of", lambda row: "a packet"))
SCENARIO: Scenario[Settings, Cell, Bed | Testbed, Any] = Scenario(
    settings=Settings,
    needs=(*NEEDS, "nfqueue", "openssl", "gcc"),
    cells=cells,
    variants=variants,
    bed=tunnel_bed,
    measure=measure,
    tables=(GOODPUT, SILENCE, CHANGE, CALL, COST),
    name=lambda row: str(row.cell) if row.variant in ("ours", OURS_BUSY) else str(row),
)
