# SPDX-License-Identifier: GPL-2.0-or-later
"""Uplinks, their state, and the results of trials. No I/O, no clock: times are seconds of the monotonic clock."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, NamedTuple

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Way(NamedTuple):
    """One way to the Internet: an uplink, used with one version of IP."""

    uplink: str
    version: int


@dataclass(frozen=True, slots=True)
class Access:
    """An uplink's addresses and gateway of one IP version, from DHCP, router advertisements or PPP."""

    device: str
    index: int
    """The kernel's index of the device."""
    address: Address
    network: Network | None
    """The network of the address; None if it is a single address, as with PPP."""
    gateway: Address | None
    """The gateway's address; None on a point-to-point device."""
    other_addresses: tuple[Address, ...] = field(default=(), compare=False)
    """The device's other global addresses, for example deprecated or temporary addresses."""
    carrier: bool = field(default=True, compare=False)
    """Whether the link is up. The address may remain while it is down."""


@dataclass(frozen=True, slots=True)
class Lan:
    """The home network for which this host is the gateway."""

    devices: tuple[str, ...]
    exempt_devices: tuple[Network, ...] = ()
    exempt_destinations: tuple[Network, ...] = ()
    exempt_ports: tuple[int, ...] = ()
    """Ports of TCP and UDP that bypass the forwarder and the tunnel, as the exempt devices and destinations do."""
    tunnel: str = ""
    """Interface of a VPN that carries all packets except TCP; if empty, the best uplink carries them."""
    quic_refused: bool = True
    fail_open: bool = True


MARK_MASK: Final = 0x7C000000
"""The bits of packet and connection (conntrack) marks that the gateway uses."""
_MARK_SHIFT: Final = 26


class Mark(enum.IntEnum):
    """Marks of packets; a mark selects the routing table."""

    DELIVER = 1 << _MARK_SHIFT
    """Packets for the forwarder."""
    TUNNEL = 2 << _MARK_SHIFT
    BEST = 3 << _MARK_SHIFT
    """Packets for the uplink on which connections begin."""


def uplink_mark(number: int) -> int:
    """Return the mark for the uplink of this number, counted from 0."""
    return (4 + number) << _MARK_SHIFT


class ParentAddress(NamedTuple):
    """Address and port of a parent."""

    address: Address
    port: int


class Verdict(enum.Enum):
    """The result of a way's trials."""

    UNTRIED = "untried"
    GOOD = "good"
    """Parents answer over Multipath TCP."""
    PLAIN = "plain TCP"
    """Parents answer, but a device on the path removes the Multipath TCP options."""
    DEAD = "no answer"


STALLS: Final = "full-sized packets do not arrive: a router drops them without an error"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one trial."""

    verdict: Verdict
    rtt: float = 0.0
    """Seconds until the connection was established."""
    reason: str = ""
    """Why there was no answer, or a remark about the answer."""
    unproven: bool = False
    """Whether an answer arrived that does not show whether the way carries Multipath TCP."""
    target: ParentAddress | None = None
    """The address that answered."""
    thorough: bool = False
    """Whether the trial also sent data."""
