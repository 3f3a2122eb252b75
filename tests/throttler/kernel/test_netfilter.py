"""The contract of the Netfilter port: the same tests for iptables with ipset, for nftables, and for the fake."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeNetfilter

from mptcp_lab.testbed import TWO_PATHS, LiveNode, Testbed
from mptcp_throttler.kernel.netfilter import nft_wire
from mptcp_throttler.kernel.netfilter.backends import open_netfilter, remove_other_backends
from mptcp_throttler.kernel.netfilter.iptables import IptablesNetfilter
from mptcp_throttler.kernel.netfilter.nftables import NftablesNetfilter
from mptcp_throttler.kernel.ports import KernelError, Netfilter
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.commands import NftTable
from mptcp_throttler.shaping.model import Ownership, Target

pytestmark = pytest.mark.kernel

OWNERSHIP = Ownership(listen_ports=(3128, 3129))
ONE, TWO = Target(0x10, 0x10000), Target(0xFFEF, 0xFF0000)


def four_tuple(number: int, is_ipv6: bool = False, port: int = 3128) -> FourTuple:
    local, base = ("fd77:8::2", "fd77:1::1:0") if is_ipv6 else ("10.77.8.2", "10.77.0.0")
    remote = ip_address(int(ip_address(base)) + number)
    return FourTuple(ip_address(local).packed, port, remote.packed, 40000 + number % 1000)


@pytest.fixture(scope="module")
def host(module_testbed: Testbed) -> LiveNode:
    return module_testbed["proxy"]


@pytest.fixture(params=["fake", "iptables", "nftables"])
def netfilter(request: pytest.FixtureRequest, host: LiveNode, require: object) -> Iterator[Netfilter]:
    if request.param == "fake":
        yield FakeNetfilter()
        return
    require("ipset", "iptables-legacy") if request.param == "iptables" else require("nftables")  # type: ignore[operator]
    with host.entered():
        _, port = open_netfilter(request.param, OWNERSHIP)
        yield port
        asyncio.run(port.remove())
        port.close()


ENTRIES = {four_tuple(1): ONE, four_tuple(1, port=3129): TWO, four_tuple(2, is_ipv6=True): TWO}


def test_entries_are_read_back_as_written(netfilter: Netfilter) -> None:
    async def scenario() -> dict[FourTuple, Target]:
        await netfilter.prepare()
        await netfilter.upsert_entries(ENTRIES)
        await netfilter.prepare()
        return await netfilter.read_entries()

    assert asyncio.run(scenario()) == ENTRIES


def test_an_upsert_replaces_and_may_be_repeated(netfilter: Netfilter) -> None:
    async def scenario() -> dict[FourTuple, Target]:
        await netfilter.prepare()
        await netfilter.upsert_entries(ENTRIES)
        for _ in range(2):
            await netfilter.upsert_entries({four_tuple(1): TWO})
        return await netfilter.read_entries()

    assert asyncio.run(scenario()) == ENTRIES | {four_tuple(1): TWO}


def test_a_delete_may_be_repeated_and_may_name_what_never_was(netfilter: Netfilter) -> None:
    async def scenario() -> dict[FourTuple, Target]:
        await netfilter.prepare()
        await netfilter.upsert_entries(ENTRIES)
        for _ in range(2):
            await netfilter.delete_entries([four_tuple(1), four_tuple(99)])
        return await netfilter.read_entries()

    assert asyncio.run(scenario()) == {key: value for key, value in ENTRIES.items() if key != four_tuple(1)}


def test_many_entries_in_one_call(netfilter: Netfilter) -> None:
    many = {four_tuple(number, is_ipv6=number % 2 == 0): Target(0x10 + number % 7, ONE.mark) for number in range(5000)}

    async def scenario() -> tuple[dict[FourTuple, Target], dict[FourTuple, Target]]:
        await netfilter.prepare()
        await netfilter.upsert_entries(many)
        full = await netfilter.read_entries()
        await netfilter.delete_entries(many)
        return full, await netfilter.read_entries()

    full, empty = asyncio.run(scenario())
    assert full == many
    assert not empty


@pytest.mark.parametrize("netfilter", ["nftables"], indirect=True)
@pytest.mark.parametrize("always", [False, True])
def test_what_a_dump_leaves_out_while_the_table_grows_is_not_forgotten(
    netfilter: Netfilter, monkeypatch: pytest.MonkeyPatch, always: bool
) -> None:
    """Defect: it stayed in the map when it was to go, and so did the chain that it goes to."""
    many = {four_tuple(number): ONE for number in range(20)}
    whole, dumps = nft_wire.elements, 0

    def grows(*asked: Any) -> Iterator[nft_wire.Element]:
        nonlocal dumps
        dumps += 1
        listed = list(whole(*asked))
        return iter([*listed[:8], *listed[:4], *listed[12:]] if listed and (always or dumps == 1) else listed)

    async def scenario() -> tuple[dict[FourTuple, Target], dict[FourTuple, Target]]:
        await netfilter.prepare()
        await netfilter.upsert_entries(many)
        with monkeypatch.context() as patched:
            patched.setattr(nft_wire, "elements", grows)
            read = await netfilter.read_entries()
        await netfilter.delete_entries(many)
        return read, await netfilter.read_entries()

    read, empty = asyncio.run(scenario())
    assert read == many or always
    assert not empty


@pytest.mark.parametrize("netfilter", ["nftables"], indirect=True)
def test_a_start_on_a_map_that_is_never_read_whole_takes_over_what_was_seen(
    netfilter: Netfilter, host: LiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may change the ruleset all the time: chains in use are left, and entries go when they are to go."""
    many = {four_tuple(number): ONE for number in range(20)}
    listed = NftablesNetfilter._listed

    async def interrupted(self: NftablesNetfilter, *asked: Any) -> tuple[dict[FourTuple, Target], bool]:
        found, _ = await listed(self, *asked)
        return found, False

    async def scenario() -> tuple[dict[FourTuple, Target], dict[FourTuple, Target]]:
        await netfilter.prepare()
        await netfilter.upsert_entries(many)
        with host.entered():
            _, later = open_netfilter("nftables", OWNERSHIP)
        with monkeypatch.context() as patched:
            patched.setattr(NftablesNetfilter, "_listed", interrupted)
            await later.prepare()
            seen = await later.read_entries()
        await later.delete_entries(many)
        left = await later.read_entries()
        later.close()
        return seen, left

    seen, left = asyncio.run(scenario())
    assert seen == many
    assert not left


