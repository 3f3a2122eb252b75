# SPDX-License-Identifier: GPL-2.0-or-later
"""Steering modes on real downloads: what each path carries if the policy names a mode.

*active-standby*: Wi-Fi is active, Ethernet standby; for a while Wi-Fi's router drops all packets. *priority-based*:
Wi-Fi is first; for a while the origin sends less than Wi-Fi could carry. *load-balancing*: 70/30 and 50/50; and 60/40
and 85/15 while the origin sends less than the paths could carry. *smallest-delay*: compared with a policy without
rules. Rates count what arrives at the client.

A further part measures outages of one path in each mode (``experiments.steering_outages``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

from mptcp_lab.testbed import Testbed, paths

from . import steering_modes as modes
from . import steering_outages as outages
from .devices import policy
from .parameters import choices, parameter, rtt_pair, several, whole
from .scenario import Scenario
from .setup import Setup
from .two_paths import two_paths

PARTS = ("modes", "outages")
Cell = modes.Cell | outages.Cell


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``--set`` chooses."""

    part: tuple[str, ...] = choices("what to measure", PARTS)
    rtt: tuple[tuple[float, float], ...] = parameter(
        "in modes: RTTs in ms, Ethernet/Wi-Fi", "20/20,60/20", several(rtt_pair), quick="20/20"
    )
    runs: int = parameter("of each", "5", whole(), quick="1")
    kind: tuple[str, ...] = choices("in modes, separated by |", modes.KINDS, quick="|".join(modes.QUICK_KINDS), by="|")
    mode: tuple[str, ...] = choices("in outages", outages.MODES, quick="none,active-standby,priority-based")
    fault: tuple[str, ...] = choices("in outages", outages.FAULTS, quick="silent")
    outage: tuple[int, ...] = parameter("in outages: seconds", "2,8,30", several(whole()), quick="8")
    load: tuple[str, ...] = choices("in outages", outages.LOADS, quick="paced")


def cells(chosen: Settings) -> list[Cell]:
    """Return the chosen cells of each part, in an order that keeps the modes of one outage together."""
    each: dict[str, list[Cell]] = {
        "modes": [modes.Cell(*one) for one in product(chosen.rtt, chosen.kind)],
        "outages": [
            outages.Cell(mode, fault, outage, load)
            for load, fault, outage, mode in product(chosen.load, chosen.fault, chosen.outage, chosen.mode)
        ],
    }
    return [cell for part in PARTS if part in chosen.part for cell in each[part]]


@contextmanager
def bed(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[Setup]:
    first = cells[0]
    with Testbed(paths(two_paths(first.rates, first.rtts)), seed=seed) as testbed:
        yield Setup.built(testbed, policy("[]"), up=isinstance(first, outages.Cell))


SCENARIO: Scenario[Settings, Cell, Setup, Any] = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize"),
    cells=cells,
    together=lambda cell: cell.bed,
    bed=bed,
    measure=lambda setup, turn: turn.cell.measure(setup),
    parts=lambda cell: cell.parts if isinstance(cell, modes.Cell) else ("",),
    tables=(modes.TABLE, outages.TABLE),
    name=lambda row: str(row.cell),
)
