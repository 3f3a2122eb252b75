# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's model of ends, paths and tunnels. Times are nanoseconds of the monotonic clock."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

MAX_PATHS: Final = 8
MAX_TUNNELS: Final = 1024
MAGIC: Final = 0xF4
"""First byte of probes and answers. No packet of WireGuard (1 to 4) or OpenVPN (an opcode << 3, up to 0x5f) begins with
it."""

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
    """How a path is chosen for a packet; the values are those of ``enum mode`` in ``kernel/programs/tunnel.h``."""

    SPILL = 0
    """The path on which the packet would arrive first. Of a path's additional delay, at most ``Split.spill`` is
    counted."""
    ORDER = 1
    """The first path whose queue is short."""
    WEIGHTS = 2
    """Paths by fixed shares of the bytes."""
    ONE = 3
    """The first path that is alive."""


@dataclass(frozen=True, slots=True)
class Split:
    """How to split a tunnel's packets over its paths."""

    mode: Mode = Mode.SPILL
    spill: int = 10_000_000
    """Nanoseconds. For SPILL: the maximum additional delay of a path that is counted. For ORDER: the queue above which
    the next path is used."""
    spill_share: float = 0.0
    """For SPILL: the daemon uses this share of the greatest difference between the paths' delays instead of
    ``spill``, if the share is greater."""
    weights: tuple[int, ...] = ()
    """Weights for WEIGHTS, by path; a path without a weight has 1."""
    queue: int = 30_000_000
    """Maximum queue of a path, nanoseconds, above which packets are dropped; 0 means no maximum."""
    duplicate: bool = False
    """Whether small packets, and packets marked as expedited, are sent on two paths."""

    def spill_limit(self, delay: int) -> int:
        """Return the limit ``spill`` if *delay*, nanoseconds, is the greatest difference between the paths' delays."""
        return max(self.spill, round(self.spill_share * delay))

    def share(self, path: int) -> float | None:
        """Return a path's fixed share of the bytes; None in other modes."""
        if self.mode is not Mode.WEIGHTS:
            return None
        return (self.weights[path] if path < len(self.weights) else 1) / sum(self.weights)


class PathState(NamedTuple):
    """The state of a path for the splitter."""

    outside: Ends
    """Ends of the UDP flow on this path, outside the tunnel."""
    interface: int
    """Index of the uplink."""
    next_hop: Address
    """The gateway's address, or the remote end's address if it is on the link."""
    alive: bool = True
    rate: float = 10e6
    """Bits/s."""
    delay: int = 0
    """Delay beyond that of the path with the smallest delay, nanoseconds."""
    queue: int = 0
    """Nanoseconds that the last probe waited on the path."""
    class_id: int = 0
    """HTB class of the path's packets; 0 means that the interface's qdisc chooses it."""


class PathCounters(NamedTuple):
    """A path's counters in the programs; bytes are those of IP packets."""

    sent_packets: int
    sent_bytes: int
    received_packets: int
    received_bytes: int
