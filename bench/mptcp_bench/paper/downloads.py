# SPDX-License-Identifier: GPL-2.0-or-later
"""Make the downloads of a figure on a lab. A download that fell back or had no second subflow is not a data point."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from mptcp_lab.agent.processors import usage
from mptcp_lab.testbed.commands import TestbedError
from mptcp_lab.testbed.host import Lab
from mptcp_lab.testbed.services import Throttler, start_origin, start_proxy, start_throttler, write_throttler_config
from mptcp_lab.testbed.transfer import Observation, download, processors_of, wget

from .measurements import Download, Trial, numbers_of
from .settings import ETHERNET, WIFI, Settings

MAX_SLOWDOWN = 4.0
"""A download is aborted after this multiple of the time on its path, or on Wi-Fi if it uses both, plus 20 s."""


def check(trial: Trial, seen: Observation, digest: str) -> None:
    """Raise TestbedError if a download is not a data point. *digest* is the expected SHA-256."""
    if seen.sha256 != digest:
        raise TestbedError("the received bytes are not those of the origin (SHA-256)")
    if seen.protocol.requested != 1:
        raise TestbedError(f"the client requested {seen.protocol.requested} Multipath TCP connections instead of one")
    if not trial.path and (fault := seen.protocol.complaint(multipath=True)):
        raise TestbedError(fault)


def policy(lab: Lab, cap: int) -> str:
    """Return the policy of Figures 6 and 7 for *lab*'s client: *cap* (bits/s) for Ethernet once Wi-Fi has joined.

    The policy is JSON, which is valid YAML.
    """
    paths = {path.name: {"clients": [lab.client.address(path.device, 4)]} for path in lab.paths}
    rule = {
        "name": "spare-ethernet",
        "paths": [ETHERNET],
        "when": {"min_subflows": 2},
        "throttle": {"rate": f"{cap} bit/s"},
    }
    return json.dumps({"version": 1, "paths": paths, "rules": [rule]}, indent=1)


@contextmanager
def configure(lab: Lab, trial: Trial) -> Iterator[None]:
    """Set the client's receive buffer and MTU for *trial*; restore them at the end of the scope."""
    client = lab.client
    with ExitStack() as stack:
        if trial.receive_buffer is not None:
            key = "net.ipv4.tcp_rmem"
            smallest, initial, _ = map(int, client.run(["sysctl", "-n", key]).stdout.split())
            largest = trial.receive_buffer
            stack.enter_context(client.sysctl(key, f"{min(smallest, largest)} {min(initial, largest)} {largest}"))
        if trial.mtu is not None:
            for path in lab.paths:
                stack.enter_context(client.set_mtu(path.device, trial.mtu))
        yield


class Downloads:
    """Makes the downloads of one figure on a lab."""

    def __init__(
        self,
        lab: Lab,
        trials: Sequence[Trial],
        settings: Settings,
        check_emulation: Callable[[], None] = lambda: None,
        *,
        interval: float = 0.1,
    ) -> None:
        """Start origin and proxy. *interval* is the time between two samples in seconds. Raises TestbedError."""
        self._lab, self._settings, self._interval = lab, settings, interval
        self.check_emulation = check_emulation
        sizes = sorted({trial.size for trial in trials})
        self._origin = start_origin(lab.origin, {f"{size}.bin": size for size in sizes}, ports=(80,))
        self._proxy = start_proxy(lab.proxy)
        self._throttler: Throttler | None = None

    def download(self, trial: Trial) -> Download:
        """Make a download of *trial*. Raises TestbedError if it is not a data point."""
        lab, name = self._lab, f"{trial.size}.bin"
        try:
            source = lab.client.address(lab.path(trial.path).device) if trial.path else None
        except KeyError as error:
            # The interface has lost its address. The first argument is the message; str() would quote it.
            raise TestbedError(str(error.args[0])) from None
        proxy = None if trial.path else self._proxy
        argv = wget(self._origin.url(name), proxy=proxy, source=source, multipath=True)
        with configure(lab, trial):
            self._throttle(trial)
            readings_before = [processors_of(host) for host in (lab.client, lab.proxy)]
            timeout = MAX_SLOWDOWN * trial.size * 8 / self._settings.rate(trial.path or WIFI) + 20
            seen = download(lab, argv, timeout=timeout, interval=self._interval)
            readings_after = [processors_of(host) for host in (lab.client, lab.proxy)]
        check(trial, seen, self._origin.digests[name])
        usages = [usage(*readings) for readings in zip(readings_before, readings_after, strict=True)]
        return numbers_of(trial, seen, usages)

    def _throttle(self, trial: Trial) -> None:
        if self._throttler is not None and (trial.fresh_throttler or not trial.throttled):
            self._throttler.process.stop()
            self._throttler = None
        if self._throttler is None and trial.throttled:
            proxy = self._lab.proxy
            rules = proxy.write("paper-policy.yaml", policy(self._lab, trial.cap))
            config = write_throttler_config(proxy, rules, interfaces=self._lab.proxy_devices)
            self._throttler = start_throttler(proxy, config)
