# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that compare socket diagnostics with ss(8): offsets in struct tcp_info, and dumps of many sockets."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics
from mptcp_throttler.mptcp.model import FourTuple

pytestmark = pytest.mark.kernel

IPPROTO_MPTCP = 262
PORT = 3128


def ss_output(node: LiveNode) -> str:
    """Return the output of ss(8), without values that change with time."""
    text = node.run(["ss", "-tinH", "state", "established", "sport", "=", f":{PORT}"]).stdout
    return re.sub(r" last(snd|rcv|ack):\d+", "", text)


def test_socket_values_equal_those_of_ss(testbed: Testbed, require: Any) -> None:
    require("mptcp")
    proxy, client_node = testbed["proxy"], testbed["client"]
    with proxy.entered():
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
        diagnostics = SocketDiagnostics((PORT,))
    with client_node.entered():
        client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    with listener, client:
        listener.bind(("0.0.0.0", PORT))
        listener.listen()
        client.connect((proxy.address("wan0"), PORT))
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(b"x" * 100_000)
            client.sendall(b"y" * 2_000)
            received = 0
            while received < 100_000:
                received += len(client.recv(65_536))
            before, listing = "", ss_output(proxy)
            deadline = time.monotonic() + 60
            # Wait until the last acknowledgements have arrived and nothing changes any longer.
            while listing != before:
                assert time.monotonic() < deadline, "the values of the sockets still change"
                time.sleep(0.5)
                before = ss_output(proxy)
                with proxy.entered():
                    found = {each.four_tuple.remote_port: each for each in diagnostics.subflows()}
                four_tuples = [each.four_tuple for each in found.values()]
                absent = four_tuples[0]._replace(remote_port=1)
                looked_up = diagnostics.look_up([*four_tuples, absent])
                listing = ss_output(proxy)
    diagnostics.close()
    lines = [line for line in listing.replace("\n\t", " ").splitlines() if "bytes_acked" in line]
    assert lines
    for line in lines:
        port = int(re.findall(r":(\d+)\s", line)[1])
        subflow = found[port]
        assert subflow.tcp is not None

        def value_in_ss(name: str, line: str = line) -> float:
            number = re.search(rf"\b{name}[: ]([\d.]+)", line)
            return float(number[1]) if number else 0.0

        assert subflow.bytes_acked == value_in_ss("bytes_acked")
        assert subflow.bytes_received == value_in_ss("bytes_received")
        assert subflow.tcp.rtt / 1e3 == pytest.approx(value_in_ss("rtt"), abs=0.001)
        assert subflow.tcp.mss == value_in_ss("mss")
        assert subflow.tcp.pacing_rate == pytest.approx(value_in_ss("pacing_rate"), abs=8)
        assert subflow.tcp.delivery_rate == pytest.approx(value_in_ss("delivery_rate"), abs=8)
        assert (subflow.tcp.not_sent, subflow.tcp.unacked, subflow.tcp.sacked) == (0, 0, 0)
        looked_up_info = looked_up[subflow.four_tuple].tcp
        variance = re.search(r"\brtt:[\d.]+/([\d.]+)", line)
        assert variance is not None
        assert looked_up_info.rtt_variance / 1e3 == pytest.approx(float(variance[1]), abs=0.001)
        assert (looked_up_info.congestion_window, looked_up_info.segments_out) == (
            value_in_ss("cwnd"),
            value_in_ss("segs_out"),
        )
        retransmitted = re.search(r"\bretrans:\d+/(\d+)", line)
        assert looked_up_info.retransmits == (int(retransmitted[1]) if retransmitted else 0)
        assert looked_up_info.lost == value_in_ss("lost")
    assert {each.remote_port for each in looked_up} == found.keys()


CONNECTIONS = 300
"""Connections of each address family: enough that a dump consists of several datagrams."""


@contextmanager
def many_connections(testbed: Testbed) -> Iterator[SocketDiagnostics]:
    """Open MPTCP connections over loopback to a listener of each family, with plain TCP connections among them."""
    with ExitStack() as stack, testbed["proxy"].entered():
        diagnostics = SocketDiagnostics((PORT,))
        stack.callback(diagnostics.close)
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, IPPROTO_MPTCP))
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address, PORT))
            listener.listen(16)
            for number in range(CONNECTIONS):
                protocol = IPPROTO_MPTCP if number % 10 else socket.IPPROTO_TCP
                client = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, protocol))
                client.connect((address, PORT))
                stack.enter_context(listener.accept()[0])
        yield diagnostics


