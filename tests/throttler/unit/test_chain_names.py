# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the base chains of the upload table: their names, and which chains of a predecessor must be removed."""

from __future__ import annotations

import re

import pytest

from mptcp_throttler.shaping.commands import NftTable
from mptcp_throttler.shaping.model import Ownership

NFT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9/_.-]*")
"""The pattern ``string`` in nftables' src/scanner.l. It is the same in all releases."""


def chains(*interfaces: str) -> dict[str, str | None]:
    return NftTable(Ownership(), interfaces).base_chains()


def test_a_chain_is_named_after_its_interface_wherever_it_stands() -> None:
    """Defect: chains were numbered, so that another order or a shorter list gave a chain to another interface."""
    assert chains("wan0", "wan1") == chains("wan1", "wan0") == chains("wan0") | chains("wan1")


@pytest.mark.parametrize("interface", ["eth0.10", "br-lan", "wan_0", "0net", "wan@1", "über", '"', "a'b;c"])
def test_every_name_of_an_interface_gives_one_that_nftables_takes(interface: str) -> None:
    (chain,) = chains(interface)
    assert NFT_NAME.fullmatch(chain)


def test_two_interfaces_never_have_one_chain() -> None:
    assert len(chains("wan@1", "wan401", "wan_40_1", "wan@", "wan40")) == 5


def test_of_a_predecessors_chains_those_go_that_are_elsewhere() -> None:
    table = NftTable(Ownership(), ["wan0", "wan1", "wan2"])
    hooked = {"ingress_0": "wan0", "ingress_wan0": "wan0", "ingress_wan1": "wan9", "ingress_lte0": "lte0"}
    assert table.unwanted_chains(hooked, {"wan0", "wan1", "wan9", "lte0"}) == [
        "ingress_0",
        "ingress_wan1",
        "ingress_lte0",
    ]
    # If an interface was renamed, its caps stay until another interface has its name.
    assert table.unwanted_chains({"ingress_wan1": "wan9"}, {"wan0", "wan9"}) == []
    assert table.unwanted_chains({"ingress_wan0": None}, {"wan0"}) == ["ingress_wan0"], "on two interfaces, or none"
