# SPDX-License-Identifier: GPL-2.0-or-later
"""Sends and receives messages as UDP packets with the tunnel program's port, without a socket that is bound to that
port. raw(7), packet(7).

Messages are sent on the uplink that they probe, from its address and the program's port, so that they keep a NAT's
mapping for the tunnel open. A packet socket receives them, with a filter for their first two bytes.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple

from mptcp_common.kernel_error import KernelError
from mptcp_tunnel.message import VERSION
from mptcp_tunnel.model import MAGIC, End, Ends

_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE, _SO_TIMESTAMPNS, _IP_PKTINFO = 26, 33, 35, 8
_TIMESPEC = struct.Struct("@ll")
_PLAUSIBLE_WAIT: Final = 10_000_000_000
"""Nanoseconds. If a message's time stamp shows a longer wait, the wall clock was set."""
_ETH_P_ALL: Final = 3
_MAX_PACKET: Final = 2048
_ANCILLARY: Final = socket.CMSG_SPACE(16)
_RECEIVE_BUFFER: Final = 2 << 20
"""Bytes of the receive queue, as the kernel counts them: a few thousand messages."""
_FIRST_BYTES: Final = MAGIC << 8 | VERSION
_INSTRUCTION = struct.Struct("=HBBI")
_IPV4, _IPV6 = struct.Struct("!BBHHHBBH"), struct.Struct("!IHBB")
"""The IP headers without their addresses."""
_PROTOCOL_AND_LENGTH, _LENGTH_AND_CHECKSUM = struct.Struct("!HH"), struct.Struct("!HH")
"""The last fields of the pseudo header, and of the UDP header."""
_FILTER: Final = (
    # The data begins with the IP header, because the socket has the type SOCK_DGRAM (packet(7)).
    (0x30, 0, 0, 0),  # ldb [0]
    (0x74, 0, 0, 4),  # rsh 4
    (0x15, 0, 5, 4),  # jeq 4, otherwise IPv6
    (0x30, 0, 0, 9),  # ldb [9]: protocol
    (0x15, 0, 8, 17),  # UDP
    (0xB1, 0, 0, 0),  # ldxb 4*([0]&0xf)
    (0x48, 0, 0, 8),  # ldh [x + 8]: first bytes of the payload
    (0x15, 4, 5, _FIRST_BYTES),
    (0x30, 0, 0, 6),  # ldb [6]: next header
    (0x15, 0, 3, 17),
    (0x28, 0, 0, 48),  # ldh
    (0x15, 0, 1, _FIRST_BYTES),
    (0x06, 0, 0, 0xFFFF),
    (0x06, 0, 0, 0),
)


class Received(NamedTuple):
    ends: Ends
    payload: bytes
    received_at: int = 0
    """When the kernel received the message, nanoseconds of the monotonic clock. This process may have read it later."""


class Receiver:
    """Receives the messages that arrive on one interface."""

    def __init__(self, interface: str) -> None:
        """Raises KernelError."""
        self.interface = interface
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        except OSError as error:
            raise KernelError(f"open a packet socket: {error.strerror}") from error
        program = b"".join(_INSTRUCTION.pack(*each) for each in _FILTER)
        self._program = ctypes.create_string_buffer(program, len(program))
        filter_program = struct.pack("@HP", len(_FILTER), ctypes.addressof(self._program))
        try:
            # Otherwise the kernel would also pass each outgoing packet to the filter.
            self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_program)
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            self._socket.setblocking(False)
            self._socket.bind((interface, _ETH_P_ALL))
        except OSError as error:
            self._socket.close()
            raise KernelError(f"receive on {interface}: {error.strerror}") from error

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def read(self, limit: int) -> list[Received]:
        """Return at most *limit* waiting messages. Raises KernelError if the interface has been removed."""
        found: list[Received] = []
        now = time.monotonic_ns()
        clock_offset = time.time_ns() - now
        for _ in range(limit):
            try:
                data, ancillary, _, _ = self._socket.recvmsg(_MAX_PACKET, _ANCILLARY)
            except BlockingIOError:
                break
            except OSError as error:
                raise KernelError(f"receive on {self.interface}: {error.strerror}") from error
            if (received := parse_packet(data)) is not None:
                found.append(Received(received.ends, received.payload, _time_of(ancillary, clock_offset, now)))
        return found


def _time_of(ancillary: Sequence[tuple[int, int, bytes]], clock_offset: int, now: int) -> int:
    """Return the kernel's time stamp in the monotonic clock, or *now* if there is no plausible time stamp.
    *clock_offset*: wall clock minus monotonic clock, nanoseconds."""
    for _, kind, data in ancillary:
        if kind == _SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            received_at: int = seconds * 1_000_000_000 + nanoseconds - clock_offset
            if now - _PLAUSIBLE_WAIT < received_at <= time.monotonic_ns():
                return received_at
    return now


