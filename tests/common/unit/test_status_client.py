# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the synchronous and the asyncio client of the status socket, with a fake server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mptcp_common import status_client

Ask = Callable[[Path, Mapping[str, object], float], dict[str, Any]]
LONG_TIMEOUT = 30.0
SHORT_TIMEOUT = 0.05
REQUEST = {"query": "summary"}


def ask_async(path: Path, request: Mapping[str, object], timeout: float) -> dict[str, Any]:
    return asyncio.run(status_client.ask_async(path, request, timeout))


@pytest.fixture(params=[status_client.ask, ask_async], ids=["sync", "asyncio"])
def ask(request: pytest.FixtureRequest) -> Ask:
    chosen: Ask = request.param
    return chosen


class Server:
    """Accepts one client, and serves it with the function given to :meth:`serve_with`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen()
        self.thread: threading.Thread | None = None

    def serve_with(self, behaviour: Callable[[socket.socket], None]) -> None:
        def serve() -> None:
            client, _ = self.listener.accept()
            with closing(client):
                behaviour(client)

        self.thread = threading.Thread(target=serve)
        self.thread.start()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "status.sock")
    yield server
    if server.thread is not None:
        server.thread.join(LONG_TIMEOUT)
    server.listener.close()


def answer_with(text: bytes) -> Callable[[socket.socket], None]:
    def behaviour(client: socket.socket) -> None:
        read_line(client)
        client.sendall(text)

    return behaviour


def wait_for_request_without_reading(client: socket.socket) -> None:
    """Wait for the request without reading it, so that closing resets the connection."""
    client.recv(1, socket.MSG_PEEK)


def read_line(client: socket.socket) -> bytes:
    text = b""
    while not text.endswith(b"\n"):
        text += client.recv(100)
    return text


def test_request_is_one_line_and_answer_is_read_whole(server: Server, ask: Ask) -> None:
    received = []
    answer = {"schema": 2, "connections": ["x" * 1000] * 3000}  # too long for one recv

    def behaviour(client: socket.socket) -> None:
        received.append(read_line(client))
        client.sendall(json.dumps(answer).encode())

    server.serve_with(behaviour)
    assert ask(server.path, {"query": "connections", "client": "2001:db8::1"}, LONG_TIMEOUT) == answer
    assert received == [b'{"query":"connections","client":"2001:db8::1"}\n']


def test_non_ascii_letters_are_sent_as_utf_8(server: Server, ask: Ask) -> None:
    """The daemon limits the length of a request. A policy that a file may contain must also fit into a request."""
    received = []

    def behaviour(client: socket.socket) -> None:
        received.append(read_line(client))
        client.sendall(b"{}")

    server.serve_with(behaviour)
    policy = "# ä\ud800"
    assert ask(server.path, {"policy": policy}, LONG_TIMEOUT) == {}
    assert json.loads(received[0]) == {"policy": policy}
    # An unpaired surrogate takes three bytes.
    assert len(received[0]) == len('{"policy":"# "}\n') + len("ä".encode()) + 3


def test_answer_to_a_too_long_request_is_read(server: Server, ask: Ask) -> None:
    """The daemon closes before the client has sent everything. The client must still read the daemon's answer."""

    def behaviour(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(b'{"error": "too long"}')

    server.serve_with(behaviour)
    assert ask(server.path, {"policy": "x" * 4_000_000}, LONG_TIMEOUT) == {"error": "too long"}


def test_error_answer_is_returned(server: Server, ask: Ask) -> None:
    server.serve_with(answer_with(b'{"schema": 2, "error": "no such query"}'))
    assert ask(server.path, {"query": "sumary"}, LONG_TIMEOUT)["error"] == "no such query"


def test_answer_of_a_daemon_that_reads_no_request_is_returned(server: Server, ask: Ask) -> None:
    """An old daemon that does not read the request resets the connection.

    The client must still read its answer, which contains the version.
    """

    def behaviour(client: socket.socket) -> None:
        wait_for_request_without_reading(client)
        client.sendall(b'{"version": "0.1.0"}')

    server.serve_with(behaviour)
    assert ask(server.path, REQUEST, LONG_TIMEOUT) == {"version": "0.1.0"}


@pytest.mark.parametrize("text", [b"", b'{"connections": [', b"[]", b"[" * 100_000, b'{"a":' * 100_000])
def test_truncated_answer_is_an_error(server: Server, ask: Ask, text: bytes) -> None:
    server.serve_with(answer_with(text))
    with pytest.raises(ConnectionResetError, match="ended too early"):
        ask(server.path, REQUEST, LONG_TIMEOUT)


def test_length_of_an_answer_is_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_client, "MAX_BYTES", 1 << 20)

    def behaviour(client: socket.socket) -> None:
        read_line(client)
        with contextlib.suppress(OSError):
            while True:
                client.sendall(b" " * 100_000)

    server.serve_with(behaviour)
    with pytest.raises(OSError, match="longer than 1048576 bytes"):
        ask_async(server.path, REQUEST, LONG_TIMEOUT)


