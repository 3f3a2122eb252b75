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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from ..agent import counters
from ..testbed.commands import TestbedError, said, undo_after
from .connection import Connection, Login, agent_command

PIECE = 1 << 20
"""Maximum bytes that are read from a file at a time."""
CHANGING = 60.0
"""Seconds that a change, or undoing it, may take."""
ENDING = 60.0


_FAMILIES = {"inet": 4, "inet6": 6}


@dataclass(frozen=True, slots=True)
class Device:
    """One interface, with the addresses at which other hosts can reach it."""

    name: str
    up: bool
    """Whether the interface is up and, if the device reports that, has a carrier."""
    addresses: tuple[tuple[int, str], ...]
    """Family and text of each address, in the kernel's order, without link-local, temporary or deprecated ones."""

    def address(self, family: int) -> str | None:
        return next((text for kind, text in self.addresses if kind == family), None)


def parse_devices(text: str) -> dict[str, Device]:
    """Return the interfaces in the output *text*, by name."""
    # Skip empty objects, which older versions of ip(8) print for interfaces that they do not show.
    return {each["ifname"]: _device(each) for each in json.loads(text) if "ifname" in each}


def _device(shown: Mapping[str, Any]) -> Device:
    usable = (
        address
        for address in shown.get("addr_info", [])
        if address.get("scope") == "global" and not address.get("temporary") and not address.get("deprecated")
    )
    addresses = tuple((_FAMILIES[a["family"]], a["local"]) for a in usable if a.get("family") in _FAMILIES)
    return Device(shown["ifname"], "UP" in shown["flags"] and "NO-CARRIER" not in shown["flags"], addresses)


class SshProgram:
    """A program on a host. It writes its output to the file :attr:`log` there; :meth:`stop` ends it."""

    def __init__(self, host: SshHost, connection: Connection, name: str, pid: int, log: Path) -> None:
        self.name = name
        self.pid = pid
        self.log = log
        self._host = host
        self._connection = connection

    @property
    def returncode(self) -> int | None:
        return self._connection.exit_code(self.pid)

    @property
    def running(self) -> bool:
        return self.returncode is None

    def output(self) -> str:
        return self._host.read(self.log).decode(errors="replace")

    def tail(self, lines: int = 15) -> str:
        """Return the end of the log, indented, for an error message."""
        return "".join(f"\n    {line}" for line in self.output().splitlines()[-lines:])

    def signal(self, number: int) -> None:
        self._signal(number)

    def _signal(self, number: int, *, tree: bool = False) -> None:
        if self.running:
            self._connection.ask("signal", f"signal {self.name}", pid=self.pid, number=int(number), tree=tree)

    def wait(self, timeout: float) -> int:
        code = self._connection.exit_code(self.pid, timeout)
        if code is None:
            raise TestbedError(f"[{self._host.name}] {self.name}: still runs after {timeout:g} s{self.tail()}")
        return code

    def kill(self) -> None:
        """End the program as a crash would: by SIGKILL, so that it cannot clean up."""
        self._signal(signal.SIGKILL)
        self.wait(ENDING)

    def kill_tree(self) -> None:
        """Kill the program and its remaining descendants with SIGKILL."""
        self._signal(signal.SIGKILL, tree=True)
        self.wait(ENDING)

    def stop(self, grace: float = 30.0) -> int:
        """End the program by SIGTERM, or by SIGKILL after *grace* seconds. Return its exit code."""
        self._signal(signal.SIGTERM)
        if self._connection.exit_code(self.pid, grace) is None:
            self.kill()
        return self.wait(ENDING)


