# SPDX-License-Identifier: GPL-2.0-or-later
"""Emulated Ethernet and Wi-Fi with their faults, for several experiments; and a client's subflows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from ipaddress import ip_address

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.plan import tbf
from mptcp_lab.testbed.recorder import Recorder
from mptcp_lab.testbed.services import PROXY_PORT
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics

from .devices import DEVICES

QUEUE_MS = 50


def two_paths(rates: Sequence[int], rtts: Sequence[float]) -> list[EmulatedPath]:
    """Return Ethernet and Wi-Fi with *rates* in Mbit/s and *rtts* in milliseconds."""
    return [
        EmulatedPath(name, *[Direction(rate * 1_000_000, round(rtt * 500)) for _ in ("down", "up")])
        for name, rate, rtt in zip(("ethernet", "wifi"), rates, rtts, strict=True)
    ]


def hop_shaper(rate: float, device: str) -> list[str]:
    """Return the command that sets the rate of a node's device in Mbit/s."""
    return ["tc", "qdisc", "replace", "dev", device, "root", *tbf(round(rate * 1_000_000), QUEUE_MS)]


def dropping(router: LiveNode, statement: str = "drop") -> AbstractContextManager[None]:
    """Apply the nft(8) *statement* to each packet that *router* forwards, during the scope."""
    table = f"table inet fault {{ chain forward {{ type filter hook forward priority -10; {statement}; }}; }}"
    return router.changed(["nft", table], ["nft", "delete", "table", "inet", "fault"])


def one_subflow(testbed: Testbed) -> AbstractContextManager[None]:
    """Prevent the client from joining second subflows, during the scope."""
    limits = ["ip", "mptcp", "limits", "set", "add_addr_accepted", "8", "subflow"]
    return testbed["client"].changed([*limits, "0"], [*limits, "8"])


def slow_origin(testbed: Testbed, rate: int) -> AbstractContextManager[None]:
    """Limit the origin's sending rate to *rate* Mbit/s, during the scope."""
    return testbed["origin"].changed(hop_shaper(rate, "eth0"), ["tc", "qdisc", "del", "dev", "eth0", "root"])


def client_ends(proxy: LiveNode, addresses: Collection[str]) -> list[str]:
    """Return the client's address of each established subflow from one of the IPv4 *addresses* to *proxy*."""
    query = f"( sport = :{PROXY_PORT} and ( {' or '.join(f'dst {each}' for each in addresses)} ) )"
    listing = proxy.run(["ss", "-tnH", "state", "established", query]).stdout
    clients = [line.split()[3].rpartition(":")[0] for line in listing.splitlines()]
    return [client.strip("[]").removeprefix("::ffff:") for client in clients]


def upload_recorder(proxy: LiveNode, client: LiveNode, share: float = 1.0) -> Recorder:
    """Return a recorder of the payload that *proxy* received from each address of *client* (tcp_info), / *share*.

    If *share* is the payload's share of a packet, these are bytes on the wire.
    """
    clients = {device: ip_address(client.address(device)).packed for device in DEVICES}
    with proxy.entered():
        diagnostics = SocketDiagnostics((PROXY_PORT,))

    def read() -> dict[str, int]:
        with proxy.entered():
            received = {subflow.four_tuple.remote: subflow.bytes_received for subflow in diagnostics.subflows()}
        return {device: round(received.get(address, 0) / share) for device, address in clients.items()}

    return Recorder(proxy, DEVICES, read=read)
