# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for OpenVPN over Multipath TCP, through the proxy with CONNECT or to a server on the proxy's host.

The tests cover caps, budgets and the loss of a path. They compare the content of a download inside the tunnel.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from throttling import PATHS, ThrottledSite

from mptcp_lab.testbed import Process, Testbed
from mptcp_lab.testbed.openvpn import OpenVpn, over_tcp
from mptcp_lab.testbed.services import PROXY_PORT, Origin, Throttler, start_origin, wait_until

pytestmark = pytest.mark.kernel
CAP = 4_000_000
POLICY = (
    PATHS
    + f"""\
budgets: {{month: {{period: month, per: path, count: down, steps: [{{after: 5 GB, throttle: {{rate: 1 Mbit/s}}}}]}}}}
rules:
  - {{name: cap, paths: [ethernet], throttle: {{rate: {CAP} bit/s}}, lift_last: false}}
  - {{name: volume, budget: month}}
"""
)
BIG = "big.bin"
FILES = {BIG: 16_000_000}
BURST = 200_000
"""Approximate number of bytes that a cap lets pass in one burst."""


@dataclass
class Site(ThrottledSite):
    """The node of OpenVPN's server, and the files that clients download from it through the tunnel."""

    server: str
    """Node of the OpenVPN server: ``origin``, to which the proxy connects, or ``proxy``, to which the client connects.
    """
    files: Origin
    download_count: int = field(default=0, init=False, kw_only=True)

    def vpn(self) -> AbstractContextManager[OpenVpn]:
        node = self.testbed[self.server]
        via = None if self.server == "proxy" else (self.node.service_address(), PROXY_PORT)
        return over_tcp(self.testbed["client"], node, proxy=via)

    @contextmanager
    def download(self, vpn: OpenVpn) -> Iterator[Callable[[], None]]:
        """Start a download through *vpn*. Yields a function that waits for its end and compares the content."""
        self.download_count += 1
        target = self.testbed.directory / f"download-{self.download_count}"
        argv = ["curl", "-sSf", "-m", "300", "-o", str(target), f"http://{vpn.server_address}/{BIG}"]
        client = self.testbed["client"].popen(argv)
        try:
            wait_until(lambda: _size(target) > 1_000_000, "the download has begun", process=client)
            yield partial(self._check_download, client, target)
        finally:
            client.kill()

    def _check_download(self, client: Process, target: Path) -> None:
        assert client.wait(310) == 0, client.output()
        assert hashlib.sha256(target.read_bytes()).hexdigest() == self.files.digests[BIG]

    def received_bytes(self, device: str) -> int:
        """Return the bytes that the client has received on *device*, with headers."""
        return self.testbed["client"].interface_bytes(device).received

    def received_by_both(self) -> int:
        return self.received_bytes("eth0") + self.received_bytes("wlan0")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.fixture(scope="module", params=["origin", "proxy"], ids=["with-connect", "on-the-proxys-host"])
def site(
    request: pytest.FixtureRequest, make_module_testbed: Callable[..., Testbed], require: Callable[..., None]
) -> Site:
    require("htb", "bpf-pacing", "squid", "apache2", "mptcpize", "curl", "openvpn")
    testbed = make_module_testbed()
    files = start_origin(testbed[request.param], FILES, ports=(80,))
    settings: dict[str, Any] = {"ledger": str(testbed.directory / "ledger.sqlite"), "listen_ports": [PROXY_PORT, 443]}
    return Site.start_on(testbed, request.param, files, settings=settings)


def subflow_counts(throttler: Throttler) -> list[int]:
    """Return the number of subflows of each connection that the throttler knows."""
    return [len(each["subflows"]) for each in throttler.status()["connections"]]


def test_tunnel_has_two_subflows_and_is_capped_and_counted(site: Site) -> None:
    throttler = site.start(POLICY)
    before, counted = site.received_by_both(), site.used()
    with site.vpn() as vpn:
        wait_until(lambda: subflow_counts(throttler) == [2], "the tunnel has both paths")
        with site.download(vpn) as finish:
            began, ethernet_before, wifi_before = (
                time.monotonic(),
                site.received_bytes("eth0"),
                site.received_bytes("wlan0"),
            )
            finish()
            seconds = time.monotonic() - began
            ethernet_bytes = site.received_bytes("eth0") - ethernet_before
            assert 8 * (ethernet_bytes - BURST) < 1.1 * CAP * seconds, "Ethernet exceeded the cap"
            assert ethernet_bytes > BURST, "Ethernet was not used"
            assert site.received_bytes("wlan0") - wifi_before > 2 * ethernet_bytes, "Wi-Fi carried too little"
        received = site.received_by_both() - before
        # Headers, and control messages of both ends, are not counted.
        wait_until(lambda: 0.9 * received < site.used() - counted < received, "the budget has counted the tunnel")
    wait_until(lambda: subflow_counts(throttler) == [], "the tunnel has ended")
    site.stop_cleanly(throttler)


@pytest.mark.nightly(except_for=("[with-connect-eth0]",))
@pytest.mark.parametrize("device", ["eth0", "wlan0"])
def test_download_in_the_tunnel_survives_the_loss_of_a_path(site: Site, device: str) -> None:
    throttler = site.start(PATHS + "rules: [{name: cap, paths: [ethernet, wifi], throttle: {rate: 8 Mbit/s}}]\n")
    # *device* has the initial or the joined subflow, and *other* has the other subflow.
    other = {"eth0": "wlan0", "wlan0": "eth0"}[device]
    with site.vpn() as vpn:
        wait_until(lambda: subflow_counts(throttler) == [2], "the tunnel has both paths")
        with site.download(vpn) as finish:
            with site.testbed["client"].link_down(device):
                before = site.received_bytes(other)
                wait_until(lambda: site.received_bytes(other) > before + 500_000, "the other path carries the download")
            received_before = site.received_bytes(device)
            wait_until(lambda: site.received_bytes(device) > received_before + 100_000, "the path carries data again")
            finish()
    wait_until(lambda: subflow_counts(throttler) == [], "the tunnel has ended")
    site.stop_cleanly(throttler)