def test_removing_leaves_nothing_and_may_be_repeated(netfilter: Netfilter, host: LiveNode) -> None:
    dump = "iptables-legacy-save -t mangle; ip6tables-legacy-save -t mangle; ipset save; nft list ruleset"
    strip = f"({dump}) | grep -v '^#' | sed 's/\\[[0-9:]*\\]//'"
    host.run(["iptables-legacy", "-t", "mangle", "-A", "POSTROUTING", "-p", "tcp", "-j", "MARK", "--set-mark", "7"])
    before = host.run(["sh", "-c", strip]).stdout

    async def scenario() -> str:
        await netfilter.prepare()
        await netfilter.upsert_entries(ENTRIES)
        during = host.run(["sh", "-c", strip]).stdout
        await netfilter.remove()
        await netfilter.remove()
        return during

    during = asyncio.run(scenario())
    after = host.run(["sh", "-c", strip]).stdout
    host.run(["iptables-legacy", "-t", "mangle", "-F", "POSTROUTING"])
    assert after == before
    assert "--set-mark 0x7" in after or "--set-xmark 0x7" in after
    assert isinstance(netfilter, FakeNetfilter) or during != before


def test_a_second_adapter_adopts_what_the_first_left(host: LiveNode, require: object) -> None:
    require("ipset", "iptables-legacy", "nftables")  # type: ignore[operator]

    async def scenario(backend: str) -> None:
        _, first = open_netfilter(backend, OWNERSHIP)  # type: ignore[arg-type]
        await first.prepare()
        await first.upsert_entries(ENTRIES)
        first.close()
        _, second = open_netfilter(backend, OWNERSHIP)  # type: ignore[arg-type]
        await second.prepare()
        assert await second.read_entries() == ENTRIES
        await second.upsert_entries({four_tuple(1): TWO})
        assert (await second.read_entries())[four_tuple(1)] == TWO
        await second.remove()
        second.close()

    with host.entered():
        for backend in ("iptables", "nftables"):
            asyncio.run(scenario(backend))


