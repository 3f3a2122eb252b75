"""What a proxy is to the experiment ``relay``: its name, what it needs, how it is started."""

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
"""All listen there, one at a time."""


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """What is to be started."""

    host: LiveNode
    directory: Path
    """Of its own, empty."""
    origin: str
    """The address of the one web server that is asked for, of the family that the clients have."""
    workers: int
    multipath: bool
    """Whether its clients speak Multipath TCP."""
    more: str = ""
    """Lines for the squid.conf of ours."""

    @property
    def origin_host(self) -> str:
        """The origin as a URL has it."""
        return f"[{self.origin}]" if ":" in self.origin else self.origin

    def write(self, name: str, text: str) -> Path:
        target = self.directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def wrapped(self, argv: Sequence[str]) -> list[str]:
        """Return *argv*, by mptcpize(8) where the clients speak MPTCP: all its TCP sockets, outgoing ones too."""
        return mptcp_command(argv) if self.multipath else list(argv)


@dataclass(frozen=True, slots=True)
class Peer:
    """A proxy."""

    name: str
    package: str
    """Of Debian; empty for what is compiled here."""
    needs: tuple[str, ...]
    """Programs, by name, and files, by path."""
    start: Callable[[PeerSetup], Program]
    tunnels: bool = True
    """Whether it takes CONNECT."""
    multipath: str = "wrapped"
    """How it takes MPTCP: ``own``, ``wrapped`` by mptcpize(8), or not at all: empty."""
    asked: tuple[str, ...] = ()
    """The command that says its version, in its first line."""

    def lacking(self) -> str | None:
        """Return what of it is not installed, None where all is there."""
        absent = [each for each in self.needs if program(each) is None]
        return f"{' and '.join(absent)} not installed (Debian's package {self.package})" if absent else None

    def version(self) -> str:
        """Return what it says of itself; empty where there is nothing to ask."""
        if not self.asked:
            return ""
        said = run(self.asked, check=False)
        return next(iter((said.stdout or said.stderr).strip().splitlines()), "")


def program(name: str) -> str | None:
    """Return the path of program or file *name*; None where it is not installed."""
    if name.startswith("/"):
        return name if Path(name).exists() else None
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def answers(setup: PeerSetup, process: Program, name: str) -> Program:
    """Return *process* once it takes connections on ``PORT``. Raises TestbedError, with the end of its log."""
    address = setup.host.service_address()
    # The next one is to have the port.
    with undone_on_error(process.kill_tree):
        wait_until(
            lambda: accepts(setup.host, address, PORT), f"{name} answers on port {PORT}", process=process, timeout=30
        )
    return process