def test_reset_before_an_answer_is_an_error(server: Server, ask: Ask) -> None:
    server.serve_with(wait_for_request_without_reading)
    with pytest.raises(ConnectionResetError):
        ask(server.path, REQUEST, LONG_TIMEOUT)


def test_missing_answer_is_a_timeout(server: Server, ask: Ask) -> None:
    release = threading.Event()

    def behaviour(client: socket.socket) -> None:
        release.wait(LONG_TIMEOUT)

    server.serve_with(behaviour)
    try:
        with pytest.raises(TimeoutError):
            ask(server.path, REQUEST, SHORT_TIMEOUT)
    finally:
        release.set()


@pytest.fixture
def waiting_clients(server: Server) -> Iterator[list[socket.socket]]:
    """Connect clients until the server's listen queue is full."""
    server.listener.listen(0)
    clients: list[socket.socket] = []
    with contextlib.suppress(BlockingIOError):
        while True:
            clients.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            clients[-1].setblocking(False)
            clients[-1].connect(str(server.path))
    yield clients
    for each in clients:
        each.close()


@pytest.mark.usefixtures("waiting_clients")
def test_full_listen_queue_is_a_timeout(server: Server, ask: Ask) -> None:
    """Defect: this was reported as a socket error, and the console reported that it could not read the answer."""
    with pytest.raises(TimeoutError):
        ask(server.path, REQUEST, SHORT_TIMEOUT)


def test_full_listen_queue_is_tried_again(
    server: Server, waiting_clients: list[socket.socket], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_connect = status_client._try_connect

    def serve() -> None:
        for each in waiting_clients:
            each.close()
        while True:
            client, _ = server.listener.accept()
            with closing(client):
                if client.makefile().readline():
                    client.sendall(b'{"schema": 2}')
                    return

    def serve_after_a_refusal(client: socket.socket, path: Path) -> bool:
        connected = try_connect(client, path)
        if not connected and server.thread is None:
            server.thread = threading.Thread(target=serve)
            server.thread.start()
        return connected

    monkeypatch.setattr(status_client, "_try_connect", serve_after_a_refusal)
    assert ask(server.path, REQUEST, LONG_TIMEOUT) == {"schema": 2}
    assert server.thread is not None


def test_pause_within_an_answer_is_a_timeout(server: Server, ask: Ask) -> None:
    release = threading.Event()

    def behaviour(client: socket.socket) -> None:
        client.sendall(b"{")
        release.wait(LONG_TIMEOUT)

    server.serve_with(behaviour)
    try:
        with pytest.raises(TimeoutError):
            ask(server.path, REQUEST, SHORT_TIMEOUT)
    finally:
        release.set()


def test_timeout_limits_pauses_not_the_whole_answer(server: Server, ask: Ask) -> None:
    # The whole answer takes 12 pauses of 0.3 s.
    pause = threading.Event()

    def behaviour(client: socket.socket) -> None:
        for byte in b'{"a":123456}':
            pause.wait(0.3)
            client.sendall(bytes([byte]))

    server.serve_with(behaviour)
    assert ask(server.path, REQUEST, 3.4) == {"a": 123456}


def test_missing_socket_is_an_error(tmp_path: Path, ask: Ask) -> None:
    with pytest.raises(FileNotFoundError):
        ask(tmp_path / "status.sock", REQUEST, LONG_TIMEOUT)
