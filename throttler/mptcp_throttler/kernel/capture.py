# SPDX-License-Identifier: GPL-2.0-or-later
"""Capture of MPTCP signalling on one interface, through Scapy's link-layer socket. packet(7), pcap-filter(7).

The kernel filter passes SYN, RST, third ACKs with MP_JOIN, and MP_FASTCLOSE. It also passes ADD_ADDR and MP_PRIO, whose
subtypes match the same bit mask, but never DSS (data). It expects the option where TCP stacks put it: first, after two
NOPs, or after a timestamp or SACK. It compares these preceding bytes too; otherwise one data segment in 80 would match
because of a byte of its timestamp. It passes incoming frames to a listening port and outgoing frames from it. The
loopback interface delivers each frame twice, outgoing and incoming; only the incoming frame is read.

The socket has protocol 0 until filter and buffer are set; otherwise it would receive frames of other interfaces, and
the kernel would count overflows of the small buffer as dropped.
"""

from __future__ import annotations

import errno
import logging
import socket
import struct
import time
from collections.abc import Collection, Iterator

from mptcp_common.kernel_error import KernelError
from mptcp_common.reasons import reason
from mptcp_throttler.kernel.libraries import scapy_sniffer
from mptcp_throttler.kernel.tc.link import find_link
from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.segment import parse_frame

log = logging.getLogger(__name__)

BUFFER_BYTES = 8 << 20
MAX_AGE_SECONDS = 60.0  # a frame with an older timestamp counts as captured now
_SO_RCVBUFFORCE = 33
_NO_PROTOCOL, _ETH_P_ALL = 0, 3
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_SNAP_BYTES = 512
_NOPS, _TIME_STAMP, _SACK = "0x0101", "0x080a", "5"
_OPTION_OFFSETS = {
    20: "",
    22: f"tcp[20:2] = {_NOPS} and ",
    24: f"tcp[20:2] != {_NOPS} and tcp[20:2] != {_TIME_STAMP} and ",
    30: f"(tcp[20:2] = {_TIME_STAMP} or tcp[20] = {_SACK}) and ",
    32: f"tcp[20:2] = {_NOPS} and (tcp[22:2] = {_TIME_STAMP} or tcp[22] = {_SACK}) and ",
}
"""Possible offsets of the option in the TCP header, bytes, and the required bytes before it."""
_LINK_HEADER = {1: 14, 772: 14}  # bytes, by type of the link: Ethernet, loopback; others have none


def kernel_filter(listen_ports: Collection[int], loopback: bool = False) -> str:
    """Return the pcap-filter(7) expression for TCP ports, on the *loopback* or another interface."""
    any_port, destination, source = (
        " or ".join(f"{end}port {port}" for port in listen_ports) for end in ("", "dst ", "src ")
    )
    ports = f"inbound and ({any_port})" if loopback else f"(inbound and ({destination})) or (outbound and ({source}))"
    # Byte 12 has the header length: bytes after the header are payload, not options.
    signals = " or ".join(
        f"(tcp[12] >= {(offset + 7) // 4 << 4:#x} and {test}tcp[{offset}] = 30 and tcp[{offset + 2}] & 0x90 = 0x10)"
        for offset, test in _OPTION_OFFSETS.items()
    )
    ipv4 = f"tcp[13] & 6 != 0 or {signals}"
    ipv6 = ipv4.replace("tcp[", "ip6[40 + ")  # pcap-filter(7): tcp[] is for IPv4 only
    return f"({ports}) and ((ip and tcp and ({ipv4})) or (ip6 and ip6[6] = 6 and ({ipv6})))"


class InterfaceDownError(KernelError):
    """The interface exists but is down: nothing can be captured until it is up."""


def _reason(error: Exception) -> str:
    if "libpcap is not available" in str(error):
        return "libpcap, which compiles the kernel filter, is not installed (Debian: libpcap0.8)"
    if isinstance(error, OSError) and error.errno == errno.EAFNOSUPPORT:
        return "the kernel has no packet sockets (module af_packet)"
    return reason(error)


class Capture:
    """A capture on one interface. The owner opens it again after KernelError: an interface may disappear and return."""

    def __init__(self, interface: str, listen_ports: Collection[int]) -> None:
        L2ListenSocket, Scapy_Exception = scapy_sniffer()
        self.interface = interface
        self._loopback = interface == "lo"
        try:
            expression = kernel_filter(listen_ports, self._loopback)
            self._scapy = L2ListenSocket(iface=interface, type=_NO_PROTOCOL, filter=expression, promisc=False)
            self._socket: socket.socket = self._scapy.ins
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER_BYTES)
            self._socket.setblocking(False)
            self._socket.bind((interface, _ETH_P_ALL))
            link = find_link(interface)
        except (OSError, Scapy_Exception, ValueError) as error:
            raise KernelError(f"capture on {interface}: {_reason(error)}") from error
        if link is not None and not link.up:
            self._scapy.close()
            raise InterfaceDownError(f"capture on {interface}: the interface is down")
        self._link_header = _LINK_HEADER.get(self._socket.getsockname()[3], 0)

    def fileno(self) -> int:
        return int(self._socket.fileno())

    def close(self) -> None:
        self._scapy.close()

    def read(self, limit: int = 256) -> Iterator[Segment]:
        """Yield waiting segments from at most *limit* frames. Raises KernelError if the interface was deleted."""
        clock_offset = time.time() - time.monotonic()
        for _ in range(limit):
            try:
                frame, address, timestamp = self._scapy._recv_raw(self._socket, _SNAP_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                name = errno.errorcode.get(error.errno or 0, "error")
                raise KernelError(f"capture on {self.interface}: {name} ({error.strerror})") from error
            outgoing = None if self._loopback else address[2] == socket.PACKET_OUTGOING
            # The kernel's timestamps are wall clock time, which may have been set since.
            time_of_frame, now = (timestamp or 0.0) - clock_offset, time.monotonic()
            captured = time_of_frame if now - MAX_AGE_SECONDS < time_of_frame < now else now
            segment = parse_frame(frame, captured, self.interface, self._link_header, outgoing)
            if segment is not None:
                yield segment

    def read_statistics(self) -> int:
        """Return how many segments were dropped, because the buffer was full, since the last call."""
        _received, dropped = struct.unpack("=II", self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
        return int(dropped)
