# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for traffic control on real interfaces: classes, their adoption, and restoring the previous root qdisc."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tc_link import CLASSES, ROOTS, dump, leave_classes, limit_gso

from mptcp_common.kernel_error import KernelError
from mptcp_lab.testbed import LiveNode
from mptcp_throttler.kernel.tc import root_qdisc
from mptcp_throttler.kernel.tc.egress import HtbTrafficControl
from mptcp_throttler.kernel.tc.link import Link
from mptcp_throttler.shaping.model import ClassSpec, Ownership

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("root", ROOTS)
def test_successor_adopts_classes_and_restores_the_root_qdisc(link: LiveNode, tmp_path: Path, root: str) -> None:
    for command in ROOTS[root]:
        link.run(["tc", *command.split()])
    before = dump(link)

    async def successor() -> dict[int, ClassSpec]:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        await tc.prepare()
        found = (await tc.read())[1]
        for _ in range(2):
            await tc.restore()
        assert found is not None
        return found

    with link.entered():
        asyncio.run(leave_classes(tmp_path))
        during = dump(link)
        found = asyncio.run(successor())
    assert "gso_max_size 6250" in during
    assert found.keys() == CLASSES.keys()
    assert all(found[minor].same_as(spec) for minor, spec in CLASSES.items()), found
    assert dump(link) == before
    assert not list(tmp_path.glob("*.json"))


def test_class_missing_on_one_interface_is_found_and_repaired(link: LiveNode, tmp_path: Path) -> None:
    async def scenario() -> tuple[dict[int, ClassSpec], dict[int, ClassSpec]]:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        damaged = (await tc.read())[1]
        await tc.upsert_classes([CLASSES[0x10]])
        repaired = (await tc.read())[1]
        await tc.delete_classes([0x10, 0x10, 0x99])
        await tc.restore()
        assert damaged is not None
        assert repaired is not None
        return damaged, repaired

    with link.entered():
        asyncio.run(leave_classes(tmp_path))
        link.run(["tc", "class", "del", "dev", "t1", "classid", "4d50:10"])
        damaged, repaired = asyncio.run(scenario())
    assert not damaged[0x10].same_as(CLASSES[0x10])
    assert repaired[0x10].same_as(CLASSES[0x10])


@pytest.mark.parametrize("has_filter", [True, False])
def test_root_that_the_throttler_cannot_restore_is_not_replaced(
    link: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_filter: bool
) -> None:
    link.run(["tc", "qdisc", "add", "dev", "t0", "root", "handle", "1:", "htb"])
    if has_filter:
        # The test machines' kernels have no other kind of qdisc that accepts filters.
        monkeypatch.setattr(root_qdisc, "RESTORABLE", root_qdisc.RESTORABLE | {"htb"})
        u32 = "parent 1: protocol ip u32 match ip dst 192.0.2.1 flowid 1:2"
        link.run(["tc", "filter", "add", "dev", "t0", *u32.split()])
    message = "has filters" if has_filter else "qdisc of kind htb, which could not be restored exactly"
    before = dump(link)
    with link.entered(), pytest.raises(KernelError, match=message):
        asyncio.run(leave_classes(tmp_path))
    assert dump(link) == before


def test_failed_restoration_is_completed_later(link: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ROOTS["a tree"]:
        link.run(["tc", *command.split()])
    before = dump(link)
    original = root_qdisc.restore

    def restore_partly(link: Link, tree: list[root_qdisc.Saved]) -> None:
        original(link, tree[:2])
        raise KernelError("refused")

    async def restore() -> None:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        await tc.restore()

    with link.entered():
        asyncio.run(leave_classes(tmp_path))
        with monkeypatch.context() as patched:
            patched.setattr(root_qdisc, "restore", restore_partly)
            with pytest.raises(KernelError, match="refused"):
                asyncio.run(restore())
        assert dump(link) != before
        asyncio.run(restore())
    assert dump(link) == before


def test_original_gso_size_is_kept_if_the_root_was_removed(link: LiveNode, tmp_path: Path) -> None:
    before = dump(link)

    async def prepare_and_restore() -> None:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        await tc.prepare()
        await tc.restore()

    with link.entered():
        asyncio.run(leave_classes(tmp_path))
        link.run(["tc", "qdisc", "del", "dev", "t0", "root"])
        asyncio.run(prepare_and_restore())
    assert dump(link) == before


def test_root_without_classes_is_completed(link: LiveNode, tmp_path: Path) -> None:
    """A daemon may be killed after it created the root qdisc and before it created the classes."""
    link.run(["tc", "qdisc", "replace", "dev", "t0", "root", "handle", "4d50:", "htb", "default", "0xffff"])
    with link.entered():
        asyncio.run(leave_classes(tmp_path))
    classes = link.run(["tc", "class", "show", "dev", "t0"]).stdout
    assert "class htb 4d50:fffe root" in classes
    assert "class htb 4d50:ffff parent 4d50:fffe" in classes
    assert "class htb 4d50:10 parent 4d50:fffe" in classes


def test_restoration_keeps_a_root_that_the_operator_changed(link: LiveNode, tmp_path: Path) -> None:
    async def restore() -> None:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        await tc.restore()

    with link.entered():
        asyncio.run(leave_classes(tmp_path))
        link.run(["tc", "qdisc", "replace", "dev", "t0", "root", "handle", "9:", "pfifo", "limit", "5"])
        asyncio.run(restore())
    assert "pfifo 9: root" in dump(link)


DAMAGE = {
    "root qdisc": "tc qdisc del dev t1 root",
    "class of the link": "tc class change dev t0 parent 4d50: classid 4d50:fffe htb rate 1mbit",
    "GSO limit": "ip link set t0 gso_max_size 40000",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_an_interface_is_found_and_repaired(link: LiveNode, tmp_path: Path, damage: str) -> None:
    async def scenario() -> None:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        await tc.prepare()
        await limit_gso(tc, 6250)
        assert (await tc.read())[0] == []
        link.run(DAMAGE[damage].split())
        assert len((await tc.read())[0]) == 1
        await tc.prepare()
        assert (await tc.read())[0] == []
        await tc.restore()

    with link.entered():
        asyncio.run(scenario())


def test_concurrent_tasks_can_use_traffic_control(link: LiveNode, tmp_path: Path) -> None:
    """Defect: two simultaneous dumps on one netlink socket failed with EBUSY, and the GSO limit stayed."""

    async def scenario() -> None:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        await tc.prepare()
        await tc.upsert_classes(CLASSES.values())
        for size in range(5000, 5040):
            await asyncio.gather(tc.read(), tc.upsert_classes(CLASSES.values()), tc.read())
            await asyncio.gather(limit_gso(tc, size), tc.read(), tc.prepare())
            assert (await tc.read())[0] == []
        assert f"gso_max_size {size}" in dump(link)
        await tc.restore()

    with link.entered():
        asyncio.run(scenario())


def test_refused_class_does_not_prevent_the_others(link: LiveNode, tmp_path: Path) -> None:
    class_with_invalid_minor = ClassSpec(0xFFFF + 0x10, 5_000_000, 5_000_000, 3028, 3028, 6250, 20)

    async def scenario() -> None:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        await tc.prepare()
        with pytest.raises(KernelError):
            await tc.upsert_classes([class_with_invalid_minor, *CLASSES.values()])
        found = (await tc.read())[1]
        assert found is not None
        assert CLASSES.keys() <= found.keys()
        await tc.restore()

    with link.entered():
        asyncio.run(scenario())
