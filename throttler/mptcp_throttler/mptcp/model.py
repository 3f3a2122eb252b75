# SPDX-License-Identifier: GPL-2.0-or-later
"""The tracker's input and output: segments, kernel records, connections, subflows, events.

Addresses are 4 or 16 packed bytes in network order, because every segment hashes and compares them. An IPv4-mapped IPv6
address (::ffff:a.b.c.d), which the kernel reports for clients of a dual-stack listener, is stored as its 4 bytes.
Times are float seconds of one clock that is never set: in the daemon the monotonic clock, for a capture file the time
stamps of its packets.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple, TypeVar

from mptcp_throttler.mptcp.options import MptcpOption

_Option = TypeVar("_Option", bound=MptcpOption)
_V4_MAPPED = b"\0" * 10 + b"\xff\xff"


def unmap(address: bytes) -> bytes:
    """Return *address* (4 or 16 bytes); cut an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2) to 4 bytes."""
    return address[12:] if len(address) == 16 and address.startswith(_V4_MAPPED) else address


def map_to_ipv6(address: bytes) -> bytes:
    """Return the 4-byte *address* as an IPv4-mapped IPv6 address."""
    return _V4_MAPPED + address


End = tuple[bytes, int, int]  # client's address and port, proxy's port, as a closed socket reports them
MAX_TOKEN = 0xFFFFFFFF  # the largest token of a Multipath TCP connection; tunnels have larger tokens


class FourTuple(NamedTuple):
    """A TCP connection, or a path of a tunnel, with the proxy's end first. A tunnel's local port is not the proxy's."""

    local: bytes
    local_port: int
    remote: bytes
    remote_port: int

    @property
    def is_ipv6(self) -> bool:
        return len(self.remote) == 16

    def __str__(self) -> str:
        def end(address: bytes, port: int) -> str:
            return f"[{ip_address(address)}]:{port}" if len(address) == 16 else f"{ip_address(address)}:{port}"

        return f"{end(self.local, self.local_port)}-{end(self.remote, self.remote_port)}"


def unmap_endpoints(four_tuple: FourTuple) -> FourTuple:
    """Return *four_tuple* with IPv4-mapped addresses cut to 4 bytes."""
    if len(four_tuple.remote) != 16:
        return four_tuple
    local, local_port, remote, remote_port = four_tuple
    return FourTuple(unmap(local), local_port, unmap(remote), remote_port)


@dataclass(frozen=True, slots=True)
class Segment:
    """One captured TCP segment, with only its MPTCP options."""

    time: float
    interface: str
    source: bytes
    source_port: int
    destination: bytes
    destination_port: int
    flags: int
    sequence: int
    acknowledgment: int
    options: tuple[MptcpOption, ...]
    outgoing: bool | None = None  # whether this host sent the segment; None if unknown (on the loopback interface)

    def option(self, kind: type[_Option]) -> _Option | None:
        return next((option for option in self.options if isinstance(option, kind)), None)


@dataclass(frozen=True, slots=True)
class Subflow:
    """One subflow of the kernel, as of its last change."""

    four_tuple: FourTuple
    initial: bool  # whether the subflow opened the connection (MP_CAPABLE); otherwise it joined (MP_JOIN)
    local_id: int | None
    remote_id: int | None  # address identifiers (RFC 8684, 3.2), 0 for the initial subflow; None while unknown
    backup: bool  # the peer requested to use this subflow only if no other is left (MP_JOIN 'B' bit, MP_PRIO)
    interface: str | None  # the proxy's interface that carries the subflow; None while unknown
    since: float  # when the tracker learned of the subflow


@dataclass(frozen=True, slots=True)
class Connection:
    """An MPTCP connection and its subflows, oldest first."""

    token: int  # the proxy's token (RFC 8684, 3.2), which ``ss -M`` prints and a client's MP_JOIN carries
    subflows: tuple[Subflow, ...]
    since: float
    seen_from_start: bool = False  # whether the kernel reported the creation, at ``since``; if not, it began earlier
    holder: bytes = b""  # the client in whose share the connection counts (``limits.ConnectionShares``)

    @property
    def is_tunnel(self) -> bool:
        """Whether this is a Multipath UDP tunnel. Its paths have byte counts, but no other values of a socket."""
        return self.token > MAX_TOKEN

    @property
    def client(self) -> bytes:
        """The remote address of the initial subflow, or of the oldest subflow if the initial one has ended."""
        first = next((each for each in self.subflows if each.initial), None) or next(iter(self.subflows), None)
        return b"" if first is None else first.four_tuple.remote


