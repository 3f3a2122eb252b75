# SPDX-License-Identifier: GPL-2.0-or-later
"""The aims of the experiment ``middleboxes``: complete downloads and a true status. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .aims import Aim

PLACES = {"ethernet": ("ethernet",), "wifi": ("wifi",), "both": ("ethernet", "wifi")}
"""The paths that have the middlebox. Connections open on Ethernet; Wi-Fi's subflow joins."""
OF_THE_REQUEST = ("alg-longer", "alg-shorter")
"""Behaviours that change only the request. It contains an address and uses the path on which connections open."""
SURVIVED = ("nothing", "nat", "sequence", "split-both", "split-first", "duplicate", "reorder")
"""Behaviours that MPTCP was designed to survive (RFC 8684, 3.7): both subflows carry data."""
ENDED_BY_KERNEL = ("split-second-later", "coalesce")
"""Behaviours after which the kernel (Linux 6.18) keeps the connection until the client closes it, even without a
throttler.

Data without a mapping arrives after data with one, when MPTCP may no longer fall back. The paper's kernel also failed
with the first behaviour.
"""
PAPER = {
    "nat": "Y, N",
    "remove-syn": "Y, Y",
    "remove-data": "Y, Y",
    "sequence": "Y, N",
    "split-both": "Y, N",
    "split-first": "Y, N",
    "split-second": "Y, Y",
    "split-second-later": "N, -",
    "coalesce": "Y, Y",
}
"""Table 1 of Hesmans et al., "successful, fallback": the results of Linux MPTCP 0.87 in 2013."""
SECONDS = 2.0
"""Longest time in seconds for which the status may differ from the kernel."""


@dataclass(frozen=True, slots=True)
class Look:
    """What kernel and status showed at one moment of a download, of connections to the proxy's port."""

    time: float
    """Seconds since the download began."""
    kernel: int
    """Established MPTCP subflows in the proxy's kernel."""
    status: int
    """Subflows that the status calls active."""
    capped: int
    """Number of these subflows that have a cap."""


@dataclass(frozen=True, slots=True)
class Download:
    """One download through a middlebox."""

    behaviour: str
    place: str
    whole: bool
    """Whether it ended, and its bytes equal the file's."""
    seconds: float
    fallbacks: int
    """Connections that became plain TCP, of client and proxy together, by the kernels' counters."""
    joins: int
    carried: Mapping[str, int]
    """Bytes received by the client, by path."""
    looks: Sequence[Look]
    changed: Mapping[str, int]
    """Packets that the middlebox changed, by path."""

    @property
    def boxed(self) -> int:
        """Packets that were changed on the paths with the behaviour."""
        return sum(self.changed[path] for path in PLACES[self.place])

    @property
    def unboxed(self) -> int:
        """Packets that were changed on paths where none should be."""
        return sum(self.changed.values()) - (0 if self.behaviour == "nothing" else self.boxed)

    @property
    def outcome(self) -> str:
        """What became of the connection, in words."""
        if not self.whole:
            return "failed"
        if max((look.kernel for look in self.looks), default=0) == 0:
            return "plain TCP"
        if self.fallbacks:
            return "fell back"
        return "two subflows" if self.two else "one subflow"

    @property
    def two(self) -> bool:
        """Whether each path carried more than 5 % of the bytes."""
        return min(self.carried.values(), default=0) > 0.05 * max(1, sum(self.carried.values()))

    @property
    def wrong(self) -> float:
        """Longest time in seconds for which status and kernel showed different numbers of subflows."""
        return longest(self.looks, [look.status != look.kernel for look in self.looks])

    @property
    def capped_alone(self) -> float:
        """Longest time in seconds for which a connection's only subflow had a cap."""
        return longest(self.looks, [look.capped > 0 and look.kernel < 2 for look in self.looks])


def longest(looks: Sequence[Look], held: Iterable[bool]) -> float:
    """Return the longest time in seconds from a look at which *held* is true to the next at which it is false."""
    most = 0.0
    since: float | None = None
    for look, holds in zip(looks, held, strict=True):
        if since is not None:
            most = max(most, look.time - since)
        since = None if not holds else look.time if since is None else since
    return most


def judge(downloads: Sequence[Download], behaviours: Collection[str], places: Collection[str]) -> list[Aim]:
    """Return the aims. Raises ValueError if a behaviour was not tried at every place, or a download has no look."""
    aims = []
    for behaviour in behaviours:
        found = [each for each in downloads if each.behaviour == behaviour]
        if sorted(each.place for each in found) != sorted(places) or not all(each.looks for each in found):
            raise ValueError(f"{behaviour}: not measured at every place")
        aims += [
            Aim(
                f"{behaviour}: downloads whole",
                sum(each.whole for each in found) / len(found),
                least=None if behaviour in ENDED_BY_KERNEL else 1,
            ),
            Aim(f"{behaviour}: status wrong", _worst(each.wrong for each in found), " s", most=SECONDS),
            Aim(f"{behaviour}: a lone subflow capped", _worst(each.capped_alone for each in found), " s", most=SECONDS),
        ]
        if behaviour != "nothing":
            concerned = [each for each in found if behaviour not in OF_THE_REQUEST or "ethernet" in PLACES[each.place]]
            least = min(each.boxed for each in concerned)
            aims.append(Aim(f"{behaviour}: packets changed by it, at the place with the fewest", least, least=1))
        aims.append(Aim(f"{behaviour}: packets changed elsewhere", sum(each.unboxed for each in found), most=0))
        if behaviour in SURVIVED:
            share = sum(each.outcome == "two subflows" for each in found) / len(found)
            aims.append(Aim(f"{behaviour}: both subflows used", share, least=1))
    if not aims:
        raise ValueError("nothing measured")
    return aims


def _worst(seconds: Iterable[float]) -> float:
    return max(seconds, default=math.inf)
