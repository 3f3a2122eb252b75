# SPDX-License-Identifier: GPL-2.0-or-later
"""Steering modes on real downloads: what each path carries if the policy names a mode.

*active-standby*: Wi-Fi is active, Ethernet standby; for a while Wi-Fi's router drops all packets. *priority-based*:
Wi-Fi is first; for a while the origin sends less than Wi-Fi could carry. *load-balancing*: 70/30 and 50/50; and 60/40
and 85/15 while the origin sends less than the paths could carry. *smallest-delay*: compared with a policy without
rules. Rates count the bytes that arrive at the client.

A further part measures outages of one path in each mode (``experiments.steering_outages``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Any

from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate, rates

from . import steering_outages as outages
from .columns import Column, Row, Table
from .devices import DEVICES, policy
from .parameters import choices, parameter, rtt_pair, several, whole
from .scenario import Scenario
from .setup import Setup
from .two_paths import slow_origin, two_paths, wifi_dropping

PARTS = ("modes", "outages")
ETHERNET, WIFI, SLOW_ORIGIN = 100, 30, 15
"""Rates of Ethernet, of Wi-Fi, and of the origin while it is slow, in Mbit/s."""
WARM, EVENT, AFTER = 6.0, 6.0, 10.0
"""Seconds that are recorded before, during and after the event."""
BEGUN = 1.0
"""Seconds from the start of the client's program until both subflows exist and the mode controls them."""
WINDOW = 10.0
"""Seconds over which a path's share is computed."""
PACED = {"load-balancing 60/40, paced": 20, "load-balancing 85/15, paced": 12}
"""Rate in Mbit/s at which the origin sends during the whole download."""
FULL = (0.95 * (ETHERNET + WIFI), 1.05 * (ETHERNET + WIFI))
"""Minimum and maximum rate in Mbit/s if both paths are full. A link with a higher rate was not emulated."""
SHARE = (None, 5.0)
"""Minimum and maximum deviation from the wanted share, in percentage points."""
AIMS: dict[str, dict[str, tuple[float | None, float | None]]] = {
    "active-standby": {
        "standby's share before": (None, 0.001),
        "taken over after s": (None, 1),
        "back after s": (None, AFTER),
    },
    "priority-based": {
        "Mbit/s while Wi-Fi is not enough": FULL,
        "second's share while it is": (None, 0.02),
        "Mbit/s while it is": (0.9 * SLOW_ORIGIN, None),
    },
    **{
        kind: {
            "Ethernet's share": (None, None),
            "worst over 10 s, points": SHARE,
            "Mbit/s": (0.9 * PACED[kind] if kind in PACED else None, None),
        }
        for kind in ("load-balancing 70/30", "load-balancing 50/50", *PACED)
    },
    "smallest-delay": {"Ethernet's share": (None, None), "Mbit/s": FULL},
    "no rule": {"Ethernet's share": (None, None), "Mbit/s": (None, None)},
}
"""The findings of each mode, with the minimum and maximum of the mean of each finding."""
KINDS: dict[str, tuple[str | None, Callable[[Testbed], AbstractContextManager[None]] | None]] = {
    "active-standby": ("{mode: active-standby, active: wifi, standby: ethernet}", wifi_dropping),
    "priority-based": (
        "{mode: priority-based, order: [wifi, ethernet]}",
        lambda testbed: slow_origin(testbed, SLOW_ORIGIN),
    ),
    "load-balancing 70/30": ("{mode: load-balancing, weights: {ethernet: 70, wifi: 30}}", None),
    "load-balancing 50/50": ("{mode: load-balancing, weights: {ethernet: 50, wifi: 50}}", None),
    "load-balancing 60/40, paced": ("{mode: load-balancing, weights: {ethernet: 60, wifi: 40}}", None),
    "load-balancing 85/15, paced": ("{mode: load-balancing, weights: {ethernet: 85, wifi: 15}}", None),
    "smallest-delay": ("{mode: smallest-delay}", None),
    "no rule": (None, None),
}
"""For each kind of download its steering rule, and the event in mid-transfer; None without an event."""
QUICK_KINDS = ("active-standby", "priority-based", "load-balancing 70/30", "load-balancing 60/40, paced")


