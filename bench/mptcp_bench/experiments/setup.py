# SPDX-License-Identifier: GPL-2.0-or-later
"""A testbed with all services, for successive transfers under policies that change; the cap of conf/policy.yaml."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mptcp_common.problems import DocumentError
from mptcp_lab.testbed import LiveNode, Testbed, TestbedError, services
from mptcp_lab.testbed.features import missing
from mptcp_lab.testbed.services import REPOSITORY, Origin, Proxy, Throttler, wait_until
from mptcp_throttler.policy.load import load_policy

POLICY = REPOSITORY / "conf" / "policy.yaml"
FILE_SIZE = 500_000_000
"""Size of a file in bytes. A client is stopped before it has transferred the whole file."""
TRANSFER_TIMEOUT = 120
"""Time limit of a transfer in seconds."""
BACKENDS = {"iptables": ("iptables-legacy", "ipset"), "nftables": ("nftables",)}
"""The throttler's netfilter adapters, and the features of this host that each adapter needs."""


def ethernet_cap(policy: Path = POLICY) -> int:
    """Return the cap (ceil) in bits/s of the first rule of *policy* that throttles Ethernet. Raises TestbedError."""
    try:
        rules = load_policy(policy.read_text(), str(policy)).rules
    except (OSError, DocumentError) as error:
        raise TestbedError(f"read the policy: {error}") from error
    for rule in rules:
        if rule.throttle is not None and (rule.paths is None or "ethernet" in rule.paths):
            return rule.throttle.ceil
    raise TestbedError(f"{policy}: no rule throttles the path 'ethernet', so that no cap can be shown")


def lacking(adapter: str) -> str | None:
    """Return why this host cannot use the throttler's netfilter *adapter*; None if it can."""
    return next((why for feature in BACKENDS[adapter] if (why := missing(feature)) is not None), None)


@dataclass(frozen=True, slots=True)
class ProxySite:
    """A testbed with a running proxy and origin."""

    testbed: Testbed
    proxy: Proxy
    origin: Origin


@dataclass(frozen=True, slots=True)
class Setup:
    """A testbed and the client's commands for a transfer. The command of an unused direction is empty."""

    testbed: Testbed
    throttler: Throttler
    policy: Path
    download: Sequence[str] = ()
    upload: Sequence[str] = ()

    @classmethod
    def start(
        cls, testbed: Testbed, policy_text: str, *, down: bool = True, up: bool = False, control: str | None = None
    ) -> Self:
        """Start all services on *testbed*. *control* is the proxy's congestion control towards clients."""
        host = testbed["proxy"]
        policy = host.write("policy.yaml", policy_text)
        throttler = services.start_throttler(host, services.write_throttler_config(host, policy))
        proxy = services.start_proxy(host, control=control)
        curl = services.mptcp_command(["curl", "-s", "-m", str(TRANSFER_TIMEOUT), "-o", "/dev/null", "-x", proxy.url()])
        download: list[str] = []
        if down:
            download = [*curl, services.start_origin(testbed["origin"], {"big": FILE_SIZE}).url("big")]
        upload: list[str] = []
        if up:
            body = testbed.directory / "body"
            with open(body, "wb") as file:
                file.truncate(FILE_SIZE)
            upload = [*curl, "-H", "Expect:", "-T", str(body), services.start_sink(testbed["origin"]).url()]
        return cls(testbed, throttler, policy, download, upload)

    @property
    def client(self) -> LiveNode:
        return self.testbed["client"]

    @property
    def proxy(self) -> LiveNode:
        return self.testbed["proxy"]

    def load(self, policy_text: str) -> None:
        """Write another policy and make the throttler load it now."""
        self.policy.write_text(policy_text)
        self.throttler.process.signal(signal.SIGHUP)

    def load_while_idle(self, policy_text: str, rules: Sequence[str]) -> None:
        """Wait until no connection exists, load a policy that has *rules*, and wait until it is in force."""
        wait_until(lambda: not self.throttler.status()["connections"], "the last connection has ended", timeout=60)
        self.load(policy_text)
        wait_until(lambda: self.throttler.status()["policy"]["rules"] == list(rules), "the policy is in force")
