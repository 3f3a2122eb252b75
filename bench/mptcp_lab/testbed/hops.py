# SPDX-License-Identifier: GPL-2.0-or-later
"""Run a topology's path emulation, with one process per hop, and its middleboxes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from ..emulation import userspace
from ..emulation.userspace import Counts
from .commands import TestbedError, run
from .features import missing
from .host import wait_until
from .model import Hop, Topology
from .node import LiveNode
from .process import Process


class EmulationError(TestbedError):
    """An emulated path was not as configured, so that measurements over the path are not valid."""


TOLERANCE = "MPTCP_BENCH_LATE_SHARE"
"""Environment variable that sets a different allowed share of late packets, for tests that do not measure time."""


def build(directory: Path, name: str = "emulator", sources: Sequence[Path] = userspace.SOURCES) -> Path:
    """Compile *sources* to the program *name* in *directory*, if it is not there, and return its path."""
    program = directory / name
    if not program.exists():
        program.write_bytes(_compiled(tuple(sources), userspace.COMPILER_FLAGS, userspace.LIBRARIES))
        program.chmod(0o755)
    return program


@cache
def _compiled(sources: tuple[Path, ...], flags: tuple[str, ...], libraries: tuple[str, ...]) -> bytes:
    """Return the compiled program. The compiler runs once, for all testbeds of this process, and no file remains."""
    with TemporaryDirectory() as directory:
        program = Path(directory) / "program"
        try:
            run(["gcc", *flags, "-o", str(program), *map(str, sources), *libraries], timeout=120)
        except TestbedError as error:
            needs = "gcc and the headers of libnetfilter_queue and libmnl (Debian: libnetfilter-queue-dev libmnl-dev)"
            raise TestbedError(f"build the path emulator, which needs {needs}: {error}") from None
        return program.read_bytes()


def _start(node: LiveNode, argv: Sequence[object], name: str) -> Process:
    process = node.popen([str(word) for word in argv], name=name)
    is_ready = f"the {name} on {node.name} is ready"
    wait_until(lambda: userspace.READY in process.output().split(), is_ready, process=process)
    return process


def _queue(node: LiveNode, devices: dict[str, str], **options: bool) -> None:
    """Queue for our program the packets that *node* forwards, as :func:`userspace.rules` describes."""
    # A kernel may lack the legacy tables (from 6.17 on).
    variant = "" if missing("iptables-legacy") else "-legacy"
    for command in userspace.rules(devices, variant, **options):
        node.run(command)


@dataclass(slots=True)
class _Program:
    """The emulator or the middlebox of a path, which runs on the path's hop."""

    hop: Hop
    node: LiveNode
    file: Path
    """The file with the counters of an emulator, or the executable file of a middlebox."""
    process: Process

    def check(self) -> None:
        if not self.process.running:
            ended = f"path {self.hop.path.name}: the {self.process.name} ended with {self.process.returncode}"
            raise EmulationError(f"{ended}; the run is void{self.process.tail()}")


@dataclass(slots=True)
class Emulation:
    """The emulated paths of a testbed."""

    seed: int
    _emulators: dict[str, _Program] = field(default_factory=dict)
    """The emulators by path."""
    _middleboxes: dict[str, _Program] = field(default_factory=dict)
    _last_counts: dict[tuple[str, str], Counts] = field(default_factory=dict)
    """Counts at the last check, by path and direction. A fault in one run must not be reported in the next run."""

    def start(self, topology: Topology, nodes: Mapping[str, LiveNode], directory: Path) -> None:
        """Start the emulators and middleboxes of all paths, and queue packets for them."""
        for hop in topology.hops:
            path, node = hop.path, nodes[hop.node]
            if path.middlebox is not None:
                file = build(directory, "middlebox", userspace.MIDDLEBOX_SOURCES)
                process = self._start_middlebox(node, file, path.middlebox)
                self._middleboxes[path.name] = _Program(hop, node, file, process)
                _queue(node, {name: device for name, device, _ in hop.directions}, middlebox=True)
            if userspace.impaired_directions(path):
                counters = directory / f"{hop.node}-counters"
                argv = [build(directory), counters, *userspace.arguments(path, self.seed)]
                self._emulators[path.name] = _Program(hop, node, counters, _start(node, argv, "emulator"))
                devices = {name: device for name, device, direction in hop.directions if direction.impaired}
                _queue(node, devices, sent_too=path.middlebox is not None)

    def _start_middlebox(self, node: LiveNode, file: Path, behaviour: str) -> Process:
        queues = userspace.MIDDLEBOX_QUEUES
        return _start(node, [file, behaviour, queues["up"], queues["down"]], "middlebox")

    def change_middlebox(self, path: str, behaviour: str) -> int:
        """Restart the middlebox of *path* with *behaviour*. Return how many packets the earlier behaviour changed."""
        box = self._middleboxes[path]
        box.process.stop()
        changes = re.search(r"^changed (\d+)$", box.process.output(), re.MULTILINE)
        if changes is None:
            raise TestbedError(f"path {path}: the middlebox printed no number of changes{box.process.tail()}")
        box.process = self._start_middlebox(box.node, box.file, behaviour)
        return int(changes[1])

    def counts(self) -> dict[str, dict[str, Counts]]:
        """Return the emulator's counts by path and direction."""
        result = {}
        for path, emulator in self._emulators.items():
            with emulator.node.entered():
                kernel = Path("/proc/thread-self/net/netfilter/nfnetlink_queue").read_text()
            result[path] = userspace.counts(emulator.hop.path, emulator.file.read_bytes(), kernel)
        return result

    @property
    def processes(self) -> dict[str, Process]:
        """The emulator processes by path."""
        return {path: emulator.process for path, emulator in self._emulators.items()}

    def check(self) -> None:
        """Raise EmulationError if a path was not as configured since the last check, or if a process has ended."""
        for program in (*self._middleboxes.values(), *self._emulators.values()):
            program.check()
        tolerated = float(os.environ.get(TOLERANCE, userspace.MAX_LATE_SHARE))
        faults = []
        for path, totals in self.counts().items():
            for name, total in totals.items():
                fault = total.since(self._last_counts.get((path, name))).fault(tolerated)
                self._last_counts[path, name] = total
                if fault is not None:
                    faults.append(f"path {path}, {name}: {fault}")
        # Raise after the loop, or the next check would report the fault of another path.
        if faults:
            raise EmulationError("; ".join((*faults, "the run is void")))
