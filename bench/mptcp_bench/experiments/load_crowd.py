# SPDX-License-Identifier: GPL-2.0-or-later
"""A crowd of thousands of slow tunnels with two subflows through the real proxy, and the policies that cap the crowd.

The crowd has its own namespace, in addition to the client's, and its own two paths, so that changes of the client's
endpoints (ip-mptcp(8)) do not affect the crowd. The program ``native/crowd.c`` is both the crowd's client and its
origin. Squid has two workers, because each tunnel takes two descriptors, and a process that may not raise its limit can
have 20,000 descriptors.
"""

from __future__ import annotations

import mmap
import re
import resource
import struct
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from mptcp_lab.testbed import LiveNode, Process, Testbed, TestbedError
from mptcp_lab.testbed.model import Topology
from mptcp_lab.testbed.services import (
    PROXY_PORT,
    SQUID_CONFIG,
    Proxy,
    start_proxy,
    throttler_mounts,
    wait_until,
    write_throttler_config,
)
from mptcp_lab.testbed.system_state import State, whole_state
from mptcp_lab.testbed.topologies import SECOND_CLIENT_NETWORKS, with_second_client

from .devices import POLICY_PATHS
from .relay_load import built

NODE = "crowd"
"""The crowd's node. Its networks are 10.77.3.0/24 and 10.77.4.0/24, which are free if the client has two paths."""
ORIGIN_PORT = 8443
TRICKLE = 5_000
"""Bytes per second that each tunnel carries."""
RATE = 300
"""Maximum number of tunnels that the client opens per second."""
PATIENCE = 60.0
"""Seconds that the client may take to open the tunnels, in addition to the time that results from the rate."""
WORKERS = 2
TIME_WAIT = ("net.ipv4.tcp_tw_reuse=1", "net.ipv4.tcp_max_tw_buckets=2000")
"""sysctls with which the crowd's node can close more connections in a minute than it has ports."""
DESCRIPTORS = 20_000
"""Maximum number of open files of each Squid worker."""
DESCRIPTORS_BESIDE = 500
"""Number of a worker's descriptors for logs, listeners and other open files."""
# No limit per client address, because the crowd has one address, but thousands of phones would have an address each.
_SQUID = f"""\
acl crowd src 10.77.0.0/16
acl crowd_tunnels port {ORIGIN_PORT}
http_access allow crowd crowd_tunnels
include {SQUID_CONFIG}
client_ip_max_connections -1
workers {WORKERS}
max_filedescriptors {{descriptors}}
shutdown_lifetime 0 seconds
"""
_TOKENS = re.compile(r"\btoken:[0-9a-f]+\(id:\d+\)/([0-9a-f]+)\(id:\d+\)")
"""Tokens in ss(8)'s line of a subflow: the client's token and id, the proxy's token and id."""


def with_crowd(topology: Topology) -> Topology:
    """Return *topology* with the crowd's node and its two unshaped paths."""
    # connect(2) tries every second port first. Of the default 28,000 ports it finds only 14,000 quickly.
    sysctls = (("net.ipv4.ip_local_port_range", "10000 65000"),)
    crowded = with_second_client(topology, NODE)
    nodes = tuple(
        replace(each, sysctls=(*each.sysctls, *sysctls)) if each.name in (NODE, "proxy") else each
        for each in crowded.nodes
    )
    return replace(crowded, name=f"{topology.name}-crowd", nodes=nodes)


def two_subflows(text: str) -> set[str]:
    """Return the tokens of the connections with at least two subflows in the output of ``ss -tinH`` at the proxy."""
    return {token for token, count in Counter(_TOKENS.findall(text)).items() if count >= 2}


_COUNTERS = struct.Struct("=8Q")


class Counters(NamedTuple):
    """The counters of native/crowd.c (its ``struct counters``)."""

    wanted: int
    opened: int
    standing: int
    refused: int
    ended: int
    octets: int
    skipped: int
    churn: int


