# SPDX-License-Identifier: GPL-2.0-or-later
"""The downloads of the demo, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE

from .. import style


@dataclass(frozen=True, slots=True)
class DisplayedPath:
    """Device, label, colour and link rate (bits per second) of one path, in the terminal and in the picture."""

    device: str
    label: str
    color: str
    rate: int


ETHERNET = DisplayedPath("eth0", style.ETHERNET.label, style.ETHERNET.color, ETHERNET_RATE)
WIFI = DisplayedPath("wlan0", style.WIFI.label, style.WIFI.color, WIFI_RATE)
PATHS = (ETHERNET, WIFI)
PAYLOAD_SHARE = 0.94
"""Approximate share of payload in the bytes on a link. It is used only to choose the sizes of the files."""


@dataclass(frozen=True, slots=True)
class Part:
    """One download, and the rates that links and policy allow for it."""

    key: str
    name: str
    title: str
    subtitle: str
    seconds: float
    """Duration of the download if the links are full."""
    settle: float
    """Seconds from the download's start to the steady state."""
    allowed: Mapping[str, int]
    """Rate in bits per second that link and policy allow for each device. A device that is not listed must be idle."""
    source: str | None = None
    """Device to whose address the client binds; None for a download through the proxy by MPTCP."""
    capped: str | None = None
    """Device that the policy caps; None for a download without the throttler."""

    @property
    def multipath(self) -> bool:
        return self.source is None

    @property
    def size(self) -> int:
        """Size of the downloaded file in bytes."""
        return int(sum(self.allowed.values()) / 8 * PAYLOAD_SHARE * self.seconds)


def parts(cap: int) -> tuple[Part, ...]:
    """Return the downloads, first plain TCP as the reference. *cap* is the policy's cap for Ethernet in bits/s."""
    eth0, wlan0 = {"eth0": ETHERNET_RATE}, {"wlan0": WIFI_RATE}
    direct, proxied, capped = "straight to the origin", "MPTCP through the proxy", {"eth0": min(cap, ETHERNET_RATE)}
    policy = f"Ethernet {cap / 1e6:g} Mbit/s once two subflows are active"
    return (
        Part("tcp-ethernet", "TCP, Ethernet", "TCP over Ethernet", direct, 6, 1.0, eth0, "eth0"),
        Part("tcp-wifi", "TCP, Wi-Fi", "TCP over Wi-Fi", direct, 6, 1.0, wlan0, "wlan0"),
        Part("mptcp", "MPTCP", proxied, "no policy: both links at once", 9, 1.0, eth0 | wlan0),
        Part("mptcp-policy", "MPTCP, policy", f"{proxied} + policy", policy, 16, 5.0, capped | wlan0, capped="eth0"),
    )
