# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the base chains of the upload table: their names, and the removal of a predecessor's chains."""

from __future__ import annotations

import re

import pytest

from mptcp_throttler.shaping.commands import NftTable
from mptcp_throttler.shaping.model import Ownership

NFT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9/_.-]*")
"""The pattern ``string`` in nftables' src/scanner.l. It is the same in all releases."""


def chains(*interfaces: str) -> dict[str, str | None]:
    return NftTable(Ownership(), interfaces).base_chains()


def test_chain_name_does_not_depend_on_the_order_of_interfaces() -> None:
    """Defect: chains were numbered, so another order of the interfaces moved a chain to another interface."""
    assert chains("wan0", "wan1") == chains("wan1", "wan0") == chains("wan0") | chains("wan1")


@pytest.mark.parametrize("interface", ["eth0.10", "br-lan", "wan_0", "0net", "wan@1", "über", '"', "a'b;c"])
def test_every_interface_name_gives_a_valid_chain_name(interface: str) -> None:
    (chain,) = chains(interface)
    assert NFT_NAME.fullmatch(chain)


def test_different_interfaces_have_different_chains() -> None:
    assert len(chains("wan@1", "wan401", "wan_40_1", "wan@", "wan40")) == 5


def test_chains_of_a_predecessor_on_other_interfaces_are_obsolete() -> None:
    table = NftTable(Ownership(), ["wan0", "wan1", "wan2"])
    interface_by_chain = {"ingress_0": "wan0", "ingress_wan0": "wan0", "ingress_wan1": "wan9", "ingress_lte0": "lte0"}
    assert table.obsolete_chains(interface_by_chain, {"wan0", "wan1", "wan9", "lte0"}) == [
        "ingress_0",
        "ingress_wan1",
        "ingress_lte0",
    ]
    # If an interface was renamed, its caps stay until another interface has its name.
    assert table.obsolete_chains({"ingress_wan1": "wan9"}, {"wan0", "wan9"}) == []
    assert table.obsolete_chains({"ingress_wan0": None}, {"wan0"}) == ["ingress_wan0"], (
        "a chain on two interfaces, or on none, was kept"
    )
