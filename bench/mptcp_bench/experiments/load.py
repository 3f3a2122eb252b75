# SPDX-License-Identifier: GPL-2.0-or-later
"""What load does to the throttler, and what the throttler costs.

- *joins*: how soon a joining subflow is capped, while there is nothing else to do (``load_joins``);
- *rate*: how many new connections per second the throttler follows, and its processor time (``load_rate``);
- *entries*: goodput with up to 50,000 entries in the kernel set (``load_entries``);
- *held*: reload, status, memory, reaction and processor time beside up to 10,000 tunnels, and what the console adds to
  them (``load_held``);
- *soft*: what a path keeps when the other one is capped softly beside 5,000 tunnels (``load_soft``).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from mptcp_lab.testbed.features import need

from . import load_entries, load_held, load_joins, load_rate, load_soft
from .attempts import ATTEMPTS
from .backends import BACKENDS, lacking
from .load_entries import COUNTS, EntriesCell
from .load_held import HeldCell
from .load_joins import JoinsCell
from .load_rate import RateCell
from .load_soft import SoftCell
from .parameters import number, parameter, several, whole, words
from .scenario import Bed, Scenario

PARTS = ("joins", "rate", "entries", "held", "soft")


class Cell(Protocol):
    """A part's cell: it builds its bed, and makes a run in it."""

    def bed(self, seed: int) -> AbstractContextManager[Any]: ...

    def measure(self, bed: Any, variant: str) -> Any: ...

    def __hash__(self) -> int: ...


def ascending(text: str) -> tuple[int, ...]:
    found = several(whole())(text)
    if list(found) != sorted(found):
        raise ValueError("allowed are numbers of which each is greater than the one before")
    return found


@dataclass(frozen=True, slots=True)
class Settings:
    part: tuple[str, ...] = parameter("which parts", ",".join(PARTS), words(*PARTS))
    netfilter: tuple[str, ...] = parameter("adapters for joins, rate and entries", ",".join(BACKENDS), words(*BACKENDS))
    n: tuple[int, ...] = parameter("tunnels held, ascending", "100,1000,10000", ascending, quick="20,100")
    rate: tuple[int, ...] = parameter("connections per second", "250,500,750,1000", several(whole()), quick="500")
    seconds: float = parameter("over which processor time is taken", "30", number(), quick="5")
    reactions: int = parameter(
        "joins that are measured each time, half as many while status is asked", "200", whole(4), quick="20"
    )
    rounds: int = parameter("transfers with each number of entries", "30", whole(2), quick="5")
    beside: int = parameter("tunnels beside the download that is capped softly", "5000", whole(), quick="50")
    runs: int = parameter("of that download, without tunnels and with them", "5", whole(), quick="1")
    spans: int = parameter("of ten seconds in which the loop's lag is watched, each way", "6", whole(), quick="1")


def cells(chosen: Settings) -> list[Cell]:
    adapters = chosen.netfilter
    found: dict[str, list[Cell]] = {
        "joins": [JoinsCell(adapter, chosen.reactions) for adapter in adapters],
        "rate": [RateCell(adapter, rate, chosen.seconds) for adapter in adapters for rate in chosen.rate],
        "entries": [EntriesCell(adapter) for adapter in adapters],
        "held": [HeldCell(number, chosen.seconds, chosen.reactions, chosen.spans) for number in chosen.n],
        "soft": [SoftCell(number) for number in (0, chosen.beside)],
    }
    return [cell for part in chosen.part for cell in found[part]]


NEEDS = {
    "rate": ("gcc",),
    "held": ("tbf", "ipset", "iptables-legacy", "squid", "ss", "gcc", "curl"),
    "soft": ("tbf", "ipset", "iptables-legacy", "squid", "ss", "gcc", "curl", "apache2", "mptcpize", "bpf-pacing"),
}
"""What a part needs of this host beyond what all need."""


def runs(chosen: Settings, cell: Cell, variant: str) -> int:
    if isinstance(cell, SoftCell):
        return chosen.runs
    return chosen.rounds if isinstance(cell, EntriesCell) else 1


SCENARIO: Scenario[Settings, Cell, Bed, Any] = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "htb"),
    ready=lambda chosen: need(*(feature for part in chosen.part for feature in NEEDS.get(part, ()))),
    cells=cells,
    lacking=lambda cell: lacking(cell.adapter) if isinstance(cell, JoinsCell | RateCell | EntriesCell) else None,
    variants=lambda chosen, cell: tuple(COUNTS) if isinstance(cell, EntriesCell) else ("",),
    runs=runs,
    attempts=lambda cell: 1 if isinstance(cell, HeldCell | RateCell) else ATTEMPTS,
    drawn=True,
    bed=lambda chosen, cells, seed: cells[0].bed(seed),
    measure=lambda bed, turn: turn.cell.measure(bed, turn.variant),
    tables=[load_joins.TABLE, load_rate.TABLE, load_entries.TABLE, load_held.TABLE, load_soft.TABLE],
    verdicts=load_held.growth,
)
