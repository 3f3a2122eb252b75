"""The wire format of TCP socket diagnostics, requests and answers. sock_diag(7), linux/inet_diag.h, linux/mptcp.h.

An MPTCP subflow reports its token, address identifiers and flags as upper-layer protocol (ULP) information. The kernel
writes the same attributes at the same offsets for all sockets of one kind, so :class:`Decoder` learns the offsets once
for thousands of answers. It compares all attribute headers of every message and learns a new layout if they differ.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from mptcp_throttler.kernel.netlink import NLA_TYPE_MASK, attribute, attributes
from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, SocketDetails, TcpInfo, unmap

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
SOCK_DESTROY = 21
DUMP = 18
"""TCPDIAG_GETSOCK."""
AF_UNSPEC, AF_INET, AF_INET6 = 0, 2, 10
_TCP = 6
_ESTABLISHED = 1 << 1
_REQUEST = struct.Struct("=BBBxI")
_OLD_REQUEST = struct.Struct("=BxxB")
"""struct inet_diag_req before the socket id: family and extensions."""
_STATES = struct.Struct("=I4x")
_BYTECODE, _JUMP, _SOURCE_PORT_IS = 1, 1, 11
"""INET_DIAG_REQ_BYTECODE, INET_DIAG_BC_JMP, INET_DIAG_BC_S_EQ."""
_OPERATION = struct.Struct("=BBH")
"""struct inet_diag_bc_op."""
_EXT_INFO = 1 << (2 - 1)
_SOCKET_ID = struct.Struct("!HH16s16s")
_ANY_INTERFACE, _NO_COOKIE = bytes(4), b"\xff" * 8
_MESSAGE_BYTES = 72
"""sizeof(struct inet_diag_msg)."""
_ID_OFFSET, _ID_BYTES = 4, {AF_INET: 24, AF_INET6: 36}
"""Its ports and addresses, as many bytes as the family uses: an IPv4 address is the first 4 of 16 bytes."""
_INFO = 2
_ULP, _MPTCP = (19,), (19, 3)
"""Nested attributes: INET_DIAG_ULP_INFO, and INET_ULP_INFO_MPTCP in it."""
_FLAG_JOIN = 1 << 2 | 1 << 3
_FLAG_BACKUP = 1 << 4
"""MPTCP_SUBFLOW_FLAG_BKUP_REM: the peer asked."""
_FLAG_MADE_BACKUP = 1 << 5
"""MPTCP_SUBFLOW_FLAG_BKUP_LOC: this host asked."""
_COOKIE = struct.Struct("=Q")
_COOKIE_OFFSET = 44
_NO_PACING_LIMIT = 0xFFFFFFFF
"""Bytes/s. The kernel stores the largest unsigned long; this is the value of the 32-bit socket option."""
_TCP_INFO_FIELDS = "16x I 4x I I 36x I 32x Q Q Q Q 8x I 12x Q 8x Q 8x"
"""The fields read from struct tcp_info, linux/tcp.h; Linux 4.10 and later have all of them."""
_DETAILS = struct.Struct("=32x I 36x I 4x I 16x I 32x I")
"""From the same struct: lost, rttvar, snd_cwnd, total_retrans, segs_out."""
_TOKEN = (*_MPTCP, 2)
_WANTED = {
    (_INFO,): _TCP_INFO_FIELDS,
    _TOKEN: "I",
    (*_MPTCP, 8): "I",
    (*_MPTCP, 9): "B",
    (*_MPTCP, 10): "B",
    (*_MPTCP, 4): "Q",
}
"""Attributes of a subflow, by types from the outermost inward: struct tcp_info, local token, flags, remote and local
address identifier, data sequence number last received."""
_ATTRIBUTE = struct.Struct("=HH")
_HEADER = struct.Struct("=IHHIIB")
"""struct nlmsghdr, and the address family, which is the first byte of the payload."""
_HEADER_BYTES = 16
_MAX_KNOWN = 1 << 16
"""Four-tuples cached at most between two full sweeps."""
_MAX_LAYOUTS = 4
"""Layouts kept for each kind, which is a length and a family."""
_MAX_KINDS = 64


def dump_request(ports: Sequence[int]) -> bytes:
    """Return a ``DUMP`` request for the established sockets of *ports*. It covers both families in one table walk."""
    request = _OLD_REQUEST.pack(AF_UNSPEC, _EXT_INFO) + _SOCKET_ID.pack(0, 0, b"", b"") + _ANY_INTERFACE + _NO_COOKIE
    return request + _STATES.pack(_ESTABLISHED) + attribute(_BYTECODE, _of_ports(ports))


def _of_ports(ports: Sequence[int]) -> bytes:
    """Return a filter for inet_diag_bc_run(), net/ipv4/inet_diag.c, that accepts sockets with a local port in *ports*.

    Each operation has two jumps, in bytes from its own start. A jump 4 bytes past the end rejects.
    """
    test, jump = 2 * _OPERATION.size, _OPERATION.size
    code = b""
    for port in reversed(ports):
        rest = len(code)
        this = _OPERATION.pack(_SOURCE_PORT_IS, test, test + jump) + _OPERATION.pack(0, 0, port)
        code = this + (_OPERATION.pack(_JUMP, jump, jump + rest) if rest else b"") + code
    return code


def exact_request(four_tuple: FourTuple) -> bytes:
    """Return a request for one socket."""
    request = _REQUEST.pack(AF_INET6 if four_tuple.is_ipv6 else AF_INET, _TCP, _EXT_INFO, _ESTABLISHED)
    # struct pads the addresses with zeros.
    request += _SOCKET_ID.pack(four_tuple.local_port, four_tuple.remote_port, four_tuple.local, four_tuple.remote)
    return request + _ANY_INTERFACE + _NO_COOKIE


def destroy_request(four_tuple: FourTuple, cookie: int) -> bytes:
    """Return a ``SOCK_DESTROY`` request. Without *cookie* the kernel would close the listener if the socket is gone."""
    return exact_request(four_tuple)[: -len(_NO_COOKIE)] + _COOKIE.pack(cookie)


def details(body: bytes) -> tuple[FourTuple, SocketDetails] | None:
    """Return the details in an inet_diag_msg that samples omit; None if it has no TCP information."""
    if len(body) < _MESSAGE_BYTES:
        return None
    info = dict(attributes(body, _MESSAGE_BYTES)).get(_INFO, b"")
    if len(info) < _DETAILS.size:
        return None
    lost, variance, window, retransmits, segments_out = _DETAILS.unpack_from(info)
    return _four_tuple(body), SocketDetails(variance, retransmits, segments_out, lost, window)


def _four_tuple(body: bytes) -> FourTuple:
    size = 16 if body[0] == AF_INET6 else 4
    local_port, remote_port, local, remote = _SOCKET_ID.unpack_from(body, _ID_OFFSET)
    return FourTuple(unmap(local[:size]), local_port, unmap(remote[:size]), remote_port)


_Path = tuple[int, ...]


class _Layout(NamedTuple):
    """Offsets in messages of one length and family, netlink header included."""

    headers: struct.Struct
    expected: tuple[int, ...]
    values: struct.Struct | None
    """Reads the values of a subflow, in message order; None for a plain TCP socket."""
    in_order: Callable[[tuple[Any, ...]], tuple[Any, ...]]


class Decoder:
    """Turns answer datagrams into subflows, and caches their four-tuples."""

    def __init__(self) -> None:
        self._layouts: dict[int, tuple[_Layout, ...]] = {}
        self._known: dict[int, tuple[bytes, FourTuple]] = {}
        """Four-tuples, in wire format and as an object, by cookie."""
        self._seen: dict[int, tuple[bytes, FourTuple]] = {}
        """The same for the current sweep."""

    def begin_sweep(self) -> None:
        """Begin a sweep of all sockets; :meth:`end_sweep` forgets those not seen by then."""
        self._seen = {}

    def end_sweep(self) -> None:
        self._known, self._seen = self._seen, {}

    def decode(
        self, data: bytes, sequence: int, kind: int, found: list[KernelSubflow], read: float
    ) -> tuple[int, bytes] | None:
        """Append the subflows in a datagram's messages of type *kind* with *sequence* to *found*, with time *read*.

        Return type and payload of the first message with *sequence* and another type; otherwise None.
        """
        offset, end = 0, len(data)
        known, seen, layouts = self._known, self._seen, self._layouts
        new, append = tuple.__new__, found.append
        read_header = _HEADER.unpack_from
        while offset + _HEADER_BYTES < end:
            length, what, _, number, _, family = read_header(data, offset)
            if length < _HEADER_BYTES or offset + length > end:
                return None
            start = offset
            offset += (length + 3) & ~3
            if number != sequence:
                continue
            if what != kind:
                return what, data[start + _HEADER_BYTES : start + length]
            for layout in layouts.get(length << 8 | family, ()):
                if layout.headers.unpack_from(data, start) == layout.expected:
                    break
            else:
                learned = self._learn(data[start : start + length], family)
                if learned is None:
                    continue
                layout = learned
            if layout.values is None:
                continue
            (
                identity,
                cookie,
                mss,
                unacked,
                sacked,
                rtt,
                pacing_rate,
                max_pacing_rate,
                acked,
                received,
                not_sent,
                delivery_rate,
                receive_window_limited,
                token,
                mptcp_flags,
                remote_id,
                local_id,
                data_sequence,
            ) = layout.in_order(layout.values.unpack_from(data, start))
            entry = known.get(cookie)
            if entry is None or entry[0] != identity:
                entry = self._meet(cookie, identity, data[start + _HEADER_BYTES : start + length])
            seen[cookie] = entry
            tcp = new(
                TcpInfo,
                (
                    rtt,
                    mss,
                    unacked,
                    not_sent,
                    pacing_rate * 8,
                    None if max_pacing_rate >= _NO_PACING_LIMIT else max_pacing_rate * 8,
                    delivery_rate * 8,
                    receive_window_limited,
                    sacked,
                ),
            )
            append(
                new(
                    KernelSubflow,
                    (
                        token,
                        entry[1],
                        not mptcp_flags & _FLAG_JOIN,
                        local_id,
                        remote_id,
                        mptcp_flags & _FLAG_BACKUP != 0,
                        read,
                        acked,
                        received,
                        cookie,
                        tcp,
                        mptcp_flags & _FLAG_MADE_BACKUP != 0,
                        data_sequence,
                    ),
                )
            )
        return None

    def _meet(self, cookie: int, identity: bytes, body: bytes) -> tuple[bytes, FourTuple]:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        if len(self._seen) >= _MAX_KNOWN:
            self._seen.clear()
        entry = self._known[cookie] = identity, _four_tuple(body)
        return entry

    def _learn(self, message: bytes, family: int) -> _Layout | None:
        layout = _layout(message, family)
        if layout is not None:
            if len(self._layouts) >= _MAX_KINDS:
                self._layouts.clear()
            kind = len(message) << 8 | family
            self._layouts[kind] = (layout, *self._layouts.get(kind, ()))[:_MAX_LAYOUTS]
        return layout


def _layout(message: bytes, family: int) -> _Layout | None:
    places = _places(message, _HEADER_BYTES + _MESSAGE_BYTES, len(message))
    if not places or family not in _ID_BYTES:
        return None
    headers = _reader([(offset - 4, "I") for offset, _ in places.values()], len(message))
    expected = headers.unpack(message)
    if _TOKEN not in places:
        return _Layout(headers, expected, None, tuple)
    wanted = [
        (_HEADER_BYTES + _ID_OFFSET, f"{_ID_BYTES[family]}s"),
        (_HEADER_BYTES + _COOKIE_OFFSET, "Q"),
    ]
    for path, code in _WANTED.items():
        offset, size = places.get(path, (0, 0))
        if size < struct.calcsize(f"={code}"):
            return None
        wanted.append((offset, code))
    ordered = sorted(wanted)
    firsts, first = {}, 0
    for offset, code in ordered:
        firsts[offset] = first
        first += _count(code)
    in_order = itemgetter(*(firsts[offset] + n for offset, code in wanted for n in range(_count(code))))
    return _Layout(headers, expected, _reader(ordered, len(message)), in_order)


def _count(code: str) -> int:
    return len(struct.unpack(f"={code}", bytes(struct.calcsize(f"={code}"))))


def _reader(picks: list[tuple[int, str]], length: int) -> struct.Struct:
    """Return a struct of *length* bytes that reads each of *picks*: offset and format code, in ascending order."""
    codes, position = [], 0
    for offset, code in picks:
        codes.append(f"{offset - position}x {code}")
        position = offset + struct.calcsize(f"={code}")
    return struct.Struct(f"={' '.join(codes)} {length - position}x")


def _places(message: bytes, start: int, end: int, path: _Path = ()) -> dict[_Path, tuple[int, int]] | None:
    """Return offset and length of each attribute's payload by its types; None if one is malformed or occurs twice."""
    found: dict[_Path, tuple[int, int]] = {}
    while start + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(message, start)
        here = (*path, kind & NLA_TYPE_MASK)
        if length < 4 or start + length > end or here in found:
            return None
        found[here] = start + 4, length - 4
        if here in (_ULP, _MPTCP):
            within = _places(message, start + 4, start + length, here)
            if within is None:
                return None
            found |= within
        start += (length + 3) & ~3
    return found
