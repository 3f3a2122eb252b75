# SPDX-License-Identifier: GPL-2.0-or-later
"""The throttler's side of the keeper: starts a keeper, finds a predecessor's, and sends it messages.

:mod:`mptcp_throttler.kernel.mptcp_pm.keeper` describes the protocol. The Unix socket is in the state directory, to
which no other user can write.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

from mptcp_common.kernel_error import KernelError
from mptcp_common.reasons import reason
from mptcp_common.state_file import state_directory as opened_directory
from mptcp_throttler.kernel.mptcp_pm import keeper
from mptcp_throttler.kernel.mptcp_pm.family import subscribed_socket
from mptcp_throttler.kernel.sysctl import NOTE

NAME = "path-manager.sock"
TIMEOUT_SECONDS = 10.0
"""Maximum wait for an answer or a start of the keeper. An answer takes far less than 1 ms, a process start about 50 ms,
but on a busy machine both may take much longer."""


class KeeperConnection:
    """A connection to a keeper, which restores the held sysctls if the connection ends without :meth:`release`."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self.pid = pid

    async def hold(self, values: Mapping[str, str]) -> None:
        """Set the sysctls to restore if this process dies. Raises KernelError if the keeper does not answer."""
        words = [f"{name}={value}".encode("ascii") for name, value in values.items()]
        await self._send(b" ".join([keeper.HOLD, *words]))

    async def release(self) -> None:
        """Report that the sysctls are restored. The keeper ends when no connection needs it."""
        with closing(self):
            await self._send(keeper.RELEASE)

    async def end(self) -> None:
        """Let the keeper restore the held sysctls and end."""
        with closing(self):
            await self._send(keeper.END)

    @property
    def alive(self) -> bool:
        try:
            return self._connection.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        self._connection.close()

    async def _send(self, message: bytes) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await loop.sock_sendall(self._connection, message)
                answer = await loop.sock_recv(self._connection, 64)
        except (OSError, TimeoutError) as error:
            raise KernelError(f"the keeper of the path manager (process {self.pid}) does not answer") from error
        if answer != keeper.OK:
            raise KernelError(f"the keeper of the path manager (process {self.pid}) has ended")


async def find_keeper(state_directory: Path) -> KeeperConnection | None:
    """Return a predecessor's keeper, after it restored the sysctls; None if there is none or it is about to end.
    Raises KernelError."""
    connection = _connect(state_directory)
    if connection is None:
        return None
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            words = (await asyncio.get_running_loop().sock_recv(connection, 64)).split()
    except TimeoutError as error:  # before its base class OSError
        connection.close()
        raise KernelError("the keeper of the path manager does not answer") from error
    except OSError:
        words = []
    if words[:1] == [keeper.READY]:
        return KeeperConnection(connection, int(words[1]))
    connection.close()
    return None


async def find_or_start_keeper(state_directory: Path) -> KeeperConnection:
    """Return a predecessor's keeper, or start one. Raises KernelError."""
    connection = await find_keeper(state_directory)
    if connection is None:
        with subscribed_socket() as events:
            await asyncio.to_thread(_start, state_directory, events)
        connection = await find_keeper(state_directory)
    if connection is None:
        raise KernelError("the keeper of the path manager ended at once")
    return connection


def remove_socket(state_directory: Path) -> None:
    """Remove the socket that a killed keeper left. Raises KernelError."""
    try:
        with suppress(FileNotFoundError), opened_directory(state_directory) as directory:
            os.unlink(NAME, dir_fd=directory)
    except OSError as error:
        raise KernelError(f"remove {state_directory / NAME}: {error.strerror}") from error


def _start(state_directory: Path, events: socket.socket) -> None:
    path = state_directory / NAME
    try:
        state_directory.mkdir(parents=True, exist_ok=True)
        with opened_directory(state_directory) as directory, _unix_socket() as listening:
            with suppress(FileNotFoundError):
                os.unlink(NAME, dir_fd=directory)
            os.fchmod(listening.fileno(), 0o600)
            # The path itself may be too long for a Unix socket's name.
            listening.bind(f"/proc/self/fd/{directory}/{NAME}")
            listening.listen(8)
            note = state_directory / NOTE
            program = [sys.executable, "-I", "-S", keeper.__file__, str(listening.fileno()), str(path), str(note)]
            result = subprocess.run(
                program,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT_SECONDS,
                pass_fds=(listening.fileno(), events.fileno()),
                start_new_session=True,
            )
    except OSError as error:
        raise KernelError(f"start the keeper of the path manager at {path}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise KernelError("start the keeper of the path manager: it does not start in time") from error
    if result.returncode:
        raise KernelError(f"start the keeper of the path manager: its interpreter ended with {result.returncode}")


def _connect(state_directory: Path) -> socket.socket | None:
    connection = _unix_socket()
    try:
        with opened_directory(state_directory) as directory:
            connection.connect(f"/proc/self/fd/{directory}/{NAME}")
        connection.setblocking(False)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except (OSError, KernelError) as error:
        connection.close()
        raise KernelError(f"connect to the keeper at {state_directory / NAME}: {reason(error)}") from error
    return connection


def _unix_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
