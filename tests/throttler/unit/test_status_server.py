# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the status server: child processes answer, so slow or silent clients delay no other client."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from fcntl import ioctl
from pathlib import Path
from termios import TIOCOUTQ

import pytest

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.runtime import status
from mptcp_throttler.runtime.status import MAX_ANSWERS, REQUEST_TIMEOUT, StatusServer
from mptcp_throttler.views.requests import MAX_REQUEST

LARGE_BYTES = 20_000_000
"""Number of bytes that exceeds the buffer of a Unix socket."""
LONG_SECONDS = 60.0
"""Timeout in seconds within which a client sends its request even on a slow machine."""


@pytest.fixture(autouse=True)
def _short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeout for requests, because most clients here send none."""
    monkeypatch.setattr(status, "REQUEST_TIMEOUT", 0.1)


@asynccontextmanager
async def serving(path: Path, text: str) -> AsyncIterator[StatusServer]:
    def document(_: bytes) -> Iterator[bytes]:
        yield text.encode()
        yield b"."

    server = StatusServer(path, document)
    await server.open()
    try:
        yield server
    finally:
        await server.close()


def connect_client(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(path))
    return client


async def receive_answer(path: Path) -> str:
    reader, writer = await asyncio.open_unix_connection(str(path))
    received = (await reader.read()).decode()
    writer.close()
    return received


async def wait_for_children(server: StatusServer, count: int) -> list[int]:
    async with asyncio.timeout(60):
        while len(server._children) != count:  # noqa: ASYNC110 - no event exists for this
            await asyncio.sleep(0.001)
    return list(server._children.values())


def test_each_client_gets_the_whole_document(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "s", "abc" * 100_000) as server:
            answers = await asyncio.gather(*(receive_answer(tmp_path / "s") for _ in range(3 * MAX_ANSWERS)))
            assert answers == ["abc" * 100_000 + "."] * (3 * MAX_ANSWERS)
            await wait_for_children(server, 0)

    asyncio.run(scenario())


def test_client_that_sends_its_request_late_gets_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert REQUEST_TIMEOUT >= 2
    monkeypatch.setattr(status, "REQUEST_TIMEOUT", LONG_SECONDS)

    async def scenario() -> str:
        server = StatusServer(tmp_path / "s", lambda line: iter([line]))
        await server.open()
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        await wait_for_children(server, 1)
        writer.write(b"summary\n")
        received = (await reader.read()).decode()
        writer.close()
        await server.close()
        return received

    assert asyncio.run(scenario()) == "summary"


def test_answer_has_the_state_at_the_time_of_the_request(tmp_path: Path) -> None:
    async def scenario() -> str:
        tokens = [1, 2]
        server = StatusServer(
            tmp_path / "s", lambda _: iter([f"{len(tokens)} connections {' ' * LARGE_BYTES}{tokens}".encode()])
        )
        await server.open()
        client = connect_client(tmp_path / "s")
        await wait_for_children(server, 1)
        tokens.append(3)
        received = await asyncio.to_thread(lambda: b"".join(iter(lambda: client.recv(1 << 20), b"")).decode())
        client.close()
        await server.close()
        return received

    received = asyncio.run(scenario())
    assert received.startswith("2 connections")
    assert received.endswith("[1, 2]")


def test_first_part_of_an_answer_is_sent_immediately(tmp_path: Path) -> None:
    def document(_: bytes) -> Iterator[bytes]:
        yield b"head"
        while not (tmp_path / "go").exists():
            os.sched_yield()
        yield b"rest"

    async def scenario() -> bytes:
        server = StatusServer(tmp_path / "s", document)
        await server.open()
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        first = await reader.readexactly(4)
        (tmp_path / "go").touch()
        received = first + await reader.read()
        writer.close()
        await server.close()
        return received

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == b"headrest"


def test_children_of_clients_that_do_not_read_end_with_the_server(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        async with serving(tmp_path / "s", " " * LARGE_BYTES) as server:
            clients = [connect_client(tmp_path / "s") for _ in range(MAX_ANSWERS + 1)]
            children = await wait_for_children(server, MAX_ANSWERS)
            for child in children:
                async with asyncio.timeout(60):
                    while len(os.listdir(f"/proc/{child}/fd")) > 4:  # noqa: ASYNC110 - standard streams and the client
                        await asyncio.sleep(0.001)
            clients[0].close()
            # The waiting client is served.
            async with asyncio.timeout(60):
                while set(server._children.values()) == set(children):  # noqa: ASYNC110 - no event exists for this
                    await asyncio.sleep(0.001)
            children += await wait_for_children(server, MAX_ANSWERS)
        for client in clients:
            client.close()
        return children

    for child in asyncio.run(scenario()):
        assert not Path(f"/proc/{child}").exists()


def test_failing_child_does_not_end_the_server(tmp_path: Path) -> None:
    async def scenario() -> tuple[str, str]:
        is_failing = [True]

        def document(_: bytes) -> Iterator[bytes]:
            if is_failing[0]:
                raise ValueError("cannot answer")
            yield b"answer"

        server = StatusServer(tmp_path / "s", document)
        await server.open()
        first = await receive_answer(tmp_path / "s")
        is_failing[0] = False
        second = await receive_answer(tmp_path / "s")
        await server.close()
        return first, second

    assert asyncio.run(scenario()) == ("", "answer")


def test_accept_is_retried_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "RETRY_SECONDS", 0.01)
    original_accept, attempts = socket.socket.accept, []

    def accept(self: socket.socket) -> tuple[socket.socket, object]:
        attempts.append(1)
        if len(attempts) < 4:
            raise OSError(errno.EMFILE, "Too many open files")
        return original_accept(self)

    async def scenario() -> str:
        async with serving(tmp_path / "s", "answer"):
            monkeypatch.setattr(socket.socket, "accept", accept)
            return await receive_answer(tmp_path / "s")

    assert asyncio.run(scenario()) == "answer."
    assert len(attempts) == 4


def test_server_continues_after_a_failed_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    async def scenario() -> tuple[str, str]:
        async with serving(tmp_path / "s", "answer"):
            with monkeypatch.context() as patched:
                patched.setattr(os, "fork", refuse)
                first = await receive_answer(tmp_path / "s")
            return first, await receive_answer(tmp_path / "s")

    assert asyncio.run(scenario()) == ("", "answer.")
    assert "fork: Resource temporarily unavailable" in caplog.text


def test_other_file_at_the_sockets_path_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("content")

    async def scenario() -> None:
        async with serving(tmp_path / "s", ""):
            pass

    with pytest.raises(KernelError, match="a file with this name exists"):
        asyncio.run(scenario())
    assert (tmp_path / "s").read_text() == "content"


def test_socket_removed_after_its_creation_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the daemon ended if this happened while the regular check created the socket again."""

    async def test() -> None:
        async with serving(tmp_path / "s", "") as server:

            def chmod_and_remove(path: Path, mode: int) -> None:
                os.chmod(path, mode)
                path.unlink()

            with monkeypatch.context() as patch:
                patch.setattr(Path, "chmod", chmod_and_remove)
                server._path.unlink()
                with pytest.raises(KernelError, match="No such file"):
                    await server.verify()
            await server.verify()
            assert server._path.is_socket()

    asyncio.run(test())