def test_many_sockets_are_dumped_in_batches_and_found_individually(testbed: Testbed, require: Any) -> None:
    require("mptcp")
    with many_connections(testbed) as diagnostics:
        for _ in range(2):  # The second pass uses the layout that the first pass learned.
            began = time.monotonic()
            batches = []
            for batch in diagnostics.batches():
                batches.append(batch)
                time.sleep(0.002)
            found = {each.four_tuple: each for batch in batches for each in batch}
            assert len(found) == 2 * CONNECTIONS * 9 // 10
            assert sum(map(len, batches)) == len(found)
            assert max(map(len, batches)) < 100
            times = [each.read for batch in batches for each in batch]
            assert times == sorted(times), "the times are not in the order in which the kernel read the sockets"
            assert began <= times[0] < times[-1] <= time.monotonic()
        listing = testbed["proxy"].run(["ss", "-tniH", "state", "established", "sport", "=", f":{PORT}"]).stdout
        tokens = {int(each, 16) for each in re.findall(r"token:\w+\(id:\d+\)/(\w+)\(id", listing)}
        assert {each.token for each in found.values()} == tokens
        absent = [FourTuple(each.local, PORT, each.remote, 1) for each in found]
        assert diagnostics.look_up(absent) == {}
        looked_up = diagnostics.look_up([*absent[:100], *found, *absent[100:]])
        assert {key: (each.token, each.cookie) for key, each in looked_up.items()} == {
            key: (each.token, each.cookie) for key, each in found.items()
        }
        one_of_them = next(iter(found))
        repeated = diagnostics.look_up([one_of_them]).get(one_of_them)
        assert repeated is not None
        assert repeated._replace(read=0.0) == looked_up[one_of_them]._replace(read=0.0)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_closing_sockets_at_both_ends_keeps_the_listener(
    testbed: Testbed, require: Any, family: socket.AddressFamily
) -> None:
    """On a request to close a socket that no longer exists, the kernel could close the listening socket instead."""
    require("mptcp")
    with ExitStack() as stack:
        with testbed["proxy"].entered():
            diagnostics = SocketDiagnostics((PORT,))
            stack.callback(diagnostics.close)
            listener = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM, IPPROTO_MPTCP))
            listener.bind(("::", PORT))
            listener.listen(16)
            clients = [stack.enter_context(socket.socket(family, socket.SOCK_STREAM, IPPROTO_MPTCP)) for _ in range(3)]
        for client in clients:
            client.settimeout(60)
            client.connect(("::1" if family == socket.AF_INET6 else "127.0.0.1", PORT))
        accepted = [stack.enter_context(listener.accept()[0]) for _ in clients[:2]]
        # A connection is Multipath TCP from its third ACK with data on. Before that, the kernel lists no MPTCP subflow.
        for client in clients:
            client.sendall(b"?")
        with testbed["proxy"].entered():
            found = {each.four_tuple.remote_port: each.four_tuple for each in diagnostics.subflows()}
            # The last connection was not accepted yet.
            closed = [found[client.getsockname()[1]] for client in clients[1:]]
            assert diagnostics.close_sockets([*closed, closed[0]._replace(remote_port=1)]) == {}
            assert {each.four_tuple for each in diagnostics.subflows()} == set(found.values()) - set(closed)
        assert diagnostics.close_sockets(closed) == {}
        accepted[0].settimeout(60)
        assert accepted[0].recv(1) == b"?"
        accepted[0].sendall(b"!")
        assert clients[0].recv(1) == b"!"
        with testbed["proxy"].entered():
            later_client = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, IPPROTO_MPTCP))
        later_client.settimeout(60)
        later_client.connect(clients[0].getpeername()[:2])


@pytest.mark.parametrize("ports", [(PORT,), (PORT, PORT + 1), (PORT + 2, PORT + 1, PORT)])
def test_one_dump_has_both_families_and_only_the_given_ports(
    testbed: Testbed, require: Any, ports: tuple[int, ...]
) -> None:
    require("mptcp")
    listening_ports = (PORT, PORT + 1, PORT + 3)
    with ExitStack() as stack, testbed["proxy"].entered():
        diagnostics = SocketDiagnostics(ports)
        stack.callback(diagnostics.close)
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            for port in listening_ports:
                listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, IPPROTO_MPTCP))
                listener.bind((address, port))
                listener.listen()
                client = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, IPPROTO_MPTCP))
                client.connect((address, port))
                stack.enter_context(listener.accept()[0])
        found = [(each.four_tuple.is_ipv6, each.four_tuple.local_port) for each in diagnostics.subflows()]
    assert sorted(found) == sorted((v6, port) for v6 in (False, True) for port in listening_ports if port in ports)


def test_abandoned_dump_does_not_affect_later_requests(testbed: Testbed, require: Any) -> None:
    require("mptcp")
    with many_connections(testbed) as diagnostics:
        complete = {each.four_tuple for each in diagnostics.subflows()}
        for batch_count in range(1, 6):
            unfinished = diagnostics.batches()
            for _ in range(batch_count):
                next(unfinished)
            one_of_them = next(iter(complete))
            assert one_of_them in diagnostics.look_up([one_of_them])
            found = [each.four_tuple for each in diagnostics.subflows()]
            assert len(found) == len(complete)
            assert set(found) == complete
            list(unfinished)  # The abandoned dump has its own socket.
            assert {each.four_tuple for each in diagnostics.subflows()} == complete
