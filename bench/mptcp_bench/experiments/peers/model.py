# SPDX-License-Identifier: GPL-2.0-or-later
"""A proxy in the experiment ``relay``: its name, requirements and start."""

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
"""All proxies listen there, one at a time."""


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """What to start."""

    host: LiveNode
    directory: Path
    """The proxy's own empty directory."""
    origin: str
    """Address of the only web server, of the clients' family."""
    workers: int
    multipath: bool
    """Whether its clients speak MPTCP."""
    more: str = ""
    """Additional lines for our squid.conf."""

    @property
    def origin_host(self) -> str:
        """The origin in URL form."""
        return f"[{self.origin}]" if ":" in self.origin else self.origin

    def write(self, name: str, text: str) -> Path:
        target = self.directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def wrapped(self, argv: Sequence[str]) -> list[str]:
        """Return *argv*, wrapped by mptcpize(8) for MPTCP clients: all its TCP sockets, outgoing ones too."""
        return mptcp_command(argv) if self.multipath else list(argv)


@dataclass(frozen=True, slots=True)
class Peer:
    """A proxy."""

    name: str
    package: str
    """In Debian; empty if it is compiled here."""
    needs: tuple[str, ...]
    """Programs, by name, and files, by path."""
    start: Callable[[PeerSetup], Program]
    tunnels: bool = True
    """Whether it supports CONNECT."""
    multipath: str = "wrapped"
    """How it accepts MPTCP: ``own``, ``wrapped`` by mptcpize(8), or empty: not at all."""
    asked: tuple[str, ...] = ()
    """Command that prints its version in the first line."""

    def lacking(self) -> str | None:
        """Return what is not installed, None if everything is."""
        absent = [each for each in self.needs if program(each) is None]
        return f"{' and '.join(absent)} not installed (Debian's package {self.package})" if absent else None

    def version(self) -> str:
        """Return its version; empty if there is no command."""
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
    """Return *process* once it accepts connections on ``PORT``. Raises TestbedError, with the end of its log."""
    address = setup.host.service_address()
    # Free the port for the next proxy.
    with undone_on_error(process.kill_tree):
        wait_until(
            lambda: accepts(setup.host, address, PORT), f"{name} answers on port {PORT}", process=process, timeout=30
        )
    return process
