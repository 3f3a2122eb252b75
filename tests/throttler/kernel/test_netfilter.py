# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the Netfilter backends. iptables with ipset, nftables and the fake must behave in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from fakes import FakeNetfilter
from marked_flows import ENTRIES, OTHER_TARGET, OWNERSHIP, TARGET, four_tuple
from throttler_site import features_needed_by

from mptcp_common.kernel_error import KernelError
from mptcp_common.throttler_needs import BACKENDS
from mptcp_lab.testbed import LiveNode
from mptcp_throttler.kernel.netfilter import iptables
from mptcp_throttler.kernel.netfilter.backends import open_netfilter, remove_other_backends
from mptcp_throttler.kernel.ports import Netfilter
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.model import Target

pytestmark = pytest.mark.kernel


@pytest.fixture(params=["fake", *BACKENDS])
def netfilter(request: pytest.FixtureRequest, host: LiveNode, require: object) -> Iterator[Netfilter]:
    if request.param == "fake":
        yield FakeNetfilter()
        return
    require(*features_needed_by(request.param))  # type: ignore[operator]
    with host.entered():
        _, netfilter = open_netfilter(request.param, OWNERSHIP)
        yield netfilter
        asyncio.run(netfilter.remove())
        netfilter.close()


def test_read_entries_equal_the_written_ones(netfilter: Netfilter) -> None:
    async def scenario() -> dict[FourTuple, Target]:
        await netfilter.prepare()
        await netfilter.upsert_entries(ENTRIES)
        await netfilter.prepare()
        return await netfilter.read_entries()

    assert asyncio.run(scenario()) == ENTRIES


def test_upsert_replaces_an_entry_and_may_be_repeated(netfilter: Netfilter) -> None:
    async def scenario() -> dict[FourTuple, Target]:
        await netfilter.prepare()
        await netfilter.upsert_entries(ENTRIES)
        for _ in range(2):
            await netfilter.upsert_entries({four_tuple(1): OTHER_TARGET})
        return await netfilter.read_entries()

    assert asyncio.run(scenario()) == ENTRIES | {four_tuple(1): OTHER_TARGET}


def test_delete_may_be_repeated_and_ignores_unknown_entries(netfilter: Netfilter) -> None:
    async def scenario() -> dict[FourTuple, Target]:
        await netfilter.prepare()
        await netfilter.upsert_entries(ENTRIES)
        for _ in range(2):
            await netfilter.delete_entries([four_tuple(1), four_tuple(99)])
        return await netfilter.read_entries()

    assert asyncio.run(scenario()) == {key: value for key, value in ENTRIES.items() if key != four_tuple(1)}


def test_one_call_creates_five_thousand_entries(netfilter: Netfilter) -> None:
    entries = {
        four_tuple(number, is_ipv6=number % 2 == 0): Target(0x10 + number % 7, TARGET.mark) for number in range(5000)
    }

    async def scenario() -> tuple[dict[FourTuple, Target], dict[FourTuple, Target]]:
        await netfilter.prepare()
        await netfilter.upsert_entries(entries)
        full = await netfilter.read_entries()
        await netfilter.delete_entries(entries)
        return full, await netfilter.read_entries()

    full, empty = asyncio.run(scenario())
    assert full == entries
    assert not empty


def test_remove_leaves_nothing_and_may_be_repeated(netfilter: Netfilter, host: LiveNode) -> None:
    dump = "iptables-legacy-save -t mangle; ip6tables-legacy-save -t mangle; ipset save; nft list ruleset"
    stripped_dump = f"({dump}) | grep -v '^#' | sed 's/\\[[0-9:]*\\]//'"
    host.run(["iptables-legacy", "-t", "mangle", "-A", "POSTROUTING", "-p", "tcp", "-j", "MARK", "--set-mark", "7"])
    before = host.run(["sh", "-c", stripped_dump]).stdout

    async def scenario() -> str:
        await netfilter.prepare()
        await netfilter.upsert_entries(ENTRIES)
        during = host.run(["sh", "-c", stripped_dump]).stdout
        await netfilter.remove()
        await netfilter.remove()
        return during

    during = asyncio.run(scenario())
    after = host.run(["sh", "-c", stripped_dump]).stdout
    host.run(["iptables-legacy", "-t", "mangle", "-F", "POSTROUTING"])
    assert after == before
    assert "--set-mark 0x7" in after or "--set-xmark 0x7" in after
    assert isinstance(netfilter, FakeNetfilter) or during != before


