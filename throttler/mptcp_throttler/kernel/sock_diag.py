"""Socket diagnostics: the MPTCP subflows that this host has now. sock_diag(7), linux/inet_diag.h, linux/mptcp.h.

A TCP socket that is an MPTCP subflow shows its token, address identifiers and flags as upper-layer protocol
information. This is how connections older than the daemon become known, and how the status page counts bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from ..mptcp.model import FourTuple, KernelSubflow, unmap
from .netlink import NetlinkSocket, attributes

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_AF_INET, _AF_INET6, _TCP = 2, 10, 6
_ESTABLISHED = 1 << 1
_REQUEST = struct.Struct("=BBBxI")
_EXT_INFO = 1 << (2 - 1)
_SOCKET_ID = struct.Struct("!HH16s16s")
_MESSAGE_BYTES = 72
_INFO, _ULP_INFO, _ULP_INFO_MPTCP = 2, 19, 3
_TOKEN_LOCAL, _FLAGS, _ID_REMOTE, _ID_LOCAL = 2, 8, 9, 10
_FLAG_JOIN = 1 << 2 | 1 << 3
_FLAG_BACKUP = 1 << 4
"""MPTCP_SUBFLOW_FLAG_BKUP_REM: the peer asked."""
_BYTES_ACKED = struct.Struct("=QQ")
_BYTES_ACKED_OFFSET = 120
"""Of tcpi_bytes_acked, followed by tcpi_bytes_received, in struct tcp_info (linux/tcp.h)."""


class SocketDiagnostics:
    """Dumps of the namespace it is made in."""

    def __init__(self, listen_ports: Iterable[int]) -> None:
        self._ports = tuple(listen_ports)
        self._netlink = NetlinkSocket(_NETLINK_SOCK_DIAG)

    def close(self) -> None:
        self._netlink.close()

    def subflows(self) -> Iterator[KernelSubflow]:
        """Yield every established MPTCP subflow of our listening ports. Raises KernelError if the dump fails."""
        for port in self._ports:
            for family in (_AF_INET, _AF_INET6):
                request = _REQUEST.pack(family, _TCP, _EXT_INFO, _ESTABLISHED)
                request += struct.pack("!HH", port, 0) + bytes(32) + struct.pack("=I", 0) + b"\xff" * 8
                for body in self._netlink.dump(_SOCK_DIAG_BY_FAMILY, request, "list TCP sockets"):
                    subflow = parse(body)
                    if subflow is not None:
                        yield subflow


def parse(body: bytes) -> KernelSubflow | None:
    """Return the subflow that an inet_diag_msg and its attributes describe; None for a plain TCP socket."""
    if len(body) < _MESSAGE_BYTES:
        return None
    fields = dict(attributes(body, _MESSAGE_BYTES))
    mptcp = dict(attributes(dict(attributes(fields.get(_ULP_INFO, b""))).get(_ULP_INFO_MPTCP, b"")))
    if _TOKEN_LOCAL not in mptcp:
        return None
    size = 16 if body[0] == _AF_INET6 else 4
    local_port, remote_port, local, remote = _SOCKET_ID.unpack_from(body, 4)
    flags = int.from_bytes(mptcp.get(_FLAGS, b""), "little")
    info = fields.get(_INFO, b"")
    sent, received = 0, 0
    if len(info) >= _BYTES_ACKED_OFFSET + _BYTES_ACKED.size:
        sent, received = _BYTES_ACKED.unpack_from(info, _BYTES_ACKED_OFFSET)
    return KernelSubflow(
        token=int.from_bytes(mptcp[_TOKEN_LOCAL][:4], "little"),
        four_tuple=FourTuple(unmap(local[:size]), local_port, unmap(remote[:size]), remote_port),
        initial=not flags & _FLAG_JOIN,
        local_id=mptcp[_ID_LOCAL][0] if mptcp.get(_ID_LOCAL) else None,
        remote_id=mptcp[_ID_REMOTE][0] if mptcp.get(_ID_REMOTE) else None,
        backup=bool(flags & _FLAG_BACKUP),
        bytes_sent=sent,
        bytes_received=received,
    )
