# SPDX-License-Identifier: GPL-2.0-or-later
"""A host that is reached by ssh. It has the same interface as a testbed namespace: see ``testbed.host``."""

from __future__ import annotations

import base64
import json
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from ..agent import counters
from ..agent.processes import end_of
from ..testbed.commands import TestbedError, undo_after, undone
from ..testbed.host import KILL_SECONDS, Host, Program
from .connection import Connection, HostRole, agent_command

CHANGE_SECONDS = 60.0
"""Seconds that a change, or undoing it, may take."""
_WRITE = 'mkdir -p "${1%/*}" && cat >"$1"'


class Device(NamedTuple):
    """One interface, with the addresses at which other hosts can reach it."""

    up: bool
    """Whether the interface is up and, if the device reports that, has a carrier."""
    addresses: Mapping[int, str]
    """The first address of each family that is not link-local, temporary or deprecated."""


def parse_devices(text: str) -> dict[str, Device]:
    """Return the interfaces in *text*, the output of ``ip -j address show``, by name."""
    devices = {}
    for each in json.loads(text):
        addresses: dict[int, str] = {}
        for address in each.get("addr_info", []):
            if address.get("scope") == "global" and not address.get("temporary") and not address.get("deprecated"):
                addresses.setdefault(6 if ":" in address["local"] else 4, address["local"])
        # Skip empty objects, which older versions of ip(8) print for interfaces that they do not show.
        if "ifname" in each:
            is_up = "UP" in each["flags"] and "NO-CARRIER" not in each["flags"]
            devices[each["ifname"]] = Device(is_up, addresses)
    return devices


class SshProgram(Program):
    """A program on a host. It writes its output to a file there; :meth:`stop` ends it."""

    def __init__(self, host: SshHost, name: str, pid: int, log: Path) -> None:
        self.name, self.pid = name, pid
        self._host, self._log = host, log

    def exit_code(self, timeout: float = 0.0) -> int | None:
        return self._host.connection.exit_code(self.pid, timeout)

    def output(self) -> str:
        return self._host.read(self._log).decode(errors="replace")

    def signal(self, number: int, *, tree: bool = False) -> None:
        if self.running:
            fields = {"pid": self.pid, "number": int(number), "tree": tree}
            self._host.connection.request("signal", f"signal {self.name}", **fields)

    def kill_tree(self) -> None:
        self.signal(signal.SIGKILL, tree=True)
        self.wait(KILL_SECONDS)


class SshHost(Host, AbstractContextManager["SshHost"]):
    """A host that is connected during a ``with`` statement. Afterwards the host is in its earlier state."""

    connection: Connection
    directory: Path

    def __init__(self, role: HostRole) -> None:
        self.role = role
        self.name = role.name
        self._scope = ExitStack()
        self._logs = 0

    def __enter__(self) -> Self:
        self.connection = Connection(self.role)
        self.directory = self.connection.directory
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        def end() -> None:
            try:
                self._scope.close()
            finally:
                self.connection.close(failing=error is not None)

        undo_after(error, end)

    def run(
        self, argv: Sequence[str], *, check: bool = True, timeout: float = 30, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root and wait for it. The only possible options are those of the agent's request."""
        attempt = " ".join(argv)
        answer = self.connection.request("run", attempt, argv=list(argv), timeout=timeout, **options)
        done = subprocess.CompletedProcess(list(argv), answer["code"], answer["out"], answer["err"])
        if check and done.returncode != 0:
            raise TestbedError(
                f"[{self.name}] {attempt}: exit code {done.returncode}{end_of(done.stdout, done.stderr)}"
            )
        return done

    def popen(
        self,
        argv: Sequence[str],
        *,
        name: str | None = None,
        mounts: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> SshProgram:
        label = name or Path(argv[0]).name
        self._logs += 1
        log = self.directory / f"{self.name}-{label}-{self._logs}.log"
        fields: dict[str, Any] = {"argv": list(argv), "mounts": dict(mounts or {}), "env": dict(env or {})}
        started = self.connection.request("start", f"start {label}", log=str(log), **fields)
        program = SshProgram(self, label, started["pid"], log)
        self.at_end(program.stop)
        return program

    def agent(self, module: str, *arguments: str) -> list[str]:
        return agent_command(self.directory, module, *arguments)

    def program(self, name: str) -> str:
        path = f"{self.role.commands}/{name}" if self.role.commands is not None else name
        program = self.run(["sh", "-c", f"command -v {shlex.quote(path)}"], check=False).stdout.strip()
        if not program:
            advice = "check 'commands' in the inventory" if self.role.commands else "give its directory as 'commands'"
            raise TestbedError(f"{self.role}: there is no program {path}; {advice}")
        return program

    def write(self, name: str, text: str) -> Path:
        target = self.directory / name
        self.run(["sh", "-c", _WRITE, "sh", str(target)], input=text)
        return target

    def provide(self, file: Path) -> Path:
        if file.is_relative_to(self.directory):
            return file
        return self.write(f"{self.name}-{file.name}", file.read_text())

    def read(self, path: Path) -> bytes:
        return base64.b64decode(self.run(["base64", str(path)], timeout=60).stdout)

    def devices(self) -> dict[str, Device]:
        """Return the host's current interfaces by name, as ``ip address`` shows them."""
        return parse_devices(self.run(["ip", "-j", "address", "show"]).stdout)

    def address(self, device: str, family: int = 4) -> str:
        return self._first_address([device], family)

    def service_address(self, family: int = 4) -> str:
        return self.role.addresses.get(family) or self._first_address(self.role.devices, family)

    def _first_address(self, names: Sequence[str], family: int) -> str:
        devices = self.devices()
        for name in names:
            address = devices[name].addresses.get(family) if name in devices else None
            if address is not None:
                return address
        raise KeyError(f"{self.name}:{', '.join(names)} has no IPv{family} address")

    def mib(self) -> dict[str, int]:
        return counters.parse_protocols(*(self.read(counters.NET / name).decode() for name in ("snmp", "netstat")))

    @contextmanager
    def changed(self, do: Sequence[str], undo: Sequence[str]) -> Iterator[None]:
        """Run *do*, and *undo* at the end of the scope, even if the driver is killed."""
        fields: dict[str, Any] = {"argv": list(do), "undo": list(undo), "timeout": CHANGE_SECONDS}
        answer = self.connection.request("change", " ".join(do), **fields)

        def end() -> None:
            # If the connection is lost, the agent undoes everything by itself.
            if not self.connection.lost:
                fields = {"change": answer["change"], "timeout": CHANGE_SECONDS}
                self.connection.request("undo", " ".join(undo), **fields)

        with undone(end):
            yield

    def at_end(self, callback: Callable[[], object]) -> None:
        # If the connection is lost, the agent ends everything by itself.
        self._scope.callback(lambda: None if self.connection.lost else callback())