def test_foreign_sets_with_a_similar_name_stay(host: LiveNode, require: object) -> None:
    """Defect: such sets were destroyed. If a rule referred to one, cleanup and a start with nftables failed."""
    require("ipset", "iptables-legacy")  # type: ignore[operator]
    foreign_sets = ("mptcp-throttler-guests", "mptcp-throttler-4-3128-old")
    for name in foreign_sets:
        host.run(["ipset", "create", name, "hash:ip"])
    try:
        with host.entered():
            assert not iptables.may_have_objects()
            _, netfilter = open_netfilter("iptables", OWNERSHIP)
            asyncio.run(netfilter.prepare())
            assert iptables.may_have_objects()
            asyncio.run(netfilter.remove())
            netfilter.close()
        assert set(host.run(["ipset", "list", "-n"]).stdout.split()) == set(foreign_sets)
    finally:
        for name in foreign_sets:
            host.run(["ipset", "destroy", name])


def test_second_backend_object_adopts_the_entries_of_the_first(host: LiveNode, require: object) -> None:
    require("ipset", "iptables-legacy", "nftables")  # type: ignore[operator]

    async def scenario(backend: str) -> None:
        _, first = open_netfilter(backend, OWNERSHIP)
        await first.prepare()
        await first.upsert_entries(ENTRIES)
        first.close()
        _, second = open_netfilter(backend, OWNERSHIP)
        await second.prepare()
        assert await second.read_entries() == ENTRIES
        await second.upsert_entries({four_tuple(1): OTHER_TARGET})
        assert (await second.read_entries())[four_tuple(1)] == OTHER_TARGET
        await second.remove()
        second.close()

    with host.entered():
        for backend in ("iptables", "nftables"):
            asyncio.run(scenario(backend))


def test_concurrent_changes_to_foreign_rules_are_kept(host: LiveNode, require: object) -> None:
    """python-iptables ignores the xtables lock. Another program's concurrent change must be neither lost nor fatal."""
    require("ipset", "iptables-legacy")  # type: ignore[operator]

    async def scenario() -> None:
        _, netfilter = open_netfilter("iptables", OWNERSHIP)
        other_program = host.popen(
            ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do for j in 1 2 3 4 5 6 7 8 9; do "
             "iptables-legacy -w -t mangle -A INPUT -j MARK --set-mark $i$j || exit 1; done; done"],
            name="other-program",
        )  # fmt: skip
        try:
            for _ in range(30):
                await netfilter.prepare()
                await netfilter.remove()
        finally:
            assert other_program.wait(60) == 0
            netfilter.close()

    with host.entered():
        asyncio.run(scenario())
    saved = host.run(["iptables-legacy-save", "-t", "mangle"]).stdout
    host.run(["iptables-legacy", "-t", "mangle", "-F", "INPUT"])
    assert saved.count("-A INPUT") == 81


