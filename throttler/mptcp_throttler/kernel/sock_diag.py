"""Socket diagnostics: the MPTCP subflows that this host has now. sock_diag(7), linux/inet_diag.h, linux/mptcp.h.

A TCP socket that is an MPTCP subflow shows its token, address identifiers and flags as upper-layer protocol
information. This is how connections older than the daemon become known, and how the status page counts bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from ..mptcp.model import FourTuple, KernelSubflow, TcpInfo, unmap
from .netlink import NetlinkSocket, attributes

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_AF_INET, _AF_INET6, _TCP = 2, 10, 6
_ESTABLISHED = 1 << 1
_REQUEST = struct.Struct("=BBBxI")
_EXT_INFO = 1 << (2 - 1)
_SOCKET_ID = struct.Struct("!HH16s16s")
_ANY_INTERFACE, _NO_COOKIE = bytes(4), b"\xff" * 8
_MESSAGE_BYTES = 72
_INFO, _ULP_INFO, _ULP_INFO_MPTCP = 2, 19, 3
_TOKEN_LOCAL, _FLAGS, _ID_REMOTE, _ID_LOCAL = 2, 8, 9, 10
_FLAG_JOIN = 1 << 2 | 1 << 3
_FLAG_BACKUP = 1 << 4
"""MPTCP_SUBFLOW_FLAG_BKUP_REM: the peer asked."""
_FLAG_MADE_BACKUP = 1 << 5
"""MPTCP_SUBFLOW_FLAG_BKUP_LOC: this host asked."""
_COOKIE = struct.Struct("=Q")
_COOKIE_OFFSET = 44
_NO_PACING_LIMIT = 0xFFFFFFFF
"""Bytes/s. The kernel's is the largest unsigned long; the socket option's, 32 bits wide, is this."""
_TCP_INFO = struct.Struct("=4x B 11x I 4x I I 36x I 8x I 16x I Q Q Q Q 8x I I 8x Q Q Q Q")
"""struct tcp_info of linux/tcp.h as far as it is read; kernels from 4.10 have all of it."""


class SocketDiagnostics:
    """Dumps of the namespace it is made in."""

    def __init__(self, listen_ports: Iterable[int]) -> None:
        self._ports = tuple(listen_ports)
        self._netlink = NetlinkSocket(_NETLINK_SOCK_DIAG)

    def close(self) -> None:
        self._netlink.close()

    def subflow(self, four_tuple: FourTuple) -> KernelSubflow | None:
        """Return the one subflow; None where there is no such socket. Raises KernelError if the question fails."""
        request = _REQUEST.pack(_AF_INET6 if four_tuple.is_ipv6 else _AF_INET, _TCP, _EXT_INFO, _ESTABLISHED)
        # struct pads the addresses with zeros.
        request += _SOCKET_ID.pack(four_tuple.local_port, four_tuple.remote_port, four_tuple.local, four_tuple.remote)
        request += _ANY_INTERFACE + _NO_COOKIE
        answer = self._netlink.look_up(_SOCK_DIAG_BY_FAMILY, request, "look up a TCP socket")
        return None if answer is None else parse(answer)

    def subflows(self) -> Iterator[KernelSubflow]:
        """Yield every established MPTCP subflow of our listening ports. Raises KernelError if the dump fails."""
        for port in self._ports:
            for family in (_AF_INET, _AF_INET6):
                request = _REQUEST.pack(family, _TCP, _EXT_INFO, _ESTABLISHED)
                request += struct.pack("!HH", port, 0) + bytes(32) + _ANY_INTERFACE + _NO_COOKIE
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
    tcp, sent, received = _tcp_info(info) if len(info) >= _TCP_INFO.size else (None, 0, 0)
    return KernelSubflow(
        token=int.from_bytes(mptcp[_TOKEN_LOCAL][:4], "little"),
        four_tuple=FourTuple(unmap(local[:size]), local_port, unmap(remote[:size]), remote_port),
        initial=not flags & _FLAG_JOIN,
        local_id=mptcp[_ID_LOCAL][0] if mptcp.get(_ID_LOCAL) else None,
        remote_id=mptcp[_ID_REMOTE][0] if mptcp.get(_ID_REMOTE) else None,
        backup=bool(flags & _FLAG_BACKUP),
        bytes_sent=sent,
        bytes_received=received,
        cookie=_COOKIE.unpack_from(body, _COOKIE_OFFSET)[0],
        tcp=tcp,
        made_backup=bool(flags & _FLAG_MADE_BACKUP),
    )


def _tcp_info(info: bytes) -> tuple[TcpInfo, int, int]:
    """Return the socket's state, and the bytes that were acknowledged and received."""
    (
        backoff,
        mss,
        unacked,
        sacked,
        rtt,
        cwnd,
        retransmissions,
        pacing_rate,
        max_pacing_rate,
        acked,
        received,
        not_sent,
        min_rtt,
        delivery_rate,
        busy,
        receive_window_limited,
        send_buffer_limited,
    ) = _TCP_INFO.unpack_from(info)
    state = TcpInfo(
        rtt=rtt,
        min_rtt=min_rtt,
        mss=mss,
        cwnd=cwnd,
        unacked=unacked,
        retransmissions=retransmissions,
        backoff=backoff,
        not_sent=not_sent,
        pacing_rate=pacing_rate * 8,
        max_pacing_rate=None if max_pacing_rate >= _NO_PACING_LIMIT else max_pacing_rate * 8,
        delivery_rate=delivery_rate * 8,
        busy=busy,
        receive_window_limited=receive_window_limited,
        send_buffer_limited=send_buffer_limited,
        sacked=sacked,
    )
    return state, acked, received
