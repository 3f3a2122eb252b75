"""What goes into the tracker and what comes out: segments, kernel records, connections, subflows, events.

Everything here is frozen, so that a value which crosses a boundary never changes for its reader.
Addresses are packed bytes in network order (4 or 16 bytes), because they are hashed and compared on
every segment; they become text only at the edges. An IPv4-mapped IPv6 address (::ffff:a.b.c.d), as the
kernel reports clients of a dual-stack listener, is always stored as its 4 bytes.
Times are seconds as float of one clock that nobody sets, the monotonic one in the daemon, that of the stamps for a
capture file. They are always arguments: nothing here reads a clock.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple, TypeVar

from mptcp_throttler.mptcp.options import MptcpOption

_Option = TypeVar("_Option", bound=MptcpOption)
_V4_MAPPED = b"\0" * 10 + b"\xff\xff"


def unmap(address: bytes) -> bytes:
    """Return *address* (4 or 16 bytes) with an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2) cut to 4 bytes."""
    return address[12:] if len(address) == 16 and address.startswith(_V4_MAPPED) else address


def mapped(address: bytes) -> bytes:
    """Return *address* of 4 bytes as an IPv4-mapped IPv6 address."""
    return _V4_MAPPED + address


End = tuple[bytes, int, int]
"""The client's address and port, and our port: what a closed socket still says of its four-tuple."""


LARGEST_TOKEN = 0xFFFFFFFF
"""Of a Multipath TCP connection. A tunnel's token is above it."""


class FourTuple(NamedTuple):
    """A TCP connection as the proxy sees it, or a path of a tunnel: its own end first. Addresses are packed, ports
    integers. The local port tells TCP from UDP: no tunnel has one at which the proxy listens."""

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


def unmapped(four_tuple: FourTuple) -> FourTuple:
    """Return *four_tuple* with IPv4-mapped addresses cut to 4 bytes."""
    if len(four_tuple.remote) != 16:
        return four_tuple
    local, local_port, remote, remote_port = four_tuple
    return FourTuple(unmap(local), local_port, unmap(remote), remote_port)


class TcpFlag(enum.IntFlag):
    """TCP header flags (RFC 9293, 3.1) that the tracker looks at."""

    FIN = 0x01
    SYN = 0x02
    RST = 0x04
    ACK = 0x10


@dataclass(frozen=True, slots=True)
class Segment:
    """One captured TCP segment, with its MPTCP options only."""

    time: float
    """When it was captured."""
    interface: str
    source: bytes
    source_port: int
    destination: bytes
    destination_port: int
    flags: int
    """TCP header flags, bits of :class:`TcpFlag`."""
    sequence: int
    acknowledgment: int
    options: tuple[MptcpOption, ...]
    outgoing: bool | None = None
    """This host sent it; None where that cannot be told (the loopback interface)."""

    def option(self, kind: type[_Option]) -> _Option | None:
        """Return the first MPTCP option of that *kind*."""
        return next((option for option in self.options if isinstance(option, kind)), None)


@dataclass(frozen=True, slots=True)
class Subflow:
    """One subflow that the kernel has, as of its last change."""

    four_tuple: FourTuple
    initial: bool
    """True for the subflow that opened the connection (MP_CAPABLE), False for a joined one (MP_JOIN)."""
    local_id: int | None
    remote_id: int | None
    """Address identifiers (RFC 8684, 3.2), 0 for the initial subflow's; None while unknown."""
    backup: bool
    """The peer asked that this subflow be used only when no other is left (MP_JOIN 'B' bit, MP_PRIO)."""
    interface: str | None
    """The proxy's interface that carries the subflow; None while unknown."""
    since: float
    """When it became known."""


@dataclass(frozen=True, slots=True)
class Connection:
    """An MPTCP connection and its subflows, oldest first."""

    token: int
    """The proxy's token (RFC 8684, 3.2): what ``ss -M`` prints and what a client's MP_JOIN carries."""
    subflows: tuple[Subflow, ...]
    since: float
    seen_from_start: bool = False
    """The kernel told when it was created, so that ``since`` is when it began; else it is older."""

    @property
    def is_tunnel(self) -> bool:
        """It is a tunnel of Multipath UDP; its paths have bytes, and nothing else of a socket."""
        return self.token > LARGEST_TOKEN

    @property
    def client(self) -> bytes:
        """The address that the connection is known by: that from which it was opened, while that is there."""
        first = next((each for each in self.subflows if each.initial), None)
        first = first or next(iter(self.subflows), None)
        return b"" if first is None else first.four_tuple.remote


