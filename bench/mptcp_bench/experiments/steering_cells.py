# SPDX-License-Identifier: GPL-2.0-or-later
"""The settings that ``steering`` varies in outages: mode, fault, length of the outage, load. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from .devices import POLICY_PATHS
from .options import choice, count, counts, refused

NONE = "none"
"""The mode of a policy without rules."""
MODES: dict[str, str | None] = {
    NONE: None,
    "active-standby": "{mode: active-standby, active: LOST, standby: OTHER}",
    "priority-based": "{mode: priority-based, order: [LOST, OTHER]}",
    "load-balancing": "{mode: load-balancing, weights: {LOST: 60, OTHER: 40}}",
    "smallest-delay": "{mode: smallest-delay}",
}
"""The steering rule of each mode, with LOST and OTHER in place of the failing path and the other one."""
PATHS = {"initial": ("ethernet", "wifi"), "joined": ("wifi", "ethernet")}
"""The failing path and the other one, by the subflow that fails. Connections open over Ethernet."""
LOST_RATE, OTHER_RATE = 30, 20
"""Rates of the failing path and the other one in Mbit/s."""
BY_ORDER = ("active-standby", "priority-based")
FAULTS = {
    "link": "the client's own link goes down",
    "router": "the path's router is gone: the core network says so (ICMP), the client's link stays up",
    "silent": "the path's router drops everything",
}
OUTAGES = (2, 8, 30)
"""Lengths of the outages in seconds."""
LOADS = {
    "full": "as fast as it goes",
    "paced": "full speed, so that all paths are open, then what the origin sends: 12 Mbit/s",
    "upload": "to the origin, as fast as it goes",
}
CHOICES: dict[str, Mapping[str, object]] = {"mode": MODES, "fault": FAULTS, "load": LOADS}
PARTS = ("modes", "outages", "overflow")
OPTIONS = {
    "part": f"which of {', '.join(PARTS)}, default all",
    "mode": f"in outages: of {', '.join(MODES)}, default all",
    "fault": f"in outages: of {', '.join(FAULTS)}, default all",
    "outage": f"in outages: seconds, default {','.join(map(str, OUTAGES))}",
    "load": f"in outages: of {', '.join(LOADS)}, default all",
    "lost": "in outages: the subflow whose path fails, initial or joined, default initial",
    "probe": "in outages: the most milliseconds between two retransmissions on the lost path, 1000 to 120000, 0 for "
    "the kernel's own back-off, default 0",
    "stale": "in outages: net.mptcp.stale_loss_cnt in place of what the throttler sets, 0 for that, default 0",
}
POLICY = f"{POLICY_PATHS}rules: %s\n"
QUICK = {"mode": "none,active-standby,priority-based", "fault": "silent", "outage": "8", "load": "paced"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the varied settings."""

    mode: str
    fault: str
    outage: int
    load: str
    lost: str = "initial"
    probe: int = 0
    stale: int = 0

    def __str__(self) -> str:
        probed = f", probed every {self.probe} ms" if self.probe else ""
        stale = f", stale_loss_cnt {self.stale}" if self.stale else ""
        lost = "" if self.lost == "initial" else f", {self.lost}"
        return f"{self.mode}, {self.fault}{lost}, {self.outage} s, {self.load}{probed}{stale}"

    @property
    def rule(self) -> str:
        """The text of the policy's list of rules."""
        steer = MODES[self.mode]
        if steer is None:
            return "[]"
        lost, other = PATHS[self.lost]
        return f"[{{name: steered, steer: {steer.replace('LOST', lost).replace('OTHER', other)}}}]"

    @property
    def unsteered(self) -> Cell:
        """The same outage without a steering mode."""
        return replace(self, mode=NONE, stale=0)


def cells(options: Mapping[str, str], quick: bool) -> list[Cell]:
    """Return the chosen cells, in an order that keeps the modes of one outage together. Raises OptionError."""
    given = {**(QUICK if quick else {}), **options}
    modes, faults, loads = (choice(given, name, known) for name, known in CHOICES.items())
    losts = choice(given, "lost", PATHS, ["initial"])
    outages = counts(given, "outage", OUTAGES)
    probe, stale = count(given, "probe", 0, least=0), count(given, "stale", 0, least=0)
    if not (probe == 0 or 1000 <= probe <= 120_000) or stale > 255:
        raise refused(OPTIONS)
    return [
        # Without a mode the throttler does not change stale_loss_cnt, so the comparison runs without it.
        Cell(mode, fault, outage, load, lost, probe, stale if mode != NONE else 0)
        for load, fault, lost, outage, mode in product(loads, faults, losts, outages, modes)
    ]