class _Member:
    def __init__(self, node: LiveNode, program: Path, role: str, arguments: Sequence[str], scope: ExitStack) -> None:
        path = node.directory / f"crowd-{role}"
        path.write_bytes(bytes(_COUNTERS.size))
        file = scope.enter_context(path.open("r+b"))
        self._map = scope.enter_context(mmap.mmap(file.fileno(), _COUNTERS.size))
        self.process: Process = node.popen([str(program), role, str(path), *arguments], name=f"crowd-{role}")
        ready = f"the crowd's {role} is ready"
        wait_until(lambda: self.process.output() == "ready\n", ready, process=self.process, timeout=PATIENCE)

    def read(self) -> Counters:
        if not self.process.running:
            raise TestbedError(f"the crowd's {self.process.name} ended{self.process.tail()}")
        return Counters._make(_COUNTERS.unpack_from(self._map))

    def want(self, count: int) -> None:
        struct.pack_into("=Q", self._map, 0, count)

    def churn(self, rate: int) -> None:
        struct.pack_into("=Q", self._map, _COUNTERS.size - 8, rate)


@dataclass(frozen=True, slots=True)
class Crowd:
    """A crowd that keeps a requested number of tunnels open through a proxy."""

    testbed: Testbed
    proxy: Proxy
    client: _Member
    origin: _Member

    @classmethod
    def built(cls, testbed: Testbed, most: int, node: str = NODE, rate: int = RATE, trickle: int = TRICKLE) -> Self:
        """Start proxy and crowd for at most *most* tunnels: *rate* opened per second, *trickle* bytes/s in each.

        Raises TestbedError if this host allows too few open files: each worker has both ends of its tunnels.
        """
        proxy, origin = testbed["proxy"], testbed["origin"]
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        allowed = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
        if allowed < (needed := 2 * most // WORKERS + DESCRIPTORS_BESIDE):
            raise TestbedError(f"{most} tunnels need {needed} descriptors a process, ulimit -Hn allows {allowed}")
        program = built("crowd", proxy)
        started = start_proxy(proxy, proxy.write(f"{proxy.name}-squid.conf", _SQUID.format(descriptors=allowed)))
        sending = _Member(origin, program, "origin", [str(ORIGIN_PORT), str(trickle)], testbed.scope)
        target = f"{origin.service_address()}:{ORIGIN_PORT}"
        arguments = [proxy.service_address(), str(PROXY_PORT), target, str(rate)]
        clients = _Member(testbed[node], program, "client", arguments, testbed.scope)
        return cls(testbed, started, clients, sending)

    @classmethod
    def without_squid(cls, testbed: Testbed, rate: int) -> Self:
        """Start only the crowd's programs, for *rate* connections per second, without Squid.

        The connections go to a listener on the proxy's port. It replaces proxy and origin, and sends no data.
        """
        proxy = testbed["proxy"]
        program = built("crowd", proxy)
        # The client closes first, so each of its ports is in TIME-WAIT for a minute. At a thousand connections per
        # second the client would soon run out of ports, first for second subflows, for which fewer ports are possible.
        testbed[NODE].run(["sysctl", "-qw", *TIME_WAIT])
        listener = _Member(proxy, program, "listener", [str(PROXY_PORT)], testbed.scope)
        arguments = [proxy.service_address(), str(PROXY_PORT), "listener:0", str(rate)]
        clients = _Member(testbed[NODE], program, "client", arguments, testbed.scope)
        place = Proxy(proxy, listener.process, proxy.directory, proxy.directory)
        return cls(testbed, place, clients, listener)

    def state(self) -> State:
        """Return the whole state of the proxy's host, except Squid's processes, which change."""
        node = self.testbed["proxy"]
        run = Path(throttler_mounts(node)["/run/mptcp-throttler"])
        return whole_state(node, run, besides=(self.proxy.process.pid,))

    def hold(self, count: int) -> None:
        """Open or close tunnels until exactly *count* are open. Raises TestbedError if this takes too long."""
        before = self.client.read()
        self.client.want(count + before.ended)
        deadline = time.monotonic() + max(0, count - before.standing) / RATE + PATIENCE
        # After the client has closed a tunnel, wait until the proxy has also closed its connection to the origin.
        while (now := self.client.read()).standing != count or self.origin.read().standing != count:
            if time.monotonic() > deadline:
                raise TestbedError(f"{now.standing} of {count} tunnels stand: {now}{self.proxy.process.tail()}")
            time.sleep(0.05)

    def churn(self, rate: int) -> None:
        """From now on, replace *rate* tunnels per second, the oldest first; 0 stops the replacement."""
        self.client.churn(rate)

    def joined(self, count: int, within: float = 10.0) -> int:
        """Wait for *count* connections with two subflows, for at most *within* seconds, and return their number."""
        deadline = time.monotonic() + within
        while True:
            found = len(two_subflows(self.listed()))
            if found >= count or time.monotonic() > deadline:
                return found
            time.sleep(0.5)

    def listed(self) -> str:
        """Return ss(8)'s list of the established subflows to the proxy."""
        wanted = ["state", "established", "sport", "=", f":{PROXY_PORT}"]
        return self.testbed["proxy"].run(["ss", "-tinH", *wanted], timeout=60).stdout


def shown(status: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the remote ends of the crowd's connections with two subflows, by the token as ss(8) prints it."""
    found = {}
    for connection in status.get("connections", ()):
        remotes = [each["remote"] for each in connection["subflows"]]
        if len(remotes) >= 2 and remotes[0].startswith(ADDRESSES):
            found[f"{int(connection['token'], 16):04x}"] = remotes
    return found


PROBE_PORT = PROXY_PORT + 1
"""Port on which the reaction to joins is measured, because Squid listens on the other port."""
CAP = 1_000_000_000
"""Cap of the crowd in bits/s. It is never reached: 10,000 slow tunnels need less than half of this rate."""
ADDRESSES = tuple(f"10.77.{network}." for network in SECOND_CLIENT_NETWORKS)
"""Prefixes of the crowd's addresses on its first and its second path."""
_PATHS = POLICY_PATHS + "".join(
    f"  {path}: {{clients: [{prefix}0/24]}}\n" for path, prefix in zip(("first", "second"), ADDRESSES, strict=True)
)
UNCAPPED = f"{_PATHS}rules: []\n"
_CROWD = f"  - {{name: crowd, paths: [first], throttle: {{rate: {CAP} bit/s, share: path}}}}\n"
CAPPED = f"{_PATHS}rules:\n{_CROWD}"
"""A policy that caps the crowd's first path, all its subflows together."""
# Without anticipation: with anticipation, the entry exists before the join whose reaction is measured. The budget
# counts the second path's bytes, whichever rule decides about the first path.
FULL = f"""\
{_PATHS}anticipate: false
rules:
  - {{name: client, paths: [ethernet], throttle: {{rate: 5 Mbit/s, landing: at-once}}}}
{_CROWD}\
  - name: volume
    paths: [first, second]
    budget: {{period: month, steps: [{{after: 100 TB, throttle: {{rate: 1 Mbit/s}}}}]}}
"""
"""A policy with caps, the guard (on by default) and a budget that is never used up."""


def settings_file(testbed: Testbed, policy: Path) -> Path:
    """Write the throttler's settings, with *policy*, a new ledger and the probe's port. Return the file's path."""
    settings = {
        "listen_ports": [PROXY_PORT, PROBE_PORT],
        "netfilter": "iptables",
        "ledger": str(testbed.directory / "ledger.sqlite"),
    }
    return write_throttler_config(testbed["proxy"], policy, settings=settings)
