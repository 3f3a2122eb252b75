# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo's downloads as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE

from .. import style
from ..displayed_path import DisplayedPath

ETHERNET = DisplayedPath("eth0", style.ETHERNET.label, style.ETHERNET.color, ETHERNET_RATE)
WIFI = DisplayedPath("wlan0", style.WIFI.label, style.WIFI.color, WIFI_RATE)
PATHS = (ETHERNET, WIFI)
PAYLOAD_SHARE = 0.94
"""Share of payload on the links, only to choose the downloads' sizes."""


@dataclass(frozen=True, slots=True)
class Part:
    """One download, and what links and policy allow."""

    key: str
    name: str
    title: str
    subtitle: str
    seconds: float
    """Duration with filled links."""
    settle: float
    """Seconds from the start to the steady state."""
    allowed: Mapping[str, int]
    """Bits per second by device, by link and policy; a missing device must be idle."""
    source: str | None = None
    """Device whose address the client binds; None: through the proxy by MPTCP."""
    capped: str | None = None
    """Device that the policy caps; None: without the throttler."""

    @property
    def multipath(self) -> bool:
        return self.source is None

    @property
    def size(self) -> int:
        """Bytes of its file."""
        return int(sum(self.allowed.values()) / 8 * PAYLOAD_SHARE * self.seconds)


def parts(cap: int) -> tuple[Part, ...]:
    """Return the downloads, plain TCP as the reference first; *cap* is what the policy leaves Ethernet, bits/s."""
    both = {ETHERNET.device: ETHERNET_RATE, WIFI.device: WIFI_RATE}
    straight = "straight to the origin"
    return (
        Part("tcp-ethernet", "TCP, Ethernet", "TCP over Ethernet", straight, 6, 1.0, {"eth0": ETHERNET_RATE}, "eth0"),
        Part("tcp-wifi", "TCP, Wi-Fi", "TCP over Wi-Fi", straight, 6, 1.0, {"wlan0": WIFI_RATE}, "wlan0"),
        Part("mptcp", "MPTCP", "MPTCP through the proxy", "no policy: both links at once", 9, 1.0, both),
        Part(
            "mptcp-policy",
            "MPTCP, policy",
            "MPTCP through the proxy + policy",
            f"Ethernet {cap / 1e6:g} Mbit/s once two subflows are active",
            16,
            5.0,
            {**both, "eth0": min(cap, ETHERNET_RATE)},
            capped=ETHERNET.device,
        ),
    )