class KernelEventKind(enum.Enum):
    """Path-manager events (``enum mptcp_event_type`` of linux/mptcp_pm.h) the tracker uses."""

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
    four_tuple: FourTuple | None
    """None for CLOSED, which names only the connection."""
    local_id: int | None = None
    remote_id: int | None = None
    backup: bool = False
    detail: str = ""
    """Why, for people, where more is known than that the kernel says so."""


class TcpInfo(NamedTuple):
    """How one subflow's socket is doing: of struct tcp_info (linux/tcp.h) what somebody needs, for there may be 20,000.

    Rates in bits/s, times in microseconds.
    """

    rtt: int
    """Smoothed round-trip time."""
    mss: int
    """Bytes of a segment that is sent."""
    unacked: int
    """Segments sent and not yet acknowledged."""
    not_sent: int
    """Bytes that were assigned to the subflow and are not sent yet."""
    pacing_rate: int
    """What the MPTCP scheduler takes for the subflow's rate."""
    max_pacing_rate: int | None
    """The limit on it, SO_MAX_PACING_RATE; None without."""
    delivery_rate: int
    """Of the last sample, which may have been taken while there was too little to send."""
    receive_window_limited: int
    """Time in which only the receiver's window kept it from sending, since the subflow began."""
    sacked: int = 0
    """Segments that arrived behind one that did not, of those unacknowledged."""


NOTHING_SENT = TcpInfo(0, 0, 0, 0, 0, None, 0, 0)
"""Of a subflow that a capture shows: that has no sockets."""


class KernelSubflow(NamedTuple):
    """One MPTCP subflow as a socket-diagnostics dump shows it (tcp diag with INET_ULP_INFO_MPTCP)."""

    token: int
    four_tuple: FourTuple
    initial: bool
    local_id: int | None
    remote_id: int | None
    backup: bool
    read: float
    """When the kernel read the socket, monotonic seconds. The sockets of one sweep are read one after the other, some
    of them seconds before the sweep ends."""
    bytes_acked: int = 0
    """Payload that the peer acknowledged, each byte once."""
    bytes_received: int = 0
    cookie: int = 0
    """The kernel's number of the socket, never used twice while the host is up; 0 while unknown."""
    tcp: TcpInfo = NOTHING_SENT
    made_backup: bool = False
    """This side made it backup, whatever the client wants (MP_PRIO, RFC 8684, 3.3.8)."""
    data_sequence: int = 0
    """Data sequence number at which the mapping (RFC 8684, 3.3.1) begins that it received last, in order; 64 bits."""

    @property
    def is_of_tunnel(self) -> bool:
        return self.token > LARGEST_TOKEN

    @property
    def delivered(self) -> int:
        """Bytes that arrived, in order or not."""
        return self.bytes_acked + self.tcp.sacked * self.tcp.mss


class ClosedSocket(NamedTuple):
    """What one accepted socket carried in its life."""

    cookie: int
    end: End
    acked: int
    """Bytes of payload that the peer acknowledged."""
    received: int


class SocketDetails(NamedTuple):
    """More of one subflow's socket, for people: nobody decides by it, so that samples do without."""

    rtt_variance: int
    """Microseconds."""
    retransmits: int
    """Segments sent again, since the subflow began."""
    segments_out: int
    lost: int
    """Segments under way that are taken to be lost."""
    congestion_window: int
    """Segments."""


class EventKind(enum.Enum):
    """What the tracker reports."""

    __hash__ = object.__hash__

    CONNECTION_OPENED = "connection-opened"
    CONNECTION_CLOSED = "connection-closed"
    SUBFLOW_ACTIVE = "subflow-active"
    SUBFLOW_CHANGED = "subflow-changed"
    SUBFLOW_CLOSED = "subflow-closed"
    SUBFLOW_EXCESS = "subflow-excess"
    """The kernel has it, and as many others of its connection as are tracked: no cap would hold it, so it is to be
    closed."""
    CONNECTION_EXCESS = "connection-excess"
    """The kernel has this subflow of a connection that is more than its client may have: not tracked, it would have no
    cap, so it is to be closed."""
    JOIN_REFUSED = "join-refused"
    """The proxy refused a join."""
    DISAGREEMENT = "disagreement"
    """Two records of the kernel contradict each other; the later one was taken."""


@dataclass(frozen=True, slots=True)
class Event:
    """A change in what the tracker knows. The connection is to be looked up by its token."""

    kind: EventKind
    time: float
    token: int
    four_tuple: FourTuple | None = None
    detail: str = ""
