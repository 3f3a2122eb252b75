# SPDX-License-Identifier: GPL-2.0-or-later
"""The options and cells of the experiment ``tunnel``, and the paths of its transfers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mptcp_lab.emulation.model import GilbertElliott, UniformLoss

from .parameters import number, parameter, whole, words, yes_or_no
from .vpn_cells import CONTROLS, PathPair, Vpn

DOWNLOADS = ("goodput", "rates", "loss")
PARTS = (*DOWNLOADS, "silence", "change", "call")
VPNS = {
    "a alone": Vpn("udp"), "b alone": Vpn("udp b"), "ours": Vpn("tunnel"), "weights": Vpn("weights 50/50"),
    "mptcp": Vpn("mptcp"),
}  # fmt: skip
"""The VPN of each variant of a download. That over MPTCP has this host's default congestion control outside."""
PEER_RUNS: Mapping[str, Mapping[str, int]] = {
    "goodput": {"weights": 3, "mptcp": 3},
    "rates": {"weights": 1, "mptcp": 1},
    "loss": {"weights": 0, "mptcp": 1},
}
"""Most runs of the variants that are only compared, by part. These variants have no aims."""
CHANGES = ("rate falls to a third", "jitter ± 10 ms")
IDLE, BESIDE, OURS = "one path, idle", "one path, beside a download", "ours, beside a download"
CALLS = (IDLE, BESIDE, OURS)
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
class Settings:
    """What ``--set`` chooses."""

    cells: tuple[str, ...] = parameter("which of " + ", ".join(PARTS), ",".join(PARTS), words(*PARTS))
    runs: int | None = parameter("of each, default 5 of goodput and 3 of the others", None, whole(), quick="1")
    seconds: float = parameter("that a download takes at the sum of its paths", "7", number())
    first: bool = parameter("only the first cell of each part", "no", yes_or_no, quick="yes")


EQUAL = PathPair((10, 10))


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured over one pair of paths, with congestion controls side by side. *part* selects its aims."""

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
