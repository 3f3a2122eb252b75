# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel tests of caps, modes and budgets share: the two paths, a download, and how a throttler ends."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from leftovers import nothing_left

from mptcp_lab.testbed import LiveNode, Program, Testbed
from mptcp_lab.testbed.services import (
    Proxy,
    Throttler,
    mptcp_command,
    start_proxy,
    start_throttler,
    throttler_mounts,
    wait_until,
    write_throttler_config,
)
from mptcp_lab.testbed.system_state import State, whole_state

PATHS = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24, "fd77:1::/64"]}
  wifi: {clients: [10.77.2.0/24, "fd77:2::/64"]}
"""
UNCAPPED = PATHS + "rules: []\n"


def goes_on(throttler: Throttler, times: int = 2) -> None:
    """Wait until *throttler* has compared all that it has with the kernel so often: what comes by itself has come."""

    def compared() -> int:
        return int(throttler.status()["counters"]["observers"]["resyncs"])

    before = compared()
    wait_until(lambda: compared() >= before + times, "the throttler goes on", process=throttler.process)


@dataclass
class ThrottledSite:
    """A testbed with a proxy and a throttler's configuration; its policy is changed by writing it anew."""

    testbed: Testbed
    proxy: Proxy
    policy: Path
    config: Path
    latest: Throttler | None = field(default=None, init=False, kw_only=True)
    before: State = field(default_factory=dict, init=False, kw_only=True)
    """What was there before the first throttler."""

    @classmethod
    def on(cls, testbed: Testbed, *more: Any, settings: dict[str, Any] | None = None) -> Self:
        """Start the proxy on *testbed*; *more* are the fields of a subclass."""
        policy = testbed.directory / "policy.yaml"
        config = write_throttler_config(testbed["proxy"], policy, settings=settings or {})
        policy.write_text(UNCAPPED)
        site = cls(testbed, start_proxy(testbed["proxy"]), policy, config, *more)
        site.before = site.state()
        return site

    @property
    def node(self) -> LiveNode:
        return self.testbed["proxy"]

    def state(self) -> State:
        """Return the whole state of the proxy, less Squid's processes, which come and go."""
        run = Path(throttler_mounts(self.node)["/run/mptcp-throttler"])
        return whole_state(self.node, run, more=(), besides=(self.proxy.process.pid,))

    def start(self, policy: str) -> Throttler:
        """Start a throttler; one that a failed test left running is ended, so that the failure stays that test's."""
        if self.latest is not None and self.latest.process.running:
            self.latest.process.kill()
            self._cleaned()
        self.policy.write_text(policy)
        self.latest = start_throttler(self.node, self.config)
        return self.latest

    def reload(self, throttler: Throttler, policy: str) -> None:
        self.policy.write_text(policy)
        throttler.process.signal(signal.SIGHUP)

    def curl(self, url: str, *arguments: str, family: int = 4) -> list[str]:
        """Return the command of a client that gets *url* over Multipath TCP through the proxy."""
        return mptcp_command(
            ["curl", "-s", "-m", "300", "-o", "/dev/null", *arguments, "-x", self.proxy.url(family), url]
        )

    def abort(self, client: Program) -> None:
        """End a download so that its connection is gone at once.

        Without the resets, a client that had read all leaves the proxy with two subflows of window zero for a minute.
        """
        client.kill()
        self.testbed["client"].run(["ss", "-tK"])

    def stopped(self, throttler: Throttler, *, keeper: bool = False) -> None:
        """Stop *throttler* as systemd would; it must end well, and leave nothing.

        *keeper*: connections go on that need the keeper of the path manager, which is still there then.
        """
        throttler.process.signal(signal.SIGTERM)
        assert throttler.process.wait(60) == 0, throttler.process.output()
        assert "Traceback" not in throttler.process.output()
        nothing_left(self.before, self.state, keeper=keeper)

    def cleanup(self) -> str:
        """Run ``mptcp-throttler cleanup``, which must succeed and leave nothing; return what it says."""
        said = self._cleaned()
        nothing_left(self.before, self.state)
        return said

    def _cleaned(self) -> str:
        argv = [self.node.program("mptcp-throttler"), "cleanup", "--config", str(self.config)]
        cleaned = self.node.popen(argv, name="throttler-cleanup", mounts=throttler_mounts(self.node))
        assert cleaned.wait(60) == 0, cleaned.output()
        return cleaned.output()