def test_rules_of_others_that_change_meanwhile_are_kept(host: LiveNode, require: object) -> None:
    """python-iptables ignores the xtables lock: a change by somebody else must be neither lost nor fatal."""
    require("ipset", "iptables-legacy")  # type: ignore[operator]

    async def scenario() -> None:
        _, port = open_netfilter("iptables", OWNERSHIP)
        rival = host.popen(
            ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do for j in 1 2 3 4 5 6 7 8 9; do "
             "iptables-legacy -w -t mangle -A INPUT -j MARK --set-mark $i$j || exit 1; done; done"],
            name="rival",
        )  # fmt: skip
        try:
            for _ in range(30):
                await port.prepare()
                await port.remove()
        finally:
            assert rival.wait(60) == 0
            port.close()

    with host.entered():
        asyncio.run(scenario())
    saved = host.run(["iptables-legacy-save", "-t", "mangle"]).stdout
    host.run(["iptables-legacy", "-t", "mangle", "-F", "INPUT"])
    assert saved.count("-A INPUT") == 81


def test_a_set_of_another_type_is_reported_in_words(host: LiveNode, require: object) -> None:
    require("ipset", "iptables-legacy")  # type: ignore[operator]

    async def scenario() -> None:
        _, port = open_netfilter("iptables", OWNERSHIP)
        try:
            await port.prepare()
        finally:
            port.close()

    host.run(["ipset", "create", "mptcp-throttler-4-3128", "hash:ip"])
    try:
        with host.entered(), pytest.raises(KernelError, match="ipset destroy mptcp-throttler-4-3128"):
            asyncio.run(scenario())
    finally:
        host.run(["ipset", "destroy", "mptcp-throttler-4-3128"])


NFT = "add element inet mptcp_throttler"


def test_entries_of_others_in_our_map_are_said_once_replaced_and_removed(
    host: LiveNode, require: object, caplog: pytest.LogCaptureFixture
) -> None:
    require("nftables")  # type: ignore[operator]
    key = "{} . {} . 10.77.8.2 . 3128"
    foreign = [four_tuple(number) for number in (5, 6, 7)]
    keys = [key.format(ip_address(each.remote), each.remote_port) for each in foreign]

    async def scenario() -> None:
        _, port = open_netfilter("nftables", OWNERSHIP)
        try:
            await port.prepare()
            await port.upsert_entries(ENTRIES)
            host.run(["nft", "add chain inet mptcp_throttler theirs"])
            for each, verdict in zip(keys, ("accept", "jump theirs", "goto class_10_mark_10000"), strict=True):
                host.run(["nft", f"{NFT} v4 {{ {each} : {verdict} }}"])
            for _ in range(2):
                found = await port.read_entries()
                assert found.keys() == {*ENTRIES, *foreign}
                assert all(found[each] not in (ONE, TWO) for each in foreign)
            assert len([record for record in caplog.records if "not ours" in record.getMessage()]) == 3
            await port.upsert_entries({foreign[0]: ONE})
            await port.delete_entries(foreign[1:])
            await port.prepare()
            assert await port.read_entries() == ENTRIES | {foreign[0]: ONE}
        finally:
            await port.remove()
            port.close()

    with host.entered():
        asyncio.run(scenario())


