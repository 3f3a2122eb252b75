"""Questions to the kernel about sockets: sock_diag(7), as ss(8) asks. Needs no privilege.

Addresses are those of ``ipaddress``; an IPv4 address written as IPv6 (::ffff:a.b.c.d) comes back as IPv4.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

Address = IPv4Address | IPv6Address

_SOCK_DIAG: Final = 4
"""NETLINK_SOCK_DIAG of linux/netlink.h."""
_BY_FAMILY: Final = 20
"""SOCK_DIAG_BY_FAMILY of linux/sock_diag.h."""
_ERROR, _DONE = 2, 3
_REQUEST, _DUMP = 1, 0x300
_ALL_STATES: Final = 0xFFFFFFFF
_ESTABLISHED: Final = 1 << 1
_INFO: Final = 2
"""INET_DIAG_INFO: the attribute, and the bit of idiag_ext from 1."""
_REQ_PROTOCOL: Final = 3
"""INET_DIAG_REQ_PROTOCOL, for protocols above 255."""
_IPPROTO_MPTCP: Final = 262
_HEADER: Final = struct.Struct("=IHHII")
_QUESTION: Final = struct.Struct("=BBBxI")
_ID: Final = struct.Struct("!HH16s16s")
_NO_COOKIE: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_UID_AT: Final = 4 + 48 + 12
_ATTRIBUTES_AT: Final = 72
"""Length of inet_diag_msg."""
_SECONDS: Final = 2.0
_MPTCP_INFO: Final = struct.Struct("=B7xII")
"""mptcp_info of linux/mptcp.h: mptcpi_subflows; mptcpi_flags, mptcpi_token."""
_SUBFLOWS_TOTAL_AT: Final = 80
"""mptcpi_subflows_total, Linux 6.5 and newer."""
_FALLEN_BACK: Final = 1
"""MPTCP_INFO_FLAG_FALLBACK."""


@dataclass(frozen=True, slots=True)
class MptcpSocket:
    """An MPTCP connection that this host has."""

    subflows: int
    token: int
    fell_back: bool


def tcp_owner(local: tuple[Address, int], remote: tuple[Address, int]) -> int | None:
    """Return the number of the user whose TCP socket is that of *local* connected to *remote*; None: there is none.

    Raises OSError where the kernel cannot be asked.
    """
    family = socket.AF_INET if local[0].version == 4 else socket.AF_INET6
    ends = _ID.pack(local[1], remote[1], local[0].packed, remote[0].packed)
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, _ALL_STATES) + ends + _NO_COOKIE
    for message in _ask(question, dump=False):
        return int(struct.unpack_from("=I", message, _UID_AT)[0])
    return None


def mptcp_connections(remote: tuple[Address, int]) -> list[MptcpSocket]:
    """Return the MPTCP connections whose first subflow came from *remote*. Raises OSError where it cannot be asked.

    A connection that fell back before its first data is in no list of the kernel's.
    """
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        ends = _ID.pack(0, remote[1], bytes(16), bytes(16))
        question = _QUESTION.pack(family, socket.IPPROTO_RAW, 1 << (_INFO - 1), _ESTABLISHED) + ends + _NO_COOKIE
        question += struct.pack("=HHI", 8, _REQ_PROTOCOL, _IPPROTO_MPTCP)
        for message in _ask(question, dump=True):
            there = message[0]
            width = 4 if there == socket.AF_INET else 16
            if _plain(message[24 : 24 + width]) == remote[0] and (info := _attribute(message, _INFO)):
                found.append(_mptcp(info))
    return found


def _mptcp(info: bytes) -> MptcpSocket:
    further, flags, token = _MPTCP_INFO.unpack_from(info)
    total = info[_SUBFLOWS_TOTAL_AT] if len(info) > _SUBFLOWS_TOTAL_AT else further + 1
    return MptcpSocket(total, token, bool(flags & _FALLEN_BACK))


def _plain(packed: bytes) -> Address:
    return plain(ip_address(packed))


def plain(address: Address) -> Address:
    """Return *address*, as IPv4 where it is one written as IPv6."""
    return getattr(address, "ipv4_mapped", None) or address


def _attribute(message: bytes, kind: int) -> bytes | None:
    at = _ATTRIBUTES_AT
    while at + 4 <= len(message):
        length, found = struct.unpack_from("=HH", message, at)
        if length < 4:
            return None
        if found == kind:
            return message[at + 4 : at + length]
        at += (length + 3) & ~3
    return None


def _ask(question: bytes, *, dump: bool) -> Iterator[bytes]:
    flags = _REQUEST | (_DUMP if dump else 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.settimeout(_SECONDS)
        kernel.connect((0, 0))
        kernel.send(_HEADER.pack(_HEADER.size + len(question), _BY_FAMILY, flags, 1, 0) + question)
        while True:
            data = kernel.recv(1 << 18)
            at = 0
            while at + _HEADER.size <= len(data):
                length, kind, *_ = _HEADER.unpack_from(data, at)
                body = data[at + _HEADER.size : at + length]
                if kind in (_DONE, _ERROR):
                    number = -struct.unpack_from("=i", body)[0]
                    # ENOENT: there is no such socket, or no such family. At a list's end the kernel has no diagnosis of
                    # such sockets (CONFIG_INET_MPTCP_DIAG), and nobody knows what there is.
                    if number == 0 or (number == errno.ENOENT and kind == _ERROR):
                        return
                    raise OSError(number, "ask for sockets")
                yield body
                at += (length + 3) & ~3
            if not dump:
                return
