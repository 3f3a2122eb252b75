# SPDX-License-Identifier: GPL-2.0-or-later
"""Socket diagnostics: dumps and look-ups of this host's current MPTCP subflows. sock_diag(7).

They find connections older than the daemon, and measure bytes, rates and losses of subflows. Each dump has its own
netlink socket, because a socket carries one dump at a time, look-ups happen meanwhile, and a dump may be abandoned.

An MPTCP subflow reports its token, address identifiers and flags as upper-layer protocol (ULP) information
(linux/inet_diag.h, linux/mptcp.h). The kernel writes the same attributes at the same offsets for all sockets of one
kind (length and family), so :class:`Decoder` learns the offsets once. It compares all attribute headers of every
message, and learns the layout again if they differ.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from mptcp_common import netlink
from mptcp_common.kernel_error import KernelError
from mptcp_common.netlink import NetlinkSocket, attribute, raise_first, refusal
from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, TcpInfo, unmap

_BATCH = 64  # look-ups sent before their answers are read: the receive buffer must hold all answers
_DUMP, _LOOK_UP, _CLOSE = "list TCP sockets", "look up TCP sockets", "close TCP sockets (CONFIG_INET_DIAG_DESTROY)"
_NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY, SOCK_DESTROY, DUMP = 20, 21, 18  # message types; the last is TCPDIAG_GETSOCK
_ESTABLISHED = 1 << 1
_BYTECODE, _JUMP, _SOURCE_PORT_IS = 1, 1, 11  # INET_DIAG_REQ_BYTECODE, INET_DIAG_BC_JMP, INET_DIAG_BC_S_EQ
_OPERATION = struct.Struct("=BBH")  # struct inet_diag_bc_op
_EXT_INFO = 1 << (2 - 1)
_SOCKET_ID = struct.Struct("!HH16s16s")
_NO_COOKIE = (1 << 64) - 1
_HEADER = struct.Struct("=IHHIIB")  # struct nlmsghdr, and the address family, which is the first byte of the payload
_HEADER_BYTES, _MESSAGE_BYTES = 16, 72  # sizeof(struct nlmsghdr), sizeof(struct inet_diag_msg)
_ID_OFFSET = 4
_ID_BYTES: dict[int, int] = {socket.AF_INET: 24, socket.AF_INET6: 36}
"""Bytes of the socket id's ports and addresses, by family: an IPv4 address uses only the first 4 of 16 bytes."""
_COOKIE_OFFSET = 44
_INFO, _ULP, _MPTCP = (2,), (19,), (19, 3)
"""Attributes by their types, from the outermost inward: INET_DIAG_INFO, INET_DIAG_ULP_INFO, INET_ULP_INFO_MPTCP."""
_TOKEN = (*_MPTCP, 2)
_ATTRIBUTES = {_TOKEN: "I", (*_MPTCP, 8): "I", (*_MPTCP, 9): "B", (*_MPTCP, 10): "B", (*_MPTCP, 4): "Q"}
"""Local token, flags, remote and local address identifier, last received data sequence number."""
_TCP_INFO = struct.Struct("=16x I 4x I I I 32x I I 4x I 16x I Q Q Q Q I 4x I 12x Q 8x Q 8x")
"""The fields read from struct tcp_info, linux/tcp.h; Linux 4.10 and later have all of them."""
_FLAG_JOIN, _FLAG_BACKUP, _FLAG_MADE_BACKUP = 1 << 2 | 1 << 3, 1 << 4, 1 << 5
"""MPTCP_SUBFLOW_FLAG_*: JOIN_REM and JOIN_LOC; BKUP_REM, requested by the peer; BKUP_LOC, by this host."""
_NO_PACING_LIMIT = 0xFFFFFFFF  # bytes/s; the option's maximum, as which the kernel stores the largest unsigned long
_ATTRIBUTE = struct.Struct("=HH")
_MAX_CACHED_TUPLES = 1 << 15  # four-tuples kept from one sweep to the next: at most 14 MB