def test_a_successor_starts_where_others_put_entries_into_our_map(host: LiveNode, require: object) -> None:
    require("nftables")  # type: ignore[operator]

    async def scenario() -> None:
        _, first = open_netfilter("nftables", OWNERSHIP)
        await first.prepare()
        first.close()
        host.run(["nft", f"{NFT} v4 {{ 10.77.0.9 . 1 . 10.77.8.2 . 3128 : accept }}"])
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


DAMAGE = {
    "iptables": "iptables-legacy -t mangle -F POSTROUTING",
    "ip6tables": "ip6tables-legacy -t mangle -D POSTROUTING 1",
    "nftables rule": "nft flush chain inet mptcp_throttler postrouting",
    "nftables table": "nft delete table inet mptcp_throttler",
    "nftables order": "nft insert rule inet mptcp_throttler postrouting accept",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_somebody_did_to_the_rules_is_found_and_undone(host: LiveNode, require: object, damage: str) -> None:
    require("ipset", "iptables-legacy", "nftables")  # type: ignore[operator]

    async def scenario() -> None:
        _, port = open_netfilter("nftables" if "nftables" in damage else "iptables", OWNERSHIP)
        try:
            await port.prepare()
            await port.upsert_entries(ENTRIES)
            assert await port.check() == []
            host.run(["sh", "-c", DAMAGE[damage]])
            assert len(await port.check()) == 1
            await port.prepare()
            assert await port.check() == []
        finally:
            await port.remove()
            port.close()

    with host.entered():
        asyncio.run(scenario())


def test_the_loop_goes_on_while_ten_thousand_entries_are_changed_and_read(host: LiveNode, require: object) -> None:
    """Time is measured in experiments; here it is counted how often others got their turn."""
    require("ipset", "iptables-legacy", "nftables")  # type: ignore[operator]
    many = {four_tuple(number): Target(0x10 + number % 7, ONE.mark) for number in range(10_000)}
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario(backend: str) -> None:
        nonlocal turns
        _, port = open_netfilter(backend, OWNERSHIP)  # type: ignore[arg-type]
        others = asyncio.create_task(count())
        try:
            await port.prepare()
            for work in (port.upsert_entries(many), port.read_entries(), port.delete_entries(many)):
                turns = 0
                await work
                assert turns > 10
        finally:
            others.cancel()
            await port.remove()
            port.close()

    with host.entered():
        for backend in ("iptables", "nftables"):
            asyncio.run(scenario(backend))


def test_nftables_alone_does_not_make_the_tables_of_iptables(require: object) -> None:
    require("nftables")  # type: ignore[operator]

    async def scenario() -> None:
        backend, port = open_netfilter("nftables", OWNERSHIP)
        try:
            await port.prepare()
            await remove_other_backends(backend, OWNERSHIP)
        finally:
            await port.remove()
            port.close()

    with Testbed(TWO_PATHS) as fresh, fresh["proxy"].entered():
        asyncio.run(scenario())
        for names in ("ip_tables_names", "ip6_tables_names"):
            path = Path("/proc/thread-self/net", names)
            assert not path.exists() or "mangle" not in path.read_text()


def test_what_another_backend_left_is_removed(host: LiveNode, require: object) -> None:
    require("ipset", "iptables-legacy", "nftables")  # type: ignore[operator]

    async def scenario() -> None:
        _, left = open_netfilter("iptables", OWNERSHIP)
        await left.prepare()
        left.close()
        await remove_other_backends("nftables", OWNERSHIP)

    with host.entered():
        asyncio.run(scenario())
    assert "mptcp-throttler" not in host.run(["sh", "-c", "ipset save; iptables-legacy-save -t mangle"]).stdout


SENT = {False: FourTuple(ip_address("10.77.8.2").packed, 3128, ip_address("10.77.1.2").packed, 40000),
        True: FourTuple(ip_address("fd77:8::2").packed, 3128, ip_address("fd77:1::2").packed, 40000)}  # fmt: skip
SEEN = (
    "table inet seen { chain c { type filter hook postrouting priority 0; meta mark & 0xff0000 == 0x10000 counter; }; }"
)


def send(four_tuple: FourTuple, octets: int) -> None:
    """Send a segment with so many bytes behind the 20 of a bare TCP header, options or data."""
    family = socket.AF_INET6 if four_tuple.is_ipv6 else socket.AF_INET
    header = struct.pack("!HHIIBBHHH", four_tuple.local_port, four_tuple.remote_port, 1, 1, 5 << 4, 0x10, 0, 0, 0)
    with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP) as raw:
        raw.bind((str(ip_address(four_tuple.local)), 0))
        raw.sendto(header + bytes(octets), (str(ip_address(four_tuple.remote)), 0))


