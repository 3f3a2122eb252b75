# SPDX-License-Identifier: GPL-2.0-or-later
"""Netlink (netlink(7)), for requests for which pyroute2 is too slow or has no message class.

It is used for thousands of messages per second (set entries, path-manager events, socket diagnostics, routes of a
thousand relays), and for root qdiscs, which are saved and restored byte for byte. All other requests use pyroute2.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from mptcp_common.kernel_error import KernelError
from mptcp_common.reasons import reason

NETLINK_NETFILTER = 12
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_CREATE, NLM_F_DUMP = 0x400, 0x300
REPLACE = NLM_F_CREATE | 0x100  # create an object, or replace it (NLM_F_REPLACE)
NLA_NESTED, NLA_NET_BYTEORDER, NLA_TYPE_MASK = 0x8000, 0x4000, 0x3FFF

OUR_PORTS = 0x4D50 << 16
"""The upper 16 bits of our sockets' port ids: a notification has the port id of the socket that made the change. Our
port ids are above every process id, which is the port id that the kernel assigns by default. The throttler ignores
notifications with them, so other daemons may use :class:`NetlinkSocket` only to read."""

_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP_INTR = 0x1, 0x4, 0x10
_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP = 270, 1
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_SEQUENCE_MASK = 0xFFFFFFFF
_RECEIVE_BYTES = 1 << 16  # the kernel's dump datagrams have up to 32 KB
_FEATURES = {
    4: "socket diagnostics (modules inet_diag, tcp_diag, mptcp_diag)",
    NETLINK_NETFILTER: "netfilter's netlink (module nfnetlink)",
    16: "generic netlink",
}
"""The feature that the kernel lacks if it refuses a socket, by protocol."""
_ATTEMPTS = 8  # attempts to find an unused port id
_BATCH = 128  # requests per batch: the receive buffer must hold all acknowledgments


def attribute(kind: int, payload: bytes) -> bytes:
    length = 4 + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + b"\0" * (-length % 4)


def attributes(data: bytes, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield type (without flag bits) and payload of each attribute of *data*; stop at a malformed attribute."""
    end = len(data)
    while offset + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4 or offset + length > end:
            return
        yield kind & NLA_TYPE_MASK, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def string(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def text(value: bytes | None) -> str:
    """Return the string of an attribute's payload, empty for None. The kernel allows any bytes in most names."""
    return (value or b"").rstrip(b"\0").decode(errors="replace")


def integer(value: bytes) -> int:
    """Return the unsigned integer of an attribute's payload, 0 if that is empty."""
    return int.from_bytes(value, sys.byteorder)


def listen(
    protocol: int,
    groups: Iterable[int],
    action: str,
    *,
    buffer: int = 0,
    drops: Sequence[tuple[int, int, int, int]] = (),
) -> socket.socket:
    """Return a non-blocking socket in multicast *groups*, with a receive buffer of *buffer* bytes (0: default). *drops*
    is a classic BPF program (linux/filter.h) that drops unwanted messages. Raises KernelError."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        if buffer:
            netlink.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer)
        if drops:
            program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in drops))
            header = struct.pack("@HP", len(drops), ctypes.addressof(program))
            netlink.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, header)
        netlink.bind((0, 0))
        for group in groups:
            netlink.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)
        netlink.setblocking(False)
    except OSError as error:
        netlink.close()
        raise KernelError(f"{action}: {error.strerror}") from error
    return netlink


def bind_as_ours(netlink: socket.socket) -> None:
    """Give a socket a port id of :data:`OUR_PORTS`."""
    for _ in range(_ATTEMPTS):
        with suppress(OSError):
            return netlink.bind((OUR_PORTS | random.getrandbits(16), 0))
    netlink.bind((0, 0))


def datagrams(netlink: socket.socket, limit: int) -> Iterator[bytes | None]:
    """Yield up to *limit* waiting datagrams; None if the kernel lost some (ENOBUFS). Raises OSError otherwise."""
    for _ in range(limit):
        try:
            yield netlink.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            yield None


def messages(data: bytes) -> Iterator[tuple[int, int, int, int, bytes]]:
    """Yield type, flags, sequence number, requester's port id and payload of each message of a datagram."""
    offset = 0
    while offset + 16 <= len(data):
        length, kind, flags, sequence, port = _HEADER.unpack_from(data, offset)
        if length < 16 or offset + length > len(data):
            return
        yield kind, flags, sequence, port, data[offset + 16 : offset + length]
        offset += (length + 3) & ~3


class NetlinkSocket:
    """A blocking netlink socket for requests, bound to the network namespace in which it is opened."""

    def __init__(self, protocol: int, timeout: float = 10.0) -> None:
        """*timeout*: maximum seconds to wait for an answer. Raises KernelError."""
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        except OSError as error:
            raise KernelError(
                f"open a netlink socket: {error.strerror}; the kernel needs {_FEATURES.get(protocol, 'netlink')}"
            ) from error
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.settimeout(timeout)
        bind_as_ours(self._socket)
        self._sequence = 0
        self.interrupted = False  # the table changed during the last dump (NLM_F_DUMP_INTR): objects may be missing

    def __enter__(self) -> NetlinkSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def request(self, kind: int, flags: int, payload: bytes, action: str, ignore: Sequence[int] = ()) -> None:
        """Send a request and await its acknowledgment. Raises KernelError, unless *ignore* has the errno."""
        self.requests([(kind, flags, payload)], action, ignore)

    def requests(self, batch: Sequence[tuple[int, int, bytes]], action: str, ignore: Sequence[int] = ()) -> None:
        """Send all requests, and raise the first failure as KernelError."""
        raise_first(self.try_requests(batch, action, ignore))

    def try_requests(
        self, batch: Sequence[tuple[int, int, bytes]], action: str, ignore: Sequence[int] = ()
    ) -> dict[int, KernelError]:
        """Send all requests; return the failures by index in *batch*. Raises KernelError if answers cannot be read."""
        failures: dict[int, KernelError] = {}
        for start in range(0, len(batch), _BATCH):
            part = [(kind, flags | _NLM_F_ACK, payload) for kind, flags, payload in batch[start : start + _BATCH]]
            first_sequence = self.send(part, action)
            waiting = len(part)
            while waiting:
                for kind, _, sequence, _, body in messages(self.receive(action)):
                    index = (sequence - first_sequence) & _SEQUENCE_MASK
                    if kind == NLMSG_ERROR and index < len(part):
                        waiting -= 1
                        if error_of(body) not in (0, *ignore):
                            failures[start + index] = refusal(body, action)
        return failures

    def ask(self, kind: int, payload: bytes, action: str) -> bytes:
        """Send one request and return the payload of its single answer. Raises KernelError."""
        answer_kind, _, body = next(self._answers(kind, 0, payload, action))
        if answer_kind == NLMSG_ERROR:
            raise refusal(body, action)
        return body

    def ask_if_exists(self, kind: int, payload: bytes, action: str) -> bytes | None:
        """Like :meth:`ask`, but return None if the object does not exist (ENOENT, ENODEV)."""
        try:
            return self.ask(kind, payload, action)
        except KernelError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return None
            raise

    def dump(self, kind: int, payload: bytes, action: str) -> Iterator[bytes]:
        """Yield the payload of each message of a dump; one dump at a time. Raises KernelError, also during the dump."""
        self.interrupted = False
        for answer_kind, flags, body in self._answers(kind, NLM_F_DUMP, payload, action):
            self.interrupted = self.interrupted or flags & _NLM_F_DUMP_INTR != 0
            if answer_kind in (NLMSG_DONE, NLMSG_ERROR):
                check_end(body, action)
                return
            yield body

    def _answers(self, kind: int, flags: int, payload: bytes, action: str) -> Iterator[tuple[int, int, bytes]]:
        expected = self.send([(kind, flags, payload)], action)
        while True:
            for answer_kind, answer_flags, sequence, _, body in messages(self.receive(action)):
                if sequence == expected:
                    yield answer_kind, answer_flags, body

    def send(self, requests: Sequence[tuple[int, int, bytes]], action: str) -> int:
        """Send requests in one datagram; return the first sequence number, modulo 2**32. Raises KernelError."""
        first = (self._sequence + 1) & _SEQUENCE_MASK
        data = bytearray()
        for kind, flags, payload in requests:
            self._sequence = (self._sequence + 1) & _SEQUENCE_MASK
            data += _HEADER.pack(16 + len(payload), kind, flags | _NLM_F_REQUEST, self._sequence, 0)
            data += payload + b"\0" * (-len(payload) % 4)
        try:
            self._socket.send(data)
        except OSError as error:
            raise KernelError(f"{action}: {reason(error)}") from error
        return first

    def receive(self, action: str) -> bytes:
        """Return the next datagram. Raises KernelError."""
        try:
            return self._socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise KernelError(f"{action}: {reason(error)}") from error


def raise_first(failures: dict[Any, KernelError]) -> None:
    """Raise the first error of *failures*, if any, and remove it from there (see ``event_loop`` of the throttler)."""
    for each in failures:
        raise failures.pop(each)


def check_end(body: bytes, action: str) -> None:
    """Raise KernelError if the payload of the last message of a dump is an error."""
    if error_of(body):
        raise refusal(body, action)


def error_of(body: bytes) -> int:
    """Return the errno of a message that begins with a negative errno; otherwise 0."""
    return max(0, -int.from_bytes(body[:4], sys.byteorder, signed=True))


def refusal(body: bytes, action: str) -> KernelError:
    """Return the error for the payload of a message that begins with a negative errno."""
    code = error_of(body)
    error = KernelError(f"{action}: {errno.errorcode.get(code, code)} ({os.strerror(code)})")
    error.errno = code
    return error
