# SPDX-License-Identifier: GPL-2.0-or-later
"""The testbed of the experiments ``relay`` and ``mimbox-…``: one freshly started proxy at a time, and its clients.

Client, core, proxy and origin are namespaces of one machine, whose kernel receives a packet in the sender's context. So
a proxy's processor time includes the delivery of its packets to clients and origin, unless the proxy has its own
processor. In that case, receive packet steering (RPS, Linux: Documentation/networking/scaling.rst) moves this delivery
to the other processors, and the delivery of packets to the proxy to the proxy's processor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Self

from mptcp_lab.testbed import Program, Testbed, TestbedError
from mptcp_lab.testbed.services import PROXY_PORT, Origin, start_origin, wait_until
from mptcp_lab.testbed.transfer import Added

from .peers import PeerSetup, peers
from .relay_judging import BASE, CLIENTS, DIRECT, Cell, Setting, protocol_error
from .relay_load import TIMEOUT, Load, build, requesting
from .two_paths import one_subflow

SMALL, LARGE = "small", "large"
FILES = {SMALL: 1_000, LARGE: 200_000_000}
MULTIPATH_PORT = 8080
"""Port of the origin that accepts MPTCP, if the testbed has one."""
WARM_UP_SECONDS = 0.4
"""Time from the last connection's handshake to the start of a measurement, in which the congestion windows grow."""
_STEER = 'for queue in /sys/class/net/*/queues/rx-*; do echo "$0" >"$queue/rps_cpus"; done'
"""Shell script: the kernel shall receive packets on the processors of the mask $0, in words of 32 bits."""

Check = Callable[[int], None]
"""Raises TestbedError if the kernel did not accept this number of connections of the clients' kind."""


@dataclass(frozen=True, slots=True)
class Bed:
    """A testbed with its origin, *web*."""

    testbed: Testbed
    seconds: float
    """Seconds for which a transfer is measured."""
    web: Origin
    proxy_processors: Collection[int]
    other_processors: Collection[int]
    """The processors of all programs except the proxy."""

    @classmethod
    def on(cls, testbed: Testbed, seconds: float, files: Mapping[str, int] = FILES, setting: Setting = BASE) -> Self:
        """Start the origin on *testbed*, and build the programs."""
        build("relay_load", testbed["client"])
        build("splice_relay", testbed["proxy"])
        proxy = others = os.sched_getaffinity(0)
        if setting.own_processor:
            first, *rest = sorted(others)
            proxy, others = {first}, set(rest)
            for node in testbed.topology.nodes:
                bits = sum(1 << number for number in (proxy if node.name == "proxy" else others))
                shifts = range((bits.bit_length() - 1) // 32 * 32, -1, -32)
                mask = ",".join(f"{bits >> shift & 0xFFFFFFFF:08x}" for shift in shifts)
                # The masks vanish with the namespace.
                testbed[node.name].run(["sh", "-ec", _STEER, mask])
        with running_on(others):
            web = start_origin(testbed["origin"], files)
        return cls(testbed, seconds, web, proxy, others)

    @property
    def origin(self) -> str:
        return self.testbed["origin"].service_address()

    @contextmanager
    def running(self, cell: Cell, extra_config: str = "") -> Iterator[Program | None]:
        """Run the proxy of *cell*; if it is ours, with *extra_config* in squid.conf. Run nothing for DIRECT."""
        if cell.proxy == DIRECT:
            yield None
            return
        host = self.testbed["proxy"]
        # The threads of a killed proxy end one after the other.
        listeners = ["ss", "-tlnH", "sport", "=", f":{PROXY_PORT}"]
        wait_until(lambda: not host.run(listeners).stdout, f"the port of {cell.proxy} is free", timeout=TIMEOUT)
        directory = Path(mkdtemp(prefix=f"{cell.proxy}-", dir=host.directory))
        directory.chmod(0o755)
        setup = PeerSetup(host, directory, self.origin, bool(CLIENTS[cell.client]), extra_config)
        with running_on(self.proxy_processors):
            process = peers()[cell.proxy].start(setup)
        try:
            yield process
        finally:
            process.kill_tree()

    @contextmanager
    def clients(
        self, cell: Cell, task: str, count: int, file: str, *, requests: int = -1, close: bool = False
    ) -> Iterator[tuple[Load, Check]]:
        """Start *count* clients of *cell*'s kind, each of which requests *file* *requests* times (-1: no limit).

        With *close*, the server closes each connection after its answer, and the client opens a new one. Yield the
        clients when all connections and their second subflows are established, and a check of these connections.
        """
        direct, tunnel, subflows = cell.proxy == DIRECT, "connect" in task, CLIENTS[cell.client]
        host, target = self.origin, f"/{file}" if direct or tunnel else f"http://{self.origin}/{file}"
        connect = f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n"
        closing = "Connection: close\r\n" if close else ""
        request = f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{closing}\r\n"
        server = self.testbed["origin" if direct else "proxy"]
        port = PROXY_PORT if not direct else MULTIPATH_PORT if subflows else 80
        counters = Added(server)

        def accepted() -> tuple[int, int]:
            """Return the number of MPTCP connections and of joins that the server accepted."""
            [added] = counters.read()
            return added.get("MPTcpExtMPCapableACKRX", 0), added.get("MPTcpExtMPJoinAckRx", 0)

        def check(connections: int) -> None:
            if reason := protocol_error(cell.client, connections, *accepted()):
                raise TestbedError(f"{cell}: {reason}")

        with (
            one_subflow(self.testbed) if subflows == 1 else nullcontext(),
            running_on(self.other_processors),
            requesting(
                self.testbed["client"], "mptcp" if subflows else "tcp", server.service_address(), port,
                count, requests, request, connect if tunnel and not direct else "",
            ) as load,
        ):  # fmt: skip
            load.wait(lambda counters: counters.answered == count, f"{cell}: {count} connections have had an answer")
            joins = count if subflows == 2 else 0
            load.wait(lambda counters: accepted()[1] >= joins, f"{cell}: {joins} second subflows joined")
            yield load, check


@contextmanager
def running_on(processors: Collection[int]) -> Iterator[None]:
    """Restrict the programs that this thread starts during the scope to *processors*."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
