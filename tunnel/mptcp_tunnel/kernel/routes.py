"""By which gateway an address is reached. rtnetlink(7).

A thousand relays may come at once, each by two or three addresses, and pyroute2 takes milliseconds for a question.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

from mptcp_common.kernel_error import KernelError
from mptcp_tunnel.model import Address

_ERROR, _GET_ROUTE, _REQUEST = 2, 26, 1
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_DESTINATION, _SOURCE, _INTERFACE, _GATEWAY, _VIA = 1, 2, 4, 5, 18
_LARGEST: Final = 1 << 14


class Routes:
    """Questions to the kernel of one network namespace."""

    def __init__(self) -> None:
        """Raises KernelError."""
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
            self._socket.settimeout(1.0)
        except OSError as error:
            raise KernelError(f"open a netlink socket: {error.strerror}") from error

    def close(self) -> None:
        self._socket.close()

    def next_hop(self, to: Address, source: Address, interface: int) -> Address:
        """Return by which gateway *to* is reached from *source* by an interface, itself where it is on the link.

        Raises KernelError.
        """
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
            self._socket.send(_HEADER.pack(_HEADER.size + len(body), _GET_ROUTE, _REQUEST, 0, 0) + body)
            answer = self._socket.recv(_LARGEST)
        except OSError as error:
            raise KernelError(f"ask for a route to {to}: {error.strerror or error}") from error
        if _HEADER.unpack_from(answer)[1] == _ERROR:
            (code,) = struct.unpack_from("=i", answer, _HEADER.size)
            raise KernelError(f"find a route to {to} from {source}: {os.strerror(-code)}")
        found = dict(_attributes(answer))
        gateway = found.get(_GATEWAY) or found.get(_VIA, b"")[2:]  # RFC 5549: after its family
        return ip_address(gateway) if gateway else to


def _attributes(answer: bytes) -> Iterator[tuple[int, bytes]]:
    at = _HEADER.size + _ROUTE.size
    while at + 4 <= len(answer):
        length, kind = _ATTRIBUTE.unpack_from(answer, at)
        if length < 4:
            return
        yield kind, answer[at + 4 : at + length]
        at += length + 3 & ~3
