"""Netlink requests against a kernel of our own: ends of dumps, sequence numbers."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

import pytest

from mptcp_throttler.kernel.netlink import NLMSG_DONE, NLMSG_ERROR, NetlinkSocket
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics
from mptcp_throttler.kernel.sockets.inet_diag import destroy_request, exact_request
from mptcp_throttler.mptcp.model import FourTuple

HEADER = struct.Struct("=IHHII")
ROUTE = 0


def message(kind: int, sequence: int, body: bytes, flags: int = 0) -> bytes:
    return HEADER.pack(16 + len(body), kind, flags, sequence, 0) + body


class FakeKernel:
    """Answers each request by *answer*, which is given its sequence number."""

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


def connected(netlink: NetlinkSocket, answer: Callable[[int], list[bytes]]) -> NetlinkSocket:
    netlink._socket.close()
    netlink._socket = FakeKernel(answer)  # type: ignore[assignment]
    return netlink


def test_a_dump_that_ends_with_an_error_says_so() -> None:
    netlink = connected(
        NetlinkSocket(ROUTE), lambda n: [message(9, n, b"one"), message(NLMSG_DONE, n, struct.pack("=i", -105))]
    )
    dump = netlink.dump(8, b"", "list things")
    assert next(dump) == b"one"
    with pytest.raises(KernelError, match="list things: ENOBUFS"):
        next(dump)


def test_a_dump_that_was_interrupted_is_noted() -> None:
    flags = 0x10
    netlink = connected(
        NetlinkSocket(ROUTE), lambda n: [message(9, n, b"one", flags), message(NLMSG_DONE, n, bytes(4))]
    )
    assert list(netlink.dump(8, b"", "list things")) == [b"one"]
    assert netlink.interrupted
    flags = 0
    list(netlink.dump(8, b"", "list things"))
    assert not netlink.interrupted


def test_sequence_numbers_begin_anew_after_the_largest() -> None:
    netlink = connected(NetlinkSocket(ROUTE), lambda n: [message(NLMSG_ERROR, n, bytes(20))])
    netlink._sequence = 0xFFFFFFFD
    netlink.requests([(1, 0, b"")] * 5, "do five things")
    assert netlink._sequence == 2
    netlink = connected(NetlinkSocket(ROUTE), lambda n: [message(9, n, b"answer")])
    netlink._sequence = 0xFFFFFFFF
    assert netlink.ask(8, b"", "ask") == b"answer"


def test_look_ups_of_sockets_go_on_after_the_largest_sequence_number() -> None:
    diagnostics = SocketDiagnostics((3128,))
    connected(diagnostics._look_ups, lambda n: [message(NLMSG_ERROR, n, struct.pack("=i", -2))])
    diagnostics._look_ups._sequence = 0xFFFFFFF0
    absent = [FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\2", port) for port in range(200)]
    assert diagnostics.look_up(absent) == {}
    diagnostics.close()


def test_a_look_up_that_is_refused_is_an_error_after_all_answers_were_read() -> None:
    diagnostics = SocketDiagnostics((3128,))
    code = -1
    connected(diagnostics._look_ups, lambda n: [message(NLMSG_ERROR, n, struct.pack("=i", code))])
    four_tuple = FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\2", 1)
    with pytest.raises(KernelError, match="EPERM"):
        diagnostics.look_up([four_tuple, four_tuple])
    code = -2
    assert diagnostics.subflow(four_tuple) is None
    diagnostics.close()


def test_a_socket_that_is_to_be_closed_is_named_by_its_cookie() -> None:
    """Of one that is gone the kernel would take the socket that listens."""
    four_tuple = FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\2", 1)
    request = destroy_request(four_tuple, 0x1122334455667788)
    asked = exact_request(four_tuple)
    assert request[:-8] == asked[:-8]
    assert asked[-8:] == b"\xff" * 8
    assert request[-8:] == struct.pack("=Q", 0x1122334455667788)


def test_nothing_is_closed_that_is_not_there() -> None:
    diagnostics = SocketDiagnostics((3128,))
    code = -2
    asked: list[int] = []

    def answer(number: int) -> list[bytes]:
        asked.append(number)
        return [message(NLMSG_ERROR, number, struct.pack("=i", code))]

    connected(diagnostics._look_ups, answer)
    diagnostics.close_sockets([FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\2", 1)])
    assert len(asked) == 1
    diagnostics.close()


def test_a_dump_of_sockets_that_fails_at_its_end_says_so_and_the_next_one_works() -> None:
    diagnostics = SocketDiagnostics((3128,))
    code = -105
    connected(diagnostics._dumps, lambda n: [message(NLMSG_DONE, n, struct.pack("=i", code))])
    with pytest.raises(KernelError, match="ENOBUFS"):
        list(diagnostics.subflows())
    code = 0
    assert list(diagnostics.subflows()) == []
    diagnostics.close()
