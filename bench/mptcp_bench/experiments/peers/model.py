# SPDX-License-Identifier: GPL-2.0-or-later
"""A proxy in the experiment ``relay``: its name, its requirements and how it is started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mptcp_lab.testbed import LiveNode, Program
from mptcp_lab.testbed.commands import run, undone_on_error
from mptcp_lab.testbed.services import PROXY_PORT, accepts, mptcp_command, wait_until

PORT = PROXY_PORT
"""The port on which each proxy listens. Only one proxy runs at a time."""


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """What a proxy needs to know to start."""

    host: LiveNode
    directory: Path
    """The proxy's own empty directory."""
    origin: str
    """Address of the only web server. It has the same family as the clients' addresses."""
    workers: int
    multipath: bool
    """Whether its clients use MPTCP."""
    more: str = ""
    """Lines to add to our squid.conf."""

    @property
    def origin_host(self) -> str:
        """The origin's address as part of a URL."""
        return f"[{self.origin}]" if ":" in self.origin else self.origin

    def write(self, name: str, text: str) -> Path:
        target = self.directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def wrapped(self, argv: Sequence[str]) -> list[str]:
        """Return *argv*; for MPTCP clients wrapped by mptcpize(8), for all TCP sockets, even outgoing ones."""
        return mptcp_command(argv) if self.multipath else list(argv)


@dataclass(frozen=True, slots=True)
class Peer:
    """A proxy that can be measured."""

    name: str
    package: str
    """Debian's package that has it. For a proxy that is compiled here, the compiler's package."""
    needs: tuple[str, ...]
    """The programs (names) and files (paths) that it needs."""
    start: Callable[[PeerSetup], Program]
    tunnels: bool = True
    """Whether it supports CONNECT."""
    multipath: str = "wrapped"
    """How it accepts MPTCP: by its ``own`` listener, ``wrapped`` by mptcpize(8), or not at all (empty)."""
    asked: tuple[str, ...] = ()
    """The command that prints the proxy's version in the first line."""

    def lacking(self) -> str | None:
        """Return what is not installed, or None if everything is."""
        absent = [each for each in self.needs if program(each) is None]
        return f"{' and '.join(absent)} not installed (Debian's package {self.package})" if absent else None

    def version(self) -> str:
        """Return the proxy's version; empty if no command prints it."""
        if not self.asked:
            return ""
        said = run(self.asked, check=False)
        return next(iter((said.stdout or said.stderr).strip().splitlines()), "")


def program(name: str) -> str | None:
    """Return the path of program or file *name*; None if it is not installed."""
    if name.startswith("/"):
        return name if Path(name).exists() else None
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def answers(setup: PeerSetup, process: Program, name: str) -> Program:
    """Return *process* when it accepts connections on ``PORT``. Raises TestbedError, with the end of its log."""
    address = setup.host.service_address()
    # After an error, kill the process to free the port for the next proxy.
    with undone_on_error(process.kill_tree):
        wait_until(
            lambda: accepts(setup.host, address, PORT), f"{name} answers on port {PORT}", process=process, timeout=30
        )
    return process
