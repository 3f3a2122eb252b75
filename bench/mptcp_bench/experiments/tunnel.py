# SPDX-License-Identifier: GPL-2.0-or-later
"""A tunnel over two paths: unmodified OpenVPN over ``mptcp-tunnel``, compared with the alternatives.

A download runs through OpenVPN, without cipher, over emulated paths. The variants are: each path alone; our splitter,
whose daemons are restarted for each download, so that it has to learn the paths again; a 50/50 split; and Multipath TCP
for OpenVPN's connection, with this host's default congestion control. Variants alternate within a run. Two congestion
controls are used inside, each in its own testbed. Both testbeds run at the same time if the sum of their rates is far
below the machine's. Further parts are a path that falls silent, paths that change, a call during a download, and the
cost of a packet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import nan
from typing import Any

from mptcp_lab.emulation.model import GilbertElliott, UniformLoss
from mptcp_lab.testbed import UNSHAPED, Testbed, TestbedError
from mptcp_lab.testbed.transfer import Added

from ..statistics import median
from . import tunnel_cost, tunnel_parts, vpn_bed
from .columns import Column, Row, Table, Turn
from .parameters import number, parameter, whole, words, yes_or_no
from .scenario import Scenario
from .tunnel_parts import CALLS, CHANGES, IDLE, OURS, PAYLOAD
from .vpn_bed import Bed, carried, controlled
from .vpn_cells import CONTROLS, PathPair, Point, Vpn

DOWNLOADS = ("goodput", "rates", "loss")
PARTS = (*DOWNLOADS, "silence", "change", "call", "cost")
VPNS = {
    "a alone": Vpn("udp"), "b alone": Vpn("udp b"), "ours": Vpn("tunnel"), "weights": Vpn("weights 50/50"),
    "mptcp": Vpn("mptcp"),
}  # fmt: skip
"""The VPN of each variant of a download. The VPN over MPTCP has this host's default congestion control outside."""
PEER_RUNS: Mapping[str, Mapping[str, int]] = {
    "goodput": {"weights": 3, "mptcp": 3},
    "rates": {"weights": 1, "mptcp": 1},
    "loss": {"weights": 0, "mptcp": 1},
}
"""Maximum number of runs of the variants that are only compared, by part. These variants have no aims."""
RANDOM = UniformLoss(0.01)
BURSTS = GilbertElliott(p=0.002, r=0.2)
"""Bursts of losses: 1 % in the long run, on average five packets in a row."""
LITTLE = 40
"""Maximum rate of both paths together, in Mbit/s, at which both congestion controls are measured at the same time."""
LEARNING = 4.0
"""Length in seconds of the download from which the daemons learn the paths' rates. Real tunnels run for days."""
LONGEST = 16.0
"""Minimum seconds for which the data of a file suffice."""
UNEVEN = 0.05
"""Maximum difference between 0.5 and the share of each path in a split of 50/50."""
SHARES = {"goodput": 0.9, "rates": 0.85, "loss": 0.85}
"""Minimum goodput of a download through the tunnel, as a share of the sum of both paths alone; over lossy paths with
BBR inside."""
NOISE = 0.97
"""Minimum goodput over lossy paths, as a share of the better path alone. The difference to 1 is for noise."""
MOST_ALONE = 1.03
"""Maximum goodput of a path alone, as a share of its link's payload rate. A link with more was not emulated."""
CHANGED, LOST, BACK = 0.4, 0.5, 1.0
STEADY = 0.8
"""Minimum goodput from three seconds after a change on, as a share of the available rate."""
CALL_DELAY = 0.020
KERNEL_NS, RESEQUENCER_US, CARRIED = 300.0, 5.0, 500.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``."""

    cells: tuple[str, ...] = parameter("which of " + ", ".join(PARTS), ",".join(PARTS), words(*PARTS))
    runs: int | None = parameter("of each, default 5 of goodput and 3 of the others", None, whole(), quick="1")
    seconds: float = parameter("that a download takes at the sum of its paths", "7", number())
    first: bool = parameter("only the first cell of each part", "no", yes_or_no, quick="yes")


EQUAL = PathPair((10, 10))


@dataclass(frozen=True, slots=True)
class Cell:
    """The measurements over one pair of paths, with congestion controls side by side. *part* selects its aims."""

    part: str
    name: str
    over: PathPair = EQUAL
    controls: tuple[str, ...] = CONTROLS

    def __str__(self) -> str:
        return self.name


def cells_of_part(part: str) -> Iterator[Cell]:
    if part == "loss":
        for kind, loss in (("1 %", RANDOM), ("bursts", BURSTS)):
            yield Cell(part, f"{kind} on one path", PathPair((10, 10), losses=(None, loss)))
            yield Cell(part, f"{kind} on both", PathPair((10, 10), losses=(loss, loss)))
    elif part == "silence":
        yield Cell(part, "a path is silent", controls=CONTROLS[:1])
    elif part == "change":
        for change in CHANGES:
            yield Cell(part, change, PathPair((10, 10), (40, 40), jitter=10) if change == CHANGES[1] else EQUAL)
    elif part == "call":
        yield Cell(part, "call beside a download", PathPair((10, 10), (20, 60)))
    elif part == "cost":
        yield Cell(part, "cost", controls=())
    else:
        pairs = {
            "goodput": [PathPair((10, 10), (20, rtt)) for rtt in (20, 60, 100)],
            "rates": [PathPair((10, 5)), PathPair((30, 10)), PathPair((30, 10), (20, 60)), PathPair((100, 30))],
        }[part]
        for pair in pairs:
            yield Cell(part, str(pair), pair, CONTROLS if sum(pair.rates) <= LITTLE else CONTROLS[:1])


def cells(chosen: Settings) -> list[Cell]:
    return [cell for part in chosen.cells for cell in list(cells_of_part(part))[: 1 if chosen.first else None]]


def variants(chosen: Settings, cell: Cell) -> tuple[str, ...]:
    return tuple(VPNS) if cell.part in DOWNLOADS else CALLS if cell.part == "call" else ("",)


def runs(chosen: Settings, cell: Cell, variant: str) -> int:
    wanted = chosen.runs or (5 if cell.part == "goodput" else 3)
    return min(wanted, PEER_RUNS.get(cell.part, {}).get(variant, wanted))


Of = Row[Cell, Any]


@dataclass(frozen=True, slots=True)
class Beds:
    """The testbeds of one cell, by the congestion control inside; for the cost, one testbed with unshaped paths."""

    each: Mapping[str, Bed]
    unshaped: Testbed | None
    seed: int

    def check_emulation(self) -> None:
        for testbed in (self.unshaped, *(bed.testbed for bed in self.each.values())):
            if testbed is not None:
                testbed.check_emulation()


@contextmanager
def built(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[Beds]:
    [cell] = cells
    with ExitStack() as scope:
        if cell.part == "cost":
            yield Beds({}, scope.enter_context(Testbed(UNSHAPED, seed=seed)), seed)
            return
        octets = round(sum(cell.over.rates) * 1e6 / 8 * max(LONGEST, 2 * chosen.seconds))
        beds = {
            control: scope.enter_context(vpn_bed.built(cell.over.paths(), seed, chosen.seconds, octets))
            for control in cell.controls
        }
        for control, bed in beds.items():
            controlled(bed.testbed["origin"], control)
        yield Beds(beds, None, seed)


def measure(beds: Beds, turn: Turn[Cell]) -> Any:
    """Make one run in all testbeds at the same time. Return the measurements by the congestion control inside."""
    cell = turn.cell
    if beds.unshaped is not None:
        return tunnel_cost.measure(beds.unshaped)

    def once(bed: Bed) -> Any:
        if cell.part == "silence":
            return tunnel_parts.fall_silent(bed)
        if cell.part == "change":
            return tunnel_parts.changing(bed, cell.name, beds.seed)
        if cell.part == "call":
            return tunnel_parts.call(bed, turn.variant)
        return downloaded(bed, cell, turn.variant)

    with ThreadPoolExecutor(len(beds.each)) as pool:
        return dict(zip(beds.each, pool.map(once, beds.each.values()), strict=True))


def downloaded(bed: Bed, cell: Cell, variant: str) -> Point:
    """Download through a VPN that is freshly started, so that our daemons have to learn the paths again.

    If the paths' rates differ, they learn from an earlier download. Raises TestbedError if the paths were not
    used as intended.
    """
    added = Added(bed.client, bed.server)
    with carried(bed, VPNS[variant]):
        point = vpn_bed.downloaded(bed, added, warm=LEARNING if cell.part == "rates" else 0.0)
    if variant == "mptcp" and not point.joined:
        raise TestbedError("OpenVPN over Multipath TCP has no second subflow")
    if variant == "weights" and abs(point.second - 0.5) > UNEVEN:
        raise TestbedError(f"the second path has {point.second:.0%} of a split of 50/50")
    return point


def _goodput(heading: str, variant: str) -> Column[Cell, Any]:
    def values(row: Of) -> list[float]:
        return [point.goodput for point in row.beside(variant)]

    return Column(heading, values, by="median", scale=1e-6, digits=1)


def _alone(row: Of) -> tuple[float, ...]:
    """Return the median rate of each path alone; NaN if it was not measured."""
    each = (row.beside(variant) for variant in ("a alone", "b alone"))
    return tuple(median([point.goodput for point in points], default=nan) for points in each)


def _divided_by(fold: Callable[[tuple[float, ...]], float]) -> Any:
    """Return a function that divides a row's rates by the result of *fold* for the rates of both paths alone."""
    return lambda row: [rate / fold(_alone(row)) for rate in row.values("goodput")]