@dataclass(frozen=True, slots=True)
class Download:
    """One download in a mode with its samples. An event begins at *event* and lasts ``EVENT`` seconds."""

    samples: tuple[Sample, ...]
    event: float

    def share(self, device: str, start: float, end: float) -> float:
        """Return *device*'s share of all bytes that arrived between two times."""
        each = {name: mean_rate(self.samples, name, start, end) for name in DEVICES}
        return each[device] / max(1.0, sum(each.values()))

    def total(self, start: float, end: float) -> float:
        """Return the rate of both paths together, in Mbit/s, between two times."""
        return sum(mean_rate(self.samples, device, start, end) for device in DEVICES) / 1e6

    def findings(self, kind: str) -> dict[str, float]:
        """Return the findings of the mode *kind* by name.

        The time of an event that did not happen is infinity. Raises ValueError if there are too few samples.
        """
        end = self.samples[-1].time
        if kind == "active-standby":
            return {
                "standby's share before": self.share("eth0", BEGUN, self.event),
                "taken over after s": self._first("eth0", self.event, lambda rate: rate > 1e6),
                "back after s": self._first("wlan0", self.event + EVENT, lambda rate: rate > 0.8e6 * WIFI),
            }
        if kind == "priority-based":
            slow = self.event + EVENT
            return {
                "Mbit/s while Wi-Fi is not enough": self.total(2.5, self.event),
                "second's share while it is": self.share("eth0", slow - 3, slow),
                "Mbit/s while it is": self.total(slow - 3, slow),
            }
        if kind.startswith("load-balancing"):
            wanted = int(kind.split()[1].split("/", maxsplit=1)[0]) / 100
            starts = [sample.time for sample in self.samples if sample.time + WINDOW < end]
            shares = [self.share("eth0", start, start + WINDOW) for start in starts]
            return {
                "Ethernet's share": self.share("eth0", 0, end),
                "worst over 10 s, points": max(100 * abs(share - wanted) for share in shares),
                "Mbit/s": self.total(2, end),
            }
        return {"Ethernet's share": self.share("eth0", 0, end), "Mbit/s": self.total(2, end)}

    def _first(self, device: str, start: float, holds: Callable[[float], bool]) -> float:
        later = (rate for rate in rates(self.samples) if rate.time > start + 0.1)
        return next((rate.time - start for rate in later if holds(rate.bits[device])), inf)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of a download in a mode."""

    value: float


@dataclass(frozen=True, slots=True)
class Cell:
    """RTTs of Ethernet and Wi-Fi in milliseconds, and the kind of download."""

    rtts: tuple[float, float]
    kind: str

    def __str__(self) -> str:
        return f"{self.rtt} ms, {self.kind}"

    @property
    def rtt(self) -> str:
        return "{:g}/{:g}".format(*self.rtts)

    @property
    def bed(self) -> str:
        return f"{self.rtt} ms"

    @property
    def rates(self) -> tuple[int, int]:
        return ETHERNET, WIFI

    @property
    def parts(self) -> Sequence[str]:
        return tuple(AIMS[self.kind])

    def measure(self, setup: Setup) -> dict[str, Finding]:
        """Download in a mode, with the mode's event."""
        steer, happening = KINDS[self.kind]
        rules = "[]" if steer is None else f"[{{name: steered, steer: {steer}}}]"
        setup.load_between(policy(rules), [] if steer is None else ["steered"])
        paced = slow_origin(setup.testbed, PACED[self.kind]) if self.kind in PACED else nullcontext()
        with paced, setup.client.running(setup.download), Recorder(setup.client, DEVICES) as recorder:
            recorder.wait(WARM)
            event = recorder.now
            with nullcontext() if happening is None else happening(setup.testbed):
                recorder.wait(event + EVENT)
            recorder.wait(event + EVENT + AFTER)
            download = Download(recorder.samples, event)
        return {what: Finding(value) for what, value in download.findings(self.kind).items()}


def _bound(number: int) -> Callable[[Row[Cell, Finding]], float | None]:
    return lambda row: AIMS[row.cell.kind][row.part][number]


def _is_judged(row: Row[Cell, Finding]) -> bool:
    return AIMS[row.cell.kind][row.part] != (None, None)


TABLE: Table[Any, Finding] = Table(
    "Steering modes",
    (Column("mean", "value", digits=3, aim=lambda row: row.part, least=_bound(0), most=_bound(1), judged=_is_judged),),
    (("RTT ms", lambda row: row.cell.rtt), ("mode", lambda row: row.cell.kind), ("what", lambda row: row.part)),
    of=lambda row: isinstance(row.cell, Cell),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``."""

    part: tuple[str, ...] = choices("what to measure", PARTS)
    rtt: tuple[tuple[float, float], ...] = parameter(
        "in modes: RTTs in ms, Ethernet/Wi-Fi", "20/20,60/20", several(rtt_pair), quick="20/20"
    )
    runs: int = parameter("of each", "5", whole(), quick="1")
    kind: tuple[str, ...] = choices("in modes, separated by |", KINDS, quick="|".join(QUICK_KINDS), by="|")
    mode: tuple[str, ...] = choices("in outages", outages.MODES, quick="none,active-standby,priority-based")
    fault: tuple[str, ...] = choices("in outages", outages.FAULTS, quick="silent")
    outage: tuple[int, ...] = parameter("in outages: seconds", "2,8,30", several(whole()), quick="8")
    load: tuple[str, ...] = choices("in outages", outages.LOADS, quick="paced")


def cells(chosen: Settings) -> list[Cell | outages.Cell]:
    """Return the chosen cells of each part, in an order that keeps the modes of one outage together."""
    each: dict[str, list[Cell | outages.Cell]] = {
        "modes": [Cell(*one) for one in product(chosen.rtt, chosen.kind)],
        "outages": [
            outages.Cell(mode, fault, outage, load)
            for load, fault, outage, mode in product(chosen.load, chosen.fault, chosen.outage, chosen.mode)
        ],
    }
    return [cell for part in PARTS if part in chosen.part for cell in each[part]]


@contextmanager
def bed(chosen: Settings, cells: Sequence[Cell | outages.Cell], seed: int) -> Iterator[Setup]:
    first = cells[0]
    with Testbed(paths(two_paths(first.rates, first.rtts)), seed=seed) as testbed:
        yield Setup.built(testbed, policy("[]"), up=isinstance(first, outages.Cell))


SCENARIO: Scenario[Settings, Any, Setup, Any] = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize"),
    cells=cells,
    together=lambda cell: cell.bed,
    bed=bed,
    measure=lambda setup, turn: turn.cell.measure(setup),
    parts=lambda cell: cell.parts if isinstance(cell, Cell) else ("",),
    tables=(TABLE, outages.TABLE),
    name=lambda row: str(row.cell),
)
