"""Uplinks, and what the kernel is to have for them. No I/O, no clock: times are seconds of the monotonic clock."""

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
    """What an uplink has of one IP version, as DHCP, router advertisements or PPP left it."""

    device: str
    index: int
    """The kernel's number of the device."""
    address: Address
    network: Network | None
    """That the address belongs to; None where it is alone, as with PPP."""
    gateway: Address | None
    """None: on a device to one other host."""
    others: tuple[Address, ...] = field(default=(), compare=False)
    """The device's other global addresses: deprecated ones, temporary ones."""
    carrier: bool = field(default=True, compare=False)
    """False: the link is down, and the address is still there."""


@dataclass(frozen=True, slots=True)
class Lan:
    """The home network, of whose devices this host is the gateway."""

    devices: tuple[str, ...]
    """Interfaces that lead there."""
    past_devices: tuple[Network, ...] = ()
    """Devices, destinations and ports of TCP and UDP that go past the forwarder and the tunnel."""
    past_destinations: tuple[Network, ...] = ()
    past_ports: tuple[int, ...] = ()
    tunnel: str = ""
    """A VPN's interface, by which goes what is not TCP; empty: by the best uplink."""
    quic_refused: bool = True
    fail_open: bool = True


MARK_MASK: Final = 0x7C000000
"""The bits of a mark that are ours, of packets and of connections (conntrack)."""
_MARK_SHIFT: Final = 26


class Mark(enum.IntEnum):
    """Of packets: by which table they leave."""

    DELIVER = 1 << _MARK_SHIFT
    """To the forwarder."""
    TUNNEL = 2 << _MARK_SHIFT
    BEST = 3 << _MARK_SHIFT
    """The uplink on which connections begin."""


def uplink_mark(number: int) -> int:
    """Return the mark for the uplink of this number, from 0 on."""
    return (4 + number) << _MARK_SHIFT


class Goal(NamedTuple):
    """Where a parent is reached."""

    address: Address
    port: int


class Verdict(enum.Enum):
    """What trials say of a way."""

    UNTRIED = "untried"
    GOOD = "good"
    """Parents answer by Multipath TCP."""
    PLAIN = "plain TCP"
    """They answer, and something on the way strips Multipath TCP."""
    DEAD = "no answer"


STALLS: Final = "packets of full size do not arrive: a path MTU that nobody tells of"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one trial."""

    verdict: Verdict
    rtt: float = 0.0
    """Seconds until the connection stood."""
    reason: str = ""
    """Why there was no answer, or what is remarkable about it."""
    unproven: bool = False
    """An answer came over the way; whether the parent serves by Multipath TCP it does not say."""
    goal: Goal | None = None
    """Which answered."""
    thorough: bool = False
    """Data were sent, too."""
