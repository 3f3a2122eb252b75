# SPDX-License-Identifier: GPL-2.0-or-later
"""Queries the kernel's sockets with sock_diag(7), like ss(8). Needs no privilege.

Addresses have the types of ``ipaddress``; an IPv4 address mapped into IPv6 (::ffff:a.b.c.d) is returned as IPv4.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from mptcp_common.netlink import NetlinkSocket, attributes

Address = IPv4Address | IPv6Address
End = tuple[Address, int]


class Ends(NamedTuple):
    """Both ends of a client's connection to the proxy.

    Clients of one NAT may share the client's end if they connect to different addresses or ports of the proxy.
    """

    client: End
    proxy: End


_SOCK_DIAG: Final = 4
"""NETLINK_SOCK_DIAG of linux/netlink.h."""
_BY_FAMILY: Final = 20
"""SOCK_DIAG_BY_FAMILY of linux/sock_diag.h."""
_ALL_STATES: Final = 0xFFFFFFFF
_ESTABLISHED: Final = 1 << 1
_LISTEN: Final = 10
_INFO: Final = 2
"""INET_DIAG_INFO: number of the attribute, and of the bit in idiag_ext, counted from 1."""
_REQ_PROTOCOL: Final = 3
"""INET_DIAG_REQ_PROTOCOL, for protocols above 255."""
_IPPROTO_MPTCP: Final = 262
_REQUEST_HEAD: Final = struct.Struct("=BBBxI")
_ID: Final = struct.Struct("!HH16s16s")
_STATE_OFFSET: Final = 1
_ID_OFFSET: Final = 4
_ANY_INTERFACE: Final = 0
_NO_COOKIE: Final = struct.pack("=II", 0xFFFFFFFF, 0xFFFFFFFF)
_UID_OFFSET: Final = 4 + 48 + 12
_INODE_OFFSET: Final = _UID_OFFSET + 4
_ATTRIBUTES_OFFSET: Final = 72
"""Length of inet_diag_msg."""
_TIMEOUT_SECONDS: Final = 2.0
_ACTION: Final = "query sockets"
_MPTCP_INFO: Final = struct.Struct("=B7xII")
"""mptcp_info of linux/mptcp.h: mptcpi_subflows; mptcpi_flags, mptcpi_token."""
_SUBFLOWS_TOTAL_OFFSET: Final = 80
"""Offset of mptcpi_subflows_total, which Linux 6.5 and newer report."""
_FALLEN_BACK: Final = 1
"""MPTCP_INFO_FLAG_FALLBACK."""


@dataclass(frozen=True, slots=True)
class MptcpSocket:
    """An MPTCP connection of this host."""

    subflows: int
    token: int
    fell_back: bool
    inode: int
    """Inode of the program's socket."""


def tcp_owner(local: End, remote: End) -> int | None:
    """Return the user ID of a TCP socket; None if no such socket exists. Raises KernelError."""
    message = _look_up(local, remote, _ANY_INTERFACE)
    return None if message is None else int(struct.unpack_from("=I", message, _UID_OFFSET)[0])


def mptcp_connections(ends: Ends) -> list[MptcpSocket]:
    """Return the MPTCP connections whose first subflow has, or had, these *ends*. Raises KernelError.

    The kernel does not list connections that fell back before their first data.
    """
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        request = _REQUEST_HEAD.pack(family, socket.IPPROTO_RAW, 1 << (_INFO - 1), _ESTABLISHED)
        request += _ID.pack(ends.proxy[1], ends.client[1], bytes(16), bytes(16))
        request += struct.pack("=I", _ANY_INTERFACE) + _NO_COOKIE
        request += struct.pack("=HHI", 8, _REQ_PROTOCOL, _IPPROTO_MPTCP)
        # At the end of the list, the kernel reports ENOENT if it cannot list such sockets (no CONFIG_INET_MPTCP_DIAG).
        with NetlinkSocket(_SOCK_DIAG, _TIMEOUT_SECONDS) as kernel:
            for message in kernel.dump(_BY_FAMILY, request, _ACTION):
                info = dict(attributes(message, _ATTRIBUTES_OFFSET)).get(_INFO)
                if info and _ends(message) == ends:
                    found.append(_parse_mptcp(info, _inode(message)))
    return found


def tcp_inodes(ends: Ends) -> set[int]:
    """Return the inodes of programs' TCP sockets with these *ends*. Raises KernelError.

    A subflow has the inode of its connection's MPTCP socket. The query names the ends, because a list of 10,000
    connections takes the kernel 15 ms.
    """
    interfaces = [_ANY_INTERFACE]
    if ends.client[0].is_link_local:
        # The kernel finds a link-local socket only by the interface to which it is bound.
        interfaces += [index for index, _ in socket.if_nameindex()]
    messages = filter(None, (_look_up(ends.proxy, ends.client, each) for each in interfaces))
    # Without a match, the kernel returns the listener.
    found = {_inode(each) for each in messages if each[_STATE_OFFSET] != _LISTEN and _ends(each) == ends}
    return found - {0}


def _look_up(local: End, remote: End, interface: int) -> bytes | None:
    """Return the kernel's message about the TCP socket with these ends, if there is one."""
    family = socket.AF_INET if local[0].version == 4 else socket.AF_INET6
    request = _REQUEST_HEAD.pack(family, socket.IPPROTO_TCP, 0, _ALL_STATES)
    request += _ID.pack(local[1], remote[1], local[0].packed, remote[0].packed)
    with NetlinkSocket(_SOCK_DIAG, _TIMEOUT_SECONDS) as kernel:
        return kernel.ask_if_exists(_BY_FAMILY, request + struct.pack("=I", interface) + _NO_COOKIE, _ACTION)


def _ends(message: bytes) -> Ends:
    local_port, remote_port, *packed = _ID.unpack_from(message, _ID_OFFSET)
    width = 4 if message[0] == socket.AF_INET else 16
    local, remote = (_parse_address(each[:width]) for each in packed)
    return Ends((remote, remote_port), (local, local_port))


def _inode(message: bytes) -> int:
    return int(struct.unpack_from("=I", message, _INODE_OFFSET)[0])


def _parse_mptcp(info: bytes, inode: int) -> MptcpSocket:
    additional, flags, token = _MPTCP_INFO.unpack_from(info)
    total = info[_SUBFLOWS_TOTAL_OFFSET] if len(info) > _SUBFLOWS_TOTAL_OFFSET else additional + 1
    return MptcpSocket(total, token, bool(flags & _FALLEN_BACK), inode)


def _parse_address(packed: bytes) -> Address:
    return unmap_ipv4(ip_address(packed))


def unmap_ipv4(address: Address) -> Address:
    """Return *address*; an IPv4-mapped address is converted to IPv4."""
    return getattr(address, "ipv4_mapped", None) or address
