# SPDX-License-Identifier: GPL-2.0-or-later
"""Answers requests at the status socket (docs/status.md): a client sends one line and reads one JSON document.

Each answer is built by a child process, a copy of the daemon at the moment of the request (fork(2)). So the answer is
consistent, and only the copying of page tables delays the event loop, even with many connections or a slow client. The
child keeps only the client's socket and the log open.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final, NoReturn

from msgspec.json import encode

from mptcp_common.kernel_error import KernelError
from mptcp_common.reasons import reason
from mptcp_throttler.runtime.answers import connections, explain, summary, what_if
from mptcp_throttler.runtime.answers.snapshot import Snapshot
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.views.answers import SCHEMA
from mptcp_throttler.views.requests import MAX_REQUEST, STATUS, Arguments, RequestError, parse_request

log = logging.getLogger(__name__)

ANSWER_TIMEOUT = 30  # maximum lifetime of a child in seconds, in case the client does not read
RETRY_SECONDS = 1.0  # pause after a failed accept
MAX_ANSWERS = 4  # maximum number of children at a time; further clients wait
PIECE_BYTES = 1 << 16
REQUEST_TIMEOUT = 2.0  # maximum pause before and within a request; after it, the bytes received are the request
CHILD_NICE = -10  # below the daemon's priority and above the proxy's: the status of 10,000 connections takes 0.16 s
_STDERR = 2


class StatusServer(Component):
    """Serves the socket at *path*: a child passes the client's line to *answer*, and sends the pieces that *answer*
    yields. Root and the members of *group* may send requests; None means the daemon's own group."""

    def __init__(self, path: Path, answer: Callable[[bytes], Iterator[bytes]], group: str | None = None) -> None:
        self._path, self._group, self._build_answer = path, group, answer
        self._listener: socket.socket | None = None
        self._inode = 0
        self._children: dict[int, int] = {}  # PIDs by pidfd
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        """Listen; replace a socket that a crashed daemon left. Raises KernelError if the path cannot be used."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and not self._path.is_socket():
                raise KernelError(f"status socket {self._path}: a file with this name exists")
            self._path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.setblocking(False)
            old_mask = os.umask(0o177)  # only the owner may connect until the socket has its group
            try:
                listener.bind(str(self._path))
            finally:
                os.umask(old_mask)
            if self._group is not None:
                try:
                    shutil.chown(self._path, group=self._group)
                except (LookupError, PermissionError) as error:
                    raise KernelError(f"status_group {self._group}: {reason(error)}") from error
            self._path.chmod(0o660)
            listener.listen()
            self._inode = self._path.stat().st_ino
        except OSError as error:
            raise KernelError(f"status socket {self._path}: {error.strerror or error}") from error
        self._listener = listener
        self._listen()

    async def verify(self) -> None:
        """Listen again if another program removed or replaced the socket. Raises KernelError."""
        with suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                return
        self.repairs += 1
        log.warning("status socket %s was removed; creating it again", self._path)
        self._close_listener()
        await self.open()

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def close(self) -> None:
        if self._listener is None:
            return
        self._close_listener()
        self._path.unlink(missing_ok=True)
        for descriptor, child in list(self._children.items()):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            self._clean_up_child(descriptor)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # The process is out of descriptors or memory. The client still waits: immediate retries would loop.
            log.error("status: %s", error.strerror)
            self._loop.remove_reader(self._listener)
            self._loop.call_later(RETRY_SECONDS, self._listen)
            return
        with client:
            try:
                self._answer(client)
            except OSError as error:
                log.error("status: fork: %s", error.strerror)
        if len(self._children) >= MAX_ANSWERS:
            self._loop.remove_reader(self._listener)

    def _listen(self) -> None:
        if self._listener is not None and len(self._children) < MAX_ANSWERS:
            self._loop.add_reader(self._listener, self._accept)

    def _answer(self, client: socket.socket) -> None:
        """Start a child that answers *client*. Raises OSError if the fork fails."""
        # Parent and child share the loop's wake-up pipe: a signal to the child would wake the parent's loop.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            child = os.fork()
            if child == 0:
                _run_child(client, self._build_answer)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            descriptor = os.pidfd_open(child)
        except OSError:
            os.kill(child, signal.SIGKILL)
            _reap(child)
            raise
        self._children[descriptor] = child
        self._loop.add_reader(descriptor, self._clean_up_child, descriptor)

    def _clean_up_child(self, descriptor: int) -> None:
        """Clean up after the child of *descriptor*, which has ended or is ending."""
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        _reap(self._children.pop(descriptor))
        self._listen()


def _reap(child: int) -> None:
    # If the daemon inherited SIGCHLD as ignored, the kernel has already reaped the child.
    with suppress(ChildProcessError):
        os.waitpid(child, 0)


def _run_child(client: socket.socket, answer: Callable[[bytes], Iterator[bytes]]) -> NoReturn:
    """Answer and exit, without the daemon's exit handlers."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.alarm(ANSWER_TIMEOUT)
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, CHILD_NICE)
        # Close the daemon's other descriptors, so that it can release its lock while a client reads slowly.
        os.closerange(_STDERR + 1, client.fileno())
        os.closerange(client.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        line = _read_line(client)
        client.setblocking(True)
        with client.makefile("wb", buffering=PIECE_BYTES) as file:
            for index, piece in enumerate(answer(line)):
                file.write(piece)
                if index == 0:
                    file.flush()  # so that the client knows at once that an answer follows
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        pass  # the client has closed its end
    except Exception:
        log.exception("status")
    finally:
        os._exit(code)


def _read_line(client: socket.socket) -> bytes:
    """Return the client's request: its first line or all that it sends; empty if it sends nothing."""
    line = b""
    client.settimeout(REQUEST_TIMEOUT)
    with suppress(TimeoutError):
        while b"\n" not in line and len(line) <= MAX_REQUEST and (piece := client.recv(MAX_REQUEST)):
            line += piece
    return line.partition(b"\n")[0]


def answer(snapshot: Snapshot, line: bytes) -> Iterator[bytes]:
    """Yield the JSON answer to *line* in pieces; an empty line requests the whole status. A complete answer ends with a
    line feed; without it, the answer was cut off."""
    try:
        query, arguments = parse_request(line)
        if query == STATUS:
            yield from _status(snapshot)
        else:
            yield _encode(_ANSWERS[query](snapshot, arguments))
    except RequestError as error:
        yield _encode({"schema": SCHEMA, "error": str(error)})
    yield b"\n"


_ANSWERS: Final[Mapping[str, Callable[[Snapshot, Arguments], Mapping[str, object]]]] = {
    "head": summary.head,
    "summary": summary.summary,
    "connections": connections.connections,
    "clients": summary.clients,
    "explain": explain.explain,
    "events": explain.events,
    "client": connections.client,
    "budgets": connections.budgets,
    "policy": summary.policy,
    "what_if": what_if.what_if,
}


def _status(snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the status in pieces, because the status of 10,000 connections has 10 MB."""
    yield _encode(summary.head(snapshot, {}))[:-1] + b',"connections":['
    separator = b""
    for each in connections.all_connections(snapshot):
        yield separator + _encode(each)
        separator = b","
    other_keys = {"classes": connections.classes(snapshot), "counters": summary.counters(snapshot)}
    yield b"]," + _encode(other_keys)[1:]


def _encode(value: object) -> bytes:
    try:
        return encode(value)
    except UnicodeEncodeError:  # a file's name that is not UTF-8: send it escaped
        return json.dumps(value, default=attrgetter("value")).encode()
