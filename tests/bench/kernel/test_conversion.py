# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for Table 1 on real packets: each request is found on both sides of the proxy, and leaves after its arrival."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from rich.console import Console
from ssh_hosts import plain
from ssh_hosts import start as start_ssh_hosts

from mptcp_bench.paper import session
from mptcp_bench.paper.parameters import Chosen
from mptcp_bench.paper.results import MPTCP, TCP
from mptcp_bench.wire.packets import CaptureError
from mptcp_bench.wire.workload import Workload, measure, squid_configuration
from mptcp_lab.remote import read_inventory, remote_lab
from mptcp_lab.testbed import TWO_PATHS_TWO_INTERFACES, Lab, Testbed, lab_of
from mptcp_lab.testbed.services import Origin, Proxy, start_origin, start_proxy

pytestmark = pytest.mark.kernel
SIZES = (1024,)
LONG = 20.0
"""Maximum length of an interval of a working proxy in seconds, however busy the machine is."""
NEEDED = ("squid", "apache2", "curl", "mptcpize", "tcpdump", "gcc")


@dataclass(frozen=True)
class Setup:
    lab: Lab
    origin: Origin
    proxy: Proxy

    @classmethod
    def on(cls, testbed: Testbed, *, shipped: bool = False) -> Setup:
        lab = lab_of(testbed)
        origin = start_origin(lab.origin, {f"{size}.bin": size for size in SIZES}, ports=(80,))
        return cls(
            lab, origin, start_proxy(lab.proxy) if shipped else start_proxy(lab.proxy, squid_configuration(lab.proxy))
        )


@pytest.fixture(scope="module")
def setup(make_module_testbed: Callable[..., Testbed], require: Callable[..., None]) -> Setup:
    require(*NEEDED)
    # With two interfaces, data may arrive on one and leave on the other, so that two capture files are needed.
    return Setup.on(make_module_testbed(TWO_PATHS_TWO_INTERFACES))


def test_every_request_is_matched_and_no_interval_is_negative(setup: Setup) -> None:
    measured = measure(setup.lab, setup.proxy.url(), setup.origin, Workload("test", 20, 1024), multipath=True).exchanges
    assert len(measured) == 20
    for exchange in measured:
        assert exchange.multipath
        assert 0 < exchange.answer < exchange.syn_whole
        assert 0 < exchange.syn_own < exchange.request < LONG
        assert exchange.down
        assert all(0 < seconds < LONG for seconds in exchange.down)


@pytest.mark.nightly
def test_a_connection_to_the_origin_that_is_used_again_is_no_data_point(
    testbed: Testbed, require: Callable[..., None]
) -> None:
    require(*NEEDED)
    setup = Setup.on(testbed, shipped=True)
    with pytest.raises(CaptureError, match="open no connection of their own with the origin"):
        measure(setup.lab, setup.proxy.url(), setup.origin, Workload("test", 5, 1024), multipath=True)


@pytest.mark.nightly
def test_hosts_reached_by_ssh_alone(make_testbed: Callable[..., Testbed], require: Callable[..., None]) -> None:
    require(*NEEDED, "sshd", "ssh")
    hosts = start_ssh_hosts(make_testbed(plain()))
    found = session.scenario(
        "table1",
        Chosen.of({"repetitions": "1"}, emulated=False),
        quick=True,
        hosts=lambda: remote_lab(read_inventory(hosts.inventory())),
    )
    with hosts.core.entered():
        findings = found.run(Console(quiet=True), 1, True, {})

    # A real origin's link has no qdisc of ours that slows it.
    runs = findings.data["runs"]
    assert {run["case"] for run in runs} == {MPTCP, TCP}, findings.wrong
    for run in runs:
        assert set(run["distributions"]) == {"syn up", "syn-whole up", "data up", "data down", "stream up", "bulk down"}
        assert all(0 < seconds < LONG for values in run["distributions"].values() for seconds in values)
    hosts.until_unchanged()
