# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel tests of the throttler as a program share: its site under either backend, and connections to it."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leftovers import nothing_left

from mptcp_common import status_client
from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.services import (
    ANSWER,
    Throttler,
    program,
    start_throttler,
    throttler_mounts,
    write_throttler_config,
)
from mptcp_lab.testbed.system_state import State, differences, kernel_state, whole_state

POLICY = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24, "fd77:1::/64"]}
  wifi: {clients: [10.77.2.0/24, "fd77:2::/64"]}
rules:
  - name: spare-ethernet
    paths: [ethernet]
    throttle: {rate: 5 Mbit/s}
"""
EVERYTHING = (
    POLICY.replace("throttle: {rate: 5 Mbit/s}", "direction: both\n    throttle: {rate: 5 Mbit/s}")
    + """\
  - name: order
    steer: {mode: active-standby, active: wifi, standby: ethernet}
"""
)
"""A policy for which the throttler puts all that it has into the kernel."""
IPPROTO_MPTCP = 262
PORT = 3128
MAJOR = "4d50:"
UNCAPPED = MAJOR + "ffff"
"""Where subflows go that began in a class and have no cap."""


@dataclass
class Site:
    """A testbed with a throttler's configuration, and what a test asks about it."""

    testbed: Testbed
    backend: str
    policy: Path
    config: Path

    @property
    def proxy(self) -> LiveNode:
        return self.testbed["proxy"]

    @property
    def client(self) -> LiveNode:
        return self.testbed["client"]

    def start(self) -> Throttler:
        """Start it, and wait until its loop runs: its socket takes connections earlier than they are answered."""
        throttler = start_throttler(self.proxy, self.config)
        ask(throttler.socket)
        return throttler

    def throttler(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``mptcp-throttler`` with *arguments* where the daemon's state is."""
        process = self.proxy.popen(
            [program("mptcp-throttler"), *arguments, "--config", str(self.config)],
            name=f"throttler-{arguments[0]}-{time.monotonic_ns()}",
            mounts=throttler_mounts(self.proxy),
        )
        code = process.wait(60)
        return subprocess.CompletedProcess(arguments, code, process.output(), "")

    def entries(self) -> dict[str, str]:
        """Return the client end of each capped subflow and its class, as ipset or nft shows them."""
        return {client: classid for client, classid in self._targets().items() if classid != UNCAPPED}

    def uncapped(self) -> dict[str, str]:
        """Return those that have an entry and no cap."""
        return {client: classid for client, classid in self._targets().items() if classid == UNCAPPED}

    def _targets(self) -> dict[str, str]:
        if self.backend == "iptables":
            lines = self.proxy.run(["ipset", "save"]).stdout.splitlines()
            adds = [line.split() for line in lines if line.startswith("add mptcp-throttler-")]
            return {
                words[2].split(",")[0] + " " + words[2].split("tcp:")[1].split(",")[0]: words[
                    words.index("skbprio") + 1
                ]
                for words in adds
            }
        listing = self.proxy.run(["nft", "-n", "list", "ruleset"]).stdout
        found = {}
        for line in listing.replace("elements = {", "\n").splitlines():
            for item in line.split(","):
                if " : jump class_" in item:
                    remote, port = item.split(" . ")[:2]
                    found[f"{remote.strip()} {port.strip()}"] = MAJOR + item.split("class_")[1].split("_")[0]
        return found

    def kernel_dump(self) -> str:
        """Return what could differ in the kernel, while a throttler runs too; counters aside."""
        taken: list[State] = []

        def complete() -> bool:
            """Whether no link went while it was looked at, by which a dump fails."""
            taken.append(kernel_state(self.proxy))
            return not differences(taken[-1], taken[-1])

        until(complete)
        return "\n".join(f"{name}:\n{text}" for name, text in taken[-1].items())

    def state(self) -> State:
        """Return all that could differ: the kernel, processes, BPF, files."""
        return whole_state(self.proxy, Path(throttler_mounts(self.proxy)["/run/mptcp-throttler"]), more=())

    def nothing_left(self, before: State) -> None:
        """Nothing that a throttler may touch is otherwise than *before*."""
        nothing_left(before, self.state)


def make_site(backend: str, make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", *(["ipset", "iptables-legacy"] if backend == "iptables" else ["nftables"]))
    testbed = make_module_testbed()
    policy = testbed.directory / "policy.yaml"
    policy.write_text(POLICY)
    config = write_throttler_config(testbed["proxy"], policy, settings={"netfilter": backend, "verify_interval": 2})
    return Site(testbed, backend, policy, config)


@contextmanager
def untouched_afterwards(site: Site) -> Iterator[None]:
    """Whatever a test does, its throttler must leave the kernel, processes and files as they were."""
    site.policy.write_text(POLICY)
    before = site.state()
    yield
    site.nothing_left(before)


@contextmanager
def running(site: Site) -> Iterator[Throttler]:
    """A throttler that is stopped as systemd would, and must then end well."""
    throttler = site.start()
    try:
        yield throttler
    finally:
        throttler.process.signal(signal.SIGTERM)
        code = throttler.process.wait(60)
    assert code == 0, throttler.process.output()
    assert "Traceback" not in throttler.process.output()


@contextmanager
def listening(site: Site, protocol: int = IPPROTO_MPTCP) -> Iterator[socket.socket]:
    """What accepts connections on the proxy."""
    with site.proxy.entered():
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, protocol)
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("::", PORT))
        listener.listen()
        yield listener


@contextmanager
def connected(
    site: Site, listener: socket.socket, family: int = 4, protocol: int = IPPROTO_MPTCP
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection from client to *listener* that is up on all its paths; yields both ends."""
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    with ExitStack() as stack:
        with site.client.entered():
            client = stack.enter_context(socket.socket(kind, socket.SOCK_STREAM, protocol))
        client.settimeout(60)
        client.connect((site.proxy.address("wan0", family), PORT))
        proxy, _ = listener.accept()
        stack.enter_context(proxy)
        proxy.settimeout(60)
        client.sendall(b"?")
        assert proxy.recv(1) == b"?"
        proxy.sendall(b"!")
        assert client.recv(1) == b"!"
        yield client, proxy
        client.shutdown(socket.SHUT_WR)
        proxy.shutdown(socket.SHUT_WR)


@contextmanager
def connection(
    site: Site, family: int = 4, protocol: int = IPPROTO_MPTCP
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The same, to a listener of its own."""
    with listening(site, protocol) as listener, connected(site, listener, family, protocol) as ends:
        yield ends


def ask(path: Path) -> dict[str, Any]:
    """Return the status of the daemon that listens at *path*, for which a busy machine has more time than a person."""
    return status_client.ask(path, {"query": "status"}, ANSWER)


def both_known(path: Path) -> bool:
    """Whether the daemon at *path* knows both subflows of its only connection: until then a cap is anticipated, and may
    be lifted."""
    shown = ask(path)["connections"]
    return [len(connection["subflows"]) for connection in shown] == [2]


def until(holds: Callable[[], object], timeout: float = 60) -> None:
    """Wait until *holds*, which must be within *timeout* seconds."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.02)


def clients(entries: dict[str, str]) -> list[str]:
    return sorted(key.split()[0] for key in entries)
