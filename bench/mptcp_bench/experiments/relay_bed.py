# SPDX-License-Identifier: GPL-2.0-or-later
"""The testbed of the experiment ``relay``: one freshly started proxy at a time, and clients that use it.

Client, core, proxy and origin are namespaces of one machine. A veth pair delivers a packet in its sender's context, so
each proxy is also charged for its packets' way to the client, unless it has its own processor (``own_processor``).
Memory is measured of a proxy that has not served anything before.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from mptcp_lab.agent.processors import tree_seconds
from mptcp_lab.testbed import LiveNode, Program, Testbed, TestbedError, Topology, paths
from mptcp_lab.testbed.services import Origin, start_origin, wait_until
from mptcp_lab.testbed.transfer import Added

from . import own_processor
from .own_processor import Shares
from .peers import PEERS, PORT, PeerSetup
from .peers.splice import built
from .relay_cells import BULK, BUSY, CLIENTS, DIRECT, HELD, KEPT, STREAMS, Cell, Setting
from .relay_judging import Measured, taken, void
from .relay_load import Counters, Load, asking
from .relay_memory import buffers, kernel_memory, user_memory
from .two_paths import one_subflow

SMALL, LARGE = "small", "large"
FILES = {SMALL: 1_000, LARGE: 200_000_000}
MULTIPATH_PORT = 8080
"""Port of the origin that accepts MPTCP, if the testbed has one."""
WARM = 0.4
"""Seconds from when all connections are established to the begin of a measurement. The windows open meanwhile."""
ENDING = 60.0
"""Seconds that a killed proxy may take to end on a busy machine."""
PATIENCE = 60.0
"""Seconds that opening all connections may take."""
JOINING = 60.0
"""Seconds that the second subflows of all connections may take to join."""
PERCENTS = (50, 90, 99)
SAMPLES = 5
"""Number of memory samples per measurement."""


class Accepted:
    """The MPTCP connections and joins that the kernel of *node* accepts from now on."""

    def __init__(self, node: LiveNode) -> None:
        self._added = Added(node)

    def read(self) -> tuple[int, int]:
        [counted] = self._added.read()
        return counted.get("MPTcpExtMPCapableACKRX", 0), counted.get("MPTcpExtMPJoinAckRx", 0)

    def wait_for(self, joins: int) -> None:
        """Wait until the kernel has accepted *joins* joins, or for ``JOINING`` seconds."""
        deadline = time.monotonic() + JOINING
        while self.read()[1] < joins and time.monotonic() < deadline:
            time.sleep(0.05)


def topology(setting: Setting) -> Topology:
    """Return the topology that *setting* needs."""
    return paths(setting.rates, offloads=setting.offloads, name="relay")


@dataclass(slots=True)
class Bed:
    """A testbed with its origin."""

    testbed: Testbed
    setting: Setting
    seconds: float
    """Seconds for which a transfer is measured."""
    hold_count: int
    web: Origin
    numbers: Iterator[int] = field(default_factory=itertools.count)
    logs: Path | None = None
    """Directory of the proxy that was started last, with its logs."""
    halves: dict[tuple[Cell, int], float] = field(default_factory=dict)
    """Half of the requests per second that a cell's proxy answered, by cell and round."""
    shares: Shares | None = None
    """How processors are assigned; None if all programs share them."""

    @classmethod
    def built(
        cls, testbed: Testbed, setting: Setting, *, seconds: float, hold: int = 0, files: Mapping[str, int] = FILES
    ) -> Self:
        web = start_origin(testbed["origin"], files)
        for node in ("client", "proxy", "origin"):
            built("relay_load" if node == "client" else "splice_relay", testbed[node])
        shares = own_processor.here() if setting.apart else None
        if shares is not None:
            own_processor.steer(testbed, shares)
            own_processor.pin(web.process.pid, shares.others)
        return cls(testbed, setting, seconds, hold, web, shares=shares)

    @property
    def origin(self) -> str:
        return self.testbed["origin"].service_address(self.setting.family)

    @contextmanager
    def running(self, cell: Cell, more: str = "") -> Iterator[Program | None]:
        """Run the proxy of *cell*, with *more* lines in squid.conf if it is ours. Run nothing for DIRECT."""
        if cell.proxy == DIRECT:
            yield None
            return
        # Wait, because the threads of the proxy that was killed end one after the other.
        wait_until(self._port_free, f"the port of {cell.proxy} is free", timeout=ENDING)
        host = self.testbed["proxy"]
        directory = host.directory / f"{cell.proxy}-{next(self.numbers)}"
        directory.mkdir(mode=0o755)
        self.logs = directory
        workers = 1 if self.setting.workers == "one" else os.cpu_count() or 1
        setup = PeerSetup(host, directory, self.origin, workers, bool(CLIENTS[cell.client]), more)
        process = PEERS[cell.proxy].start(setup)
        try:
            if self.shares is not None:
                own_processor.pin(process.pid, self.shares.proxy)
            yield process
        finally:
            process.kill_tree()

    def _port_free(self) -> bool:
        return not self.testbed["proxy"].run(["ss", "-tlnH", "sport", "=", f":{PORT}"]).stdout

    @contextmanager
    def asking(
        self, cell: Cell, task: str, count: int, requests: int, file: str, rate: float = 0, *, close: bool = False
    ) -> Iterator[Load]:
        """Start *count* clients of *cell*'s kind that request *file*, *requests* times each, in the way of *task*.

        With *close*, the server closes each connection after its answer, and the client opens a new one.
        """
        client = self.testbed["client"]
        host = f"[{self.origin}]" if ":" in self.origin else self.origin
        direct, tunnel = cell.proxy == DIRECT, "connect" in task
        target = f"/{file}" if direct or tunnel else f"http://{host}/{file}"
        preamble = f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n" if tunnel and not direct else ""
        closing = "Connection: close\r\n" if close else ""
        request = f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{closing}\r\n"
        origin_port = MULTIPATH_PORT if CLIENTS[cell.client] else 80
        address = self.origin if direct else self.testbed["proxy"].service_address(self.setting.family)
        port = origin_port if direct else PORT
        protocol = "mptcp" if CLIENTS[cell.client] else "tcp"
        with asking(client, protocol, address, port, count, requests, request, rate=rate, preamble=preamble) as load:
            if self.shares is not None:
                own_processor.pin(load.process.pid, self.shares.others)
            yield load

    def subflows(self, cell: Cell) -> AbstractContextManager[None]:
        """Limit the clients to the number of subflows that *cell* has, until the context ends."""
        return one_subflow(self.testbed) if CLIENTS[cell.client] == 1 else nullcontext()

    def transfer(self, cell: Cell, task: str, number: int, process: Program | None) -> Measured:
        """Measure bulk transfers, or small requests, through a proxy that runs."""
        count, file = (STREAMS, LARGE) if task in BULK else (KEPT, SMALL)
        rate = 0.0
        if task == "latency":
            rate = self.halves.get((cell, number), 0.0)
            if not rate:
                raise TestbedError(f"{cell}: half of what load is not known: the task requests is measured first")
        accepted = Accepted(self.testbed["proxy"])
        with self.subflows(cell), self.asking(cell, task, count, -1, file, rate) as load:
            self._ready(cell, load, count, accepted, process)
            began, before, spent = time.monotonic(), load.read(), _processor(process)
            time.sleep(self.seconds)
            seconds, after, spent = time.monotonic() - began, load.read(), _processor(process) - spent
        answers = after.answers - before.answers
        if task == "requests":
            self.halves[cell, number] = answers / seconds / 2
        late = [b - a for a, b in zip(before.late, after.late, strict=True)]
        return Measured(
            self.setting, cell, task, number, seconds, spent, after.octets - before.octets, answers, after.failures,
            taken(late, PERCENTS) if task not in BULK else (), rate, failure=load.complaint(),
        )  # fmt: skip

    def hold(self, cell: Cell, task: str, number: int) -> Measured:
        """Measure the memory of connections that a new proxy holds."""
        with self.subflows(cell), self.running(cell) as process:
            if process is None:
                raise TestbedError("without a proxy there is no memory of one")
            if task == "busy":
                return self._busy(cell, number, process)
            count, requests = self.hold_count, 1 if task == "idle-get" else 0
            self._settle()
            user, kernel = user_memory(process.pid), kernel_memory()
            accepted = Accepted(self.testbed["proxy"])
            with self.asking(cell, task, count, requests, SMALL) as load:
                self._ready(cell, load, count, accepted, process)
                self.wait(load, process, lambda seen: seen.resting == count, f"{cell}: {count} connections rest")
                self._settle()
                user, kernel = user_memory(process.pid) - user, kernel_memory() - kernel
                failures = load.read().failures
        # The two ends of each connection have the same structures in this kernel. Only one of them is the proxy's.
        return Measured(
            self.setting, cell, task, number, failures=failures, user=user / count, kernel=kernel / 2 / count,
            failure=load.complaint(),
        )  # fmt: skip

    def _busy(self, cell: Cell, number: int, process: Program) -> Measured:
        user, kernel = user_memory(process.pid), 0
        grown = 0
        accepted = Accepted(self.testbed["proxy"])
        with self.asking(cell, "busy", BUSY, -1, LARGE) as load:
            self._ready(cell, load, BUSY, accepted, process)
            for _ in range(SAMPLES):
                time.sleep(self.seconds / SAMPLES)
                grown += user_memory(process.pid) - user
                kernel += buffers(self.testbed["proxy"].run(["ss", "-tMmH"]).stdout)
            failures = load.read().failures
        each = BUSY * SAMPLES
        return Measured(self.setting, cell, "busy", number, failures=failures, user=grown / each, kernel=kernel / each)

    def wait(self, load: Load, process: Program | None, enough: Callable[[Counters], bool], what: str) -> None:
        """Wait until *enough* holds for the load's counters. TestbedError has all counters and the last log lines."""
        try:
            wait_until(lambda: enough(load.read()), what, timeout=PATIENCE)
        except TestbedError as error:
            raise TestbedError(f"{error}; {load}{self._said(process)}") from None

    def _said(self, process: Program | None) -> str:
        if process is None or self.logs is None:
            return ""
        logs = [str(log) for log in sorted(self.logs.rglob("*.log"))]
        ends = self.testbed["proxy"].run(["tail", "-v", "-n", "5", *logs], check=False).stdout if logs else ""
        return process.tail() + "".join(f"\n    {line}" for line in ends.splitlines())

    def _ready(self, cell: Cell, load: Load, count: int, accepted: Accepted, process: Program | None) -> None:
        """Wait until *count* connections are established with *cell*'s subflows. Raises TestbedError if they differ."""
        self.wait(load, process, lambda seen: seen.standing == count, f"{cell}: {count} connections stand")
        if cell.proxy != DIRECT:
            accepted.wait_for(count if CLIENTS[cell.client] == 2 else 0)
        time.sleep(WARM)
        if cell.proxy != DIRECT and (why := void(cell, count, *accepted.read())):
            raise TestbedError(why)
        if self.shares and process and (strays := own_processor.strays(process.pid, self.shares.proxy)):
            raise TestbedError(f"{cell}: threads {strays} may run on other processors than the proxy's own")

    def _settle(self) -> None:
        """Wait until earlier connections have left the kernel, and the count of slabs is up to date."""
        time.sleep(1.0)


def _processor(process: Program | None) -> float:
    return 0.0 if process is None else tree_seconds(process.pid)


def measured(bed: Bed, cell: Cell, tasks: Sequence[str], number: int) -> list[Measured]:
    """Measure *tasks* of *cell*: all transfers through the same proxy, each memory task with a new one."""
    found = []
    transfers = [task for task in tasks if task not in HELD]
    if transfers:
        with bed.running(cell) as process:
            found += [bed.transfer(cell, task, number, process) for task in transfers]
    found += [bed.hold(cell, task, number) for task in tasks if task in HELD and cell.proxy != DIRECT]
    return found
