# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the upload table of a throttler that starts after a kill with other interfaces: each gets one chain."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence

import pytest

from mptcp_lab.testbed import LiveNode
from mptcp_throttler.kernel.netfilter.nftables import NftablesNetfilter
from mptcp_throttler.kernel.tc.htb import IfbTrafficControl
from mptcp_throttler.shaping.commands import NftTable
from mptcp_throttler.shaping.model import Ownership

pytestmark = pytest.mark.kernel


@pytest.fixture
def links(host: LiveNode, require: object) -> Iterator[LiveNode]:
    """Interfaces u0, u1 and u@2 in the namespace of *host*. nft(8) does not accept u@2 in the name of a chain."""
    require("htb", "nftables", "ifb", "nft-ingress")  # type: ignore[operator]
    for name, peer in (("u0", "v0"), ("u1", "v1"), ("u@2", "v2")):
        host.run(["ip", "link", "add", name, "type", "veth", "peer", peer])
    yield host
    with host.entered():
        asyncio.run(create_table(["u0"], stop=True))
    host.run(["sh", "-c", "for each in v0 v1 v2; do ip link del $each; done"])


async def create_table(interfaces: Sequence[str], *, stop: bool = False) -> list[str]:
    """Create the table as the daemon does at its start. Leave it in place, as after a kill, unless *stop*."""
    tc, netfilter = IfbTrafficControl(Ownership()), NftablesNetfilter(NftTable(Ownership(), interfaces))
    await tc.prepare()
    await netfilter.prepare()
    problems = await netfilter.check()
    if stop:
        await netfilter.remove()
        await tc.restore()
    netfilter.close()
    return problems


def hooked_interfaces(host: LiveNode) -> list[str]:
    """Return the interface of each base chain."""
    listed = host.run(["nft", "list", "table", "netdev", "mptcp_throttler"]).stdout
    devices = re.findall(r"hook ingress devices? (?:= \{)?([^}]*?)\}? priority", listed)
    return sorted(name.strip('" ') for each in devices for name in each.split(","))


@pytest.mark.nightly(except_for=("[u1-u0]", "[u@2-u0-u1]"))
@pytest.mark.parametrize("interfaces", [["u1", "u0"], ["u0"], ["u1"], ["u1", "u@2"], ["u@2", "u0", "u1"]], ids="-".join)
def test_start_with_other_interfaces_creates_one_chain_per_interface(links: LiveNode, interfaces: list[str]) -> None:
    """Defect: u1's chain stayed, or the table was refused (before Linux 6.4), or u0 stayed hooked in u1's chain."""
    with links.entered():
        asyncio.run(create_table(["u0", "u1"]))
        assert hooked_interfaces(links) == ["u0", "u1"]
        assert asyncio.run(create_table(interfaces)) == []
    assert hooked_interfaces(links) == sorted(interfaces)


def test_interface_with_a_swapped_name_gets_its_own_chain(links: LiveNode) -> None:
    with links.entered():
        asyncio.run(create_table(["u0", "u1"]))
        for words in ("u0 name u9", "u1 name u0"):
            links.run(["ip", "link", "set", *words.split()])
        assert asyncio.run(create_table(["u0"])) == []
        assert hooked_interfaces(links) == ["u0"]
        assert asyncio.run(create_table(["u0", "u9"])) == []
    assert hooked_interfaces(links) == ["u0", "u9"]


def test_chains_numbered_by_an_earlier_version_are_replaced(links: LiveNode) -> None:
    for number in (0, 1):
        hook = f'type filter hook ingress device "u{number}" priority filter'
        links.run(["nft", "add table netdev mptcp_throttler"])
        links.run(["nft", f"add chain netdev mptcp_throttler ingress_{number} {{ {hook}; policy accept; }}"])
    with links.entered():
        assert asyncio.run(create_table(["u1", "u0"])) == []
    assert hooked_interfaces(links) == ["u0", "u1"]
