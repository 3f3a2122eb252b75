# SPDX-License-Identifier: GPL-2.0-or-later
"""What a scenario needs of a host: a network namespace here, or a Raspberry Pi reached by ssh.

``node.LiveNode`` is the one, ``mptcp_lab.remote.SshHost`` the other. Paths are paths on that host.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Program(Protocol):
    """A program started on a host; it ends at the latest when the host is left."""

    name: str

    @property
    def pid(self) -> int:
        """Its process id on that host."""
        ...

    @property
    def running(self) -> bool: ...
    @property
    def returncode(self) -> int | None: ...
    def wait(self, timeout: float) -> int: ...
    def signal(self, number: int) -> None: ...
    def stop(self, grace: float = 30.0) -> int: ...
    def kill(self) -> None: ...
    def kill_tree(self) -> None: ...
    def output(self) -> str: ...
    def tail(self, lines: int = 15) -> str: ...


class Host(Protocol):
    """One host of an experiment."""

    @property
    def name(self) -> str: ...
    @property
    def directory(self) -> Path:
        """Directory for files of this run; removed at its end."""
        ...

    def run(
        self, argv: Sequence[str], *, check: bool = True, timeout: float = 30, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root and wait for it; *options* may hold ``input``, text for its standard input."""
        ...

    def popen(
        self,
        argv: Sequence[str],
        *,
        name: str | None = None,
        mounts: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Program:
        """Start a program as root; it ends at the latest when the host is left.

        *mounts* maps directories to private mounts: a directory of that host, or ``TMPFS``.
        """
        ...

    def agent(self, module: str, *arguments: str) -> list[str]:
        """Return the argv that runs ``mptcp_lab.agent.MODULE`` there."""
        ...

    def program(self, name: str) -> str:
        """Return the path of one of our own commands: mptcp-proxy, mptcp-throttler."""
        ...

    def write(self, name: str, text: str) -> Path:
        """Write *text* to file *name* below :attr:`directory`, making its parent directories."""
        ...

    def provide(self, file: Path) -> Path:
        """Return this machine's *file* on that host, copied below :attr:`directory` unless it is already there."""
        ...

    def read(self, path: Path) -> bytes:
        """Return the content of *path* on that host. Raises TestbedError if it cannot be read."""
        ...

    def address(self, device: str, family: int = 4) -> str:
        """Return the address of *device*, family 4 or 6, as text; KeyError if there is none."""
        ...

    def service_address(self, family: int = 4) -> str:
        """Return the address at which others reach this host's services."""
        ...

    def mib(self) -> dict[str, int]:
        """Return the protocol counters by their nstat(8) names: TcpRetransSegs, MPTcpExtMPJoinAckRx, …"""
        ...

    def changed(self, do: Sequence[str], undo: Sequence[str]) -> AbstractContextManager[None]:
        """Run *do*, and *undo* at the end of the scope."""
        ...

    def sysctl(self, key: str, value: str) -> AbstractContextManager[None]:
        """Set a sysctl, and restore the old value at the end of the scope."""
        ...

    def at_end(self, callback: Callable[[], object]) -> None:
        """Call *callback* when the host is left, before earlier started programs are ended."""
        ...


@dataclass(frozen=True, slots=True)
class ClientPath:
    """One of the client's paths."""

    name: str
    """``ethernet``, ``wifi``: the name in scenarios and policy."""
    device: str


@dataclass(frozen=True, slots=True)
class Lab:
    """Client, proxy and origin of an experiment, and the client's paths; connections open on the first."""

    client: Host
    proxy: Host
    origin: Host
    paths: tuple[ClientPath, ...]
    proxy_devices: tuple[str, ...]
    """The proxy's interfaces towards the client, which the throttler watches."""
    emulated: bool
    """Whether the paths are emulated, so that rates and delays can be set."""

    def path(self, name: str) -> ClientPath:
        for path in self.paths:
            if path.name == name:
                return path
        raise KeyError(f"no path {name!r}; there are {', '.join(p.name for p in self.paths)}")
