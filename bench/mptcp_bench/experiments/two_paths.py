"""Ethernet and Wi-Fi with all services, and their faults: where the guard and the steering modes are shown."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.plan import tbf
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.recorder import Recorder
from mptcp_lab.testbed.services import (
    Throttler,
    mptcp_command,
    start_origin,
    start_proxy,
    start_throttler,
    wait_until,
    write_throttler_config,
)

DEVICES = ("eth0", "wlan0")
"""Of the client: Ethernet, Wi-Fi."""
QUEUE_MS = 50
FILE_SIZE = 1_000_000_000
"""More than a download gets done; the client is stopped."""


def two_paths(rates: Sequence[int], rtts: Sequence[float]) -> list[EmulatedPath]:
    """Return Ethernet and Wi-Fi with *rates* in Mbit/s and *rtts* in milliseconds."""
    return [
        EmulatedPath(name, *[Direction(rate * 1_000_000, round(rtt * 500)) for _ in ("down", "up")])
        for name, rate, rtt in zip(("ethernet", "wifi"), rates, rtts, strict=True)
    ]


def hop_shaper(rate: float, device: str) -> list[str]:
    """Return the command that sets the rate, Mbit/s, of a hop: below netem where that emulates the path."""
    replace = f"tc qdisc replace dev {device}"
    shaper = " ".join(tbf(round(rate * 1_000_000), QUEUE_MS))
    return ["sh", "-c", f"{replace} parent 1:1 handle 10: {shaper} 2>/dev/null || {replace} root {shaper}"]


@contextmanager
def wifi_dropping(testbed: Testbed, statement: str = "drop") -> Iterator[None]:
    """Let Wi-Fi's router do what nft(8)'s *statement* says to every packet, both ways."""
    table = f"table inet fault {{ chain forward {{ type filter hook forward priority -10; {statement}; }}; }}"
    with testbed["hop2"].changed(["nft", table], ["nft", "delete", "table", "inet", "fault"]):
        yield


@contextmanager
def slow_origin(testbed: Testbed, rate: int) -> Iterator[None]:
    """Let the origin send *rate* Mbit/s."""
    slow = ["tc", "qdisc", "replace", "dev", "eth0", "root", *tbf(rate * 1_000_000, QUEUE_MS)]
    with testbed["origin"].changed(slow, ["tc", "qdisc", "del", "dev", "eth0", "root"]):
        yield


@dataclass(frozen=True, slots=True)
class TransferScene:
    """A testbed with a throttler whose policy changes between transfers."""

    testbed: Testbed
    throttler: Throttler
    policy: Path

    @property
    def client(self) -> LiveNode:
        return self.testbed["client"]

    def load(self, policy_text: str) -> None:
        """Have another policy for the transfers to come."""
        wait_until(lambda: not self.throttler.status()["connections"], "the last connection is gone", timeout=60)
        self.policy.write_text(policy_text)
        self.throttler.process.signal(signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class DownloadScene(TransferScene):
    """A testbed with all services, for one download after another, each under a policy of its own."""

    download: Sequence[str]

    @classmethod
    def built(cls, testbed: Testbed, policy_text: str) -> Self:
        policy = testbed.directory / "policy.yaml"
        policy.write_text(policy_text)
        throttler = start_throttler(testbed["proxy"], write_throttler_config(testbed["proxy"], policy))
        proxy = start_proxy(testbed["proxy"])
        origin = start_origin(testbed["origin"], {"big": FILE_SIZE})
        download = ["curl", "-s", "-m", "60", "-o", "/dev/null", "-x", proxy.url(), origin.url("big")]
        return cls(testbed, throttler, policy, mptcp_command(download))

    @contextmanager
    def downloading(self, *more: str) -> Iterator[tuple[Process, Recorder]]:
        """A download, with *more* arguments for curl(1), and what it brings over each path."""
        process = self.client.popen([*self.download, *more])
        try:
            with Recorder(self.client, DEVICES) as recorder:
                yield process, recorder
        finally:
            process.kill()
