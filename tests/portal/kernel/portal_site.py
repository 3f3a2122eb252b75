# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers of the portal's kernel tests: shipped Squid, a throttler, the portal without privileges, and a client."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from persistent_connection import CHECK, Connection

from mptcp_lab.testbed import LiveNode, Process, Testbed
from mptcp_lab.testbed.services import (
    PROXY_PORT,
    Proxy,
    Throttler,
    start_proxy,
    start_throttler,
    wait_until,
    write_throttler_config,
)

CHECK_PORT, PAGE_PORT, CAPTIVE_PORT = 3180, 3181, 3182
CONNECTIONS = 24
"""Number of connections. The kernel distributes them to the workers by a hash; with this many, each of two or four
workers almost certainly gets a connection."""
NOBODY = ["setpriv", "--reuid=65534", "--regid=0", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
"""Command prefix that runs the portal like its unit: nobody, in the status socket's group (root), unprivileged."""
PATHS = """\
version: 1
paths:
  Wi-Fi: {clients: [10.77.1.0/24, "fd77:1::/64"]}
  LTE: {clients: [10.77.2.0/24, "fd77:2::/64"]}
"""
UNCAPPED = PATHS + "rules: []\n"
LTE_CAPPED = PATHS + "rules:\n  - {name: evening, paths: [LTE], throttle: {rate: 5 Mbit/s}}\n"
VOLUME = """\
rules:
  - name: month
    budget: {period: month, per: client, count: both, steps: [{after: %s, throttle: {rate: 8 Mbit/s}}]}
"""
PORTAL = """\
status_socket: {socket}
proxy: {{address: {address}, name: Proxy at home}}
onboarding:
  listen: {address}:3181
  profile: {{wifi: Home, apn: internet}}
captive_portal: {{listen: "{address}:3182", behind: [{address}/32]}}
"""


@dataclass
class PortalSite:
    """A testbed with a proxy; a throttler and a portal are started on demand."""

    testbed: Testbed
    proxy: Proxy
    policy: Path
    throttler_config: Path
    portal: Process | None = field(default=None, init=False)

    @classmethod
    def create(cls, testbed: Testbed) -> Self:
        node = testbed["proxy"]
        # The portal's user must be able to reach the status socket.
        testbed.directory.chmod(0o755)
        policy = testbed.directory / "policy.yaml"
        policy.write_text(UNCAPPED)
        settings = {"ledger": str(testbed.directory / "ledger.sqlite")}
        return cls(testbed, start_proxy(node), policy, write_throttler_config(node, policy, settings=settings))

    @property
    def node(self) -> LiveNode:
        return self.testbed["proxy"]

    @property
    def client(self) -> LiveNode:
        return self.testbed["client"]

    @property
    def status_socket(self) -> Path:
        return self.testbed.directory / "proxy-throttler-run" / "status.sock"

    def ends(self, connection: Connection) -> str:
        """Return the ends of an IPv4 *connection* as Squid sends them to the portal."""
        return "{} {} {} {}".format(*connection.end, self.node.service_address(), PROXY_PORT)

    def start_portal(self) -> Process:
        text = PORTAL.format(socket=self.status_socket, address=self.node.service_address())
        config = self.node.write("portal.yaml", text)
        command = [*NOBODY, self.node.program("mptcp-portal"), "run", "--config", str(config)]
        portal = self.portal = self.node.popen(command)
        # As in the unit, the portal logs this line when Squid has found it.
        wait_until(lambda: "the check page on" in portal.output(), "the portal answers", process=portal, timeout=60)
        return portal

    def wait_for_all_workers(self, node: LiveNode | None = None) -> None:
        """Wait until each of Squid's workers has found the portal, after a first request to each worker.

        *node*: the client that sends the requests; by default, the testbed's client.
        """

        def all_workers_answer() -> bool:
            answers = []
            for _ in range(CONNECTIONS):
                with Connection(node or self.client, self.node.service_address()) as client:
                    answers.append(client.get(CHECK)[0])
            return set(answers) == {200}

        wait_until(all_workers_answer, "Squid's workers have found the portal", timeout=90)

    def start_throttler(self, policy: str = UNCAPPED) -> Throttler:
        self.policy.write_text(policy)
        throttler = start_throttler(self.node, self.throttler_config)
        self.status_socket.parent.chmod(0o755)
        return throttler

    @contextmanager
    def run_throttler(self, policy: str = UNCAPPED) -> Iterator[Throttler]:
        """Run a throttler with *policy* while the block runs."""
        throttler = self.start_throttler(policy)
        try:
            yield throttler
        finally:
            throttler.process.signal(signal.SIGTERM)
            throttler.process.wait(60)

    def reload(self, throttler: Throttler, policy: str) -> None:
        self.policy.write_text(policy)
        throttler.process.signal(signal.SIGHUP)