class SshHost(AbstractContextManager["SshHost"]):
    """A host that is connected during a ``with`` statement. Afterwards the host is in its earlier state."""

    def __init__(
        self,
        name: str,
        login: Login,
        *,
        devices: Sequence[str] = (),
        addresses: Mapping[int, str] | None = None,
        commands: Path | None = None,
    ) -> None:
        """Describe the host. *name* is client, proxy or origin. Other hosts reach it by the interfaces *devices*.

        *addresses*, by family, replace the devices' addresses in :meth:`service_address`. *commands* is the directory
        with our commands on the host; None if its PATH contains this directory.
        """
        self.name = name
        self.login = login
        self._devices = tuple(devices)
        self._addresses = dict(addresses or {})
        self._commands = commands
        self._scope = ExitStack()
        self._logs = 0
        self._connected: Connection | None = None

    def __enter__(self) -> Self:
        self._connected = Connection(self.name, self.login)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        undo_after(error, partial(self._end, failing=error is not None))

    def _end(self, *, failing: bool) -> None:
        try:
            self._scope.close()
        finally:
            self._connection.close(failing=failing)

    @property
    def _connection(self) -> Connection:
        if self._connected is None:
            raise TestbedError(f"{self.name}: not connected yet; use it in a with statement")
        return self._connected

    @property
    def directory(self) -> Path:
        return Path(self._connection.directory)

    def run(
        self, argv: Sequence[str], *, check: bool = True, timeout: float = 30, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root and wait for it. The only possible option is ``input``, its standard input as text."""
        text = options.pop("input", None)
        if options:
            raise TypeError(f"over ssh a command cannot have {', '.join(options)}")
        ended = self._connection.ask("run", " ".join(argv), argv=list(argv), input=text, timeout=timeout)
        done = subprocess.CompletedProcess(list(argv), ended["code"], ended["out"], ended["err"])
        if check and done.returncode != 0:
            raise TestbedError(
                f"[{self.name}] {' '.join(argv)}: exit code {done.returncode}{said(done.stdout, done.stderr)}"
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
        order: dict[str, Any] = {"argv": list(argv), "mounts": dict(mounts or {}), "env": dict(env or {})}
        started = self._connection.ask("start", f"start {label}", log=str(log), **order)
        program = SshProgram(self, self._connection, label, started["pid"], log)
        self.at_end(program.stop)
        return program

    def agent(self, module: str, *arguments: str) -> list[str]:
        return agent_command(self.directory, module, *arguments)

    def has(self, program: str) -> bool:
        """Return whether *program* is in root's PATH on the host."""
        return self.run(["sh", "-c", f"command -v {shlex.quote(program)}"], check=False).returncode == 0

    def program(self, name: str) -> str:
        where = str(self._commands / name) if self._commands is not None else name
        found = self.run(["sh", "-c", f"command -v {shlex.quote(where)}"], check=False).stdout.strip()
        if not found:
            advice = "is that where it is installed there?" if self._commands else "give its directory as 'commands'"
            raise TestbedError(f"{self.name}: {self.login.destination}: there is no program {where}; {advice}")
        return found

    def write(self, name: str, text: str) -> Path:
        target = self.directory / name
        self._connection.ask("write", f"write {target}", path=str(target), text=text)
        return target

    def provide(self, file: Path) -> Path:
        if file.is_relative_to(self.directory):
            return file
        return self.write(f"{self.name}-{file.name}", file.read_text())

    def read(self, path: Path) -> bytes:
        pieces = []
        offset = 0
        while True:
            answer = self._connection.ask("read", f"read {path}", path=str(path), offset=offset, size=PIECE)
            piece = base64.b64decode(answer["data"])
            pieces.append(piece)
            offset += len(piece)
            if len(piece) < PIECE:
                return b"".join(pieces)

    def devices(self) -> dict[str, Device]:
        """Return the host's current interfaces by name, as ``ip address`` shows them."""
        return parse_devices(self.run(["ip", "-j", "address", "show"]).stdout)

    def address(self, device: str, family: int = 4) -> str:
        there = self.devices().get(device)
        found = there.address(family) if there is not None else None
        if found is None:
            raise KeyError(f"{self.name}:{device} has no IPv{family} address")
        return found

    def service_address(self, family: int = 4) -> str:
        if family in self._addresses:
            return self._addresses[family]
        devices = self.devices()
        for device in self._devices:
            found = devices[device].address(family) if device in devices else None
            if found is not None:
                return found
        raise KeyError(f"{self.name} has no IPv{family} address on {', '.join(self._devices)}")

    def mib(self) -> dict[str, int]:
        return counters.protocols(*(self.read(counters.NET / name).decode() for name in ("snmp", "netstat")))

    @contextmanager
    def changed(self, do: Sequence[str], undo: Sequence[str]) -> Iterator[None]:
        """Run *do*, and *undo* at the end of the scope, even if the driver is killed."""
        made = self._connection.ask("change", " ".join(do), argv=list(do), undo=list(undo), timeout=CHANGING)
        ask = partial(self._connection.ask, "undo", " ".join(undo), change=made["change"], timeout=CHANGING)
        try:
            yield
        except BaseException as error:
            # If the connection is lost, the agent undoes everything by itself.
            if not self._connection.lost:
                undo_after(error, ask)
            raise
        ask()

    def sysctl(self, key: str, value: str) -> AbstractContextManager[None]:
        before = self.run(["sysctl", "-n", key]).stdout.strip()
        return self.changed(["sysctl", "-qw", f"{key}={value}"], ["sysctl", "-qw", f"{key}={before}"])

    def at_end(self, callback: Callable[[], object]) -> None:
        def called() -> None:
            # If the connection is lost, the agent undoes everything by itself.
            if not self._connection.lost:
                callback()

        self._scope.callback(called)
