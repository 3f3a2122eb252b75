# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers for kernel tests of the throttler as a program: its site with either backend, and connections."""

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

from leftovers import assert_nothing_left

from mptcp_common import status_client
from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.services import (
    ANSWER_TIMEOUT,
    Throttler,
    program,
    start_throttler,
    throttler_mounts,
    wait_until,
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
FULL_POLICY = (
    POLICY.replace("throttle: {rate: 5 Mbit/s}", "direction: both\n    throttle: {rate: 5 Mbit/s}")
    + """\
  - name: order
    steer: {mode: active-standby, active: wifi, standby: ethernet}
"""
)
"""A policy for which the throttler creates every kind of its kernel objects."""
IPPROTO_MPTCP = 262
PORT = 3128
MAJOR = "4d50:"
UNCAPPED = MAJOR + "ffff"
"""The class of subflows that inherited the class of a cap when they were accepted, and have no cap now."""


@dataclass
class Site:
    """A testbed with the configuration of a throttler, and queries about the resulting state."""

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
        """Start the throttler and wait until it answers. It listens before its event loop runs."""
        throttler = start_throttler(self.proxy, self.config)
        read_status(throttler.socket)
        return throttler

    def throttler(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``mptcp-throttler`` with *arguments* and the daemon's mounts."""
        process = self.proxy.popen(
            [program("mptcp-throttler"), *arguments, "--config", str(self.config)],
            name=f"throttler-{arguments[0]}-{time.monotonic_ns()}",
            mounts=throttler_mounts(self.proxy),
        )
        code = process.wait(60)
        return subprocess.CompletedProcess(arguments, code, process.output(), "")

    def entries(self) -> dict[str, str]:
        """Return the client's end of each capped subflow, with its class, as shown by ipset or nft."""
        return {client: classid for client, classid in self._targets().items() if classid != UNCAPPED}

    def uncapped(self) -> dict[str, str]:
        """Return the client's end of each subflow that has an entry but no cap."""
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
        """Return a dump of the kernel's state without counters. It may be taken while a throttler runs."""
        dumps: list[State] = []

        def complete() -> bool:
            """Return whether the dump is complete. It is not complete if a link was removed at the same time."""
            dumps.append(kernel_state(self.proxy))
            return not differences(dumps[-1], dumps[-1])

        until(complete)
        return "\n".join(f"{name}:\n{text}" for name, text in dumps[-1].items())

    def state(self) -> State:
        """Return the whole state that a throttler could change: the kernel, processes, BPF, and files."""
        return whole_state(self.proxy, Path(throttler_mounts(self.proxy)["/run/mptcp-throttler"]), more=())

    def assert_nothing_left(self, before: State) -> None:
        """Check that the state that a throttler may change equals *before*."""
        assert_nothing_left(before, self.state)


def features_needed_by(backend: str) -> tuple[str, ...]:
    """Return the features of the testbed that a netfilter backend needs."""
    return {"iptables": ("ipset", "iptables-legacy")}.get(backend, (backend,))


def make_site(backend: str, make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", *features_needed_by(backend))
    testbed = make_module_testbed()
    policy = testbed.directory / "policy.yaml"
    policy.write_text(POLICY)
    config = write_throttler_config(testbed["proxy"], policy, settings={"netfilter": backend, "verify_interval": 2})
    return Site(testbed, backend, policy, config)


@contextmanager
def check_restored(site: Site) -> Iterator[None]:
    """Check after the block that the throttler has restored kernel, processes and files."""
    site.policy.write_text(POLICY)
    before = site.state()
    yield
    site.assert_nothing_left(before)


@contextmanager
def running(site: Site) -> Iterator[Throttler]:
    """Run a throttler. At the end, stop it as systemd would; it must exit with status 0."""
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
    """Listen on the proxy and yield the socket."""
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
    """Open a connection from the client to *listener*, exchange a byte each way, and yield both ends."""
    address_family = socket.AF_INET6 if family == 6 else socket.AF_INET
    with ExitStack() as stack:
        with site.client.entered():
            client = stack.enter_context(socket.socket(address_family, socket.SOCK_STREAM, protocol))
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
    """Listen on the proxy, and open a connection as `connected` does."""
    with listening(site, protocol) as listener, connected(site, listener, family, protocol) as ends:
        yield ends


def read_status(path: Path) -> dict[str, Any]:
    """Return the status of the daemon that listens at *path*. The timeout is longer than that of the commands."""
    return status_client.ask(path, {"query": "status"}, ANSWER_TIMEOUT)


def knows_both_subflows(path: Path) -> bool:
    """Return whether the daemon at *path* knows both subflows of its only connection.

    Before that, a cap relies on the anticipated second subflow, and the daemon may lift it.
    """
    connections = read_status(path)["connections"]
    return [len(connection["subflows"]) for connection in connections] == [2]


def until(holds: Callable[[], object], timeout: float = 60) -> None:
    """Wait until *holds* returns true. Raises TestbedError after *timeout* seconds."""
    wait_until(lambda: bool(holds()), "the condition holds", timeout=timeout)


def clients(entries: dict[str, str]) -> list[str]:
    return sorted(key.split()[0] for key in entries)
