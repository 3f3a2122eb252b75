# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for netlink requests to a fake kernel: ends of dumps, sequence numbers, refusals, and closed sockets."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping

import pytest

from mptcp_common.kernel_error import KernelError
from mptcp_common.netlink import NLMSG_DONE, NLMSG_ERROR, NetlinkSocket, attribute
from mptcp_throttler.kernel.sockets import diagnostics as sockets_diagnostics
from mptcp_throttler.kernel.sockets.diagnostics import (
    SOCK_DESTROY,
    SOCK_DIAG_BY_FAMILY,
    SocketDiagnostics,
    exact_request,
)
from mptcp_throttler.kernel.tc import htb
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.model import Ownership

HEADER = struct.Struct("=IHHII")
ROUTE = 0
NLM_F_DUMP_INTR = 0x10
ANSWER = 9
"""Message kind of the fake kernel's answers with data. Any value serves."""


def message(kind: int, sequence: int, body: bytes, flags: int = 0) -> bytes:
    return HEADER.pack(16 + len(body), kind, flags, sequence, 0) + body


class FakeKernel:
    """Answers each request by calling *answer* with its sequence number."""

    def __init__(self, answer: Callable[[int], list[bytes]]) -> None:
        self._answer = answer
        self._datagrams: deque[bytes] = deque()

    def send(self, data: bytes) -> None:
        while data:
            length, _, _, sequence, _ = HEADER.unpack_from(data)
            data = data[(length + 3) & ~3 :]
            self._datagrams += self._answer(sequence)

    def recv(self, _size: int) -> bytes:
        return self._datagrams.popleft()

    def close(self) -> None:
        pass


def connect_fake(netlink: NetlinkSocket, answer: Callable[[int], list[bytes]]) -> NetlinkSocket:
    netlink._socket.close()
    netlink._socket = FakeKernel(answer)  # type: ignore[assignment]
    return netlink


def test_dump_that_ends_with_an_error_raises_the_error() -> None:
    netlink = connect_fake(
        NetlinkSocket(ROUTE),
        lambda n: [message(ANSWER, n, b"one"), message(NLMSG_DONE, n, struct.pack("=i", -errno.ENOBUFS))],
    )
    dump = netlink.dump(8, b"", "list things")
    assert next(dump) == b"one"
    with pytest.raises(KernelError, match="list things: ENOBUFS"):
        next(dump)


def test_interrupted_dump_is_reported() -> None:
    flags = NLM_F_DUMP_INTR
    netlink = connect_fake(
        NetlinkSocket(ROUTE), lambda n: [message(ANSWER, n, b"one", flags), message(NLMSG_DONE, n, bytes(4))]
    )
    assert list(netlink.dump(8, b"", "list things")) == [b"one"]
    assert netlink.interrupted
    flags = 0
    list(netlink.dump(8, b"", "list things"))
    assert not netlink.interrupted


def test_sequence_numbers_restart_after_the_largest() -> None:
    netlink = connect_fake(NetlinkSocket(ROUTE), lambda n: [message(NLMSG_ERROR, n, bytes(20))])
    netlink._sequence = 0xFFFFFFFD
    netlink.requests([(1, 0, b"")] * 5, "do five things")
    assert netlink._sequence == 2
    netlink = connect_fake(NetlinkSocket(ROUTE), lambda n: [message(ANSWER, n, b"answer")])
    netlink._sequence = 0xFFFFFFFF
    assert netlink.ask(8, b"", "ask") == b"answer"


