# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the maps of nftables: incomplete dumps, and entries that other programs added."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from marked_flows import ENTRIES, OTHER_TARGET, OWNERSHIP, TARGET, four_tuple

from mptcp_common.netlink import NetlinkSocket
from mptcp_lab.testbed import TWO_PATHS, LiveNode, Testbed
from mptcp_throttler.kernel.netfilter import nftables as nftables_adapter
from mptcp_throttler.kernel.netfilter.backends import open_netfilter, remove_other_backends
from mptcp_throttler.kernel.ports import Netfilter
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.model import Target

pytestmark = pytest.mark.kernel


@pytest.fixture
def nftables(host: LiveNode, require: Any) -> Iterator[Netfilter]:
    require("nftables")
    with host.entered():
        _, netfilter = open_netfilter("nftables", OWNERSHIP)
        yield netfilter
        asyncio.run(netfilter.remove())
        netfilter.close()


@pytest.mark.parametrize("every_dump_is_incomplete", [False, True], ids=["first dump", "every dump"])
def test_entries_missing_from_a_dump_remain_known(
    nftables: Netfilter, monkeypatch: pytest.MonkeyPatch, every_dump_is_incomplete: bool
) -> None:
    """Defect: an entry missing from a dump could not be removed from the map, and its chain could not either."""
    entries = {four_tuple(number): TARGET for number in range(20)}
    original, dumps = nftables_adapter._entries, 0

    def incomplete_dump(*arguments: Any) -> Iterator[tuple[FourTuple, Target]]:
        nonlocal dumps
        dumps += 1
        # Sort, so that all attempts leave out the same entries, even if the kernel changes its hash table in between.
        listed = sorted(original(*arguments), key=lambda entry: entry[0].remote_port)
        duplicated_and_incomplete = [*listed[:8], *listed[:4], *listed[12:]]
        return iter(duplicated_and_incomplete if listed and (every_dump_is_incomplete or dumps == 1) else listed)

    async def scenario() -> tuple[dict[FourTuple, Target], dict[FourTuple, Target]]:
        await nftables.prepare()
        await nftables.upsert_entries(entries)
        with monkeypatch.context() as patched:
            patched.setattr(nftables_adapter, "_entries", incomplete_dump)
            read = await nftables.read_entries()
        await nftables.delete_entries(entries)
        return read, await nftables.read_entries()

    read, empty = asyncio.run(scenario())
    assert (read != entries) == every_dump_is_incomplete, f"{len(read)} of {len(entries)} entries were read"
    assert not empty


def test_start_adopts_entries_of_a_map_that_changes_continuously(
    nftables: Netfilter, host: LiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs may change the ruleset continuously. A start must keep the chains in use, and know all entries."""
    entries = {four_tuple(number): TARGET for number in range(20)}
    original = nftables_adapter._entries

    def interrupted_dump(netlink: NetlinkSocket, *arguments: Any) -> Iterator[tuple[FourTuple, Target]]:
        yield from original(netlink, *arguments)
        netlink.interrupted = True

    async def scenario() -> tuple[dict[FourTuple, Target], dict[FourTuple, Target]]:
        await nftables.prepare()
        await nftables.upsert_entries(entries)
        with host.entered():
            _, successor = open_netfilter("nftables", OWNERSHIP)
        with monkeypatch.context() as patched:
            patched.setattr(nftables_adapter, "_entries", interrupted_dump)
            await successor.prepare()
            adopted = await successor.read_entries()
        await successor.delete_entries(entries)
        remaining = await successor.read_entries()
        successor.close()
        return adopted, remaining

    adopted, remaining = asyncio.run(scenario())
    assert adopted == entries
    assert not remaining


ADD_ELEMENT = "add element inet mptcp_throttler"


def test_foreign_entries_in_our_map_are_replaced_and_removed(host: LiveNode, require: object) -> None:
    require("nftables")  # type: ignore[operator]
    key_format = "{} . {} . 10.77.8.2 . 3128"
    foreign = [four_tuple(number) for number in (5, 6, 7)]
    keys = [key_format.format(ip_address(each.remote), each.remote_port) for each in foreign]

    async def scenario() -> None:
        _, netfilter = open_netfilter("nftables", OWNERSHIP)
        try:
            await netfilter.prepare()
            await netfilter.upsert_entries(ENTRIES)
            host.run(["nft", "add chain inet mptcp_throttler theirs"])
            for each, verdict in zip(keys, ("accept", "jump theirs", "goto class_10_mark_10000"), strict=True):
                host.run(["nft", f"{ADD_ELEMENT} v4 {{ {each} : {verdict} }}"])
            found = await netfilter.read_entries()
            assert found.keys() == {*ENTRIES, *foreign}
            assert all(found[each] not in (TARGET, OTHER_TARGET) for each in foreign)
            await netfilter.upsert_entries({foreign[0]: TARGET})
            await netfilter.delete_entries(foreign[1:])
            await netfilter.prepare()
            assert await netfilter.read_entries() == ENTRIES | {foreign[0]: TARGET}
        finally:
            await netfilter.remove()
            netfilter.close()

    with host.entered():
        asyncio.run(scenario())


def test_start_accepts_foreign_entries_in_the_map(host: LiveNode, require: object) -> None:
    require("nftables")  # type: ignore[operator]

    async def scenario() -> None:
        _, first = open_netfilter("nftables", OWNERSHIP)
        await first.prepare()
        first.close()
        host.run(["nft", f"{ADD_ELEMENT} v4 {{ 10.77.0.9 . 1 . 10.77.8.2 . 3128 : accept }}"])
        _, second = open_netfilter("nftables", OWNERSHIP)
        try:
            await second.prepare()
            await second.delete_entries(await second.read_entries())
            assert await second.read_entries() == {}
        finally:
            await second.remove()
            second.close()

    with host.entered():
        asyncio.run(scenario())


def test_nftables_backend_creates_no_iptables_tables(require: object) -> None:
    require("nftables")  # type: ignore[operator]

    async def scenario() -> None:
        backend, netfilter = open_netfilter("nftables", OWNERSHIP)
        try:
            await netfilter.prepare()
            await remove_other_backends(backend, OWNERSHIP)
        finally:
            await netfilter.remove()
            netfilter.close()

    with Testbed(TWO_PATHS) as testbed, testbed["proxy"].entered():
        asyncio.run(scenario())
        for names in ("ip_tables_names", "ip6_tables_names"):
            path = Path("/proc/thread-self/net", names)
            assert not path.exists() or "mangle" not in path.read_text()