class SocketDiagnostics:
    """Dumps and look-ups in the network namespace in which it is created."""

    def __init__(self, listen_ports: Iterable[int]) -> None:
        self._ports = tuple(listen_ports)
        self._look_ups = NetlinkSocket(_NETLINK_SOCK_DIAG)
        self._decoder = Decoder()

    def close(self) -> None:
        self._look_ups.close()

    def look_up(self, four_tuples: Sequence[FourTuple]) -> dict[FourTuple, KernelSubflow]:
        """Return the subflows that exist. Raises KernelError if the request fails."""
        subflows, refused = self._look_up(four_tuples)
        raise_first(refused)
        return subflows

    def _look_up(
        self, four_tuples: Sequence[FourTuple]
    ) -> tuple[dict[FourTuple, KernelSubflow], dict[FourTuple, KernelError]]:
        """Return the subflows that exist, and the errors for those whose state is unknown."""
        subflows: list[KernelSubflow] = []
        refused: dict[FourTuple, KernelError] = {}
        read_time = time.monotonic()
        for start in range(0, len(four_tuples), _BATCH):
            batch = four_tuples[start : start + _BATCH]
            first = self._look_ups.send([(SOCK_DIAG_BY_FAMILY, 0, exact_request(each)) for each in batch], _LOOK_UP)
            waiting = len(batch)
            while waiting:
                data = self._look_ups.receive(_LOOK_UP)  # one message: each answer has its own datagram
                sequence = int.from_bytes(data[8:12], sys.byteorder)
                index = (sequence - first) % (1 << 32)
                if index >= len(batch):
                    continue
                waiting -= 1
                error = self._decoder.decode(data, sequence, SOCK_DIAG_BY_FAMILY, subflows, read_time)
                if error is not None and netlink.error_of(error[1]) != errno.ENOENT:
                    refused[batch[index]] = refusal(error[1], _LOOK_UP)
        # For a closed socket the kernel returns the listening socket.
        requested = set(four_tuples)
        return {each.four_tuple: each for each in subflows if each.four_tuple in requested}, refused

    def close_sockets(self, four_tuples: Sequence[FourTuple]) -> dict[FourTuple, str]:
        """Close the subflows that exist, with a reset at both ends; return those that may still be open, and why."""
        still_open: dict[FourTuple, str] = {}
        for start in range(0, len(four_tuples), _BATCH):
            batch = four_tuples[start : start + _BATCH]
            try:
                subflows, unknown = self._look_up(batch)
                existing = list(subflows.values())
                requests = [(SOCK_DESTROY, 0, exact_request(each.four_tuple, each.cookie)) for each in existing]
                refused = self._look_ups.try_requests(requests, _CLOSE, ignore=(errno.ENOENT,))
            except KernelError as error:
                still_open |= dict.fromkeys(batch, str(error))
                if isinstance(error.__cause__, TimeoutError):
                    # Every further batch would block the event loop for the same time.
                    return still_open | dict.fromkeys(four_tuples[start:], str(error))
                continue
            still_open |= {four_tuple: str(error) for four_tuple, error in unknown.items()}
            still_open |= {existing[index].four_tuple: str(error) for index, error in refused.items()}
        return still_open

    def subflows(self) -> Iterator[KernelSubflow]:
        """Yield every established MPTCP subflow of our listening ports. Raises KernelError if the dump fails."""
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[list[KernelSubflow]]:
        """Yield one list per datagram, about 60 subflows; the caller may stop early. Raises KernelError on failure."""
        with NetlinkSocket(_NETLINK_SOCK_DIAG) as dump:
            filled, end = time.monotonic(), None
            sequence = dump.send([(DUMP, netlink.NLM_F_DUMP, _dump_request(self._ports))], _DUMP)
            while end is None:
                data = dump.receive(_DUMP)
                # The kernel fills a datagram when the previous one is received.
                read_time, filled = filled, time.monotonic()
                batch: list[KernelSubflow] = []
                end = self._decoder.decode(data, sequence, DUMP, batch, read_time)
                if end is not None:
                    netlink.check_end(end[1], _DUMP)
                yield batch


def _dump_request(ports: Sequence[int]) -> bytes:
    """Return a ``DUMP`` request for the established sockets of *ports*. It covers both families in one table walk.

    Its filter, for inet_diag_bc_run() of net/ipv4/inet_diag.c, accepts sockets with a local port in *ports*. Each
    operation has two jumps, in bytes from its own start. A jump 4 bytes past the end rejects the socket.
    """
    test, jump = 2 * _OPERATION.size, _OPERATION.size
    code = b""
    for port in reversed(ports):
        code_bytes = len(code)
        test_operation = _OPERATION.pack(_SOURCE_PORT_IS, test, test + jump) + _OPERATION.pack(0, 0, port)
        code = test_operation + (_OPERATION.pack(_JUMP, jump, jump + code_bytes) if code_bytes else b"") + code
    # struct inet_diag_req, with no socket id
    request = struct.pack("=BxxB40xQI4x", socket.AF_UNSPEC, _EXT_INFO, _NO_COOKIE, _ESTABLISHED)
    return request + attribute(_BYTECODE, code)


def exact_request(four_tuple: FourTuple, cookie: int = _NO_COOKIE) -> bytes:
    """Return the request for a socket. Without *cookie*, ``SOCK_DESTROY`` closes the listener if the socket ended."""
    family = socket.AF_INET6 if four_tuple.is_ipv6 else socket.AF_INET
    request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, _EXT_INFO, _ESTABLISHED)
    # struct pads the addresses with zeros. The interface is any.
    request += _SOCKET_ID.pack(four_tuple.local_port, four_tuple.remote_port, four_tuple.local, four_tuple.remote)
    return request + struct.pack("=4xQ", cookie)


@lru_cache(maxsize=_MAX_CACHED_TUPLES)
def _four_tuple(identity: bytes) -> FourTuple:
    """Return the four-tuple of a socket id, of the length in :data:`_ID_BYTES`."""
    size = 16 if len(identity) == _ID_BYTES[socket.AF_INET6] else 4
    local_port, remote_port, local, remote = _SOCKET_ID.unpack(identity.ljust(_SOCKET_ID.size))
    return FourTuple(unmap(local[:size]), local_port, unmap(remote[:size]), remote_port)