def test_socket_look_ups_work_after_the_largest_sequence_number() -> None:
    diagnostics = SocketDiagnostics((3128,))
    connect_fake(diagnostics._look_ups, lambda n: [message(NLMSG_ERROR, n, struct.pack("=i", -errno.ENOENT))])
    diagnostics._look_ups._sequence = 0xFFFFFFF0
    absent = [FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\2", port) for port in range(200)]
    assert diagnostics.look_up(absent) == {}
    diagnostics.close()


def test_refused_look_up_raises_after_all_answers_were_read() -> None:
    diagnostics = SocketDiagnostics((3128,))
    code = -errno.EPERM
    connect_fake(diagnostics._look_ups, lambda n: [message(NLMSG_ERROR, n, struct.pack("=i", code))])
    four_tuple = FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\2", 1)
    with pytest.raises(KernelError, match="EPERM"):
        diagnostics.look_up([four_tuple, four_tuple])
    code = -errno.ENOENT
    assert diagnostics.look_up([four_tuple]) == {}
    diagnostics.close()


def test_request_to_close_a_socket_contains_its_cookie() -> None:
    """Without the cookie, the kernel would close the listening socket if the connection's socket no longer exists."""
    four_tuple = FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\2", 1)
    request = exact_request(four_tuple, 0x1122334455667788)
    look_up = exact_request(four_tuple)
    assert request[:-8] == look_up[:-8]
    assert look_up[-8:] == b"\xff" * 8
    assert request[-8:] == struct.pack("=Q", 0x1122334455667788)


def test_missing_socket_is_not_closed() -> None:
    diagnostics = SocketDiagnostics((3128,))
    code = -errno.ENOENT
    requests: list[int] = []

    def answer(number: int) -> list[bytes]:
        requests.append(number)
        return [message(NLMSG_ERROR, number, struct.pack("=i", code))]

    connect_fake(diagnostics._look_ups, answer)
    assert diagnostics.close_sockets([FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\2", 1)]) == {}
    assert len(requests) == 1
    diagnostics.close()


class KernelWithSockets(FakeKernel):
    """A kernel that finds every requested socket, and closes it on request.

    *refused*: errors by kind of request and remote port. *failures*: errors of ``recv``, by the number of the request
    datagram, from 0.
    """

    def __init__(self, refused: Mapping[tuple[int, int], int], failures: Mapping[int, OSError]) -> None:
        super().__init__(lambda _: [])
        self.closed: list[int] = []
        self.datagrams = 0
        self._refused, self._failures = refused, failures
        self._failure: OSError | None = None

    def send(self, data: bytes) -> None:
        self._failure = self._failures.get(self.datagrams)
        self.datagrams += 1
        while data and self._failure is None:
            length, kind, _, sequence, _ = HEADER.unpack_from(data)
            socket_id, data = data[24:64], data[(length + 3) & ~3 :]
            (port,) = struct.unpack_from("!H", socket_id, 2)
            code = self._refused.get((kind, port), 0)
            if code or kind == SOCK_DESTROY:
                self._datagrams.append(message(NLMSG_ERROR, sequence, struct.pack("=i", -code)))
                self.closed += [port] if not code else []
            else:
                answer = bytes([socket.AF_INET, 1, 0, 0]) + socket_id + bytes(28)
                self._datagrams.append(message(kind, sequence, answer + SUBFLOW_ATTRIBUTES))

    def recv(self, size: int) -> bytes:
        if self._failure is not None:
            raise self._failure
        return super().recv(size)


SUBFLOW_ATTRIBUTES = attribute(2, bytes(232)) + attribute(
    19, attribute(3, b"".join(attribute(kind, bytes(size)) for kind, size in ((2, 4), (8, 4), (9, 1), (10, 1), (4, 8))))
)
"""The attributes INET_DIAG_INFO and INET_DIAG_ULP_INFO with INET_ULP_INFO_MPTCP: token, flags, identifiers and sequence
number."""
NO_BUFFER_SPACE = OSError(errno.ENOBUFS, "No buffer space available")


def close_many(
    refused: Mapping[tuple[int, int], int], failures: Mapping[int, OSError]
) -> tuple[KernelWithSockets, dict[int, str]]:
    """Close 200 sockets with remote ports from 1. Return the kernel, and the reasons for sockets that stayed open."""
    kernel = KernelWithSockets(refused, failures)
    diagnostics = SocketDiagnostics((3128,))
    diagnostics._look_ups._socket.close()
    diagnostics._look_ups._socket = kernel  # type: ignore[assignment]
    still_open = diagnostics.close_sockets(
        [FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\2", port) for port in range(1, 201)]
    )
    diagnostics.close()
    return kernel, {four_tuple.remote_port: str(error) for four_tuple, error in still_open.items()}


def test_sockets_that_stay_open_are_returned_and_the_others_closed() -> None:
    """Defect: if one look-up was refused, no socket was closed; if one stayed open, all were reported as open."""
    refused = {
        (SOCK_DIAG_BY_FAMILY, 2): errno.ENOMEM,
        (SOCK_DIAG_BY_FAMILY, 3): errno.ENOENT,
        (SOCK_DESTROY, 70): errno.EPERM,
        (SOCK_DESTROY, 71): errno.ENOENT,
    }
    kernel, still_open = close_many(refused, {})
    assert kernel.closed == [port for port in range(1, 201) if port not in (2, 3, 70, 71)]
    assert still_open == {
        2: "look up TCP sockets: ENOMEM (Cannot allocate memory)",
        70: "close TCP sockets (CONFIG_INET_DIAG_DESTROY): EPERM (Operation not permitted)",
    }


@pytest.mark.parametrize("unreadable_datagram", [0, 1])
def test_unreadable_answers_do_not_prevent_closing_other_sockets(unreadable_datagram: int) -> None:
    """The answers are those to look-ups or to closes. All sockets of that batch are reported as open."""
    kernel, still_open = close_many({}, {unreadable_datagram: NO_BUFFER_SPACE})
    batch = list(still_open)
    assert batch == list(range(1, len(batch) + 1)), "sockets outside the first batch stayed open"
    assert kernel.closed == list(range(len(batch) + 1, 201))
    assert 0 < len(batch) < 200
    assert all("No buffer space available" in reason for reason in still_open.values())


def test_only_one_timeout_passes_if_the_kernel_does_not_answer() -> None:
    kernel, still_open = close_many({}, {2: TimeoutError("timed out")})
    # The first two datagrams looked up and closed the first batch. The third looked up the second batch.
    assert kernel.datagrams == 3
    assert kernel.closed
    assert list(still_open) == [port for port in range(1, 201) if port not in kernel.closed]


def test_failed_socket_dump_raises_and_the_next_dump_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: after the kernel had no memory for the rest of a dump, each later dump timed out after 10 s."""
    diagnostics = SocketDiagnostics((3128,))
    answers: list[Callable[[int], list[bytes]]] = [
        lambda n: [message(NLMSG_DONE, n, struct.pack("=i", -errno.ENOBUFS))],
        lambda n: [message(0, n, b"")],  # The fake has no further answers.
        lambda n: [message(NLMSG_DONE, n, bytes(4))],
    ]
    monkeypatch.setattr(
        sockets_diagnostics, "NetlinkSocket", lambda protocol: connect_fake(NetlinkSocket(protocol), answers.pop(0))
    )
    for error in (KernelError, IndexError):
        with pytest.raises(error):
            list(diagnostics.subflows())
    assert list(diagnostics.batches()) == [[]]
    diagnostics.close()


def test_lack_of_descriptors_is_a_kernel_error_for_the_upload_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: an OSError ended the daemon, so all caps were removed."""

    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(htb, "AsyncIPRoute", refuse)
    with pytest.raises(KernelError, match="Too many open files"):
        asyncio.run(htb.IfbTrafficControl(Ownership()).prepare())
