# SPDX-License-Identifier: GPL-2.0-or-later
"""How the throttler behaves under load, and what it costs.

- *joins*: how soon a joining subflow is capped, while the throttler has no other load (``load_joins``);
- *rate*: how many new connections per second the throttler can track, and its processor time (``load_rate``);
- *held*: reload, status, memory, reaction and processor time with up to 10,000 open tunnels, and what the console adds
  to these figures (``load_held``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mptcp_lab.testbed import Testbed

from . import load_held, load_joins, load_rate
from .backends import BACKENDS, lacking
from .load_held import HeldCell
from .load_joins import JoinsCell
from .load_rate import RateCell
from .parameters import number, parameter, several, whole, words
from .scenario import Scenario

PARTS = ("joins", "rate", "held")
Cell = JoinsCell | RateCell | HeldCell


@dataclass(frozen=True, slots=True)
class Settings:
    part: tuple[str, ...] = parameter("which parts", ",".join(PARTS), words(*PARTS))
    netfilter: tuple[str, ...] = parameter("adapters for joins and rate", ",".join(BACKENDS), words(*BACKENDS))
    n: tuple[int, ...] = parameter("tunnels held", "100,1000,10000", several(whole()), quick="20,200")
    rate: tuple[int, ...] = parameter("connections per second", "250,500,750,1000", several(whole()), quick="500")
    seconds: float = parameter("over which processor time is taken", "30", number(), quick="5")
    reactions: int = parameter(
        "joins that are measured each time, half as many while status is asked", "200", whole(4), quick="20"
    )
    spans: int = parameter("of ten seconds in which the loop's lag is watched, each way", "6", whole(), quick="1")


def cells(chosen: Settings) -> list[Cell]:
    adapters = chosen.netfilter
    found: dict[str, list[Cell]] = {
        "joins": [JoinsCell(adapter, chosen.reactions) for adapter in adapters],
        "rate": [RateCell(adapter, rate, chosen.seconds) for adapter in adapters for rate in chosen.rate],
        "held": [HeldCell(number, chosen.seconds, chosen.reactions, chosen.spans) for number in chosen.n],
    }
    return [cell for part in chosen.part for cell in found[part]]


SCENARIO: Scenario[Settings, Cell, Testbed, Any] = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "htb", "tbf", "ipset", "iptables-legacy", "squid", "ss", "gcc", "curl"),
    cells=cells,
    lacking=lambda cell: None if isinstance(cell, HeldCell) else lacking(cell.adapter),
    runs=lambda chosen, cell, variant: 1,
    attempts=lambda cell: 1,
    bed=lambda chosen, cells, seed: Testbed(cells[0].topology),
    measure=lambda testbed, turn: turn.cell.measure(testbed),
    tables=[load_joins.TABLE, load_rate.TABLE, load_held.TABLE],
)
