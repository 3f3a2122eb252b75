"""What a scenario needs of a host, whether it is a network namespace here or a Raspberry Pi reached by ssh.

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
    """A program that was started on a host and is ended, at the latest, with what the host is part of."""

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
        """For files of this run; gone at its end."""
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
        """Start a program as root; it is ended when the host is left, at the latest.

        *mounts* maps directories to what the program alone shall see there: a directory of that host, or ``TMPFS``.
        """
        ...

    def agent(self, module: str, *arguments: str) -> list[str]:
        """Return the argv that runs ``mptcp_lab.agent.MODULE`` there."""
        ...

    def program(self, name: str) -> str:
        """Return where one of our own commands is: mptcp-proxy, mptcp-throttler."""
        ...

    def write(self, name: str, text: str) -> Path:
        """Write *text* to file *name* below :attr:`directory`, with the directories above it."""
        ...

    def provide(self, file: Path) -> Path:
        """Return where *file* of this machine is there, copied below :attr:`directory` if need be.

        What is below :attr:`directory` already is on that host.
        """
        ...

    def read(self, path: Path) -> bytes:
        """Return what file *path* of that host holds; TestbedError where it cannot be read."""
        ...

    def address(self, device: str, family: int = 4) -> str:
        """Return the address of *device*, family 4 or 6, as text; KeyError where there is none."""
        ...

    def service_address(self, family: int = 4) -> str:
        """Return the address by which others reach what is served here."""
        ...

    def mib(self) -> dict[str, int]:
        """Return the protocol counters by the names nstat(8) gives them: TcpRetransSegs, MPTcpExtMPJoinAckRx, …"""
        ...

    def changed(self, do: Sequence[str], undo: Sequence[str]) -> AbstractContextManager[None]:
        """Run *do*, and *undo* at the end of the scope."""
        ...

    def sysctl(self, key: str, value: str) -> AbstractContextManager[None]:
        """Set a sysctl and put the old value back."""
        ...

    def at_end(self, callback: Callable[[], object]) -> None:
        """Call *callback* when the host is left, before what was started earlier is ended."""
        ...


@dataclass(frozen=True, slots=True)
class ClientPath:
    """A path as the client has it."""

    name: str
    """``ethernet``, ``wifi``: as the scenarios and the policy call it."""
    device: str


@dataclass(frozen=True, slots=True)
class Lab:
    """Client, proxy and origin of an experiment, and the client's paths; the first is where connections open."""

    client: Host
    proxy: Host
    origin: Host
    paths: tuple[ClientPath, ...]
    proxy_devices: tuple[str, ...]
    """The proxy's interfaces towards the client: what the throttler watches."""
    emulated: bool
    """Whether the paths are emulated, so that their rates and delays can be set."""

    def path(self, name: str) -> ClientPath:
        for path in self.paths:
            if path.name == name:
                return path
        raise KeyError(f"no path {name!r}; there are {', '.join(p.name for p in self.paths)}")