def classified(host: LiveNode, octets: int) -> int:
    """Return how many of two segments, one of each IP version, got a mark of ours."""
    host.run(["nft", SEEN])
    for each in SENT.values():
        send(each, octets)
    rules = json.loads(host.run(["nft", "-j", "list", "table", "inet", "seen"]).stdout)["nftables"]
    host.run(["nft", "delete", "table", "inet", "seen"])
    (counter,) = (
        part["counter"] for item in rules for part in item.get("rule", {}).get("expr", ()) if "counter" in part
    )
    packets: int = counter["packets"]
    return packets


@pytest.mark.parametrize("backend", ["iptables", "nftables"])
def test_what_has_no_data_stays_out_of_the_class_of_its_subflow(host: LiveNode, require: object, backend: str) -> None:
    require("nftables", *(("ipset", "iptables-legacy") if backend == "iptables" else ()))  # type: ignore[operator]

    async def scenario() -> None:
        _, port = open_netfilter(backend, OWNERSHIP)  # type: ignore[arg-type]
        try:
            await port.prepare()
            await port.upsert_entries(dict.fromkeys(SENT.values(), ONE))
            # The longest TCP header has 60 bytes; one byte more can only be data.
            assert [classified(host, octets) for octets in (0, 40, 41, 1400)] == [0, 0, 2, 2]
        finally:
            await port.remove()
            port.close()

    with host.entered():
        asyncio.run(scenario())


def test_iptables_without_the_match_of_lengths_caps_all_and_says_so_once(
    host: LiveNode, require: object, caplog: pytest.LogCaptureFixture
) -> None:
    require("ipset", "iptables-legacy", "nftables")  # type: ignore[operator]

    async def scenario() -> None:
        port = IptablesNetfilter(OWNERSHIP, length_match="none-such")
        try:
            for _ in range(2):
                await port.prepare()
                assert await port.check() == []
            await port.upsert_entries(dict.fromkeys(SENT.values(), ONE))
            assert [classified(host, octets) for octets in (0, 1400)] == [2, 2]
        finally:
            await port.remove()
            port.close()

    with host.entered():
        asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records if "no match length" in record.getMessage()] == [
        "ACKs of capped subflows wait behind their data: no match length in iptables (make a rule for iptables: "
        "can't find match none-such)"
    ]


@pytest.mark.parametrize("backend", ["iptables", "nftables"])
def test_rules_of_before_there_was_a_length_in_them_are_replaced(host: LiveNode, require: object, backend: str) -> None:
    require("ipset", "iptables-legacy", "nftables")  # type: ignore[operator]

    async def scenario() -> None:
        first: Netfilter
        if backend == "iptables":
            first = IptablesNetfilter(OWNERSHIP, length_match=None)
            await first.prepare()
        else:
            first = NftablesNetfilter(NftTable.download(OWNERSHIP))
            await first.prepare()
            for line in NftTable.download(OWNERSHIP).table():
                host.run(["nft", line.replace("meta length > 80", "").replace("meta length > 100", "")])
        await first.upsert_entries(dict.fromkeys(SENT.values(), ONE))
        assert classified(host, 0) == 2
        first.close()
        _, second = open_netfilter(backend, OWNERSHIP)  # type: ignore[arg-type]
        try:
            await second.prepare()
            assert await second.check() == []
            assert [classified(host, octets) for octets in (0, 41)] == [0, 2]
        finally:
            await second.remove()
            second.close()

    with host.entered():
        asyncio.run(scenario())
