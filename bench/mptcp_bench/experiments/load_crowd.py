# SPDX-License-Identifier: GPL-2.0-or-later
"""Opens thousands of slow tunnels (the crowd), each with two subflows, through the real proxy, and defines the
throttler's policies for them.

The crowd has its own namespace and its own two paths, so that changes of the client's endpoints (ip-mptcp(8)) do not
affect the crowd. The program ``native/crowd.c`` is both the crowd's client and its origin. Squid has two workers,
because each tunnel takes two descriptors, and many systems allow a process 20,000.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from mptcp_lab.testbed import LiveNode, Process, Testbed, TestbedError, services
from mptcp_lab.testbed.host import Program
from mptcp_lab.testbed.model import Topology
from mptcp_lab.testbed.services import PROXY_PORT, SQUID_CONFIG, Throttler, wait_until
from mptcp_lab.testbed.system_state import State, differences, whole_state
from mptcp_lab.testbed.topologies import SECOND_CLIENT_NETWORKS, with_second_client

from .devices import POLICY_PATHS
from .relay_load import build

NODE = "crowd"
"""The crowd's node. Its networks are 10.77.3.0/24 and 10.77.4.0/24, which are free if the client has two paths."""
ORIGIN_PORT = 8443
TRICKLE = 5_000
"""Bytes per second that each tunnel carries."""
MAX_OPEN_RATE = 300
"""Maximum number of tunnels that the client opens per second."""
OPEN_TIMEOUT = 60.0
"""Seconds that the client may need to open the tunnels, in addition to their number / their rate."""
KILL_TIMEOUT = 60.0
"""Seconds after SIGTERM, after which a throttler that still runs is killed."""
WORKERS = 2
MAX_DESCRIPTORS = 20_000
"""Maximum number of open files of each Squid worker. Each tunnel takes two."""
# No limit per client address, because the crowd has one address, but thousands of phones would have an address each.
_SQUID = f"""\
acl crowd src 10.77.0.0/16
acl crowd_tunnels port {ORIGIN_PORT}
http_access allow crowd crowd_tunnels
include {SQUID_CONFIG}
client_ip_max_connections -1
workers {WORKERS}
max_filedescriptors {MAX_DESCRIPTORS}
shutdown_lifetime 0 seconds
"""
_TOKENS = re.compile(r"\btoken:[0-9a-f]+\(id:\d+\)/([0-9a-f]+)\(id:\d+\)")
"""Matches the tokens that ss(8) prints for a subflow. Its group is the proxy's token of the connection."""
_COUNTERS = struct.Struct("=6Q")


class Counters(NamedTuple):
    """The counters of native/crowd.c (its ``struct counters``)."""

    wanted: int
    opened: int
    open: int
    ended: int
    octets: int
    churn: int


class _Member:
    """One process of the crowd: its client or its origin."""

    def __init__(self, testbed: Testbed, node: LiveNode, role: str, *arguments: object) -> None:
        path = node.directory / f"crowd-{role}"
        path.write_bytes(bytes(_COUNTERS.size))
        file = testbed.scope.enter_context(path.open("r+b"))
        self._map = testbed.scope.enter_context(mmap.mmap(file.fileno(), _COUNTERS.size))
        program = build("crowd", testbed["proxy"])
        argv = [str(program), role, str(path), *map(str, arguments)]
        self.process: Process = node.popen(argv, name=f"crowd-{role}")
        ready = f"the crowd's {role} is ready"
        wait_until(lambda: self.process.output() == "ready\n", ready, process=self.process, timeout=OPEN_TIMEOUT)

    def read(self) -> Counters:
        if not self.process.running:
            raise TestbedError(f"the crowd's {self.process.name} ended{self.process.tail()}")
        return Counters._make(_COUNTERS.unpack_from(self._map))

    def set(self, counter: str, value: int) -> None:
        struct.pack_into("=Q", self._map, 8 * Counters._fields.index(counter), value)


