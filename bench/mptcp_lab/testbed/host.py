# SPDX-License-Identifier: GPL-2.0-or-later
"""The interface of a host that a scenario uses. The host is a network namespace here, or a machine reached by ssh.

``node.LiveNode`` implements it for namespaces, ``mptcp_lab.remote.SshHost`` for ssh. File paths are on that host.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Program(Protocol):
    """A program that was started on a host. It ends at the latest when the host is left."""

    name: str

    @property
    def pid(self) -> int:
        """The process id on that host."""
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
        """Directory for files of this run, which is removed when the run ends."""
        ...

    def run(
        self, argv: Sequence[str], *, check: bool = True, timeout: float = 30, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root and wait for it. *options* may contain ``input``, its standard input as text."""
        ...

    def popen(
        self,
        argv: Sequence[str],
        *,
        name: str | None = None,
        mounts: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Program:
        """Start a program as root. It ends at the latest when the host is left.

        *mounts* maps each directory to the source that is mounted privately over it: a directory of that host, or
        ``TMPFS``.
        """
        ...

    def agent(self, module: str, *arguments: str) -> list[str]:
        """Return the command that runs ``mptcp_lab.agent.MODULE`` on that host."""
        ...

    def program(self, name: str) -> str:
        """Return the path of one of our commands: mptcp-proxy, mptcp-throttler."""
        ...

    def write(self, name: str, text: str) -> Path:
        """Write *text* to file *name* below :attr:`directory`, and create parent directories. Return its path."""
        ...

    def provide(self, file: Path) -> Path:
        """Return this machine's *file* on that host; copy it below :attr:`directory` if the host does not have it."""
        ...

    def read(self, path: Path) -> bytes:
        """Return the content of *path* on that host. Raises TestbedError if the file cannot be read."""
        ...

    def address(self, device: str, family: int = 4) -> str:
        """Return the address of *device* for *family* 4 or 6, as text. Raises KeyError if there is none."""
        ...

    def service_address(self, family: int = 4) -> str:
        """Return the address at which other hosts reach this host's services."""
        ...

    def mib(self) -> dict[str, int]:
        """Return the protocol counters by their nstat(8) names, such as TcpRetransSegs or MPTcpExtMPJoinAckRx."""
        ...

    def changed(self, do: Sequence[str], undo: Sequence[str]) -> AbstractContextManager[None]:
        """Run *do* now, and *undo* at the end of the scope."""
        ...

    def sysctl(self, key: str, value: str) -> AbstractContextManager[None]:
        """Set a sysctl, and restore its old value at the end of the scope."""
        ...

    def at_end(self, callback: Callable[[], object]) -> None:
        """Call *callback* when the host is left, before programs that were started earlier are ended."""
        ...


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
        for path in self.paths:
            if path.name == name:
                return path
        raise KeyError(f"no path {name!r}; there are {', '.join(p.name for p in self.paths)}")
