# SPDX-License-Identifier: GPL-2.0-or-later
"""The testbed for batches of downloads, and its changes for a batch.

A throttler that has seen the client knows it until it is restarted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from mptcp_lab.agent.counters import fallbacks
from mptcp_lab.testbed import LiveNode, Testbed, TestbedError
from mptcp_lab.testbed.commands import undone_on_error
from mptcp_lab.testbed.plan import ETHERNET_HEADER
from mptcp_lab.testbed.protocol import Protocol
from mptcp_lab.testbed.recorder import Recorder
from mptcp_lab.testbed.services import (
    PROXY_PORT,
    Origin,
    Throttler,
    start_origin,
    start_proxy,
    start_throttler,
    wait_until,
    write_throttler_config,
)
from mptcp_lab.testbed.transfer import Added
from mptcp_throttler.policy.model import Throttle
from mptcp_throttler.shaping.model import class_spec

from .devices import DEVICES, policy
from .pages_judging import Batch, Cell, Download, judge

PAUSE = 1.0
"""Seconds between the end of a batch's last connection and the next batch."""
FILE_TIMEOUT, CLOSE_TIMEOUT = 120.0, 60.0
"""Maximum seconds for a file, and seconds within which all connections of a batch must have ended."""
_UNTRIED = ("MPTcpExtMPCapableSYNTXDisabled", "MPTcpExtMPCapableSYNTXDrop")
_FORGET = "sysctl -qw net.mptcp.blackhole_timeout=$(sysctl -n net.mptcp.blackhole_timeout)"
"""Reset the client's blackhole detection. If handshakes of MPTCP were lost, but not those of plain TCP,
it makes the client open only plain TCP connections for an hour (Linux 6.12). Older kernels do not have it."""


class IpRecorder(Recorder):
    """Record the bytes of IP packets that *node* receives, without Ethernet headers."""

    def __init__(self, node: LiveNode, devices: Sequence[str]) -> None:
        def read() -> dict[str, int]:
            counters = node.counters()
            return {name: counters[name].received - ETHERNET_HEADER * counters[name].packets for name in devices}

        super().__init__(node, devices, interval=0.02, read=read)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        super().__exit__(kind, error, traceback)
        # Take one more sample, because the last byte may have come after the last sample.
        self._take()


@dataclass(slots=True)
class Bed:
    """A testbed with all services. It runs one batch at a time."""

    testbed: Testbed
    origin: Origin
    proxy_address: str
    throttler: Throttler | None = None
    known: str | None = None
    """The rule of the throttler that has seen the client."""
    _orders: int = 0

    @classmethod
    def built(cls, testbed: Testbed, sizes: Sequence[int]) -> Bed:
        """Start all services but the throttler on *testbed*. Files are named after their *sizes*."""
        origin = start_origin(testbed["origin"], {str(size): size for size in sizes})
        start_proxy(testbed["proxy"])
        return cls(testbed, origin, testbed["proxy"].service_address())

    def check_emulation(self) -> None:
        self.testbed.check_emulation()

    @property
    def client(self) -> LiveNode:
        return self.testbed["client"]

    def stop_throttler(self) -> None:
        if self.throttler is not None:
            self.throttler.process.stop()
        self.throttler = self.known = None

    def start_throttler(self, rule: str) -> None:
        """Start a throttler that has never seen the client, with *rule* for Ethernet."""
        self.stop_throttler()
        proxy = self.testbed["proxy"]
        file = proxy.write("policy.yaml", policy(f"[{{name: cap, paths: [ethernet], {rule}}}]"))
        self.throttler = start_throttler(proxy, write_throttler_config(proxy, file))

    def static_class(self, cap: float, subflows: int) -> AbstractContextManager[None]:
        """Add a class of *cap* Mbit/s by client address, as an administrator would, during the scope.

        Its parameters, including the queue length, are those that the throttler computes for the same number of
        subflows.
        """
        spec = class_spec(1, Throttle(rate=round(cap * 1_000_000)), 1 << (subflows - 1).bit_length())
        rates = f"rate {spec.rate}bit ceil {spec.ceil}bit burst {spec.burst} cburst {spec.cburst}"
        commands = (
            "tc qdisc add dev wan0 root handle 1: htb",
            f"tc class add dev wan0 parent 1: classid 1:1 htb {rates} quantum {spec.quantum}",
            f"tc qdisc add dev wan0 parent 1:1 handle 10: pfifo limit {spec.queue_packets}",
            "tc filter add dev wan0 parent 1: protocol ip u32 match ip dst 10.77.1.0/24 flowid 1:1",
        )
        undo = ["tc", "qdisc", "del", "dev", "wan0", "root"]
        return self.testbed["proxy"].changed(["sh", "-ec", "; ".join(commands)], undo)

    def fetch(self, cell: Cell) -> Batch:
        """Download the files of *cell*. Raises TestbedError if a file is incomplete."""
        self.wait_until_quiet()
        self.client.run(["sh", "-c", _FORGET], check=False)
        added = Added(self.client, self.testbed["proxy"])
        with IpRecorder(self.client, DEVICES) as recorder:
            answers = self._by_agent(cell)
        self.known = cell.rule if self.throttler else None
        # An answer without a time is that of a download that did not begin.
        broken = [each for each in answers if not each or each["error"] or str(each["octets"]) != each["name"]]
        if broken:
            raise TestbedError(f"{len(broken)} of {len(answers)} downloads are incomplete, the first one: {broken[0]}")
        downloads = [Download(each["began"] - recorder.started, each["end"] - recorder.started) for each in answers]
        client, proxy = added.read()
        plain = fallbacks(client) + sum(client.get(name, 0) for name in _UNTRIED)
        return judge(recorder.samples, cell, downloads, Protocol.of(client, proxy).joins, plain)

    def _by_agent(self, cell: Cell) -> list[dict[str, Any]]:
        order = {
            "proxy": [self.proxy_address, PROXY_PORT],
            "target": [self.origin.host.service_address(), 443 if cell.kind == "connect" else 80],
            "kind": cell.kind,
            "at_once": cell.at_once,
            "files": [(str(size), size) for size in cell.sizes],
            "timeout": FILE_TIMEOUT,
        }
        self._orders += 1
        file = self.client.write(f"order-{self._orders}.json", json.dumps(order))
        process = self.client.popen(self.client.agent("fetch", str(file)), name="fetch")
        # After an error or timeout, stop the client, so that it does not download during the next batch.
        with undone_on_error(process.kill):
            process.wait(FILE_TIMEOUT * 5)
        if process.returncode != 0:
            raise TestbedError(f"the client ended with {process.returncode}{process.tail()}")
        answers: list[dict[str, Any]] = json.loads(process.output())
        return answers

    def wait_until_quiet(self) -> None:
        """Wait until all connections of the last batch have ended, then wait ``PAUSE`` seconds."""
        wait_until(lambda: not self._connections(), "the last batch's connections are closed", timeout=CLOSE_TIMEOUT)
        time.sleep(PAUSE)

    def _connections(self) -> bool:
        listing = self.testbed["proxy"].run(["ss", "-tanH", "sport", "=", f":{PROXY_PORT}"]).stdout
        if any(not line.startswith(("LISTEN", "TIME-WAIT")) for line in listing.splitlines()):
            return True
        return self.throttler is not None and bool(self.throttler.status()["connections"])
