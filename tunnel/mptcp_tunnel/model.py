"""Ends, paths and tunnels, as the daemon knows them. Times are nanoseconds of the monotonic clock."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

MOST_PATHS: Final = 8
"""Of a tunnel."""
MOST_TUNNELS: Final = 1024
"""Of a host."""
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


class Mode(enum.IntEnum):
    """How a path is chosen for a packet: ``enum mode`` of ``kernel/programs/tunnel.h``."""

    SPILL = 0
    """By which it arrives first, where a longer path's delay counts up to a bound."""
    ORDER = 1
    """The first whose queue is short."""
    WEIGHTS = 2
    """By fixed shares of the bytes."""
    ONE = 3
    """The first that lives."""


@dataclass(frozen=True, slots=True)
class Split:
    """How the packets of a tunnel are split over its paths."""

    mode: Mode = Mode.SPILL
    spill: int = 10_000_000
    """Nanoseconds: of SPILL, what a longer path's delay counts at most; of ORDER, what a queue may hold."""
    weights: tuple[int, ...] = ()
    """Of WEIGHTS, by path; 1 of one that is not in it."""
    queue: int = 30_000_000
    """Nanoseconds that packets may wait on a path before others are dropped; 0: any."""
    duplicate: bool = False
    """Packets that are light, or marked as expedited, go by two paths."""

    def share(self, path: int) -> float | None:
        """Return the fixed share of the bytes that goes by a path; None where that is not fixed."""
        if self.mode is not Mode.WEIGHTS:
            return None
        return (self.weights[path] if path < len(self.weights) else 1) / sum(self.weights)


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
    queue: int = 0
    """Nanoseconds that the last probe waited on the path."""
    class_id: int = 0
    """Handle of the HTB class in which its packets leave; 0: the interface's own choice."""


class PathCounters(NamedTuple):
    """What the programs counted of a path; bytes are those of IP packets."""

    sent_packets: int
    sent_bytes: int
    received_packets: int
    received_bytes: int
