# SPDX-License-Identifier: GPL-2.0-or-later
"""The virtual device, and the routes that direct a tunnel's packets to it. rtnetlink(7).

Names and numbers are fixed, so that a starting daemon can remove the objects that a killed daemon left.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Hashable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from mptcp_common.kernel_error import KernelError
from mptcp_common.reasons import reason
from mptcp_tunnel.model import Address, End

DEVICE: Final = "mptcp-udp"
_PEER_DEVICE: Final = "mptcp-udp-end"
ADDRESSES: Final = (ip_address("198.18.0.1"), ip_address("fd6d:7074:6370::1"))
"""Addresses of the device; tunnel programs send from them. 198.18.0.0/15 is reserved for tests of network devices (RFC
2544), so no uplink has it; the IPv6 address is in the project's unique local prefix (RFC 4193)."""
_FAR_4, _FAR_6 = ip_address("198.18.4.0"), ip_address("fd6d:7074:6370::1:0")
"""First addresses of the ranges that represent relays. There are at most 1,024 relays."""
TABLE: Final = 7712
PREFERENCE: Final = 7712
MTU: Final = 1500


def far_end(number: int, port: int, version: int) -> End:
    """Return the address and port that represent, for the tunnel program, the other end of a proxy's tunnel
    *number*."""
    return End((_FAR_4 if version == 4 else _FAR_6) + number, port)


def near_end(port: int, version: int) -> End:
    """Return the address and port from which the local tunnel program sends."""
    return End(ADDRESSES[0 if version == 4 else 1], port)


def index_of(interface: str) -> int:
    """Return the index of an interface. Raises KernelError."""
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        raise KernelError(f"{interface} does not exist") from None


class Network:
    """The device, its addresses, routes and rules in one network namespace."""

    def __init__(self) -> None:
        self._route = IPRoute()
        self._rules: dict[Hashable, dict[str, Any]] = {}

    def close(self) -> None:
        self._route.close()

    def create(self) -> tuple[int, bytes]:
        """Remove the objects that a killed daemon left, create the device, and return its index and MAC address. Raises
        KernelError."""
        self.remove()
        try:
            self._route.link("add", ifname=DEVICE, kind="veth", peer={"ifname": _PEER_DEVICE}, mtu=MTU)
            index, peer_index = index_of(DEVICE), index_of(_PEER_DEVICE)
            # ARP is not needed: packets are redirected before they need a link-layer address.
            self._route.link("set", index=index, flags=_IFF_NOARP, change=_IFF_NOARP)
            # With this limit, the kernel splits bundles of packets (UDP GSO) before they reach the device's other end.
            self._route.link("set", index=index, gso_max_segs=1)
            self._set_addresses(index, peer_index)
        except NetlinkError as error:
            raise KernelError(f"create the device {DEVICE}: {reason(error)}") from error
        # The joiner redirects packets from other devices to this device, so packets must be accepted if any route leads
        # to their sender (RFC 3704, loose reverse path).
        with suppress(OSError):
            Path(f"/proc/sys/net/ipv4/conf/{DEVICE}/rp_filter").write_text("2", encoding="ascii")
        return index, bytes.fromhex(self._attribute(index, "IFLA_ADDRESS").replace(":", ""))

    def route_to_device(self, end: End, port: int) -> None:
        """Route UDP packets that go from *port* to *end* to the device. Raises KernelError."""
        self._rules[end, port] = {
            "family": socket.AF_INET if end.address.version == 4 else socket.AF_INET6,
            "dst": str(end.address),
            "dst_len": end.address.max_prefixlen,
            "ip_proto": socket.IPPROTO_UDP,
            "sport_range": f"{port}:{port}",
            "dport_range": f"{end.port}:{end.port}",
        }
        self._add_rule(self._rules[end, port])

    def remove(self) -> None:
        """Remove the device with its routes, and the rules."""
        for family in (socket.AF_INET, socket.AF_INET6):
            with suppress(NetlinkError):
                self._route.flush_rules(priority=PREFERENCE, family=family)
        with suppress(NetlinkError):
            if found := self._route.link_lookup(ifname=DEVICE):
                self._route.link("del", index=found[0])

    def route_far_ends(self, version: int) -> None:
        """Let packets whose destination represents a relay go to the device. One rule suffices for all relays. Raises
        KernelError."""
        base, length = (_FAR_4, 22) if version == 4 else (_FAR_6, 118)
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        self._rules[version] = {"family": family, "dst": str(base), "dst_len": length}
        self._add_rule(self._rules[version])

    def repair(self, index: int) -> None:
        """Restore rules and routes that other programs (such as systemd-networkd) removed. Raises KernelError."""
        if index_of(DEVICE) != index:
            raise KernelError(f"{DEVICE} was replaced by another device")
        try:
            self._set_addresses(index, index_of(_PEER_DEVICE))
        except NetlinkError as error:
            raise KernelError(f"restore the device {DEVICE}: {reason(error)}") from error
        for rule in self._rules.values():
            self._add_rule(rule)

    def _set_addresses(self, index: int, peer_index: int) -> None:
        """Bring both devices up, and set addresses and routes. Raises NetlinkError."""
        for each in (index, peer_index):
            self._route.link("set", index=each, state="up")
        for address in ADDRESSES:
            length = 32 if address.version == 4 else 128
            try:
                self._route.addr("add", index=index, address=str(address), prefixlen=length, flags=_IFA_F_NODAD)
            except NetlinkError as error:
                if error.code != errno.EEXIST:
                    raise
            self._route_to(index, None, address)

    def _add_rule(self, rule: dict[str, Any]) -> None:
        try:
            self._route.rule("add", table=TABLE, priority=PREFERENCE, **rule)
        except NetlinkError as error:
            if error.code != errno.EEXIST:
                raise KernelError(f"route packets to {rule['dst']} to {DEVICE}: {reason(error)}") from error

    def _route_to(self, index: int, to: Address | None, source: Address) -> None:
        family = socket.AF_INET if source.version == 4 else socket.AF_INET6
        destination: dict[str, Any] = {"dst": "default"} if to is None else {"dst": str(to)}
        self._route.route(
            "replace", table=TABLE, oif=index, family=family, prefsrc=str(source), scope=_SCOPE_LINK, **destination
        )

    def _attribute(self, index: int, name: str) -> str:
        (link,) = self._route.get_links(index)
        return str(link.get_attr(name))


_IFF_NOARP, _IFA_F_NODAD = 0x80, 0x02
_SCOPE_LINK = 253