def parse_packet(data: bytes) -> Received | None:
    """Return the UDP payload of an IP packet, with its ends as the receiver sees them; None if *data* is not a whole
    UDP packet."""
    if len(data) < 28:
        return None
    if data[0] >> 4 == 4:
        header_bytes, packet_bytes = 4 * (data[0] & 15), data[2] << 8 | data[3]
        addresses, protocol = data[12:20], data[9]
        if (data[6] << 8 | data[7]) & 0x3FFF:
            return None  # a fragment
    elif data[0] >> 4 == 6:
        header_bytes, packet_bytes = 40, 40 + (data[4] << 8 | data[5])
        addresses, protocol = data[8:40], data[6]
    else:
        return None
    udp = data[header_bytes:packet_bytes]
    if protocol != socket.IPPROTO_UDP or header_bytes < 20 or len(udp) < 9 or udp[4] << 8 | udp[5] != len(udp):
        return None
    return Received(_ends(addresses, udp[:4]), udp[8:])


@lru_cache(4096)
def _ends(addresses: bytes, ports: bytes) -> Ends:
    """Return the receiver's view of source and destination, which are in network order."""
    half = len(addresses) // 2
    source_port, destination_port = struct.unpack("!HH", ports)
    local = End(ip_address(addresses[half:]), destination_port)
    return Ends(local, End(ip_address(addresses[:half]), source_port))


class Sender:
    """Sends messages on one interface."""

    def __init__(self, interface: str) -> None:
        """Raises KernelError."""
        self._sockets: dict[int, socket.socket] = {}
        self._classes = {4: 0, 6: 0}
        try:
            for family in (socket.AF_INET, socket.AF_INET6):
                raw_socket = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
                self._sockets[4 if family == socket.AF_INET else 6] = raw_socket
                raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
                raw_socket.setblocking(False)
        except OSError as error:
            self.close()
            raise KernelError(f"send on {interface}: {error.strerror}") from error

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()

    def send(self, ends: Ends, payload: bytes, class_id: int) -> None:
        """Send *payload* in an HTB class. A packet that cannot be sent counts as lost."""
        fixed = _fixed_parts(ends)
        raw_socket = self._sockets[fixed.version]
        with suppress(OSError):
            if class_id != self._classes[fixed.version]:
                # A probe must wait in the queue of the tunnel's class. Handles from 8000:0 on do not fit a C int.
                raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, struct.pack("=I", class_id))
                self._classes[fixed.version] = class_id
            raw_socket.sendmsg([packet_of(ends, payload)], [fixed.ancillary], 0, (fixed.destination, 0))


class _FixedParts(NamedTuple):
    """The parts that all messages between two ends have in common. They are cached, because a proxy sends thousands of
    messages per second."""

    version: int
    addresses: bytes
    ports: bytes
    destination: str
    ancillary: tuple[int, int, bytes]
    """The source address. The kernel uses this address to find the route, and ignores the address in the header."""


@lru_cache(4096)
def _fixed_parts(ends: Ends) -> _FixedParts:
    local, remote = ends
    source, version = local.address.packed, local.address.version
    if version == 4:
        ancillary = socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("=I4s4x", 0, source)
    else:
        ancillary = socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, source + bytes(4)
    ports = struct.pack("!HH", local.port, remote.port)
    return _FixedParts(version, source + remote.address.packed, ports, str(remote.address), ancillary)


def packet_of(ends: Ends, payload: bytes) -> bytes:
    """Return the IP packet of a message; the kernel fills in IPv4's length, number and checksum."""
    version, addresses, ports, _, _ = _fixed_parts(ends)
    size = 8 + len(payload)
    # The checksum covers addresses, protocol and length, in any order of the words.
    covered = (
        addresses
        + _PROTOCOL_AND_LENGTH.pack(socket.IPPROTO_UDP, size)
        + ports
        + _LENGTH_AND_CHECKSUM.pack(size, 0)
        + payload
    )
    udp = ports + _LENGTH_AND_CHECKSUM.pack(size, checksum(covered)) + payload
    if version == 4:
        # Set "don't fragment", so that a packet that is larger than the path's MTU is lost.
        ip = _IPV4.pack(0x45, 0, 20 + size, 0, 0x4000, 64, socket.IPPROTO_UDP, 0)
    else:
        ip = _IPV6.pack(6 << 28, size, socket.IPPROTO_UDP, 64)
    return ip + addresses + udp


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071) of *data* as UDP uses it: never 0."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF) or 0xFFFF
