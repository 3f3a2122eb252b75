# SPDX-License-Identifier: GPL-2.0-or-later
"""Uplinks, and what the kernel must have for them. No I/O, no clock: times are seconds of the monotonic clock."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, NamedTuple

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Way(NamedTuple):
    """An uplink by one version of IP."""

    uplink: str
    version: int


@dataclass(frozen=True, slots=True)
class Access:
    """What an uplink has of one IP version, from DHCP, router advertisements or PPP."""

    device: str
    index: int
    """The kernel's index of the device."""
    address: Address
    network: Network | None
    """Of the address; None if it is a single address, as with PPP."""
    gateway: Address | None
    """None on a point-to-point device."""
    others: tuple[Address, ...] = field(default=(), compare=False)
    """The device's other global addresses: deprecated ones, temporary ones."""
    carrier: bool = field(default=True, compare=False)
    """False: the link is down, and the address is still there."""


@dataclass(frozen=True, slots=True)
class Lan:
    """The home network whose gateway this host is."""

    devices: tuple[str, ...]
    past_devices: tuple[Network, ...] = ()
    """Devices, destinations and ports (TCP, UDP) that bypass the forwarder and the tunnel."""
    past_destinations: tuple[Network, ...] = ()
    past_ports: tuple[int, ...] = ()
    tunnel: str = ""
    """A VPN's interface, for everything but TCP; empty: the best uplink carries it."""
    quic_refused: bool = True
    fail_open: bool = True


MARK_MASK: Final = 0x7C000000
"""Our bits of a mark, of packets and of connections (conntrack)."""
_MARK_SHIFT: Final = 26


class Mark(enum.IntEnum):
    """A packet's mark: it selects the table."""

    DELIVER = 1 << _MARK_SHIFT
    """To the forwarder."""
    TUNNEL = 2 << _MARK_SHIFT
    BEST = 3 << _MARK_SHIFT
    """The uplink on which connections begin."""


def uplink_mark(number: int) -> int:
    """Return the mark for the uplink of this number, from 0 on."""
    return (4 + number) << _MARK_SHIFT


class Goal(NamedTuple):
    """Address and port of a parent."""

    address: Address
    port: int


class Verdict(enum.Enum):
    """The result of a way's trials."""

    UNTRIED = "untried"
    GOOD = "good"
    """Parents answer by Multipath TCP."""
    PLAIN = "plain TCP"
    """Parents answer, and something on the way strips Multipath TCP."""
    DEAD = "no answer"


STALLS: Final = "packets of full size do not arrive: a path MTU that nobody tells of"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one trial."""

    verdict: Verdict
    rtt: float = 0.0
    """Seconds until the connection was established."""
    reason: str = ""
    """Why there was no answer, or what is remarkable about it."""
    unproven: bool = False
    """The way carried an answer, which does not show whether the parent serves by Multipath TCP."""
    goal: Goal | None = None
    """The address that answered."""
    thorough: bool = False
    """The trial also sent data."""