class KernelEventKind(enum.Enum):
    """Path-manager events that the tracker uses (``enum mptcp_event_type`` of linux/mptcp_pm.h)."""

    __hash__ = object.__hash__

    CREATED = 1
    ESTABLISHED = 2
    CLOSED = 3
    SUBFLOW_ESTABLISHED = 10
    SUBFLOW_CLOSED = 11
    SUBFLOW_PRIORITY = 13


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One ``mptcp_pm_events`` message."""

    time: float
    kind: KernelEventKind
    token: int
    four_tuple: FourTuple | None  # None for CLOSED, which names only the connection
    local_id: int | None = None
    remote_id: int | None = None
    backup: bool = False
    detail: str = ""  # a reason for display, if the event has one


class TcpInfo(NamedTuple):
    """State of one subflow's socket, from struct tcp_info (linux/tcp.h). Rates in bits/s, times in microseconds."""

    rtt: int
    mss: int  # bytes per sent segment
    unacked: int  # segments sent and not acknowledged
    not_sent: int  # bytes assigned to the subflow and not sent yet
    pacing_rate: int  # Present pacing rate. The MPTCP scheduler uses it as the subflow's rate.
    max_pacing_rate: int | None  # SO_MAX_PACING_RATE; None without a limit
    delivery_rate: int  # delivery rate of the kernel's last rate sample; too low if the sender had too little data
    receive_window_limited: int  # total time in which only the receiver's window kept the subflow from sending
    sacked: int = 0  # unacknowledged segments that arrived after a missing segment
    rtt_variance: int = 0
    retransmits: int = 0  # segments sent again since the subflow began
    segments_out: int = 0
    lost: int = 0  # segments in flight that the kernel considers lost
    congestion_window: int = 0  # segments


EMPTY_TCP_INFO = TcpInfo(0, 0, 0, 0, 0, None, 0, 0)  # used for subflows from a capture, which have no sockets


class KernelSubflow(NamedTuple):
    """One MPTCP subflow as a socket-diagnostics dump shows it (tcp diag with INET_ULP_INFO_MPTCP)."""

    token: int
    four_tuple: FourTuple
    initial: bool
    local_id: int | None
    remote_id: int | None
    backup: bool
    read: float  # when the kernel read the socket, monotonic seconds: perhaps long before the sweep ends
    bytes_acked: int = 0  # payload that the peer acknowledged, each byte once
    bytes_received: int = 0
    cookie: int = 0  # the kernel's number of the socket, unique while the host is up; 0 while unknown
    tcp: TcpInfo = EMPTY_TCP_INFO
    made_backup: bool = False  # whether this host itself made the subflow backup (RFC 8684, 3.3.8)
    data_sequence: int = 0  # data sequence number where the last mapping received in order begins (RFC 8684, 3.3.1)

    @property
    def is_tunnel_path(self) -> bool:
        return self.token > MAX_TOKEN

    @property
    def delivered(self) -> int:
        """Bytes that arrived, in order or not."""
        return self.bytes_acked + self.tcp.sacked * self.tcp.mss


Sockets = Mapping[FourTuple, KernelSubflow]


def compute_rate(before: int, after: int, span: float) -> float:
    """Return the rate, bits/s, of a byte counter that was read twice, *span* seconds apart."""
    return 8 * max(0, after - before) / span if span else 0.0


class ClosedSocket(NamedTuple):
    """The payload bytes that one accepted socket carried in its lifetime."""

    cookie: int
    end: End
    acked: int
    received: int


class EventKind(enum.Enum):
    """Kinds of events that the tracker reports."""

    __hash__ = object.__hash__

    CONNECTION_OPENED = "connection-opened"
    CONNECTION_CLOSED = "connection-closed"
    SUBFLOW_ACTIVE = "subflow-active"
    SUBFLOW_CHANGED = "subflow-changed"
    SUBFLOW_CLOSED = "subflow-closed"
    SUBFLOW_EXCESS = "subflow-excess"
    """The kernel has a subflow above the tracked maximum. It would have no cap: it must be closed."""
    CONNECTION_EXCESS = "connection-excess"
    """The subflow's connection exceeds its client's share. Untracked, it would have no cap: it must be closed."""
    JOIN_REFUSED = "join-refused"
    DISAGREEMENT = "disagreement"  # two kernel records contradict each other; the tracker uses the later record


@dataclass(frozen=True, slots=True)
class Event:
    """A change of the tracker's state. The reader looks up the connection by its token."""

    kind: EventKind
    time: float
    token: int
    four_tuple: FourTuple | None = None
    detail: str = ""