def test_socket_is_for_its_owner_and_its_group(tmp_path: Path) -> None:
    async def scenario() -> os.stat_result:
        group = grp.getgrgid(os.getgid()).gr_name
        server = StatusServer(tmp_path / "s", lambda _: iter([b"."]), group)
        await server.open()
        socket_status = (tmp_path / "s").stat()
        await server.close()
        return socket_status

    socket_status = asyncio.run(scenario())
    assert stat.S_IMODE(socket_status.st_mode) == 0o660
    assert socket_status.st_gid == os.getgid()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(1, "Operation not permitted"), "status_group staff: Operation not permitted"),
        (LookupError("no such group"), "status_group staff: no such group"),
    ],
    ids=["refused", "unknown"],
)
def test_group_that_the_socket_cannot_get_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    async def scenario() -> None:
        await StatusServer(tmp_path / "s", lambda _: iter([b"."]), "staff").open()

    monkeypatch.setattr("shutil.chown", refuse)
    with pytest.raises(KernelError, match=message):
        asyncio.run(scenario())


@asynccontextmanager
async def echoing(path: Path) -> AsyncIterator[StatusServer]:
    server = StatusServer(path, lambda line: iter([b"request: " + line]))
    await server.open()
    try:
        yield server
    finally:
        await server.close()


async def wait_until_read(writer: asyncio.StreamWriter) -> None:
    """Wait until the other end has read all written data, or has closed (unix(7), SIOCOUTQ)."""
    unread = bytearray(struct.calcsize("i"))
    async with asyncio.timeout(60):
        await writer.drain()
        # No event exists for this.
        while not ioctl(writer.get_extra_info("socket").fileno(), TIOCOUTQ, unread) and any(unread):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def request(path: Path, *parts: bytes, end: bool = False) -> str:
    reader, writer = await asyncio.open_unix_connection(str(path))
    for part in parts:
        writer.write(part)
        await wait_until_read(writer)
    if end:
        writer.write_eof()
    received = (await reader.read()).decode()
    writer.close()
    return received


@pytest.mark.parametrize(
    ("parts", "end", "line"),
    [
        ([b'{"query": "head"}\n'], False, '{"query": "head"}'),
        ([b'{"query":', b' "head"}\n'], False, '{"query": "head"}'),
        ([b'{"query": "head"}'], True, '{"query": "head"}'),
        ([b"one\ntwo\n"], False, "one"),
        ([], True, ""),
        ([], False, ""),
        ([b"\n"], False, ""),
    ],
    ids=["line", "line in two parts", "end instead of a newline", "two lines", "only the end", "nothing", "empty line"],
)
def test_request_is_the_first_line_or_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: list[bytes], end: bool, line: str
) -> None:
    if parts or end:
        monkeypatch.setattr(status, "REQUEST_TIMEOUT", LONG_SECONDS)

    async def scenario() -> str:
        async with echoing(tmp_path / "s"):
            return await request(tmp_path / "s", *parts, end=end)

    assert asyncio.run(scenario()) == f"request: {line}"


def test_silent_client_does_not_delay_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process waits for the client, while the event loop answers others."""
    monkeypatch.setattr(status, "REQUEST_TIMEOUT", LONG_SECONDS)

    async def scenario() -> str:
        async with echoing(tmp_path / "s") as server:
            client = connect_client(tmp_path / "s")
            await wait_for_children(server, 1)
            received = await request(tmp_path / "s", b"hello\n")
            client.close()
            return received

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == "request: hello"


def test_line_without_an_end_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "REQUEST_TIMEOUT", LONG_SECONDS)

    async def scenario() -> str:
        server = StatusServer(tmp_path / "s", lambda line: iter([str(len(line)).encode()]))
        await server.open()
        client = connect_client(tmp_path / "s")
        client.settimeout(60)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await asyncio.to_thread(client.sendall, b" " * LARGE_BYTES)
        received = await asyncio.to_thread(client.recv, 100)
        client.close()
        await server.close()
        return received.decode()

    assert MAX_REQUEST < int(asyncio.run(scenario())) <= 2 * MAX_REQUEST
