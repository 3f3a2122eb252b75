# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for copying bytes between two sockets, and for the requests that the forwarder sends."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mptcp_gateway.cli import main
from mptcp_gateway.connect import MAX_HEAD, answer, check_request, request
from mptcp_gateway.forwarder import Forwarder
from mptcp_gateway.model import Lan
from mptcp_gateway.pump import Pump
from mptcp_gateway.settings import Settings


@settings(deadline=None)
@given(st.binary(max_size=300_000), st.binary(max_size=300_000), st.binary(max_size=2000), st.integers(1, 70_000))
def test_all_bytes_are_forwarded_in_order(up: bytes, down: bytes, first: bytes, piece_size: int) -> None:
    async def run() -> tuple[bytes, bytes, list[int]]:
        device, near = socket.socketpair()
        far, origin = socket.socketpair()
        loop = asyncio.get_running_loop()
        for each in (device, near, far, origin):
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        byte_totals: list[int] = []
        has_ended = asyncio.Event()

        def record_end(octets: int) -> None:
            byte_totals.append(octets)
            has_ended.set()

        Pump(near, far, record_end).start(first)

        async def exchange(end: socket.socket, data: bytes) -> bytes:
            async def send() -> None:
                await loop.sock_sendall(end, data)
                end.shutdown(socket.SHUT_WR)

            sending = asyncio.create_task(send())
            received = b""
            while chunk := await loop.sock_recv(end, piece_size):
                received += chunk
            await sending
            return received

        received = await asyncio.gather(exchange(device, up), exchange(origin, down))
        await has_ended.wait()
        device.close()
        origin.close()
        return received[0], received[1], byte_totals

    to_device, to_origin, byte_totals = asyncio.run(run())
    assert to_device == first + down
    assert to_origin == up
    assert byte_totals == [len(first) + len(down) + len(up)]


def test_reset_is_forwarded_to_the_other_end() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        pairs = []
        for _ in range(2):
            outer = socket.create_connection(listener.getsockname())
            inner, _ = listener.accept()
            outer.setblocking(False)
            inner.setblocking(False)
            pairs.append((outer, inner))
        (device, near), (origin, far) = pairs
        byte_totals: list[int] = []
        Pump(near, far, byte_totals.append).start()
        device.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close() resets.
        device.close()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(loop.sock_recv(origin, 1), 10)
        assert byte_totals == [0]
        for each in (origin, listener):
            each.close()

    asyncio.run(run())


def test_next_parent_is_used_if_one_does_not_serve(tmp_path: Path) -> None:
    async def run() -> bytes:
        async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async def open_tunnel(source: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await source.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n220 here")
            await writer.drain()

        servers = [await asyncio.start_server(each, "127.0.0.1", 0) for each in (close, open_tunnel)]
        parents = tuple(("127.0.0.1", each.sockets[0].getsockname()[1]) for each in servers)
        forwarder = Forwarder(Settings({}, parents, "gateway.yaml", Lan(("br0",))), tmp_path)
        upstream, first = await forwarder._tunnel(ip_address("203.0.113.9"), 25)
        upstream.close()
        for each in servers:
            each.close()
        return first

    assert asyncio.run(run()) == b"220 here"


def test_forwarder_without_lan_reports_ready_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a unit of Type=notify ends before it is ready, systemd counts it as failed and restarts it."""
    settings = tmp_path / "gateway.yaml"
    settings.write_text("uplinks: {dsl: eth0, lte: wwan0}\nparents: [proxy.example.net:3128]\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        assert main(["forward", "--config", str(settings)]) == 0
        assert b"READY=1" in manager.recv(1000)


def test_connect_request_is_built_and_its_answer_parsed() -> None:
    text = request(ip_address("2001:db8::1"), 22, "me:secret").decode()
    assert text.startswith("CONNECT [2001:db8::1]:22 HTTP/1.1\r\nHost: [2001:db8::1]:22\r\n")
    assert "Proxy-Authorization: Basic bWU6c2VjcmV0\r\n" in text
    assert text.endswith("\r\n\r\n")
    assert answer(b"HTTP/1.1 200 OK\r\nVia: x\r\n\r\n220 here") == (200, b"220 here")
    assert answer(b"HTTP/1.1 200 OK\r\n") is None
    for invalid in (b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 2x0\r\n\r\n", b"x" * (MAX_HEAD + 1)):
        with pytest.raises(ValueError, match="the parent's answer"):
            answer(invalid)


def test_check_page_request_becomes_a_proxy_request() -> None:
    found = check_request(b"GET /check.json HTTP/1.1\r\nHost: 192.0.2.80\r\nAccept: */*\r\nConnection: x\r\n\r\n", "")
    assert found is not None
    lines = found.decode().split("\r\n")
    assert lines[0] == "GET http://check.mptcp.internal/check.json HTTP/1.1"
    assert "Accept: */*" in lines
    assert [each for each in lines if each.startswith("Host")] == ["Host: check.mptcp.internal"]
    assert [each for each in lines if each.startswith("Connection")] == ["Connection: close"]
    assert check_request(b"GET / HTTP/1.1\r\n", "") is None
    found = check_request(b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nProxy-Authorization: x\r\n\r\n", "")
    assert found is not None
    assert b"chunked" not in found
    assert b"Authorization" not in found
    for smuggled in (
        b"GET / HTTP/1.1\r\nA: b\n\nGET http://10.0.0.5/ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\nGET /",
    ):
        with pytest.raises(ValueError, match="more than one"):
            check_request(smuggled, "secret:secret")
    with pytest.raises(ValueError, match="not a request"):
        check_request(b"\x16\x03\x01\r\n\r\n", "")