@dataclass(frozen=True, slots=True)
class Crowd:
    """A crowd that keeps a requested number of tunnels open through a proxy."""

    testbed: Testbed
    server: Program
    """Squid, or without Squid the crowd's origin."""
    client: _Member
    origin: _Member

    @classmethod
    def start(cls, testbed: Testbed, *, rate: int = MAX_OPEN_RATE, trickle: int = TRICKLE, squid: bool = True) -> Self:
        """Start Squid and a crowd that opens *rate* tunnels per second, with *trickle* bytes/s in each.

        Without *squid*, the crowd's origin listens on the proxy's port and sends no data.
        """
        proxy = testbed["proxy"]
        for node in (testbed[NODE], proxy):
            # connect(2) tries every second port first. Of the default 28,000 ports it finds only 14,000 quickly.
            node.run(["sysctl", "-qw", "net.ipv4.ip_local_port_range=10000 65000"])
        if squid:
            server = services.start_proxy(proxy, proxy.write(f"{proxy.name}-squid.conf", _SQUID)).process
            target = f"{testbed['origin'].service_address()}:{ORIGIN_PORT}"
            origin = _Member(testbed, testbed["origin"], "origin", ORIGIN_PORT, trickle)
        else:
            # The client closes first, so each of its ports is in TIME-WAIT for a minute. At a thousand connections per
            # second, the client would soon have no free ports. Second subflows would fail first, because fewer ports
            # are available to them.
            reuse = ["net.ipv4.tcp_tw_reuse=1", "net.ipv4.tcp_max_tw_buckets=2000"]
            testbed[NODE].run(["sysctl", "-qw", *reuse])
            origin = _Member(testbed, proxy, "origin", PROXY_PORT, 0)
            server, target = origin.process, "origin:0"
        client = _Member(testbed, testbed[NODE], "client", proxy.service_address(), PROXY_PORT, target, rate)
        return cls(testbed, server, client, origin)

    def state(self) -> State:
        """Return the whole state of the proxy's host, except Squid's processes, which change."""
        node = self.testbed["proxy"]
        directory = Path(services.throttler_mounts(node)["/run/mptcp-throttler"])
        return whole_state(node, directory, except_for=(self.server.pid,))

    def remnants(self, before: State, throttler: Throttler) -> tuple[str, ...]:
        """Stop *throttler*. Return the differences from the state *before*, and the exit code if it is not 0."""
        code = throttler.process.stop(KILL_TIMEOUT)
        return (*differences(before, self.state()), *([f"exit code {code}"] if code else []))

    def keep_open(self, count: int) -> None:
        """Open or close tunnels until exactly *count* are open. Raises TestbedError if this takes too long."""
        before = self.client.read()
        self.client.set("wanted", count + before.ended)

        def is_reached() -> bool:
            # After the client has closed a tunnel, the proxy closes its connection to the origin.
            return self.client.read().open == self.origin.read().open == count

        timeout = max(0, count - before.open) / MAX_OPEN_RATE + OPEN_TIMEOUT
        wait_until(is_reached, f"{count} tunnels are open", timeout=timeout, process=self.server)

    def replace_per_second(self, rate: int) -> None:
        """From now on, replace *rate* tunnels per second, the oldest first. 0 stops this."""
        self.client.set("churn", rate)

    def wait_for_joins(self, count: int) -> None:
        """Wait until *count* connections have two subflows. Raises TestbedError after ten seconds."""
        joined = f"{count} connections have two subflows"
        wait_until(lambda: len(two_subflows(self.list_subflows())) >= count, joined, timeout=10)

    def list_subflows(self) -> str:
        """Return ss(8)'s list of the established subflows to the proxy."""
        argv = ["ss", "-tinH", "state", "established", "sport", "=", f":{PROXY_PORT}"]
        return self.testbed["proxy"].run(argv, timeout=60).stdout


def with_crowd(topology: Topology) -> Topology:
    """Return *topology* with the crowd's node and its two unshaped paths."""
    return replace(with_second_client(topology, NODE), name=f"{topology.name}-crowd")


def two_subflows(listing: str) -> set[str]:
    """Return the tokens of the connections with at least two subflows in the output of ``ss -tinH`` at the proxy."""
    return {token for token, count in Counter(_TOKENS.findall(listing)).items() if count >= 2}


def remote_ends(status: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Return the remote ends of the crowd's connections with two subflows, by the token in ss(8)'s format."""
    by_token = {
        f"{int(connection['token'], 16):04x}": [each["remote"] for each in connection["subflows"]]
        for connection in status["connections"]
    }
    return {token: ends for token, ends in by_token.items() if len(ends) >= 2 and ends[0].startswith(ADDRESSES)}


PROBE_PORT = PROXY_PORT + 1
"""Port on which the reaction to joins is measured. Squid listens on the proxy's port."""
CAP = 1_000_000_000
"""Cap of the crowd in bits/s. It is never reached: 10,000 slow tunnels need less than half of this rate."""
ADDRESSES = tuple(f"10.77.{network}." for network in SECOND_CLIENT_NETWORKS)
"""Prefixes of the crowd's addresses on its first and its second path."""
_PATHS = f"{POLICY_PATHS}  first: {{clients: [{ADDRESSES[0]}0/24]}}\n  second: {{clients: [{ADDRESSES[1]}0/24]}}\n"
UNCAPPED = f"{_PATHS}rules: []\n"
# Anticipation is off: with it, a cap's entry would exist before the join whose reaction is measured. The budget counts
# the second path's bytes, even if it does not decide about the first path.
FULL = f"""\
{_PATHS}anticipate: false
rules:
  - {{name: client, paths: [ethernet], throttle: {{rate: 5 Mbit/s, landing: at-once}}}}
  - {{name: crowd, paths: [first], throttle: {{rate: {CAP} bit/s, share: path}}}}
  - name: volume
    paths: [first, second]
    budget: {{period: month, steps: [{{after: 100 TB, throttle: {{rate: 1 Mbit/s}}}}]}}
"""
"""A policy with one cap for all subflows of the crowd's first path, a cap of the client, the guard, which is on by
default, and a budget that is never used up."""


def start_with(proxy: LiveNode, policy: str) -> Throttler:
    """Start a throttler with the text *policy* and a new ledger, for the ports of proxy and probe."""
    settings = {"listen_ports": [PROXY_PORT, PROBE_PORT], "netfilter": "iptables"}
    file = proxy.write("policy.yaml", policy)
    return services.start_throttler(proxy, services.write_throttler_config(proxy, file, settings=settings))