_Key = tuple[int, ...]  # the type of an attribute, after the types of those that contain it


class _Layout(NamedTuple):
    """How to read messages of one length and family."""

    reader: struct.Struct
    """Reads all attribute headers, and the values that the itemgetters *headers* and *values* select."""
    headers: Callable[[tuple[Any, ...]], Any]
    expected: Any
    values: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None
    """Selects a subflow's identity, cookie and ``_ATTRIBUTES``; None for plain TCP."""
    info: int  # offset of struct tcp_info


class Decoder:
    """Turns answer datagrams into subflows."""

    def __init__(self) -> None:
        self._layouts: dict[int, _Layout | None] = {}

    def decode(
        self, data: bytes, sequence: int, kind: int, subflows: list[KernelSubflow], read_time: float
    ) -> tuple[int, bytes] | None:
        """Append to *subflows* those in the messages of type *kind* with *sequence* in the datagram *data*.

        Return type and payload of the first message with *sequence* and another type; otherwise None.
        """
        offset, end = 0, len(data)
        layouts = self._layouts
        new, append = tuple.__new__, subflows.append
        read_header, read_info = _HEADER.unpack_from, _TCP_INFO.unpack_from
        while offset + _HEADER_BYTES < end:
            length, message_type, _, number, _, family = read_header(data, offset)
            if length < _HEADER_BYTES or offset + length > end:
                return None
            start = offset
            offset += (length + 3) & ~3
            if number != sequence:
                continue
            if message_type != kind:
                return message_type, data[start + _HEADER_BYTES : start + length]
            layout = layouts.get(length << 8 | family)
            if layout is None or layout.headers(fields := layout.reader.unpack_from(data, start)) != layout.expected:
                layout = layouts[length << 8 | family] = _layout(data[start : start + length], family)
                if layout is None:
                    continue
                fields = layout.reader.unpack_from(data, start)
            if layout.values is None:
                continue
            identity, cookie, token, flags, remote_id, local_id, data_sequence = layout.values(fields)
            info = read_info(data, start + layout.info)
            mss, unacked, sacked, lost, rtt, variance, window, retransmits, pacing, max_pacing, *others = info
            acked, received, segments_out, not_sent, delivery, window_limited = others
            limit = None if max_pacing >= _NO_PACING_LIMIT else max_pacing * 8
            rates = not_sent, pacing * 8, limit, delivery * 8
            tcp = (rtt, mss, unacked, *rates, window_limited, sacked, variance, retransmits, segments_out, lost, window)
            made_backup, backup = flags & _FLAG_MADE_BACKUP != 0, flags & _FLAG_BACKUP != 0
            state = token, _four_tuple(identity), not flags & _FLAG_JOIN, local_id, remote_id, backup, read_time
            counts = acked, received, cookie, new(TcpInfo, tcp), made_backup, data_sequence
            append(new(KernelSubflow, state + counts))
        return None


def _layout(message: bytes, family: int) -> _Layout | None:
    """Return the layout of an answer; None if it is malformed or lacks a needed attribute."""
    offsets = _attribute_offsets(message, _HEADER_BYTES + _MESSAGE_BYTES, len(message))
    if not offsets or family not in _ID_BYTES:
        return None
    headers = [(offset - 4, "I") for offset, _ in offsets.values()]
    fields = []
    if _TOKEN in offsets:
        needed = {key: struct.calcsize(f"={code}") for key, code in _ATTRIBUTES.items()} | {_INFO: _TCP_INFO.size}
        if any(offsets.get(key, (0, 0))[1] < size for key, size in needed.items()):
            return None
        fields = [(_HEADER_BYTES + _ID_OFFSET, f"{_ID_BYTES[family]}s"), (_HEADER_BYTES + _COOKIE_OFFSET, "Q")]
        fields += [(offsets[key][0], code) for key, code in _ATTRIBUTES.items()]
    ordered, codes, position = sorted([*headers, *fields]), "=", 0  # the order differs between kernels
    for offset, code in ordered:
        codes += f"{offset - position}x {code} "
        position = offset + struct.calcsize(f"={code}")
    reader = struct.Struct(f"{codes}{len(message) - position}x")
    select = itemgetter(*map(ordered.index, headers))
    values = itemgetter(*map(ordered.index, fields)) if fields else None
    return _Layout(reader, select, select(reader.unpack(message)), values, offsets.get(_INFO, (0, 0))[0])


def _attribute_offsets(message: bytes, start: int, end: int, outer: _Key = ()) -> dict[_Key, tuple[int, int]] | None:
    """Return offset and length of each attribute's payload; None if one is malformed or occurs twice."""
    offsets: dict[_Key, tuple[int, int]] = {}
    while start + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(message, start)
        key = (*outer, kind & netlink.NLA_TYPE_MASK)
        if length < 4 or start + length > end or key in offsets:
            return None
        offsets[key] = start + 4, length - 4
        if key in (_ULP, _MPTCP):
            inner = _attribute_offsets(message, start + 4, start + length, key)
            if inner is None:
                return None
            offsets |= inner
        start += (length + 3) & ~3
    return offsets
