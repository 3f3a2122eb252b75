"""The few lines of netlink (netlink(7)) that pyroute2 is too slow for or has no message class for.

Used where thousands of messages a second are made or read: set entries, path-manager events, socket
diagnostics; and for root qdiscs, which are saved and put back byte for byte. The rest goes through pyroute2.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from types import TracebackType

from .ports import KernelError

NLMSG_ERROR = 2
NLMSG_DONE = 3
NLM_F_REQUEST = 0x1
NLM_F_ACK = 0x4
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_REPLACE = 0x100
NLM_F_DUMP = 0x300
NLA_NESTED = 0x8000
NLA_NET_BYTEORDER = 0x4000
NLA_TYPE_MASK = 0x3FFF

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_RECEIVE_BYTES = 1 << 18
_BATCH = 128
"""Requests sent before their answers are read: the receive buffer must hold that many acknowledgments."""


def attribute(kind: int, payload: bytes) -> bytes:
    """Return one netlink attribute, padded to four bytes."""
    length = 4 + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + b"\0" * (-length % 4)


def attributes(data: bytes, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield type (without flag bits) and payload of each attribute of *data*; stop at the first malformed one."""
    end = len(data)
    while offset + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4 or offset + length > end:
            return
        yield kind & NLA_TYPE_MASK, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield type, sequence number and payload of each netlink message of a datagram."""
    offset = 0
    while offset + 16 <= len(data):
        length, kind, _flags, sequence, _pid = _HEADER.unpack_from(data, offset)
        if length < 16 or offset + length > len(data):
            return
        yield kind, sequence, data[offset + 16 : offset + length]
        offset += (length + 3) & ~3


class NetlinkSocket:
    """A blocking netlink socket for requests; it belongs to the network namespace it is opened in."""

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.settimeout(10.0)
        self._socket.bind((0, 0))
        self._sequence = 0

    def __enter__(self) -> NetlinkSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def request(self, kind: int, flags: int, payload: bytes, what: str, ignore: Sequence[int] = ()) -> None:
        """Send one request and wait for its acknowledgment.

        Raises :class:`KernelError`, naming *what* was attempted, unless the errno is in *ignore*.
        """
        self.requests([(kind, flags, payload)], what, ignore)

    def requests(self, batch: Sequence[tuple[int, int, bytes]], what: str, ignore: Sequence[int] = ()) -> None:
        """Send many requests; all are attempted, then the first failure is raised as :class:`KernelError`."""
        failure: bytes | None = None
        for start in range(0, len(batch), _BATCH):
            part = batch[start : start + _BATCH]
            first = self._sequence + 1
            data = bytearray()
            for kind, flags, payload in part:
                self._sequence += 1
                data += _HEADER.pack(16 + len(payload), kind, flags | NLM_F_REQUEST | NLM_F_ACK, self._sequence, 0)
                data += payload + b"\0" * (-len(payload) % 4)
            self._send(data, what)
            waiting = len(part)
            while waiting:
                for kind, sequence, body in messages(self._receive(what)):
                    if kind == NLMSG_ERROR and sequence >= first:
                        waiting -= 1
                        code = -int.from_bytes(body[:4], "little", signed=True)
                        if code and code not in ignore:
                            failure = failure or body
        if failure is not None:
            raise _refusal(failure, what)

    def ask(self, kind: int, payload: bytes, what: str) -> bytes:
        """Send one request and return the payload of its single answer. Raises :class:`KernelError`."""
        refused, body = self._answer(kind, payload, what)
        if refused:
            raise _refusal(body, what)
        return body

    def look_up(self, kind: int, payload: bytes, what: str) -> bytes | None:
        """Do as :meth:`ask`, but return None where the kernel says that there is no such thing."""
        refused, body = self._answer(kind, payload, what)
        if not refused:
            return body
        if -int.from_bytes(body[:4], "little", signed=True) == errno.ENOENT:
            return None
        raise _refusal(body, what)

    def _answer(self, kind: int, payload: bytes, what: str) -> tuple[bool, bytes]:
        """Return whether the single answer to a request is an error, and its payload."""
        self._sequence += 1
        self._send(_HEADER.pack(16 + len(payload), kind, NLM_F_REQUEST, self._sequence, 0) + payload, what)
        while True:
            for answer, sequence, body in messages(self._receive(what)):
                if sequence == self._sequence:
                    return answer == NLMSG_ERROR, body

    def dump(self, kind: int, payload: bytes, what: str) -> Iterator[bytes]:
        """Yield the payload of each message of a dump."""
        self._sequence += 1
        header = _HEADER.pack(16 + len(payload), kind, NLM_F_REQUEST | NLM_F_DUMP, self._sequence, 0)
        self._send(header + payload, what)
        while True:
            for answer, sequence, body in messages(self._receive(what)):
                if sequence != self._sequence:
                    continue
                if answer == NLMSG_DONE:
                    return
                if answer == NLMSG_ERROR:
                    raise _refusal(body, what)
                yield body

    def _send(self, data: bytes | bytearray, what: str) -> None:
        try:
            self._socket.send(data)
        except OSError as error:
            raise KernelError(f"{what}: {error}") from error

    def _receive(self, what: str) -> bytes:
        try:
            return self._socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise KernelError(f"{what}: {error}") from error


def _refusal(body: bytes, what: str) -> KernelError:
    code = -int.from_bytes(body[:4], "little", signed=True)
    return KernelError(f"{what}: {errno.errorcode.get(code, code)} ({os.strerror(code)})")
