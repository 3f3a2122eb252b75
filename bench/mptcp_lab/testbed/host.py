# SPDX-License-Identifier: GPL-2.0-or-later
"""The interface of a host: a namespace (``node.LiveNode``), or a machine reached by ssh (``mptcp_lab.remote.SshHost``).

File paths are paths on that host.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .commands import TestbedError

KILL_SECONDS = 60.0
"""Seconds that a killed program may take to end. On a busy machine it has to wait for a processor to end."""
PATIENCE = 60.0
"""Maximum seconds for an operation that takes one or two seconds on an idle machine."""
_SET_MTU = """\
ip -6 address save dev "$1" >"$2.address" && ip -6 route save table all type unicast dev "$1" >"$2.route" &&
ip link set dev "$1" mtu "$3"
"""
_RESTORE_MTU = """\
ip link set dev "$1" mtu "$3" || exit 1
for object in address route; do
    [ ! -s "$2.$object" ] || ip -6 $object restore <"$2.$object" || exit 1
done
"""
"""Commands that change an MTU. If the MTU is below 1280 bytes (RFC 8200, 5), the kernel removes all IPv6 addresses and
routes of the interface, and does not restore them (``addrconf_notify`` of net/ipv6/addrconf.c)."""


class Program(Protocol):
    """A program that was started on a host. It ends at the latest at the end of the host's scope."""

    name: str
    pid: int
    """The process id on that host."""

    def exit_code(self, timeout: float = 0.0) -> int | None:
        """Return the exit code, or None if the program still runs after *timeout* seconds."""

    def signal(self, number: int) -> None:
        """Send the signal *number* if the program still runs."""

    def output(self) -> str:
        """Return the output so far."""

    def kill_tree(self) -> None:
        """Kill the program and its remaining descendants with SIGKILL."""

    @property
    def returncode(self) -> int | None:
        return self.exit_code()

    @property
    def running(self) -> bool:
        return self.exit_code() is None

    def wait(self, timeout: float) -> int:
        """Wait for the end, and return the exit code. Raises TestbedError after *timeout* seconds."""
        code = self.exit_code(timeout)
        if code is None:
            raise TestbedError(f"{self.name}: still runs after {timeout:g} s{self.tail()}")
        return code

    def tail(self) -> str:
        """Return the end of the output, indented, for an error message."""
        return "".join(f"\n    {line}" for line in self.output().splitlines()[-15:])

    def kill(self) -> None:
        """End the program as a crash would: by SIGKILL, so that it cannot clean up."""
        self.signal(signal.SIGKILL)
        self.wait(KILL_SECONDS)

    def stop(self, grace: float = 30.0) -> int:
        """End the program by SIGTERM, or by SIGKILL after *grace* seconds. Return its exit code."""
        self.signal(signal.SIGTERM)
        if self.exit_code(grace) is None:
            self.kill()
        return self.wait(KILL_SECONDS)


def wait_until(
    ready: Callable[[], bool], what: str, *, timeout: float = PATIENCE, process: Program | None = None
) -> None:
    """Wait until *ready*. Raises TestbedError, with the end of the log, after *timeout* s or if *process* ends."""
    began = time.monotonic()
    deadline = began + timeout
    while not ready():
        now = time.monotonic()
        if process is not None and not process.running:
            raise TestbedError(f"{what}: {process.name} ended with {process.returncode}{process.tail()}")
        if now > deadline:
            raise TestbedError(f"{what}: not within {timeout:g} s{process.tail() if process else ''}")
        # Many conditions run a command. Spend at most a quarter of the time on them.
        time.sleep(min(max(0.02, 3 * (now - began)), 1.0))
        began = time.monotonic()


class Host(Protocol):
    """One host of an experiment."""

    name: str
    directory: Path
    """Directory for files of this run, which is removed when the run ends."""

    def run(
        self, argv: Sequence[str], *, check: bool = True, timeout: float = 30, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root and wait for it. *options* may contain ``input``, its standard input as text."""

    def popen(
        self,
        argv: Sequence[str],
        *,
        name: str | None = None,
        mounts: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Program:
        """Start a program as root. It ends at the latest at the end of the host's scope.

        *mounts* maps directories to the sources that are mounted privately over them: directories, or ``TMPFS``.
        """

    def agent(self, module: str, *arguments: str) -> list[str]:
        """Return the command that runs ``mptcp_lab.agent.MODULE`` on that host."""

    def program(self, name: str) -> str:
        """Return the path of one of our commands, such as mptcp-proxy."""

    def write(self, name: str, text: str) -> Path:
        """Write *text* to file *name* below :attr:`directory`, and create parent directories. Return its path."""

    def provide(self, file: Path) -> Path:
        """Copy this machine's *file* below :attr:`directory` if that host cannot read it. Return its path there."""

    def read(self, path: Path) -> bytes:
        """Return the content of *path* on that host. Raises TestbedError if the file cannot be read."""

    def address(self, device: str, family: int = 4) -> str:
        """Return the address of *device* for *family* 4 or 6, as text. Raises KeyError if there is none."""

    def service_address(self, family: int = 4) -> str:
        """Return the address at which other hosts reach this host's services."""

    def mib(self) -> dict[str, int]:
        """Return the protocol counters by their nstat(8) names, such as TcpRetransSegs or MPTcpExtMPJoinAckRx."""

    def changed(self, do: Sequence[str], undo: Sequence[str]) -> AbstractContextManager[None]:
        """Run *do* now, and *undo* at the end of the scope."""

    def at_end(self, callback: Callable[[], object]) -> None:
        """Call *callback* at the end of the host's scope, before programs that were started earlier are ended."""

    def sysctl(self, key: str, value: str) -> AbstractContextManager[None]:
        """Set a sysctl, and restore its old value at the end of the scope."""
        before = self.run(["sysctl", "-n", key]).stdout.strip()
        return self.changed(["sysctl", "-qw", f"{key}={value}"], ["sysctl", "-qw", f"{key}={before}"])

    def set_mtu(self, device: str, value: int) -> AbstractContextManager[None]:
        """Set the MTU of *device* to *value* bytes until the end of the scope."""
        before = self.run(["cat", f"/sys/class/net/{device}/mtu"]).stdout.strip()
        if before == str(value):
            return nullcontext()
        arguments = ["sh", device, str(self.directory / f"{self.name}-{device}")]
        do, undo = ["sh", "-c", _SET_MTU, *arguments, str(value)], ["sh", "-c", _RESTORE_MTU, *arguments, before]
        return self.changed(do, undo)


@dataclass(frozen=True, slots=True)
class ClientPath:
    """One path of the client: its name and device."""

    name: str
    """Name in scenarios and policies: ``ethernet`` or ``wifi``."""
    device: str


@dataclass(frozen=True, slots=True)
class Lab:
    """Client, proxy and origin of an experiment, and the client's paths. Connections open on the first path."""

    client: Host
    proxy: Host
    origin: Host
    paths: tuple[ClientPath, ...]
    proxy_devices: tuple[str, ...]
    """The proxy's interfaces towards the client, which the throttler controls."""

    def path(self, name: str) -> ClientPath:
        return {path.name: path for path in self.paths}[name]
