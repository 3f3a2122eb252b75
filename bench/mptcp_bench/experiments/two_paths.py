# SPDX-License-Identifier: GPL-2.0-or-later
"""Emulated Ethernet and Wi-Fi with their faults, as most experiments use them; and a client's subflows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.plan import tbf
from mptcp_lab.testbed.services import PROXY_PORT

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


def client_ends(proxy: LiveNode, addresses: Collection[str]) -> list[str]:
    """Return the client's address of each established subflow from one of *addresses* to *proxy*."""
    # Let the kernel filter, because the proxy may have thousands of other subflows.
    ends = " or ".join(f"dst {f'[{each}]' if ':' in each else each}" for each in addresses)
    wanted = f"( sport = :{PROXY_PORT} and ( {ends} ) )"
    return peers(proxy.run(["ss", "-tnH", "state", "established", wanted]).stdout)


def peers(listing: str) -> list[str]:
    """Return the peers' addresses in the output of ``ss -tnH state established``; IPv4-mapped ones as IPv4."""
    ends = [line.split()[3].rpartition(":")[0] for line in listing.splitlines()]
    return [end.partition("%")[0].strip("[]").removeprefix("::ffff:") for end in ends]
