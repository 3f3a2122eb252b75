# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the limits on one client of the portal's servers: connections, time and memory.

The tests move the event loop's clock: none of them waits, and none depends on the machine's speed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from certificates import self_signed
from starlette.types import Receive, Scope, Send

from mptcp_portal import bounded
from mptcp_portal.bounded import BoundedServer, Bounds

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"x" * 300_000
LIMIT = 1000.0
"""Seconds: more than any machine needs for the steps of a test that must finish within the limit."""


class MovedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is :attr:`offset` seconds ahead of the machine's clock."""

    offset = 0.0

    def time(self) -> float:
        return super().time() + self.offset


def run_with_moved_clock(steps: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        runner.run(steps)


async def advance(seconds: float) -> None:
    """Move the clock by *seconds*, after handling events that have arrived; then run everything that is due."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovedLoop)
    for _ in range(20):
        await asyncio.sleep(0)
    loop.offset += seconds
    due = loop.create_future()
    loop.call_later(0, due.set_result, None)
    await due


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer without reading the request's body, as the pages do."""
    body = LARGE if scope["path"] == "/large" else b"small"
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def running_server(
    bounds: Bounds, files: tuple[Path, Path] | None = None
) -> AsyncIterator[tuple[BoundedServer, int]]:
    listener = socket.create_server(("", 0))
    certificate, key = map(str, files) if files else (None, None)
    config = uvicorn.Config(
        app, http="h11", ws="none", lifespan="off", log_config=None, timeout_keep_alive=bounds.keep_alive,
        ssl_certfile=certificate, ssl_keyfile=key, timeout_graceful_shutdown=0,
    )  # fmt: skip
    server = BoundedServer(config, bounds)
    running = asyncio.create_task(server.serve([listener]))
    try:
        yield server, listener.getsockname()[1]
    finally:
        server.should_exit = True
        await running


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    return head + await reader.readexactly(5)


async def is_accepted(port: int, address: str = "127.0.0.1") -> bool:
    with suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        try:
            writer.write(GET)
            return (await read_answer(reader)).startswith(b"HTTP/1.1 200 ")
        finally:
            writer.close()
    return False


async def wait_for_connections(server: BoundedServer, count: int) -> None:
    """Wait until the server has *count* connections."""
    async with asyncio.timeout(30):
        while len(server.server_state.connections) != count:  # noqa: ASYNC110 -- the server has no event for it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("first", "later", "is_kept"),
    [
        (b"", b"", True),
        (b"GET / HTT", b"", True),
        (GET, b"GET / HTT", True),
        (GET, b"\r\n", False),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\nx", b"x", True),
        (b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 50, b"", True),
    ],
    ids=["no data", "half a request", "half a second request", "an empty line", "an endless body", "reads no answers"],
)
def test_connection_without_a_complete_request_is_closed(
    monkeypatch: pytest.MonkeyPatch, first: bytes, later: bytes, is_kept: bool
) -> None:
    """The client sends *first*, *later*, and then nothing.

    *is_kept*: whether the server keeps the connection until the time limit. If *later* is not HTTP, the server closes
    the connection at once.
    """

    async def send_slowly() -> None:
        async with running_server(Bounds(keep_alive=int(LIMIT))) as (server, port):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            with client:
                client.sendall(first)
                # This client is accepted and gets its answer after the server has read the first client's data.
                assert await is_accepted(port)
                client.sendall(later)
                assert await is_accepted(port)
                await wait_for_connections(server, 1 if is_kept else 0)
                # The connection is first idle, and then waits for a request that never arrives.
                await advance(LIMIT / 2)
                assert len(server.server_state.connections) == is_kept
                await advance(2 * LIMIT)
                await wait_for_connections(server, 0)

    monkeypatch.setattr(bounded, "REQUEST_SECONDS", LIMIT)
    run_with_moved_clock(send_slowly())


@pytest.mark.parametrize(
    ("request_line", "is_answered"),
    [(b"POST /", False), (b"HEAD /", False), (b"POST /", True), (b"POST /large", True)],
    ids=["before its answer", "of HEAD", "after its answer", "within its answer"],
)
def test_malformed_chunked_body_closes_the_connection_silently(
    caplog: pytest.LogCaptureFixture, request_line: bytes, is_answered: bool
) -> None:
    """Defect: the server sent two answers, and each such request caused an error of 30 lines in the journal."""
    head = request_line + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def send_requests() -> None:
        async with running_server(Bounds()) as (server, port):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            with client:
                if is_answered:
                    client.sendall(head)
                    await wait_for_connections(server, 1)
                    # This client gets its answer after the server has read the first client's data.
                    assert await is_accepted(port)
                    client.sendall(b"no length\r\n")
                else:
                    client.sendall(head + b"no length\r\n")
                    assert await is_accepted(port)
                    assert request_line == b"HEAD /" or client.recv(4096).startswith(b"HTTP/1.1 400 ")
                await wait_for_connections(server, 0)

    asyncio.run(send_requests())
    assert [each.getMessage() for each in caplog.records if each.exc_info] == []


