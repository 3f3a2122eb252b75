# SPDX-License-Identifier: GPL-2.0-or-later
"""The testbed of the experiments ``relay`` and ``mimbox-…``: one freshly started proxy at a time, and its clients.

Client, core, proxy and origin are namespaces of one machine. A veth pair delivers a packet in its sender's context, so
each proxy is also charged for its packets' way to the client, unless it has its own processor (``own_processor``).
Memory is measured for a proxy that has not served anything before.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from mptcp_lab.testbed import LiveNode, Program, Testbed, TestbedError
from mptcp_lab.testbed.services import PROXY_PORT, Origin, start_origin, wait_until
from mptcp_lab.testbed.transfer import Added

from . import own_processor
from .own_processor import Shares
from .peers import PeerSetup, peers
from .relay_judging import BASE, CLIENTS, DIRECT, Setting, void
from .relay_load import Counters, Load, asking, buffers, built, kernel_memory, user_memory
from .two_paths import one_subflow

SMALL, LARGE = "small", "large"
FILES = {SMALL: 1_000, LARGE: 200_000_000}
MULTIPATH_PORT = 8080
"""Port of the origin that accepts MPTCP, if the testbed has one."""
WARM = 0.4
"""Seconds from the last connection's handshake to the start of a measurement, in which the windows open."""
ENDING = 60.0
"""Seconds that a killed proxy may take to end on a busy machine."""
PATIENCE = 60.0
"""Seconds that opening all connections may take."""
JOINING = 60.0
"""Seconds that the second subflows of all connections may take to join."""
SAMPLES = 5
"""Number of memory samples per measurement."""


class Way(Protocol):
    """The proxy and the kind of client by which bytes are transferred."""

    @property
    def proxy(self) -> str: ...
    @property
    def client(self) -> str: ...


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


class Memory(NamedTuple):
    """Memory of idle connections: bytes of user and kernel memory for each, and the number of failed answers."""

    user: float
    kernel: float
    failures: int
    failure: str


