"""Ends, paths and tunnels, as the daemon knows them. Times are nanoseconds of the monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

MOST_PATHS: Final = 8
"""Of a tunnel."""
MAGIC: Final = 0xF4
"""First byte of probes and answers: neither WireGuard (1 to 4) nor OpenVPN (an opcode << 3, to 0x5f) begins with it."""

Address = IPv4Address | IPv6Address


class End(NamedTuple):
    """One end of a UDP flow."""

    address: Address
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if self.address.version == 6 else f"{self.address}:{self.port}"


class Ends(NamedTuple):
    """Both ends of a UDP flow, as this host sees it."""

    local: End
    remote: End


@dataclass(frozen=True, slots=True)
class PathState:
    """What the splitter is told of a path."""

    outside: Ends
    interface: int
    """Index of the uplink."""
    next_hop: Address
    """The gateway's address, or that of the remote end where it is on the link."""
    alive: bool = True
    rate: float = 10e6
    """Bits/s."""
    delay: int = 0
    """Nanoseconds beyond that of the path with the least."""
    room: int = 100_000_000
    """Nanoseconds that its virtual queue may hold."""
    queue: int = 0
    """Nanoseconds that the last probe waited on the path."""


class PathCounters(NamedTuple):
    """What the programs counted of a path; bytes are those of IP packets."""

    sent_packets: int
    sent_bytes: int
    received_packets: int
    received_bytes: int
