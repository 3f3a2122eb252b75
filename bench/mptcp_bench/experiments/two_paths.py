# SPDX-License-Identifier: GPL-2.0-or-later
"""Emulated Ethernet and Wi-Fi, and faults of them, as most experiments use them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.plan import tbf

QUEUE_MS = 50


def two_paths(rates: Sequence[int], rtts: Sequence[float]) -> list[EmulatedPath]:
    """Return Ethernet and Wi-Fi with *rates* in Mbit/s and *rtts* in milliseconds."""
    return [
        EmulatedPath(name, *[Direction(rate * 1_000_000, round(rtt * 500)) for _ in ("down", "up")])
        for name, rate, rtt in zip(("ethernet", "wifi"), rates, rtts, strict=True)
    ]


def hop_shaper(rate: float, device: str) -> list[str]:
    """Return the command that sets a hop's rate in Mbit/s."""
    return ["tc", "qdisc", "replace", "dev", device, "root", *tbf(round(rate * 1_000_000), QUEUE_MS)]


def dropping(router: LiveNode, statement: str = "drop") -> AbstractContextManager[None]:
    """Apply the nft(8) *statement* to each packet that *router* forwards, during the scope."""
    table = f"table inet fault {{ chain forward {{ type filter hook forward priority -10; {statement}; }}; }}"
    return router.changed(["nft", table], ["nft", "delete", "table", "inet", "fault"])


def wifi_dropping(testbed: Testbed, statement: str = "drop") -> AbstractContextManager[None]:
    return dropping(testbed["hop2"], statement)


def slow_wifi(testbed: Testbed, device: str, slow: float, fast: float) -> AbstractContextManager[None]:
    """Limit Wi-Fi's router to *slow*, not *fast*, Mbit/s on *device*: ``lan`` for downloads, ``wan`` for uploads."""
    return testbed["hop2"].changed(hop_shaper(slow, device), hop_shaper(fast, device))


def one_subflow(testbed: Testbed) -> AbstractContextManager[None]:
    """Prevent the client from joining second subflows, during the scope."""
    limits = ["ip", "mptcp", "limits", "set", "add_addr_accepted", "8", "subflow"]
    return testbed["client"].changed([*limits, "0"], [*limits, "8"])


def slow_origin(testbed: Testbed, rate: int) -> AbstractContextManager[None]:
    """Limit the origin's sending rate to *rate* Mbit/s, during the scope."""
    slow = ["tc", "qdisc", "replace", "dev", "eth0", "root", *tbf(rate * 1_000_000, QUEUE_MS)]
    return testbed["origin"].changed(slow, ["tc", "qdisc", "del", "dev", "eth0", "root"])