@dataclass(slots=True)
class Bed:
    """A testbed with its origin."""

    testbed: Testbed
    setting: Setting
    seconds: float
    """Seconds for which a transfer is measured."""
    web: Origin
    held: int = 0
    """Number of idle connections whose memory is measured."""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    logs: Path | None = None
    """Directory of the proxy that was started last, with its logs."""
    shares: Shares | None = None
    """How processors are assigned; None if all programs share them."""

    @classmethod
    def built(
        cls,
        testbed: Testbed,
        seconds: float,
        files: Mapping[str, int] = FILES,
        setting: Setting = BASE,
        held: int = 0,
    ) -> Self:
        web = start_origin(testbed["origin"], files)
        built("relay_load", testbed["client"])
        built("splice_relay", testbed["proxy"])
        shares = own_processor.here() if setting.apart else None
        if shares is not None:
            own_processor.steer(testbed, shares)
            own_processor.pin(web.process.pid, shares.others)
        return cls(testbed, setting, seconds, web, held, shares=shares)

    def check_emulation(self) -> None:
        self.testbed.check_emulation()

    @property
    def origin(self) -> str:
        return self.testbed["origin"].service_address(self.setting.family)

    @contextmanager
    def running(self, way: Way, more: str = "") -> Iterator[Program | None]:
        """Run the proxy of *way*, with *more* lines in squid.conf if it is ours. Run nothing for DIRECT."""
        if way.proxy == DIRECT:
            yield None
            return
        # Wait, because the threads of the killed proxy end one after the other.
        wait_until(self._port_free, f"the port of {way.proxy} is free", timeout=ENDING)
        host = self.testbed["proxy"]
        directory = host.directory / f"{way.proxy}-{next(self.numbers)}"
        directory.mkdir(mode=0o755)
        self.logs = directory
        setup = PeerSetup(host, directory, self.origin, bool(CLIENTS[way.client]), more)
        process = peers()[way.proxy].start(setup)
        try:
            if self.shares is not None:
                own_processor.pin(process.pid, self.shares.proxy)
            yield process
        finally:
            process.kill_tree()

    def _port_free(self) -> bool:
        return not self.testbed["proxy"].run(["ss", "-tlnH", "sport", "=", f":{PROXY_PORT}"]).stdout

    @contextmanager
    def asking(
        self, way: Way, task: str, count: int, file: str, process: Program | None, *,
        requests: int = -1, close: bool = False,
    ) -> Iterator[tuple[Load, Accepted]]:  # fmt: skip
        """Start *count* clients of *way*'s kind that request *file*, *requests* times each, with the method of *task*.

        With *close*, the server closes each connection after its answer, and the client opens a new one. Yield when all
        connections and their second subflows are established; also yield the accepted MPTCP connections.
        """
        client, multipath = self.testbed["client"], bool(CLIENTS[way.client])
        host = f"[{self.origin}]" if ":" in self.origin else self.origin
        direct, tunnel = way.proxy == DIRECT, "connect" in task
        target = f"/{file}" if direct or tunnel else f"http://{host}/{file}"
        preamble = f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n" if tunnel and not direct else ""
        closing = "Connection: close\r\n" if close else ""
        request = f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{closing}\r\n"
        address = self.origin if direct else self.testbed["proxy"].service_address(self.setting.family)
        port = PROXY_PORT if not direct else MULTIPATH_PORT if multipath else 80
        subflows = one_subflow(self.testbed) if CLIENTS[way.client] == 1 else nullcontext()
        accepted = Accepted(self.testbed["origin" if direct else "proxy"])
        with (
            subflows,
            asking(
                client, "mptcp" if multipath else "tcp", address, port, count, requests, request, preamble
            ) as load,
        ):  # fmt: skip
            if self.shares is not None:
                own_processor.pin(load.process.pid, self.shares.others)
            self.wait(load, process, lambda seen: seen.standing == count, f"{way}: {count} connections stand")
            accepted.wait_for(count if CLIENTS[way.client] == 2 else 0)
            yield load, accepted

    def hold(self, way: Way, task: str, process: Program) -> Memory:
        """Measure the memory of idle connections or tunnels that a new proxy, *process*, holds."""
        count = self.held
        self._settle()
        user, kernel = user_memory(process.pid), kernel_memory()
        requests = 1 if task == "idle-get" else 0
        with self.asking(way, task, count, SMALL, process, requests=requests) as (load, accepted):
            self.wait(load, process, lambda seen: seen.resting == count, f"{way}: {count} connections rest")
            self._settle()
            self.check(way, count, accepted, process)
            user, kernel = user_memory(process.pid) - user, kernel_memory() - kernel
            # The two ends of each connection have the same structures in this kernel. Only one of them is the proxy's.
            return Memory(user / count, kernel / 2 / count, load.read().failures, load.complaint())

    def held_memory(self, process: Program) -> list[tuple[int, int]]:
        """Return samples of user memory and socket buffers of the proxy *process*, taken over the bed's seconds."""
        samples = []
        for _ in range(SAMPLES):
            time.sleep(self.seconds / SAMPLES)
            samples.append((user_memory(process.pid), buffers(self.testbed["proxy"].run(["ss", "-tMmH"]).stdout)))
        return samples

    def check(self, way: Way, count: int, accepted: Accepted, process: Program | None) -> None:
        """Raise TestbedError if the *accepted* connections are not of *way*'s kind, or the proxy left its processor."""
        if way.proxy != DIRECT and (why := void(way.client, count, *accepted.read())):
            raise TestbedError(f"{way}: {why}")
        if self.shares and process and (strays := own_processor.strays(process.pid, self.shares.proxy)):
            raise TestbedError(f"{way}: threads {strays} may run on other processors than the proxy's own")

    def wait(self, load: Load, process: Program | None, enough: Callable[[Counters], bool], what: str) -> None:
        """Wait until *enough* holds for the load's counters. A TestbedError has all counters and the last log lines."""
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

    def _settle(self) -> None:
        """Wait until earlier connections have left the kernel, and the count of slabs is up to date."""
        time.sleep(1.0)
