# SPDX-License-Identifier: GPL-2.0-or-later
"""A tunnel over two paths: unmodified OpenVPN over ``mptcp-tunnel``, compared with the alternatives.

A download runs through OpenVPN, without a cipher, over emulated paths. The variants alternate: each path alone; our
splitter, whose daemons are restarted for each download, so that they have to learn the paths again; over paths without
loss, a 50/50 split; and Multipath TCP for OpenVPN's connection, with this host's default congestion control. Downloads
have two congestion controls, each in its own testbed. Further parts are a path that falls silent, paths that change, a
call during a download, and the cost of a packet.
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
from . import tunnel_parts
from .columns import Column, Row, Table, Turn, columns_of
from .parameters import parameter, whole, words, yes_or_no
from .scenario import Scenario
from .tunnel_parts import CALLS, CHANGES, JITTER, ONE_PATH_BUSY, ONE_PATH_IDLE, OURS_BUSY
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
DOWNLOAD_SECONDS, FILE_SECONDS = 7.0, 16.0
"""Time limit of a measured download, and time for which a file has enough data at the sum of both rates."""
MIN_SHARES = {"goodput": 0.9, "rates": 0.85, "loss": 0.85}
"""Minimum goodput of a download through the tunnel, as a share of the sum of both paths alone. Over lossy paths, only
downloads with BBR have this aim."""
MIN_LOSSY_SHARE = 0.97
"""Minimum goodput over lossy paths, as a share of that of the better path alone, which allows for noise."""
MIN_CHANGED_SHARE = 0.8
"""Minimum goodput, as a share of the available rate, from three seconds after a change on."""
MAX_CALL_DELAY_MS = 20
MAX_KERNEL_NS = 300.0


@dataclass(frozen=True, slots=True)
class Settings:
    cells: tuple[str, ...] = parameter(
        f"parts to measure: a list of {', '.join(CELLS)}", ",".join(CELLS), words(*CELLS)
    )
    runs: int = parameter("number of runs per variant", "3", whole(), quick="1")
    first: bool = parameter("whether to measure only the first cell of each part", "no", yes_or_no, quick="yes")


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of the experiment, a pair of paths, and the congestion control of downloads."""

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
    """Return the testbed of one cell. The cost of a packet is measured over unshaped paths."""
    [cell] = cells
    if cell.part == "cost":
        return Testbed(UNSHAPED, seed=seed)
    octets = round(sum(cell.over.rates) * 1e6 / 8 * FILE_SECONDS)
    return vpn_bed(cell.over.paths(), seed, DOWNLOAD_SECONDS, octets)


def measure(bed: Bed | Testbed, turn: Turn[Cell]) -> Any:
    cell = turn.cell
    if isinstance(bed, Testbed):
        return tunnel_parts.measure_cost(bed)
    set_control(bed.testbed["origin"], cell.control)
    if cell.part == "silence":
        return tunnel_parts.fall_silent(bed)
    if cell.part == "change":
        return tunnel_parts.measure_change(bed, cell.name)
    if cell.part == "call":
        return tunnel_parts.call(bed, turn.variant)
    # If the rates of the paths differ, our daemons first learn them from an unmeasured download.
    vpn, counters = VPNS[turn.variant], Added(bed.client, bed.server)
    with running_vpn(bed, vpn):
        return download(bed, vpn, counters, LEARNING_SECONDS if cell.part == "rates" else 0.0)


TunnelRow = Row[Cell, Any]


def _goodput(heading: str, variant: str) -> Column[Cell, Any]:
    def values(row: TunnelRow) -> list[float]:
        return [point.goodput for point in row.other_runs(variant)]

    return Column(heading, values, by="median", scale=1e-6, digits=1)


def _divided_by(combine: Callable[[list[float]], float]) -> Any:
    """Return a function that divides a row's rates by a combination of the median rates of both paths alone."""

    def values(row: TunnelRow) -> list[float]:
        alone = [[point.goodput for point in row.other_runs(variant)] for variant in ("a alone", "b alone")]
        return [rate / combine([median(rates, default=nan) for rates in alone]) for rate in row.values("goodput")]

    return values


def _excess(variant: str, name: str) -> Any:
    """Return a function that computes how much a row's median of *name* exceeds the median under *variant*."""

    def values(row: TunnelRow) -> list[float]:
        others = [float(getattr(each, name)) for each in row.other_runs(variant)]
        return [median(row.values(name)) - median(others)] if others and row.measured else []

    return values


def _is_our_call(row: TunnelRow) -> bool:
    return row.variant == OURS_BUSY


def _table(title: str, part: str, columns: Sequence[Column[Cell, Any]], *labels: Any) -> Table[Cell, Any]:
    return Table(title, columns, labels, of=lambda row: row.cell.part == part)


INSIDE = ("inside", lambda row: row.cell.control)
TABLES: Sequence[Table[Cell, Any]] = (
    Table(
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
    ),
    _table("A silent path", "silence", columns_of(tunnel_parts.Silence), INSIDE),
    _table(
        "Paths that change", "change",
        (
            *columns_of(tunnel_parts.AfterChange),
            Column(
                "share", "share", by="median", aim="goodput / what is there, after 3 s", digits=3,
                least=MIN_CHANGED_SHARE,
            ),
        ),
        ("change", lambda row: row.cell.name), INSIDE,
    ),
    _table(
        "A call beside a download", "call",
        (
            *columns_of(tunnel_parts.Call),
            Column(
                "", _excess(ONE_PATH_IDLE, "p99"), aim="p99 of the delay beyond one path's idle, ms", scale=1e3,
                most=MAX_CALL_DELAY_MS, judged=_is_our_call,
            ),
            Column(
                "", _excess(ONE_PATH_BUSY, "loss"), most=0.0, judged=_is_our_call,
                aim="lost beyond what one path loses beside a download, share",
            ),
        ),
        ("call", lambda row: row.variant), INSIDE,
    ),
    _table(
        "Cost of a packet", "cost",
        (
            *columns_of(tunnel_parts.Cost),
            Column("", "kernel", by="median", aim="splitter and joiner, ns/packet", most=MAX_KERNEL_NS),
        ),
        ("cost of", lambda row: "a packet"),
    ),
)  # fmt: skip
SCENARIO: Scenario[Settings, Cell, Bed | Testbed, Any] = Scenario(
    settings=Settings,
    needs=(*NEEDS, "nfqueue", "openssl", "gcc"),
    cells=cells,
    variants=variants,
    bed=tunnel_bed,
    measure=measure,
    tables=TABLES,
    name=lambda row: str(row.cell) if row.variant in ("ours", OURS_BUSY) else str(row),
)
