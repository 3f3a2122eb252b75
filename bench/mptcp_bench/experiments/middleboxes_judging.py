# SPDX-License-Identifier: GPL-2.0-or-later
"""The aims of the experiment ``middleboxes``: complete downloads and a true status. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mptcp_lab.emulation.behaviours import BEHAVIOURS

from .columns import Column, Row, Table

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


Boxed = Row[str, Download]


def of_all(value: Callable[[Download], float]) -> Callable[[Boxed], list[float]]:
    """Return a function that finds *value* of the downloads at all places.

    The value is NaN, which meets no aim, if a place is missing, or if nobody looked at the status meanwhile.
    """

    def values(row: Boxed) -> list[float]:
        found = [each for place in PLACES for each in row.beside(place)]
        if len(found) == len(PLACES) and all(each.looks for each in found):
            return [value(each) for each in found]
        return [math.nan]

    return values


def _changed(row: Boxed) -> list[float]:
    """Return the packets that the middlebox changed at each place where it should change some."""
    of_request = row.cell in OF_THE_REQUEST
    return of_all(lambda each: math.inf if of_request and "ethernet" not in PLACES[each.place] else each.boxed)(row)


def _place(name: str) -> Column[str, Download]:
    """Return the column with what became of the connection with the middlebox at one place."""

    def text(row: Boxed) -> str:
        return "".join(f"{each.outcome}, {each.seconds:.1f} s" for each in row.beside(name)) or "void"

    return Column(name, lambda row: [], text=text)


TABLE: Table[str, Download] = Table(
    "What became of the connection",
    (
        *map(_place, PLACES),
        Column("paper: successful, fallback", lambda row: [], text=lambda row: PAPER.get(row.cell, "")),
        Column("", of_all(lambda each: each.whole), aim="downloads whole",
               least=lambda row: None if row.cell in ENDED_BY_KERNEL else 1),
        Column("", of_all(lambda each: each.wrong), by="most", aim="status wrong", unit=" s", most=SECONDS),
        Column("", of_all(lambda each: each.capped_alone), by="most", aim="a lone subflow capped", unit=" s",
               most=SECONDS),
        Column("", _changed, by="least", aim="packets changed by it, at the place with the fewest", least=1,
               judged=lambda row: row.cell != "nothing"),
        Column("", of_all(lambda each: each.unboxed), by="sum", aim="packets changed elsewhere", most=0),
        Column("", of_all(lambda each: each.outcome == "two subflows"), aim="both subflows used", least=1,
               judged=lambda row: row.cell in SURVIVED),
    ),
    (("behaviour", lambda row: BEHAVIOURS[row.cell]),),
    # A row is of a behaviour, at all places.
    of=lambda row: row.variant == next(iter(PLACES)),
)  # fmt: skip
