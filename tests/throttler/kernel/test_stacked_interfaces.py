# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for stacked interfaces: the kernel's information about them, and the warning of ``check`` and of the start."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from mptcp_lab.testbed import LiveNode
from mptcp_lab.testbed.features import missing
from mptcp_lab.testbed.services import start_throttler, write_throttler_config
from mptcp_throttler.kernel.tc.link import find_link, read_lower_interfaces

pytestmark = pytest.mark.kernel


@pytest.fixture
def links(host: LiveNode) -> Iterator[LiveNode]:
    """Interface s0, whose other end s1 is a port of the bridge sbr0."""
    for command in ("add s0 type veth peer name s1", "add sbr0 type bridge", "set s1 master sbr0"):
        host.run(["ip", "link", *command.split()])
    yield host
    host.run(["sh", "-c", "ip link del s0; ip link del sbr0"])


def lower_interfaces(host: LiveNode, *names: str) -> dict[str, set[str]]:
    with host.entered():
        found = read_lower_interfaces()
    return {name: found[name] for name in names}


def test_bridge_is_stacked_on_its_ports_and_veth_on_no_interface(links: LiveNode) -> None:
    # The testbed's own interfaces are veths whose other ends are in other network namespaces.
    assert lower_interfaces(links, "s0", "s1", "sbr0", "wan0") == {
        "s0": set(),
        "s1": set(),
        "sbr0": {"s1"},
        "wan0": set(),
    }


@pytest.mark.parametrize("kind", ["macvlan", "vlan"])
def test_macvlan_and_vlan_are_stacked_on_their_interface(links: LiveNode, kind: str) -> None:
    if (reason := missing(kind)) is not None:
        # Skip in CI, too: the throttler does not need this kind, and the bridge tests the rest.
        pytest.skip(f"NOT TESTED: {reason}")
    number = ["id", "10"] if kind == "vlan" else []
    links.run(["ip", "link", "add", "link", "s0", "name", "s0.10", "type", kind, *number])
    assert lower_interfaces(links, "s0.10", "s0") == {"s0.10": {"s0"}, "s0": set()}
    with links.entered():
        upper = find_link("s0.10")
    assert upper is not None
    assert (upper.name, upper.kind) == ("s0.10", kind)


def test_check_and_start_warn_of_a_bridge_and_its_port(links: LiveNode, require: object) -> None:
    require("htb", "nftables")  # type: ignore[operator]
    policy = links.directory / "policy.yaml"
    policy.write_text("version: 1\nrules: []\n")
    config = write_throttler_config(links, policy, interfaces=("sbr0", "s1"), settings={"netfilter": "nftables"})
    words = "warning: interfaces: sbr0 is stacked on s1, and packets of sbr0 pass both: "
    assert words in links.run([links.program("mptcp-throttler"), "check", "--config", str(config)]).stderr
    throttler = start_throttler(links, config)
    throttler.process.signal(signal.SIGTERM)
    assert throttler.process.wait(60) == 0
    assert throttler.process.output().count(words) == 1