def test_foreign_rule_that_cannot_be_read_is_a_kernel_error(
    host: LiveNode, require: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: the daemon ended when a container's rule used an iptables extension that this host does not have."""
    require("ipset", "iptables-legacy")  # type: ignore[operator]

    async def scenario() -> None:
        _, netfilter = open_netfilter("iptables", OWNERSHIP)
        from iptc.xtables import xtables

        find_match = xtables.find_match
        try:
            await netfilter.prepare()
            rule = ["-m", "mark", "--mark", "7", "-j", "MARK", "--set-mark", "8"]
            host.run(["iptables-legacy", "-t", "mangle", "-A", "POSTROUTING", *rule])
            with monkeypatch.context() as patch:
                patch.setattr(
                    xtables, "find_match", lambda self, name: None if name == "mark" else find_match(self, name)
                )
                with pytest.raises(KernelError, match="can't find match mark"):
                    await netfilter.check()
            assert await netfilter.check() == []
        finally:
            await netfilter.remove()
            netfilter.close()

    with host.entered():
        asyncio.run(scenario())
    host.run(["iptables-legacy", "-t", "mangle", "-F", "POSTROUTING"])


def test_set_of_another_type_is_reported_with_the_remedy(host: LiveNode, require: object) -> None:
    require("ipset", "iptables-legacy")  # type: ignore[operator]

    async def scenario() -> None:
        _, netfilter = open_netfilter("iptables", OWNERSHIP)
        try:
            await netfilter.prepare()
        finally:
            netfilter.close()

    host.run(["ipset", "create", "mptcp-throttler-4-3128", "hash:ip"])
    try:
        with host.entered(), pytest.raises(KernelError, match="ipset destroy mptcp-throttler-4-3128"):
            asyncio.run(scenario())
    finally:
        host.run(["ipset", "destroy", "mptcp-throttler-4-3128"])


DAMAGE = {
    "iptables": "iptables-legacy -t mangle -F POSTROUTING",
    "ip6tables": "ip6tables-legacy -t mangle -D POSTROUTING 1",
    "nftables rule": "nft flush chain inet mptcp_throttler postrouting",
    "nftables table": "nft delete table inet mptcp_throttler",
    "nftables order of rules": "nft insert rule inet mptcp_throttler postrouting accept",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_rules_are_found_and_repaired(host: LiveNode, require: object, damage: str) -> None:
    require("ipset", "iptables-legacy", "nftables")  # type: ignore[operator]

    async def scenario() -> None:
        _, netfilter = open_netfilter("nftables" if "nftables" in damage else "iptables", OWNERSHIP)
        try:
            await netfilter.prepare()
            await netfilter.upsert_entries(ENTRIES)
            assert await netfilter.check() == []
            host.run(["sh", "-c", DAMAGE[damage]])
            assert len(await netfilter.check()) == 1
            await netfilter.prepare()
            assert await netfilter.check() == []
        finally:
            await netfilter.remove()
            netfilter.close()

    with host.entered():
        asyncio.run(scenario())


def test_event_loop_is_not_blocked_while_ten_thousand_entries_change(host: LiveNode, require: object) -> None:
    """This test counts how often other tasks of the loop run. Experiments measure durations."""
    require("ipset", "iptables-legacy", "nftables")  # type: ignore[operator]
    entries = {four_tuple(number): Target(0x10 + number % 7, TARGET.mark) for number in range(10_000)}
    loop_runs = 0

    async def count_loop_runs() -> None:
        nonlocal loop_runs
        while True:
            loop_runs += 1
            await asyncio.sleep(0)

    async def scenario(backend: str) -> None:
        nonlocal loop_runs
        _, netfilter = open_netfilter(backend, OWNERSHIP)
        counter = asyncio.create_task(count_loop_runs())
        try:
            await netfilter.prepare()
            for work in (
                netfilter.upsert_entries(entries),
                netfilter.read_entries(),
                netfilter.delete_entries(entries),
            ):
                loop_runs = 0
                await work
                assert loop_runs > 10, f"during the work, the loop ran only {loop_runs} times"
        finally:
            counter.cancel()
            await netfilter.remove()
            netfilter.close()

    with host.entered():
        for backend in ("iptables", "nftables"):
            asyncio.run(scenario(backend))


def test_remove_other_backends_removes_sets_and_rules(host: LiveNode, require: object) -> None:
    require("ipset", "iptables-legacy", "nftables")  # type: ignore[operator]

    async def scenario() -> None:
        _, leftover = open_netfilter("iptables", OWNERSHIP)
        await leftover.prepare()
        leftover.close()
        await remove_other_backends("nftables", OWNERSHIP)

    with host.entered():
        asyncio.run(scenario())
    assert "mptcp-throttler" not in host.run(["sh", "-c", "ipset save; iptables-legacy-save -t mangle"]).stdout
