# SPDX-License-Identifier: GPL-2.0-or-later
"""Run a topology's path emulation: netem if the kernel has it, otherwise our emulator, one process per hop.

Both follow the same ``emulation.model.EmulatedPath``. :meth:`Emulation.check`, and the end of the testbed, raise if our
emulator ended, dropped packets that should not be lost, or delivered too many late.
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
from typing import Literal

from ..emulation import middlebox, userspace
from ..emulation.userspace import Counts, Rules
from .commands import TestbedError, run
from .features import missing
from .model import Hop, Topology
from .node import LiveNode
from .process import Process


class EmulationError(TestbedError):
    """An emulated path was not as asked: measurements over it say nothing about the measured thing."""


Kind = Literal["netem", "user space"]
START = 60.0
"""Seconds for an emulator to become ready."""

TOLERANCE = "MPTCP_BENCH_LATE_SHARE"
"""Environment variable with another allowed share of late packets, for tests that are not about time."""


def choose(topology: Topology, wanted: Kind | None = None) -> Kind | None:
    """Return the emulator for *topology*: *wanted*, or the best there is; None if nothing needs one."""
    if not any(hop.impaired for hop in topology.hops):
        return None
    return wanted or ("netem" if missing("netem") is None else "user space")


def build(directory: Path, name: str = "emulator", sources: Sequence[Path] = userspace.SOURCES) -> Path:
    """Compile *sources* to a program in *directory*, and return it."""
    program = directory / name
    program.write_bytes(_compiled(tuple(sources), userspace.COMPILER_FLAGS, userspace.LIBRARIES))
    program.chmod(0o755)
    return program


@cache
def _compiled(sources: tuple[Path, ...], flags: tuple[str, ...], libraries: tuple[str, ...]) -> bytes:
    """Return the program, compiled once per process, which may build many testbeds; no file is left."""
    with TemporaryDirectory() as directory:
        program = Path(directory) / "program"
        try:
            run(["gcc", *flags, "-o", str(program), *map(str, sources), *libraries])
        except TestbedError as error:
            needs = "gcc and the headers of libnetfilter_queue and libmnl (Debian: libnetfilter-queue-dev libmnl-dev)"
            raise TestbedError(f"build the path emulator, which needs {needs}: {error}") from None
        return program.read_bytes()


def _queue_forwarded(node: LiveNode, choices: Iterable[Rules]) -> None:
    """Queue what *node* forwards to our program, by the first of *choices* that this kernel accepts."""
    refused = []
    for rules in choices:
        for command in rules.do:
            done = node.run(command, check=False)
            if done.returncode != 0:
                refused.append(f"{command[0]}: {(done.stderr or done.stdout).strip()}")
                break
        else:
            return
        for command in rules.undo:
            node.run(command, check=False)
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

    kind: Kind | None
    """None: all paths only limit the rate."""
    seed: int
    repeatable: bool
    """Whether the seed is used: netem takes one from kernel and iproute2 6.6 on."""
    _running: list[_Running] = field(default_factory=list)
    _boxes: dict[str, _Box] = field(default_factory=dict)
    """By path."""
    _judged: dict[tuple[str, str], Counts] = field(default_factory=dict)
    """Counts at the last check: what failed one run must not fail the next."""

    def start(self, topology: Topology, nodes: Mapping[str, LiveNode], directory: Path) -> None:
        """Start what the plan's qdiscs do not do."""
        boxes = [hop for hop in topology.hops if hop.path.middlebox is not None]
        if boxes:
            program = build(directory, "middlebox", middlebox.SOURCES)
            for hop in boxes:
                assert hop.path.middlebox is not None
                self._boxes[hop.path.name] = _Box(nodes[hop.node], program)
                self.change_middlebox(hop.path.name, hop.path.middlebox)
                devices = {name: device for name, device, _ in hop.directions}
                _queue_forwarded(nodes[hop.node], middlebox.rules(devices))
        if self.kind != "user space":
            return
        program = build(directory)
        for hop in topology.hops:
            if hop.impaired:
                self._running.append(self._start(hop, nodes[hop.node], program))

    def change_middlebox(self, path: str, behaviour: str) -> int:
        """Change the behaviour of *path*'s middlebox, losing packets that it holds; return how many it had changed."""
        box = self._boxes[path]
        changed = 0
        if box.process is not None:
            box.process.stop()
            said = re.search(r"^changed (\d+)$", box.process.output(), re.MULTILINE)
            if said is None:
                raise TestbedError(f"path {path}: the middlebox did not say what it had changed{box.process.tail()}")
            changed = int(said[1])
        box.process = box.node.popen([str(box.program), *middlebox.arguments(behaviour)], name="middlebox")
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
        """Return the emulator's counts by path and direction; empty with netem, which counts otherwise."""
        return {one.hop.path.name: one.counts() for one in self._running}

    @property
    def processes(self) -> dict[str, Process]:
        """The emulators by path."""
        return {one.hop.path.name: one.process for one in self._running}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The emulators' messages about how the paths may differ from what was asked."""
        said = (line for one in self._running for line in one.process.output().splitlines())
        return tuple(dict.fromkeys(line for line in said if line != userspace.READY))

    def check(self) -> None:
        """Raise EmulationError if a path was not as asked since the last check, or a process of it ended.

        Packets may have been dropped unasked, or too many late (:meth:`userspace.Counts.fault`). An ended emulator is
        reported at each check: nothing is right from then on.
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
        # Only after all were judged: a fault left for later would void a run that it did not happen in.
        if faults:
            raise EmulationError("; ".join((*faults, "the run is void")))


def emulation(topology: Topology, seed: int, wanted: Kind | None = None) -> Emulation:
    """Return the emulation of *topology*, not yet started."""
    kind = choose(topology, wanted)
    return Emulation(kind, seed, repeatable=kind != "netem" or missing("netem-seed") is None)
