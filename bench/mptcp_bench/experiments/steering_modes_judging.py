# SPDX-License-Identifier: GPL-2.0-or-later
"""What each path carried in a steering mode, from byte counters over one download, and the aims. Pure.

Rates count what arrives at the client, on the wire. Times are seconds on the samples' clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from rich.table import Table

from mptcp_lab.testbed.recorder import Sample, mean_rate, rates

from ..statistics import fmean
from .aims import Aim
from .devices import DEVICES
from .tables import mean, new_table

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
"""Least and most rate in Mbit/s if both paths are full. A link that carries more was not emulated."""
SHARE = (None, 5.0)
"""Least and most deviation from the wanted share, in percentage points."""
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
    "load-balancing 70/30": {"worst over 10 s, points": SHARE},
    "load-balancing 50/50": {"worst over 10 s, points": SHARE},
    **{kind: {"worst over 10 s, points": SHARE, "Mbit/s": (0.9 * rate, None)} for kind, rate in PACED.items()},
    "smallest-delay": {"Mbit/s": FULL},
}
"""Least and most mean of each finding, by mode."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One download with its samples."""

    rtt: str
    """RTTs of Ethernet/Wi-Fi in milliseconds."""
    kind: str
    event: float
    """When the event began."""
    samples: tuple[Sample, ...]

    def share(self, device: str, start: float, end: float) -> float:
        """Return *device*'s share of all bytes that came between two times."""
        each = {name: mean_rate(self.samples, name, start, end) for name in DEVICES}
        return each[device] / max(1.0, sum(each.values()))

    def total(self, start: float, end: float) -> float:
        """Return the rate of both paths together, in Mbit/s, between two times."""
        return sum(mean_rate(self.samples, device, start, end) for device in DEVICES) / 1e6

    def findings(self) -> dict[str, float]:
        """Return the findings of this mode by name. The time of an event that never happened is infinite."""
        end = self.samples[-1].time
        if self.kind == "active-standby":
            return {
                "standby's share before": self.share("eth0", BEGUN, self.event),
                "taken over after s": self._first("eth0", self.event, lambda rate: rate > 1e6),
                "back after s": self._first("wlan0", self.event + EVENT, lambda rate: rate > 0.8e6 * WIFI),
                "standby's share after": self.share("eth0", end - 2, end),
            }
        if self.kind == "priority-based":
            slow = self.event + EVENT
            return {
                "Mbit/s while Wi-Fi is not enough": self.total(2.5, self.event),
                "second's share while it is": self.share("eth0", slow - 3, slow),
                "Mbit/s while it is": self.total(slow - 3, slow),
                "Mbit/s afterwards": self.total(end - 3, end),
            }
        if self.kind.startswith("load-balancing"):
            wanted = int(self.kind.split()[1].split("/")[0]) / 100
            seconds = [self.share("eth0", second, second + 1) for second in range(3, int(end) - 1)]
            starts = [sample.time for sample in self.samples if sample.time + WINDOW < end]
            shares = [self.share("eth0", start, start + WINDOW) for start in starts]
            return {
                "Ethernet's share": self.share("eth0", 0, end),
                "worst over 10 s, points": max(100 * abs(share - wanted) for share in shares),
                "least share in 1 s": min(seconds),
                "greatest share in 1 s": max(seconds),
                "Mbit/s": self.total(2, end),
            }
        return {"Ethernet's share": self.share("eth0", 0, end), "Mbit/s": self.total(2, end)}

    def _first(self, device: str, start: float, holds: Callable[[float], bool]) -> float:
        later = (rate for rate in rates(self.samples) if rate.time > start + 0.1)
        return next((rate.time - start for rate in later if holds(rate.bits[device])), inf)


def by_cell(measured: Sequence[Measured]) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Return the findings of all downloads, by RTT and mode, then by name."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for one in measured:
        for what, value in one.findings().items():
            found.setdefault((one.rtt, one.kind), {}).setdefault(what, []).append(value)
    return found


def aims(measured: Sequence[Measured], planned: Sequence[tuple[str, str]], runs: int) -> list[Aim]:
    """Return the aims of the *planned* RTTs and modes, for means over *runs* runs each."""
    found = []
    measures = by_cell(measured)
    for rtt, kind in planned:
        there = measures.get((rtt, kind), {})
        made = sum((m.rtt, m.kind) == (rtt, kind) for m in measured)
        found.append(Aim(f"{rtt} ms, {kind}: runs", made, least=runs))
        for what, (least, most) in AIMS.get(kind, {}).items() if there else ():
            found.append(Aim(f"{rtt} ms, {kind}: {what}", fmean(there[what]), least=least, most=most))
    return found


def table_of(measured: Sequence[Measured]) -> Table:
    """Return the table of all findings, as means over the runs."""
    table = new_table("Steering modes", ("RTT ms", "mode", "what", "mean"), left=("RTT ms", "mode", "what"))
    for (rtt, kind), findings in by_cell(measured).items():
        names = [(rtt, kind), *[("", "")] * (len(findings) - 1)]
        for name, (what, values) in zip(names, findings.items(), strict=True):
            table.add_row(*name, what, mean(values, digits=3))
    return table
