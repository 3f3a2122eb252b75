# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers for the kernel tests of caps, modes and budgets: two paths, a download, and the stop of a throttler."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from leftovers import assert_nothing_left

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


def wait_for_comparisons(throttler: Throttler, times: int = 2) -> None:
    """Wait until *throttler* has compared its state with the kernel *times* times.

    The throttler has then repaired all damage that it can repair.
    """

    def comparisons() -> int:
        return int(throttler.status()["counters"]["observers"]["resyncs"])

    before = comparisons()
    wait_until(lambda: comparisons() >= before + times, "the throttler has compared again", process=throttler.process)


@dataclass
class ThrottledSite:
    """A testbed with a proxy and the configuration of a throttler. A test changes the policy by rewriting its file."""

    testbed: Testbed
    proxy: Proxy
    policy: Path
    config: Path
    latest_throttler: Throttler | None = field(default=None, init=False, kw_only=True)
    before: State = field(default_factory=dict, init=False, kw_only=True)
    """The state before the first throttler started."""

    @classmethod
    def start_on(cls, testbed: Testbed, *more: Any, settings: dict[str, Any] | None = None) -> Self:
        """Start the proxy on *testbed*. *more* are the values for the fields of a subclass."""
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
        """Return the whole state of the proxy's host, without Squid's processes, because these start and end."""
        run_directory = Path(throttler_mounts(self.node)["/run/mptcp-throttler"])
        return whole_state(self.node, run_directory, more=(), except_for=(self.proxy.process.pid,))

    def start(self, policy: str) -> Throttler:
        """Start a throttler.

        If a failed test left a throttler running, end that throttler first, so that this test does not fail, too.
        """
        if self.latest_throttler is not None and self.latest_throttler.process.running:
            self.latest_throttler.process.kill()
            self._run_cleanup()
        self.policy.write_text(policy)
        self.latest_throttler = start_throttler(self.node, self.config)
        return self.latest_throttler

    def reload(self, throttler: Throttler, policy: str) -> None:
        self.policy.write_text(policy)
        throttler.process.signal(signal.SIGHUP)

    def curl(self, url: str, *arguments: str, family: int = 4) -> list[str]:
        """Return a client command that downloads *url* over Multipath TCP through the proxy."""
        return mptcp_command(
            ["curl", "-s", "-m", "300", "-o", "/dev/null", *arguments, "-x", self.proxy.url(family), url]
        )

    def abort(self, client: Program) -> None:
        """End a download and reset its sockets, so that its connection ends immediately.

        Without the resets, a client that had stopped reading would leave the proxy with two zero-window subflows for a
        minute.
        """
        client.kill()
        self.testbed["client"].run(["ss", "-tK"])

    def used(self) -> int:
        """Return the bytes in the testbed's ledger. Repeated runs of ``quota`` would load the machine."""
        with closing(sqlite3.connect(self.testbed.directory / "ledger.sqlite")) as ledger:
            return sum(octets for (octets,) in ledger.execute("SELECT octets FROM used"))

    def stop_cleanly(self, throttler: Throttler, *, keeper: bool = False) -> None:
        """Stop *throttler* as systemd would. It must exit with status 0 and restore the initial state.

        *keeper*: remaining connections still need the keeper of the path manager, so the keeper may still run.
        """
        throttler.process.signal(signal.SIGTERM)
        assert throttler.process.wait(60) == 0, throttler.process.output()
        assert "Traceback" not in throttler.process.output()
        assert_nothing_left(self.before, self.state, keeper=keeper)

    def cleanup(self) -> str:
        """Run ``mptcp-throttler cleanup``, which must succeed and restore the initial state. Return its output."""
        output = self._run_cleanup()
        assert_nothing_left(self.before, self.state)
        return output

    def _run_cleanup(self) -> str:
        argv = [self.node.program("mptcp-throttler"), "cleanup", "--config", str(self.config)]
        process = self.node.popen(argv, name="throttler-cleanup", mounts=throttler_mounts(self.node))
        assert process.wait(60) == 0, process.output()
        return process.output()
