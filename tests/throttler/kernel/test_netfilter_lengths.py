# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the netfilter rules mark only segments with data, which they recognize from the packet length."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from ipaddress import ip_address

import pytest
from marked_flows import OWNERSHIP, TARGET

from mptcp_lab.testbed import LiveNode
from mptcp_throttler.kernel.netfilter.backends import open_netfilter
from mptcp_throttler.kernel.netfilter.nftables import NftablesNetfilter
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.commands import NftTable

pytestmark = pytest.mark.kernel

FOUR_TUPLES = (FourTuple(ip_address("10.77.8.2").packed, 3128, ip_address("10.77.1.2").packed, 40000),
        FourTuple(ip_address("fd77:8::2").packed, 3128, ip_address("fd77:1::2").packed, 40000))  # fmt: skip
COUNTING_TABLE = (
    "table inet counting { chain c { type filter hook postrouting priority 0; "
    "meta mark & 0xff0000 == 0x10000 counter; }; }"
)


def send(four_tuple: FourTuple, octets: int) -> None:
    """Send a segment with *octets* bytes, options or data, after a 20-byte TCP header."""
    family = socket.AF_INET6 if four_tuple.is_ipv6 else socket.AF_INET
    header = struct.pack("!HHIIBBHHH", four_tuple.local_port, four_tuple.remote_port, 1, 1, 5 << 4, 0x10, 0, 0, 0)
    with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP) as raw:
        raw.bind((str(ip_address(four_tuple.local)), 0))
        raw.sendto(header + bytes(octets), (str(ip_address(four_tuple.remote)), 0))


def marked_segments(host: LiveNode, octets: int) -> int:
    """Return how many of two segments, one of each IP version, got the throttler's mark."""
    host.run(["nft", COUNTING_TABLE])
    for each in FOUR_TUPLES:
        send(each, octets)
    rules = json.loads(host.run(["nft", "-j", "list", "table", "inet", "counting"]).stdout)["nftables"]
    host.run(["nft", "delete", "table", "inet", "counting"])
    (counter,) = (
        expression["counter"]
        for item in rules
        for expression in item.get("rule", {}).get("expr", ())
        if "counter" in expression
    )
    packets: int = counter["packets"]
    return packets


@pytest.mark.parametrize("backend", ["iptables", "nftables"])
def test_segments_without_data_get_no_mark(host: LiveNode, require: object, backend: str) -> None:
    require("nftables", *(("ipset", "iptables-legacy") if backend == "iptables" else ()))  # type: ignore[operator]

    async def scenario() -> None:
        _, netfilter = open_netfilter(backend, OWNERSHIP)
        try:
            await netfilter.prepare()
            await netfilter.upsert_entries(dict.fromkeys(FOUR_TUPLES, TARGET))
            # The longest TCP header has 60 bytes, so one more byte is data.
            marked = {octets: marked_segments(host, octets) for octets in (0, 40, 41, 1400)}
            assert marked == {0: 0, 40: 0, 41: 2, 1400: 2}
        finally:
            await netfilter.remove()
            netfilter.close()

    with host.entered():
        asyncio.run(scenario())


def test_rules_of_an_older_version_without_length_match_are_replaced(host: LiveNode, require: object) -> None:
    require("nftables")  # type: ignore[operator]

    async def scenario() -> None:
        first = NftablesNetfilter(NftTable(OWNERSHIP))
        await first.prepare()
        for line in NftTable(OWNERSHIP).table():
            host.run(["nft", line.replace("meta length > 80", "").replace("meta length > 100", "")])
        await first.upsert_entries(dict.fromkeys(FOUR_TUPLES, TARGET))
        assert marked_segments(host, 0) == 2
        first.close()
        _, second = open_netfilter("nftables", OWNERSHIP)
        try:
            await second.prepare()
            assert await second.check() == []
            assert {octets: marked_segments(host, octets) for octets in (0, 41)} == {0: 0, 41: 2}
        finally:
            await second.remove()
            second.close()

    with host.entered():
        asyncio.run(scenario())
