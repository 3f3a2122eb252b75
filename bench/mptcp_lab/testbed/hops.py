# SPDX-License-Identifier: GPL-2.0-or-later
"""Run a topology's path emulation, with one process per hop, and its middleboxes.

:meth:`Emulation.check` raises an error if an emulator ended, dropped packets that it should not lose, or delivered too
many packets late. The end of a testbed calls it, too.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from ..emulation import userspace
from ..emulation.userspace import Command, Counts
from .commands import TestbedError, run
from .model import Hop, Topology
from .node import LiveNode
from .process import Process


class EmulationError(TestbedError):
    """An emulated path was not as configured, so that measurements over the path are not valid."""


START = 60.0
"""Maximum seconds until an emulator is ready."""

TOLERANCE = "MPTCP_BENCH_LATE_SHARE"
"""Environment variable that sets a different allowed share of late packets, for tests that do not measure time."""


def build(directory: Path, name: str = "emulator", sources: Sequence[Path] = userspace.SOURCES) -> Path:
    """Compile *sources* to the program *name* in *directory*, and return its path."""
    program = directory / name
    program.write_bytes(_compiled(tuple(sources), userspace.COMPILER_FLAGS, userspace.LIBRARIES))
    program.chmod(0o755)
    return program


@cache
def _compiled(sources: tuple[Path, ...], flags: tuple[str, ...], libraries: tuple[str, ...]) -> bytes:
    """Return the compiled program. The compiler runs once per process, for all testbeds, and no file remains."""
    with TemporaryDirectory() as directory:
        program = Path(directory) / "program"
        try:
            run(["gcc", *flags, "-o", str(program), *map(str, sources), *libraries], timeout=120)
        except TestbedError as error:
            needs = "gcc and the headers of libnetfilter_queue and libmnl (Debian: libnetfilter-queue-dev libmnl-dev)"
            raise TestbedError(f"build the path emulator, which needs {needs}: {error}") from None
        return program.read_bytes()


def _queue_forwarded(node: LiveNode, variants: Iterable[Sequence[Command]]) -> None:
    """Queue packets that *node* forwards to our program, by the first of *variants* that this kernel accepts."""
    refused = []
    for first, *others in variants:
        done = node.run(first, check=False)
        if done.returncode == 0:
            for command in others:
                node.run(command)
            return
        refused.append(f"{first[0]}: {(done.stderr or done.stdout).strip()}")
    raise TestbedError(f"[{node.name}] hand forwarded packets to the path emulator: " + "; ".join(refused))


def _wait_until_ready(process: Process, what: str) -> None:
    deadline = time.monotonic() + START
    while userspace.READY not in process.output().split():
        if not process.running or time.monotonic() > deadline:
            raise TestbedError(f"{what}: it is not ready{process.tail()}")
        time.sleep(0.005)


@dataclass(slots=True)
class _Box:
    node: LiveNode
    program: Path
    process: Process | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    hop: Hop
    node: LiveNode
    process: Process
    counters: Path

    def counts(self) -> dict[str, Counts]:
        with self.node.entered():
            kernel = Path("/proc/thread-self/net/netfilter/nfnetlink_queue").read_text()
        return userspace.counts(self.hop.path, self.counters.read_bytes(), kernel)


@dataclass(slots=True)
class Emulation:
    """The emulated paths of a testbed."""

    seed: int
    _running: list[_Running] = field(default_factory=list)
    _boxes: dict[str, _Box] = field(default_factory=dict)
    """The middleboxes by path."""
    _judged: dict[tuple[str, str], Counts] = field(default_factory=dict)
    """Counts at the last check, so that a fault in one run is not reported in the next run."""

    def start(self, topology: Topology, nodes: Mapping[str, LiveNode], directory: Path) -> None:
        """Start the emulators and middleboxes, which the plan's qdiscs do not include."""
        boxes = [hop for hop in topology.hops if hop.path.middlebox is not None]
        if boxes:
            program = build(directory, "middlebox", userspace.MIDDLEBOX_SOURCES)
            for hop in boxes:
                assert hop.path.middlebox is not None
                self._boxes[hop.path.name] = _Box(nodes[hop.node], program)
                self.change_middlebox(hop.path.name, hop.path.middlebox)
                devices = {name: device for name, device, _ in hop.directions}
                _queue_forwarded(nodes[hop.node], userspace.middlebox_rules(devices))
        impaired = [hop for hop in topology.hops if hop.impaired]
        program = build(directory) if impaired else directory
        self._running += [self._start(hop, nodes[hop.node], program) for hop in impaired]

    def change_middlebox(self, path: str, behaviour: str) -> int:
        """Change the behaviour of *path*'s middlebox; packets in it are lost. Return how many it has changed so far."""
        box = self._boxes[path]
        changed = 0
        if box.process is not None:
            box.process.stop()
            said = re.search(r"^changed (\d+)$", box.process.output(), re.MULTILINE)
            if said is None:
                raise TestbedError(f"path {path}: the middlebox did not say what it had changed{box.process.tail()}")
            changed = int(said[1])
        box.process = box.node.popen([str(box.program), *userspace.middlebox_arguments(behaviour)], name="middlebox")
        _wait_until_ready(box.process, f"start the middlebox of path {path}")
        return changed

    def _start(self, hop: Hop, node: LiveNode, program: Path) -> _Running:
        counters = node.directory / f"{hop.node}-counters"
        arguments = userspace.arguments(hop.path, self.seed)
        process = node.popen([str(program), str(counters), *arguments], name="emulator")
        _wait_until_ready(process, f"start the emulator of path {hop.path.name}")
        devices = {name: device for name, device, direction in hop.directions if direction.impaired}
        _queue_forwarded(node, userspace.rules(devices, sent_too=hop.path.middlebox is not None))
        return _Running(hop, node, process, counters)

    def counts(self) -> dict[str, dict[str, Counts]]:
        """Return the emulator's counts by path and direction."""
        return {one.hop.path.name: one.counts() for one in self._running}

    @property
    def processes(self) -> dict[str, Process]:
        """The emulator processes by path."""
        return {one.hop.path.name: one.process for one in self._running}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The emulators' messages about possible differences between the paths and their configuration."""
        said = (line for one in self._running for line in one.process.output().splitlines())
        return tuple(dict.fromkeys(line for line in said if line != userspace.READY))

    def check(self) -> None:
        """Raise EmulationError if a path was not as configured since the last check, or one of its processes ended.

        A path was not as configured if packets were dropped that should not be, or too many were late
        (:meth:`userspace.Counts.fault`). If an emulator has ended, each check reports this, because no measurement
        is valid after that.
        """
        faults = []
        for path, box in self._boxes.items():
            process = box.process
            if process is not None and not process.running:
                ended = f"path {path}: the middlebox ended with {process.returncode}"
                raise EmulationError(f"{ended}; the run is void{process.tail()}")
        tolerated = float(os.environ.get(TOLERANCE, userspace.LATE_SHARE))
        for one in self._running:
            path = one.hop.path.name
            if not one.process.running:
                ended = f"path {path}: the emulator ended with {one.process.returncode}"
                raise EmulationError(f"{ended}; the run is void{one.process.tail()}")
            for name, total in one.counts().items():
                fault = total.since(self._judged.get((path, name))).fault(tolerated)
                self._judged[path, name] = total
                if fault is not None:
                    faults.append(f"path {path}, {name}: {fault}")
        # Raise only after all paths were judged. Otherwise the next check would find the fault of another path, and
        # make a later run void.
        if faults:
            raise EmulationError("; ".join((*faults, "the run is void")))
