# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads gateways and local addresses from the kernel. rtnetlink(7).

pyroute2 is not used, because it takes milliseconds per query, and a thousand relays may connect at once, each from two
or three addresses.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Final

from mptcp_common.kernel_error import KernelError
from mptcp_tunnel.kernel.network import index_of
from mptcp_tunnel.model import Address

_REQUEST, _MULTI, _DUMP = 1, 2, 0x300
_ERROR, _DONE, _GET_ADDRESS, _GET_ROUTE = 2, 3, 22, 26
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_INTERFACE_ADDRESS = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_DESTINATION, _SOURCE, _INTERFACE, _GATEWAY, _VIA = 1, 2, 4, 5, 18
_ADDRESS, _LOCAL = 1, 2
_MAX_ANSWER: Final = 1 << 16


class Routes:
    """Queries to the kernel of one network namespace."""

    def __init__(self) -> None:
        """Raises KernelError."""
        self._number = 0
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
            self._socket.settimeout(1.0)
        except OSError as error:
            raise KernelError(f"open a netlink socket: {error.strerror}") from error

    def close(self) -> None:
        self._socket.close()

    def next_hop(self, to: Address, source: Address, interface: int) -> Address:
        """Return the gateway from *source* to *to* by an interface, or *to* itself if it is on the link. Raises
        KernelError."""
        family = socket.AF_INET if to.version == 4 else socket.AF_INET6
        bits = to.max_prefixlen
        body = _ROUTE.pack(family, bits, bits, 0, 0, 0, 0, 0, 0)
        for kind, value in (
            (_DESTINATION, to.packed),
            (_SOURCE, source.packed),
            (_INTERFACE, struct.pack("=I", interface)),
        ):
            body += _ATTRIBUTE.pack(4 + len(value), kind) + value
        try:
            (answer,) = self._query(_GET_ROUTE, _REQUEST, body)
        except OSError as error:
            raise KernelError(f"find a route to {to} from {source}: {error.strerror or error}") from error
        found = dict(_attributes(answer[_ROUTE.size :]))
        gateway = found.get(_GATEWAY) or found.get(_VIA, b"")[2:]  # RFC 5549: the address follows its family
        return ip_address(gateway) if gateway else to

    def addresses(self) -> dict[int, list[Address]]:
        """Return the addresses of each interface, by its index. Raises KernelError."""
        found: dict[int, list[Address]] = {}
        try:
            answers = self._query(_GET_ADDRESS, _REQUEST | _DUMP, _INTERFACE_ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0))
        except OSError as error:
            raise KernelError(f"list the addresses: {error.strerror or error}") from error
        for each in answers:
            *_, interface = _INTERFACE_ADDRESS.unpack_from(each)
            attributes = dict(_attributes(each[_INTERFACE_ADDRESS.size :]))
            packed = attributes.get(_LOCAL) or attributes.get(_ADDRESS)
            if packed:
                found.setdefault(interface, []).append(ip_address(packed))
        return found

    def route(self, to: Address, interface: str, addresses: Mapping[int, Sequence[Address]]) -> tuple[Address, Address]:
        """Return the next hop as in :meth:`next_hop`, and the source address. *addresses*: the result of
        :meth:`addresses`. Raises KernelError."""
        index = index_of(interface)
        usable = [each for each in addresses.get(index, ()) if each.version == to.version and not each.is_link_local]
        if not usable:
            raise KernelError(f"{interface} has no IPv{to.version} address")
        return self.next_hop(to, usable[0], index), usable[0]

    def _query(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        """Return the kernel's answers, without headers. Raises OSError."""
        self._number = self._number % 0xFFFFFFFF + 1
        self._socket.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, self._number, 0) + body)
        found: list[bytes] = []
        while True:
            answer = self._socket.recv(_MAX_ANSWER)
            while len(answer) >= _HEADER.size:
                length, kind, flags, number, _ = _HEADER.unpack_from(answer)
                message, answer = answer[_HEADER.size : length], answer[max(_HEADER.size, length + 3 & ~3) :]
                if number != self._number:
                    continue  # an answer to an earlier, abandoned query
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    (code,) = struct.unpack_from("=i", message)
                    raise OSError(-code, os.strerror(-code))
                found.append(message)
                if not flags & _MULTI:
                    return found


def _attributes(answer: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(answer):
        length, kind = _ATTRIBUTE.unpack_from(answer, at)
        if length < 4:
            return
        yield kind, answer[at + 4 : at + length]
        at += length + 3 & ~3
