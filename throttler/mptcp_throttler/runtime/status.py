"""Answers the status socket: what the daemon knows and does, as JSON over a Unix socket, for people and for monitoring.

A client connects, sends one line that says what it wants, and reads one JSON document until the end (docs/status.md).
One that says nothing gets the whole status. Keys are stable; new ones may be added.

Each answer is made by a child, a copy of the daemon as it was when it was asked (fork(2)): it shows one moment, and the
event loop is held up by the copying of page tables alone, however many connections there are and however slowly the
client reads or writes. The child keeps nothing open but the client and the log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from mptcp_common.kernel_error import KernelError
from mptcp_common.reasons import reason
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.views.requests import LARGEST_REQUEST

log = logging.getLogger(__name__)

ANSWER_SECONDS = 30
"""How long a child may live: a client that does not read gets no more."""
AGAIN_SECONDS = 1.0
"""Until the next try where nobody can be accepted."""
MAX_ANSWERS = 4
"""Children at a time; who asks meanwhile waits."""
PIECE_BYTES = 1 << 16
SILENT_SECONDS = 2.0
"""A client that has sent nothing by then has nothing to send. One that does not get a processor may need a while."""
LINE_SECONDS = 5.0
"""For a pause within a line."""
NICE = -10
"""After the daemon, before the proxy: the whole status is 0.16 s of work with 10,000 connections."""
_STDERR = 2


class StatusServer(Component):
    """Answers each connection to the socket at *path* with the pieces that *answer* yields for its line."""

    repairs = 0
    """How often the socket was made anew."""

    def __init__(self, path: Path, answer: Callable[[bytes], Iterator[bytes]], group: str | None = None) -> None:
        """*answer* is called in a child: it may take its time, and changes nothing that the daemon has.

        *group*: whose members may ask, beside root; None: the daemon's own.
        """
        self._path = path
        self._group = group
        self._answer_to = answer
        self._listener: socket.socket | None = None
        self._inode = 0
        """Of the socket, as it was made."""
        self._children: dict[int, int] = {}
        """Process identifiers by descriptor of the process (pidfd_open(2))."""
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        """Listen; a socket left by a crashed daemon is replaced. Raises KernelError where the path cannot be used."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and not self._path.is_socket():
                raise KernelError(f"status socket {self._path}: there is something else of that name")
            self._path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.setblocking(False)
            old_mask = os.umask(0o177)  # for its owner alone, until it has its group
            try:
                listener.bind(str(self._path))
            finally:
                os.umask(old_mask)
            self._open_to_group()
            listener.listen()
            self._inode = self._path.stat().st_ino
        except OSError as error:
            raise KernelError(f"status socket {self._path}: {error.strerror or error}") from error
        self._listener = listener
        self._listen()

    def _open_to_group(self) -> None:
        """Let the members of the group ask. Raises OSError, KernelError where the socket cannot be the group's."""
        if self._group is not None:
            try:
                shutil.chown(self._path, group=self._group)
            except (LookupError, PermissionError) as error:
                raise KernelError(f"status_group {self._group}: {reason(error)}") from error
        self._path.chmod(0o660)

    async def verify(self) -> None:
        """Listen again where somebody removed or replaced the socket. Raises KernelError."""
        with suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                return
        self.repairs += 1
        log.warning("status socket %s is gone; putting it right", self._path)
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await self.open()

    async def close(self) -> None:
        if self._listener is None:
            return
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for descriptor, child in list(self._children.items()):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            self._end(descriptor)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of descriptors or of memory: who asks is still there, and to try at once would be a busy loop.
            log.error("status: %s", error.strerror)
            self._loop.remove_reader(self._listener)
            self._loop.call_later(AGAIN_SECONDS, self._listen)
            return
        with client:
            try:
                self._answer(client)
            except OSError as error:
                log.error("status: make a child: %s", error.strerror)
        if len(self._children) >= MAX_ANSWERS:
            self._loop.remove_reader(self._listener)

    def _listen(self) -> None:
        if self._listener is not None and self._listener.fileno() >= 0 and len(self._children) < MAX_ANSWERS:
            self._loop.add_reader(self._listener, self._accept)

    def _answer(self, client: socket.socket) -> None:
        """Have a child answer *client*. Raises OSError where there cannot be one."""
        # A signal that the child got as its parent's would wake our loop through the pipe that they share.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            child = os.fork()
            if child == 0:
                _be_the_child(client, self._answer_to)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            descriptor = os.pidfd_open(child)
        except OSError:
            os.kill(child, signal.SIGKILL)
            _reap(child)
            raise
        self._children[descriptor] = child
        self._loop.add_reader(descriptor, self._end, descriptor)

    def _end(self, descriptor: int) -> None:
        """Take note that the child of *descriptor* has ended, or ends."""
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        _reap(self._children.pop(descriptor))
        self._listen()


def _reap(child: int) -> None:
    # Where SIGCHLD was inherited as ignored, the kernel has done it.
    with suppress(ChildProcessError):
        os.waitpid(child, 0)


def _be_the_child(client: socket.socket, answer: Callable[[bytes], Iterator[bytes]]) -> NoReturn:
    """Answer and end, without anything of what the daemon does when it ends."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.alarm(ANSWER_SECONDS)
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
        # What the daemon holds it must be able to let go of, its lock for one, while a client reads slowly.
        os.closerange(_STDERR + 1, client.fileno())
        os.closerange(client.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        line = _read_line(client)
        client.setblocking(True)
        _send(client, answer(line))
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        pass  # the client went away
    except Exception:
        log.exception("status")
    finally:
        os._exit(code)


def _read_line(client: socket.socket) -> bytes:
    """Return what *client* asks, up to the end of the line or of what it sends; nothing where it is silent."""
    line = b""
    client.settimeout(SILENT_SECONDS)
    while b"\n" not in line and len(line) <= LARGEST_REQUEST:
        try:
            piece = client.recv(LARGEST_REQUEST)
        except TimeoutError:
            break
        if not piece:
            break
        line += piece
        client.settimeout(LINE_SECONDS)
    return line.partition(b"\n")[0]


def _send(client: socket.socket, document: Iterator[bytes]) -> None:
    with client.makefile("wb", buffering=PIECE_BYTES) as file:
        for number, piece in enumerate(document):
            file.write(piece)
            if number == 0:
                file.flush()  # who asks sees at once that there is an answer