def _emulated(number: int, path: str) -> Column[Cell, Any]:
    """Return the aim that a path without loss carried no more than its link can."""

    def values(row: Of) -> list[float]:
        return [_alone(row)[number] / (row.cell.over.rates[number] * 1e6 * PAYLOAD)]

    return Column(
        "", values, aim=f"path {path} alone / payload of its link", most=MOST_ALONE,
        judged=lambda row: row.cell.over.losses[number] is None,
    )  # fmt: skip


def _beyond(variant: str, name: str) -> Any:
    """Return a function that computes how much a row's median of *name* exceeds the median under *variant*."""

    def values(row: Of) -> list[float]:
        there = [float(getattr(each, name)) for each in row.beside(variant)]
        return [median(row.values(name)) - median(there)] if there and row.measured else []

    return values


def _ours(row: Of) -> bool:
    return row.variant == OURS


def table(title: str, part: str, columns: tuple[Column[Cell, Any], ...], *labels: Any) -> Table[Cell, Any]:
    return Table(title, columns, labels, of=lambda row: row.cell.part == part)


INSIDE = ("inside", lambda row: row.part)
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
            least=lambda row: SHARES[row.cell.part],
            judged=lambda row: row.cell.part != "loss" or row.part == "bbr",
        ),
        Column(
            "", _divided_by(max), by="median", aim="goodput / best path alone", least=NOISE,
            judged=lambda row: row.cell.part == "loss",
        ),
        _emulated(0, "a"),
        _emulated(1, "b"),
    ),
    (("paths, Mbit/s", lambda row: row.cell.name), INSIDE),
    of=lambda row: row.cell.part in DOWNLOADS and row.variant == "ours",
)  # fmt: skip
SILENCE = table(
    "A silent path",
    "silence",
    (
        Column("relay leaves s", "relay", by="median", digits=3, aim="the relay leaves it after s", most=CHANGED),
        Column("proxy leaves s", "proxy", by="median", digits=3, aim="the proxy leaves it after s", most=CHANGED),
        Column("back s", "back", by="median", digits=3, aim="back at both ends after s", most=BACK),
        Column("lost s", "lost", by="median", digits=3, aim="stream of 1 Mbit/s: s lost", most=LOST),
    ),
    INSIDE,
)
CHANGE = table(
    "Paths that change",
    "change",
    (
        Column("Mbit/s", "rate", by="median", scale=1e-6, digits=1),
        Column("there", "there", by="median", scale=1e-6, digits=1),
        Column("share", "share", by="median", digits=3, aim="goodput / what is there, after 3 s", least=STEADY),
    ),
    ("change", lambda row: row.cell.name),
    INSIDE,
)
CALL = table(
    "A call beside a download",
    "call",
    (
        Column("delay ms, median", "median", by="median", scale=1e3, digits=1),
        Column("p99", "p99", by="median", scale=1e3, digits=1),
        Column("lost %", "loss", by="median", scale=100, digits=1),
        Column(
            "", _beyond(IDLE, "p99"), aim="p99 of the delay beyond one path's idle, ms", scale=1e3,
            most=1e3 * CALL_DELAY, judged=_ours,
        ),
        Column(
            "", _beyond("one path, beside a download", "loss"), most=0.0, judged=_ours,
            aim="lost beyond what one path loses beside a download, share",
        ),
    ),
    ("call", lambda row: row.variant),
    INSIDE,
)  # fmt: skip
COST = table(
    "Cost of a packet",
    "cost",
    (
        Column("splitter ns", "splitter", by="median", digits=1),
        Column("joiner ns", "joiner", by="median", digits=1),
        Column("", "kernel", by="median", aim="splitter and joiner, ns/packet", most=KERNEL_NS),
        Column(
            "resequencer µs", "resequencer", by="median", digits=1, aim="resequencer, µs/packet", most=RESEQUENCER_US
        ),
        Column(
            "carried Mbit/s", "carried", by="median", scale=1e-6, digits=1,
            aim="carried with no more than 1 % lost, Mbit/s", least=CARRIED,
        ),
    ),
    ("cost of", lambda row: "a packet"),
)  # fmt: skip


def name(row: Of) -> str:
    """Return the row's name, without the variant if this is our splitter."""
    variant = "" if row.variant in ("ours", OURS) else row.variant
    inside = "" if row.cell.part == "silence" else row.part
    return ", ".join(filter(None, (row.cell.name, variant, inside)))


SCENARIO: Scenario[Settings, Cell, Beds, Any] = Scenario(
    settings=Settings,
    needs=(*vpn_bed.NEEDS, "nfqueue", "openssl", "gcc"),
    cells=cells,
    parts=lambda cell: cell.controls or ("",),
    variants=variants,
    runs=runs,
    bed=built,
    measure=measure,
    tables=(GOODPUT, SILENCE, CHANGE, CALL, COST),
    name=name,
)  # fmt: skip
