# SPDX-License-Identifier: GPL-2.0-or-later
"""The kinds of downloads in the experiment ``goodput``, and the aims for their rates. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product, starmap

from mptcp_lab.testbed.protocol import Protocol
from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE

from ..statistics import median
from .aims import Aim
from .payload import payload_share

LEAST, MOST = 0.95, 1.05
"""Least and most goodput, as a share of a link or a cap. A rate above the link's means that nothing shaped it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of download."""

    name: str
    file: str
    family: int = 4
    connect: bool = False
    policy: bool = False
    multipath: bool = True
    subflows: int = 2


def _two_subflows(policy: bool, connect: bool, family: int) -> Cell:
    name = f"{'CONNECT' if connect else 'GET'}, IPv{family}"
    file = "capped" if policy else "both"
    return Cell(f"policy, {name}" if policy else name, file, family, connect, policy)


CELLS = (
    *starmap(_two_subflows, product((False, True), (False, True), (4, 6))),
    Cell("policy, one subflow", "ethernet", policy=True, subflows=1),
    Cell("policy, plain TCP client", "ethernet", policy=True, multipath=False),
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One download, rates in bits/s: its goodput, and the steady rate on the wire of each path by device."""

    cell: Cell
    goodput: float
    steady: dict[str, float]
    digest_ok: bool
    protocol: Protocol


def void(cell: Cell, seen: Protocol) -> str | None:
    """Return why a download did not have the protocol that *cell* needs, so that it does not count; None if it did."""
    if seen.proxy_requested or seen.fallbacks:
        return f"{cell.name}: {seen.complaint(multipath=True)}"
    if seen.requested != (1 if cell.multipath else 0):
        return f"{cell.name}: the client asked for {seen.requested} MPTCP connections"
    if cell.multipath and seen.joins != cell.subflows - 1:
        return f"{cell.name}: {1 + seen.joins} subflows instead of {cell.subflows}"
    return None


def judge(measured: Sequence[Measurement], rounds: int, cap: int) -> list[Aim]:
    """Return the aims of all kinds of downloads after *rounds* rounds. *cap* is Ethernet's cap in bits/s."""
    aims = []
    for cell in CELLS:
        there = [m for m in measured if m.cell == cell]
        aims.append(Aim(f"{cell.name}: downloads", len(there), least=rounds))
        aims += _judge(cell, there, cap) if there else []
    return aims


def _judge(cell: Cell, measured: Sequence[Measurement], cap: int) -> list[Aim]:
    share = payload_share(cell.family, multipath=cell.multipath)
    goodput = median([m.goodput for m in measured])
    equal = Aim(f"{cell.name}: SHA-256 equal", float(all(m.digest_ok for m in measured)), least=1)
    if cell.policy and cell.subflows == 2 and cell.multipath:
        # Judge the worst round, not the median: a cap must hold in every round.
        ethernet, wifi = (
            max((m.steady[device] / due for m in measured), key=lambda ratio: abs(ratio - 1))
            for device, due in (("eth0", cap), ("wlan0", WIFI_RATE))
        )
        return [
            Aim(f"{cell.name}: Ethernet / its cap", ethernet, least=LEAST, most=MOST),
            Aim(f"{cell.name}: Wi-Fi / its link", wifi, least=LEAST, most=MOST),
            equal,
        ]
    links = ETHERNET_RATE + (WIFI_RATE if cell.subflows == 2 and cell.multipath else 0)
    ratio = goodput / (links * share)
    return [Aim(f"{cell.name}: goodput / payload of the links", ratio, least=LEAST, most=MOST), equal]
