# SPDX-License-Identifier: GPL-2.0-or-later
"""A node of a built topology: run programs in it, enter its namespace, read its counters."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..agent import counters
from .commands import TestbedError, program, run, undone
from .host import Host
from .model import Topology
from .ownership import NAMESPACES
from .process import Process

CLONE_NEWNET = 0x40000000
"""From linux/sched.h. os.setns() would need Python 3.12."""
_libc = ctypes.CDLL(None, use_errno=True)


def set_namespace(descriptor: int, what: str) -> None:
    """Move the calling thread into the network namespace of *descriptor*. *what* is its name in errors."""
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"enter network namespace {what}: {os.strerror(error)}")


@contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Move the calling thread into *namespace* during the scope. Other threads are not moved."""
    with open("/proc/thread-self/ns/net") as before, open(NAMESPACES / namespace) as inside:
        set_namespace(inside.fileno(), namespace)
        try:
            yield
        finally:
            set_namespace(before.fileno(), "that the thread came from")


@dataclass(frozen=True, slots=True)
class InterfaceBytes:
    """Counters of a device since its creation. Bytes include the Ethernet headers."""

    received: int
    sent: int
    packets: int
    """Number of received packets."""


class LiveNode(Host):
    """One namespace of a built topology."""

    def __init__(self, topology: Topology, name: str, namespace: str, directory: Path, scope: ExitStack) -> None:
        self.name = name
        self.namespace = namespace
        self.directory = directory
        self._topology = topology
        self._scope = scope
        self._logs = 0

    def run(
        self, argv: Sequence[str], *, check: bool = True, timeout: float = 30, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the namespace and wait for it. *options* are passed to Popen."""
        attempt = f"[{self.name}] {' '.join(argv)}"
        command = ["ip", "netns", "exec", self.namespace, *argv]
        return run(command, attempt=attempt, check=check, timeout=timeout, **options)

    def popen(
        self,
        argv: Sequence[str],
        *,
        name: str | None = None,
        mounts: Mapping[str, str | os.PathLike[str]] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        label = name or Path(argv[0]).name
        self._logs += 1
        log = self.directory / f"{self.name}-{label}-{self._logs}.log"
        process = Process(self.namespace, argv, name=label, log=log, mounts=mounts, env=env)
        self.at_end(process.stop)
        return process

    @contextmanager
    def running(self, argv: Sequence[str], *, name: str | None = None) -> Iterator[Process]:
        """Run a program during the scope, at the end of which it is killed."""
        process = self.popen(argv, name=name)
        try:
            yield process
        finally:
            process.kill()

    def at_end(self, callback: Callable[[], object]) -> None:
        self._scope.callback(callback)

    def entered(self) -> AbstractContextManager[None]:
        """Move the calling thread into the namespace during the scope, to open sockets there."""
        return entered(self.namespace)

    def address(self, device: str, family: int = 4) -> str:
        address = self._topology.end(self.name, device).address(family)
        if address is None:
            raise KeyError(f"{self.name}:{device} has no IPv{family} address")
        return address

    def service_address(self, family: int = 4) -> str:
        return self.address(self._topology.devices(self.name)[0], family)

    def counters(self) -> dict[str, InterfaceBytes]:
        """Return the counters of all devices, which are read at the same moment."""
        with self.entered():
            return {device: InterfaceBytes(*octets) for device, octets in counters.read_devices().items()}

    def interface_bytes(self, device: str) -> InterfaceBytes:
        return self.counters()[device]

    def agent(self, module: str, *arguments: str) -> list[str]:
        return [sys.executable, "-I", "-m", f"{counters.__package__}.{module}", *arguments]

    def program(self, name: str) -> str:
        return program(name)

    def write(self, name: str, text: str) -> Path:
        target = self.directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def provide(self, file: Path) -> Path:
        return file

    def read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise TestbedError(f"[{self.name}] read {path}: {error.strerror}") from None

    def mib(self) -> dict[str, int]:
        with self.entered():
            return counters.read_protocols()

    @contextmanager
    def changed(self, do: Sequence[str], undo: Sequence[str]) -> Iterator[None]:
        self.run(do)
        with undone(lambda: self.run(undo)):
            yield

    @contextmanager
    def link_down(self, device: str) -> Iterator[None]:
        """Take a device down during the scope. The kernel then removes its routes; they are added again afterwards."""
        self.run(["ip", "link", "set", device, "down"])
        try:
            yield
        finally:
            self.run(["ip", "link", "set", device, "up"])
            for route in self._topology.node(self.name).routes:
                if f" dev {device} " in f"{route} ":
                    self.run(["ip", *route.split()], check=False)
