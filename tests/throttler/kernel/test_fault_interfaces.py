# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for interfaces that go down, are renamed, or are removed and created again.

The throttler reports each event once, and when the interface is up again, its caps apply again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from faults import LONG_TIMEOUT, RARE_INTERVAL, repair_seconds, traffic
from throttler_site import POLICY, Site, clients, connection, read_status, running, until

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import Throttler, write_throttler_config

pytestmark = pytest.mark.kernel

INTERFACE_DOWN = "capture on extra0: the interface is down; capturing when the interface is up"
NO_INTERFACE = "there is no interface extra0"


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    """The configuration of a throttler for wan0, which the client uses, and extra0, which the tests change."""
    require("htb", "nftables")
    testbed = make_module_testbed()
    policy = testbed.directory / "policy.yaml"
    # Only debug messages report an action that is retried every second and has failed again.
    settings = {"netfilter": "nftables", "verify_interval": RARE_INTERVAL, "log_level": "debug"}
    config = write_throttler_config(testbed["proxy"], policy, interfaces=("wan0", "extra0"), settings=settings)
    return Site(testbed, "nftables", policy, config)


@pytest.fixture
def throttler(site: Site) -> Iterator[Throttler]:
    """A throttler with extra0 and with traffic on wan0. After the test, no interface is shaped any longer."""
    site.policy.write_text(POLICY)
    create_extra0(site)
    try:
        with running(site) as throttler, connection(site) as ends, traffic(ends):
            until(lambda: clients(site.entries()) == ["10.77.1.2"], timeout=LONG_TIMEOUT)
            yield throttler
            # The changes to extra0 did not affect wan0.
            assert clients(site.entries()) == ["10.77.1.2"]
            assert is_shaped(site, "wan0")
        assert "4d50" not in run(site, "tc qdisc show"), "a qdisc of the throttler remains"
        assert "gso_max_size 3125" not in run(site, "ip -d link show"), "a GSO limit remains"
    finally:
        run(site, "ip link del extra0; ip link del other0; ip link del extra9")


def run(site: Site, command: str) -> str:
    return site.proxy.run(["sh", "-c", command], check=False).stdout


def create_extra0(site: Site, peer: str = "extra1") -> None:
    run(site, f"ip link add extra0 type veth peer {peer}; ip link set {peer} up; ip link set extra0 up")
    # The interface comes up after the command returns, and the tests compare its initial state.
    until(lambda: "state UP" in run(site, "ip link show extra0"), timeout=LONG_TIMEOUT)


def recreate_extra0(site: Site, throttler: Throttler) -> None:
    """Create extra0. If it exists, first remove it and wait until the throttler has noticed."""
    if "extra0" in run(site, "ip link show extra0"):
        reports = throttler.process.output().count(NO_INTERFACE)
        run(site, "ip link del extra0")
        until(lambda: throttler.process.output().count(NO_INTERFACE) > reports, timeout=LONG_TIMEOUT)
    create_extra0(site)


def wait_for_failed_attempts(throttler: Throttler) -> None:
    """Wait until the throttler has failed twice more to open the capture on extra0."""

    def attempts() -> int:
        return throttler.process.output().count("capture on extra0: ")

    before = attempts()
    until(lambda: attempts() >= before + 2, timeout=LONG_TIMEOUT)


def is_shaped(site: Site, name: str) -> bool:
    return "class htb 4d50:10 " in run(site, f"tc class show dev {name}")


def test_interface_that_stays_down_is_reported_once(site: Site, throttler: Throttler) -> None:
    run(site, "ip link set extra0 down")
    until(lambda: "Network is down" in throttler.process.output(), timeout=LONG_TIMEOUT)
    wait_for_failed_attempts(throttler)
    assert throttler.process.output().count("Network is down") == 1
    # The report itself contains "capturing again when ...".
    assert "capturing again" not in throttler.process.output().split("Network is down")[1].replace(
        "capturing again when", ""
    )
    run(site, "ip link set extra0 up")
    until(lambda: "capturing again on extra0" in throttler.process.output(), timeout=LONG_TIMEOUT)
    assert read_status(throttler.socket)["counters"]["observers"]["reopened"] == 1


def test_throttler_starts_with_an_interface_that_is_down(site: Site) -> None:
    site.policy.write_text(POLICY)
    create_extra0(site)
    run(site, "ip link set extra0 down")
    try:
        with running(site) as throttler:
            assert INTERFACE_DOWN in throttler.process.output()
            run(site, "ip link set extra0 up")
            until(lambda: "capturing again on extra0" in throttler.process.output(), timeout=LONG_TIMEOUT)
            assert is_shaped(site, "extra0")
    finally:
        run(site, "ip link del extra0")


def test_recreated_interface_is_shaped_again(site: Site, throttler: Throttler) -> None:
    until(lambda: is_shaped(site, "extra0"), timeout=LONG_TIMEOUT)
    run(site, "ip link del extra0")
    until(lambda: NO_INTERFACE in throttler.process.output(), timeout=LONG_TIMEOUT)
    wait_for_failed_attempts(throttler)
    output = throttler.process.output()
    assert (output.count(NO_INTERFACE), output.count("ERROR"), output.count("differ")) == (1, 0, 0), output
    took = repair_seconds(lambda: recreate_extra0(site, throttler), lambda: is_shaped(site, "extra0"))
    print(f"shaped again after {took:.2f} s")
    until(lambda: "capturing again on extra0" in throttler.process.output(), timeout=LONG_TIMEOUT)


def test_renamed_interface_stays_shaped_and_a_new_one_is_shaped_too(site: Site, throttler: Throttler) -> None:
    until(lambda: is_shaped(site, "extra0"), timeout=LONG_TIMEOUT)
    run(site, "ip link set extra0 down; ip link set extra0 name extra9; ip link set extra9 up")
    until(lambda: f"{NO_INTERFACE}, which is called extra9 now" in throttler.process.output(), timeout=LONG_TIMEOUT)
    assert is_shaped(site, "extra9"), "the renamed interface lost its caps"
    create_extra0(site, "other0")
    until(lambda: is_shaped(site, "extra0"), timeout=LONG_TIMEOUT)
    assert is_shaped(site, "extra9")


def test_interface_removed_from_the_settings_is_restored_after_a_kill(site: Site, require: Any) -> None:
    """Defect: the interface kept its classes, GSO limit and upload rules until the next throttler was stopped."""
    require("ifb", "nft-ingress")
    site.policy.write_text(POLICY.replace("throttle:", "direction: both\n    throttle:"))
    create_extra0(site)
    settings = site.config.read_text()
    before = run(site, "ip -d link show extra0")
    try:
        killed = site.start()
        assert is_shaped(site, "extra0")
        assert "gso_max_size 3125" in run(site, "ip -d link show extra0")
        assert "ingress_extra0" in run(site, "nft list table netdev mptcp_throttler")
        killed.process.kill()
        site.config.write_text(settings.replace(', "extra0"', ""))
        with running(site) as throttler:
            assert "extra0: restored" in throttler.process.output()
            assert "4d50" not in run(site, "tc qdisc show dev extra0")
            assert run(site, "ip -d link show extra0") == before
            assert "rate 5Mbit" in run(site, "tc class show dev wan0")
            table = run(site, "nft list table netdev mptcp_throttler")
            assert ("ingress_wan0" in table, "ingress_extra0" in table) == (True, False)
    finally:
        site.config.write_text(settings)
        run(site, "ip link del extra0")