def test_connection_with_timely_requests_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send_requests() -> None:
        # The limit for idle connections is too long to matter here.
        async with running_server(Bounds(keep_alive=int(10 * LIMIT))) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(5):
                writer.write(GET)
                assert (await read_answer(reader)).endswith(b"small")
                # Two of these pauses exceed the limit for the first request; each answer restarts the timer.
                await advance(0.6 * LIMIT)
            writer.close()

    monkeypatch.setattr(bounded, "REQUEST_SECONDS", LIMIT)
    run_with_moved_clock(send_requests())


def test_connections_of_one_address_are_bounded() -> None:
    async def connect_many() -> None:
        async with running_server(Bounds(per_client=3)) as (_, port):
            clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            for reader, writer in clients:
                writer.write(GET)
                await read_answer(reader)
            assert not await is_accepted(port)
            assert await is_accepted(port, "127.0.0.2")
            clients.pop()[1].close()
            async with asyncio.timeout(30):
                while not await is_accepted(port):  # noqa: ASYNC110 -- the server has no event for it
                    await asyncio.sleep(0.01)
            for _, writer in clients:
                writer.close()

    asyncio.run(connect_many())


class LoopWithAddresses(asyncio.SelectorEventLoop):
    """An event loop in which each of the first connections seems to come from the next of the test's addresses."""

    addresses: Iterator[str] = iter(())

    async def sock_accept(self, sock: socket.socket) -> tuple[socket.socket, Any]:
        connection, peer = await super().sock_accept(sock)
        return connection, (next(self.addresses, peer[0]), *peer[1:])


@pytest.mark.parametrize(
    ("addresses", "is_one_client"),
    [
        (("2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:1:ffff::3"), True),
        (("fe80::1%eth0",) * 3, True),
        (("64:ff9b::192.0.2.1", "64:ff9b::192.0.2.2", "64:ff9b::192.0.2.3"), False),
    ],
    ids=["a /64", "with a zone", "behind one NAT64"],
)
def test_connections_of_one_ipv6_network_are_bounded(addresses: tuple[str, ...], is_one_client: bool) -> None:
    """Defect: each address of a client's /64 had its own share, so one client could occupy all connections."""

    async def connect_many() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, LoopWithAddresses)
        async with running_server(Bounds(per_client=2)) as (_, port):
            loop.addresses = iter(addresses)
            clients = [await asyncio.open_connection("127.0.0.1", port) for _ in addresses[:2]]
            for reader, writer in clients:
                writer.write(GET)
                await read_answer(reader)
            assert await is_accepted(port) is not is_one_client
            assert await is_accepted(port)
            for _, writer in clients:
                writer.close()

    with asyncio.Runner(loop_factory=LoopWithAddresses) as runner:
        runner.run(connect_many())


def test_buffers_of_a_connection_are_bounded() -> None:
    """Linux reports twice the buffer size that was requested."""

    async def check_buffers() -> None:
        async with running_server(Bounds()) as (server, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await is_accepted(port)
            (protocol, *_) = server.server_state.connections
            transport = protocol.transport
            kernel_socket = transport.get_extra_info("socket")
            assert kernel_socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) <= 32 << 10
            assert kernel_socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 128 << 10
            assert transport.get_write_buffer_limits()[1] <= 16 << 10
            writer.close()

    asyncio.run(check_buffers())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("certificate"))


def test_connections_without_a_tls_handshake_are_bounded(
    monkeypatch: pytest.MonkeyPatch, files: tuple[Path, Path]
) -> None:
    """asyncio reports a TLS connection only after its handshake, for which it waits up to a minute."""
    context = ssl.create_default_context(cafile=str(files[0]))

    async def connect_many() -> None:
        async with running_server(Bounds(per_client=2), files) as (_, port):
            clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await asyncio.open_connection("127.0.0.1", port, ssl=context)
            await advance(LIMIT)
            for reader, _ in clients:
                assert await asyncio.wait_for(reader.read(), 30) == b""
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(GET)
            assert (await read_answer(reader)).endswith(b"small")
            writer.close()

    monkeypatch.setattr(bounded, "REQUEST_SECONDS", LIMIT)
    run_with_moved_clock(connect_many())
