# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that hundreds of idle connections do not block the page, and that the console ends them after a while."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from certificates import self_signed
from console_site import console
from fake_throttler import FakeThrottler, World
from reserved_port import reserved_port

from mptcp_common.http_bounds import MAX_WAITING, REQUEST_SECONDS

pytestmark = pytest.mark.kernel
CONNECTIONS = 400
INCOMPLETE_REQUEST = b"GET /api/history HTTP/1.1\r\nHost: "


def has_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_idle_connections_are_ended_and_do_not_block_the_page(tmp_path: Path) -> None:
    port = reserved_port()
    with FakeThrottler(tmp_path / "status.sock", World()), console(tmp_path, tmp_path / "status.sock", port) as site:
        descriptors = Path(f"/proc/{site.process.pid}/fd")
        before = len(list(descriptors.iterdir()))
        with ExitStack() as stack:
            clients = []
            for number in range(CONNECTIONS):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                if number % 2:
                    client.sendall(INCOMPLETE_REQUEST)
                clients.append(client)
            start = time.monotonic()
            assert site.get("/api/history")["step"]
            print(f"with {CONNECTIONS} idle connections, a page took {time.monotonic() - start:.2f} s")
            # The console closed the first connections to accept the last ones, which have their full time.
            assert all(has_ended(client) for client in clients[: CONNECTIONS - MAX_WAITING - 1])
            assert all(has_ended(client) for client in clients)
            assert time.monotonic() - start > REQUEST_SECONDS / 2
        deadline = time.monotonic() + 60
        while len(list(descriptors.iterdir())) > before + 4:
            assert time.monotonic() < deadline, "connections are still open"
            time.sleep(0.1)
        assert site.get("/api/history")["step"]


@pytest.mark.nightly
def test_connection_without_tls_handshake_is_ended(tmp_path: Path, require: Callable[..., None]) -> None:
    """Defect: asyncio waited a minute for the handshake."""
    require("openssl")
    certificate, key = self_signed(tmp_path)
    port = reserved_port()
    https = f"certificate: {certificate}\nkey: {key}\n"
    with (
        FakeThrottler(tmp_path / "status.sock", World()),
        console(tmp_path, tmp_path / "status.sock", port, settings=https),
        socket.create_connection(("127.0.0.1", port), timeout=50) as client,
    ):
        assert has_ended(client)
        with (
            socket.create_connection(("127.0.0.1", port), timeout=50) as plain,
            ssl.create_default_context(cafile=certificate).wrap_socket(plain, server_hostname="127.0.0.1") as tls,
        ):
            tls.sendall(b"GET /api/history HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert tls.recv(100).startswith(b"HTTP/1.1 200 ")
