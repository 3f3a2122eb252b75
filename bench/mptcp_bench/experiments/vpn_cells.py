# SPDX-License-Identifier: GPL-2.0-or-later
"""The ways to carry a VPN that ``vpn-…`` and ``tunnel`` compare, the paths, and the measured values. Pure.

The experiments repeat "Multipath Transport for Virtual Private Networks" (Lukaszewski, Xie). The paper's Multipath UDP
splits at random, without a resequencer. Our tunnel (docs/tunnel.md) and OpenVPN over MPTCP are measured as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mptcp_lab.emulation.model import Direction, EmulatedPath, GilbertElliott, UniformLoss

RATE = 10_000_000
"""Rate of each path in each direction, in bits/s."""
FILE_BYTES = 16_000_000
"""Size of the downloaded file."""
GOOD_LOSS = {"ge1": 0.0, "ge2": 0.005, "ge3": 0.01, "ge7": 0.03}
"""1 - k of the paper's Table 1. The names contain the percentage of lost pings, which cross a path twice."""
LOSSES = ("0", "0.1", "1", "3", *GOOD_LOSS)
"""Losses as percentages of the packets, in each direction. ``ge…`` are Gilbert-Elliott losses."""
CONTROLS = ("cubic", "bbr")
OVER_TCP = ("tcp", "mptcp", "ports")
MAX_SHARE_ERROR, MAX_UNUSED_SHARE = 0.08, 0.01
"""Maximum difference between the second path's share of a download and its fixed share; the same for a fixed share of 0
or 1."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to carry the VPN's packets over one path or both."""

    title: str
    joined: int = 0
    """Number of subflows besides the first."""
    share: float | None = None
    """Fixed share of the packets that use the second path; None if the share is not fixed."""
    ours: bool = False

    @property
    def uses_both_paths(self) -> bool:
        return self.share not in (0.0, 1.0)


WAYS: Mapping[str, Way] = {
    "tcp": Way("TCP, one path", share=0.0),
    "mptcp": Way("Multipath TCP, fullmesh", joined=1),
    "ports": Way("Multipath TCP, two endpoints on one path", joined=1, share=0.0),
    "udp": Way("UDP, one path", share=0.0),
    "udp b": Way("UDP, the second path", share=1.0),
    "50/50": Way("Multipath UDP, 50/50", share=0.5),
    "75/25": Way("Multipath UDP, 75/25", share=0.25),
    "90/10": Way("Multipath UDP, 90/10", share=0.1),
    "weights 50/50": Way("ours, mode weights, 50/50", share=0.5, ours=True),
    "weights 75/25": Way("ours, mode weights, 75/25", share=0.25, ours=True),
    "weights 90/10": Way("ours, mode weights, 90/10", share=0.1, ours=True),
    "tunnel": Way("ours, mptcp-tunnel", ours=True),
}


@dataclass(frozen=True, slots=True)
class Vpn:
    """A way, and the congestion control of the VPN's own connection; empty if the VPN uses UDP."""

    way: str
    outer: str = ""

    def __str__(self) -> str:
        return WAYS[self.way].title + (f", {self.outer} outside" if self.outer else "")


def vpns(ways: Iterable[str], outer: Sequence[str]) -> dict[str, Vpn]:
    """Return all combinations of ways and outer congestion controls, by name. A way over UDP has no such control."""
    combinations = [Vpn(way, control) for way in ways for control in (outer if way in OVER_TCP else ("",))]
    return {str(vpn): vpn for vpn in combinations}


VPNS = vpns(WAYS, CONTROLS)


@dataclass(frozen=True, slots=True)
class PathPair:
    """Two paths. *rates* are in Mbit/s, *rtts* and *jitter* in ms. *losses* apply in both directions."""

    rates: tuple[int, int]
    rtts: tuple[float, float] = (20, 20)
    losses: tuple[GilbertElliott | None, GilbertElliott | None] = (None, None)
    jitter: int = 0

    def __str__(self) -> str:
        return f"{self.rates[0]} + {self.rates[1]}, {self.rtts[0]}/{self.rtts[1]} ms"

    def paths(self) -> list[EmulatedPath]:
        """Return the paths as a testbed needs them."""
        return [
            EmulatedPath(name, *[Direction(rate * 1_000_000, round(rtt * 500), self.jitter * 1000, loss)] * 2)
            for name, rate, rtt, loss in zip(
                ("primary", "secondary"), self.rates, self.rtts, self.losses, strict=True
            )
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Condition:
    """RTTs of both paths in milliseconds, the loss of both, which is one of :data:`LOSSES`, and the downloads."""

    first: float
    second: float
    loss: str = "0"
    inner: tuple[str, ...] = ("cubic",)
    """The congestion controls of the downloads through each VPN."""

    def __str__(self) -> str:
        return f"{self.first:g}/{self.second:g} ms, loss {self.loss}"

    @property
    def paths(self) -> list[EmulatedPath]:
        """Both paths. The loss is in both directions, because the paper's losses are those of pings."""
        return PathPair((RATE // 1_000_000,) * 2, (self.first, self.second), (loss_of(self.loss),) * 2).paths()


def loss_of(name: str) -> GilbertElliott | None:
    """Return the loss model with this *name*; None for no loss."""
    if name in GOOD_LOSS:
        return GilbertElliott(0.01, 0.75, 0.5, GOOD_LOSS[name])
    return UniformLoss(float(name) / 100) if float(name) else None


@dataclass(frozen=True, slots=True)
class Point:
    """The measured values of one download."""

    goodput: float
    """Goodput in bits per second."""
    second: float
    """Share of the received bytes that used the second path."""
    joined: int
    """Number of subflows of the VPN's connection besides the first."""
    fallbacks: int
    """Number of MPTCP connections that became plain TCP."""


def wrong(vpn: Vpn, point: Point) -> str | None:
    """Return how the VPN of a download was carried, if this differs from *vpn*; otherwise None."""
    way = WAYS[vpn.way]
    if (point.joined, point.fallbacks) != (way.joined, 0):
        return f"{vpn}: {point.joined} subflows joined, {point.fallbacks} connections fell back to plain TCP"
    if way.share is not None and abs(point.second - way.share) > (
        MAX_SHARE_ERROR if way.uses_both_paths else MAX_UNUSED_SHARE
    ):
        return f"{vpn}: the second path has {point.second:.0%} of the bytes"
    return None
