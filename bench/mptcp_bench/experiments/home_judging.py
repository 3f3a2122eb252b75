# SPDX-License-Identifier: GPL-2.0-or-later
"""The aims for a relay that is a home's gateway. Pure.

A device's connections go one of three ways. ``nat``: a router with address translation, over the best uplink.
``forwarder``: our forwarder. ``squid``: Debian's Squid, to whose ``intercept`` ports connections are redirected, with
the same parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..statistics import median
from .aims import Aim

WAYS = ("nat", "forwarder", "squid")
PROCESSING = 5.0
"""Most milliseconds that a relay may add to the round trip to its parent, which is 0 here."""
DEVICES = 300


@dataclass(slots=True)
class Measured:
    """The values of all runs, by quantity and way: Mbit/s, milliseconds, seconds, or counts."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, what: str, way: str, value: float) -> None:
        self.values.setdefault(what, {}).setdefault(way, []).append(value)


def judge(values: Mapping[str, Mapping[str, Sequence[float]]], runs: Mapping[str, int]) -> list[Aim]:
    """Return the aims of the parts in *runs*, which maps each to its planned runs. Raises ValueError for no values."""
    aims: list[Aim] = []
    for part, count in runs.items():
        made = len(next(iter(values[part].values()))) if values.get(part) else 0
        aims.append(Aim(f"{part}: runs", made, least=count))
        aims += PARTS[part](values[part]) if made else []
    return aims


def _goodput(of: Mapping[str, Sequence[float]]) -> list[Aim]:
    both = sum(median(values) for uplink, values in of.items() if uplink not in WAYS)
    return [
        Aim("goodput by the forwarder / both uplinks alone", median(of["forwarder"]) / both, least=0.9, most=1.05),
        Aim("goodput by Squid / both uplinks alone", median(of["squid"]) / both),
    ]


def _first(name: str, of: Mapping[str, Sequence[float]]) -> list[Aim]:
    added = {way: median(of[way]) - median(of["nat"]) for way in ("forwarder", "squid")}
    return [
        Aim(f"{name}: added by the forwarder", added["forwarder"], "ms", most=PROCESSING),
        Aim(f"{name}: added by Squid", added["squid"], "ms"),
    ]


def _outage(of: Mapping[str, Sequence[float]]) -> list[Aim]:
    return [
        Aim("silent first uplink: a living download pauses", max(of["pause"]), "s", most=3.0),
        Aim("silent first uplink: the first new request takes", max(of["request"]), "s", most=4.0),
        Aim("silent first uplink: all later ones take", max(of["later"]), "s", most=0.5),
        Aim("it is back: the living download uses it after", max(of["back"]), "s", most=10.0),
    ]


def _killed(of: Mapping[str, Sequence[float]]) -> list[Aim]:
    return [Aim("forwarder killed: the next request is answered after", max(of["answered"]), "s", most=2.0)]


def _crowd(of: Mapping[str, Sequence[float]]) -> list[Aim]:
    return [
        Aim(f"{DEVICES} devices at once: answered", min(of["answered"]), least=DEVICES, most=DEVICES),
        Aim(f"{DEVICES} devices at once: past the parent", max(of["direct"]), most=0),
        Aim(f"{DEVICES} devices at once: the last after", median(of["seconds"]), "s"),
    ]


def _cost(of: Mapping[str, Sequence[float]]) -> list[Aim]:
    machine = {way: median(of[f"{way}, machine"]) for way in WAYS}
    ours, squid = (median(of[f"{way}, process"]) for way in ("forwarder", "squid"))
    return [
        Aim("a GB by the forwarder: seconds of its process / of Squid's", ours / squid, most=1.2),
        Aim("a GB by the forwarder: seconds of its process", ours, "s"),
        Aim("a GB by the forwarder: seconds of the machine beyond NAT's", machine["forwarder"] - machine["nat"], "s"),
        Aim("a GB by Squid: seconds of the machine beyond NAT's", machine["squid"] - machine["nat"], "s"),
    ]


PARTS = {
    "goodput": _goodput,
    "first byte": lambda of: _first("first byte of HTTPS", of),
    "banner": lambda of: _first("first byte where the server speaks first", of),
    "outage": _outage,
    "killed": _killed,
    "crowd": _crowd,
    "cost": _cost,
}
