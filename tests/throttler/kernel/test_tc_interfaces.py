# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a start with other interfaces than before: fewer, renamed or refused ones.

It adopts those that are still configured, and restores the others.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest
from tc_link import ROOTS, dump, leave_classes, limit_gso

from mptcp_common.kernel_error import KernelError
from mptcp_lab.testbed import LiveNode
from mptcp_throttler.kernel.notices import KernelChange, LinkNotices
from mptcp_throttler.kernel.tc import root_qdisc
from mptcp_throttler.kernel.tc.egress import HtbTrafficControl
from mptcp_throttler.kernel.tc.link import Link
from mptcp_throttler.shaping.model import Ownership

pytestmark = pytest.mark.kernel


def rename(host: LiveNode, name: str, new: str) -> None:
    """Rename an interface. Before Linux 6.2, it must be down for this."""
    for words in (f"{name} down", f"{name} name {new}", f"{new} up"):
        host.run(["ip", "link", "set", *words.split()])


async def start_on(state: Path, interfaces: list[str]) -> HtbTrafficControl:
    """Prepare traffic control on *interfaces* as a start does, reduce their GSO segments, and return it."""
    tc = HtbTrafficControl(interfaces, Ownership(), state)
    await tc.prepare()
    await limit_gso(tc, 6250)
    return tc


def test_start_with_fewer_interfaces_restores_the_others(link: LiveNode, tmp_path: Path) -> None:
    """Defect: after a kill, the other interfaces kept classes and GSO limit until the successor was stopped."""
    for command in ROOTS["a tree"]:
        link.run(["tc", *command.split()])
    before = dump(link)
    with link.entered():
        asyncio.run(leave_classes(tmp_path))
        assert dump(link) != before
        asyncio.run(start_on(tmp_path, ["t1"]))
    assert dump(link) == before
    records = json.loads((tmp_path / "replaced.json").read_text())
    assert [each["name"] for each in records.values()] == ["t1"]
    assert "htb 4d50: root" in link.run(["tc", "qdisc", "show", "dev", "t1"]).stdout


def test_failed_restoration_at_the_start_is_logged_and_retried_at_the_stop(
    link: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = dump(link)

    def refuse(link: Link, tree: list[root_qdisc.Saved]) -> None:
        raise KernelError("refused")

    async def stop() -> None:
        tc = HtbTrafficControl(["t1"], Ownership(), tmp_path)
        await tc.restore()

    with link.entered():
        asyncio.run(leave_classes(tmp_path))
        with monkeypatch.context() as patched:
            patched.setattr(root_qdisc, "restore", refuse)
            assert asyncio.run(start_on(tmp_path, ["t1"])).prepared
        assert "t0, which is not among 'interfaces' any more: refused" in caplog.text
        assert dump(link) != before
        asyncio.run(stop())
    assert dump(link) == before


def test_refused_start_leaves_other_interfaces_capped(link: LiveNode, tmp_path: Path) -> None:
    with link.entered():
        asyncio.run(leave_classes(tmp_path))
        before = dump(link)
        with pytest.raises(KernelError, match="no interface nowhere0"):
            asyncio.run(start_on(tmp_path, ["nowhere0"]))
    assert dump(link) == before


def test_interface_renamed_before_the_start_is_restored(link: LiveNode, tmp_path: Path) -> None:
    """Defect: the interface kept its GSO limit after the stop, because the state file contained its old name."""
    for command in ROOTS["a tree"]:
        link.run(["tc", *command.split()])
    before = dump(link)

    async def successor() -> None:
        tc = await start_on(tmp_path, ["t9", "t1"])
        await tc.restore()

    with link.entered():
        asyncio.run(leave_classes(tmp_path))
        rename(link, "t0", "t9")
        try:
            asyncio.run(successor())
        finally:
            rename(link, "t9", "t0")
    assert dump(link) == before


def test_start_keeps_the_root_of_an_interface_with_a_swapped_name(link: LiveNode, tmp_path: Path) -> None:
    """Defect: t1 was renamed to t0, which is configured; but it was restored, and lost its root qdisc."""
    before = dump(link)

    async def successor() -> tuple[str, str]:
        tc = await start_on(tmp_path, ["t0"])
        roots = [link.run(["tc", "qdisc", "show", "dev", name]).stdout for name in ("t0", "t9")]
        await tc.restore()
        return roots[0], roots[1]

    with link.entered():
        asyncio.run(leave_classes(tmp_path))
        rename(link, "t0", "t9")
        rename(link, "t1", "t0")
        try:
            adopted, restored = asyncio.run(successor())
        finally:
            rename(link, "t0", "t1")
            rename(link, "t9", "t0")
    assert "htb 4d50: root" in adopted
    assert "4d50:" not in restored
    assert dump(link) == before
    assert "4d50:" not in link.run(["tc", "qdisc", "show", "dev", "t1"]).stdout


def test_missing_interface_is_named_in_the_error(link: LiveNode, tmp_path: Path) -> None:
    async def scenario() -> None:
        tc = HtbTrafficControl(["nowhere0"], Ownership(), tmp_path)
        await tc.prepare()

    with link.entered(), pytest.raises(KernelError, match="no interface nowhere0"):
        asyncio.run(scenario())


def test_first_interface_is_restored_if_the_second_is_refused(link: LiveNode, tmp_path: Path) -> None:
    for command in ROOTS["a tree"]:
        link.run(["tc", *command.split()])
    link.run(["tc", "qdisc", "add", "dev", "t1", "root", "handle", "1:", "htb"])
    before = dump(link)

    async def start() -> None:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        with pytest.raises(KernelError, match="t1 has a qdisc of kind htb"):
            await tc.prepare()
        assert not tc.prepared

    with link.entered():
        asyncio.run(start())
    assert dump(link) == before
    state = tmp_path / "replaced.json"
    assert not state.exists() or "t0" not in state.read_text()


def test_adopted_interface_is_kept_if_another_is_refused(link: LiveNode, tmp_path: Path) -> None:
    async def start(interfaces: list[str]) -> None:
        tc = HtbTrafficControl(interfaces, Ownership(), tmp_path)
        await tc.prepare()

    with link.entered():
        asyncio.run(start(["t0"]))
        link.run(["tc", "qdisc", "add", "dev", "t1", "root", "handle", "1:", "htb"])
        with pytest.raises(KernelError, match="t1 has a qdisc of kind htb"):
            asyncio.run(start(["t0", "t1"]))
    assert "htb 4d50: root" in dump(link)


@pytest.mark.parametrize("content", ["{", '{"t0": {"index": 2, "tree": []}}'], ids=["cut off", "of an earlier version"])
def test_start_is_refused_if_the_state_file_cannot_be_read(link: LiveNode, tmp_path: Path, content: str) -> None:
    """Defect: a state file keyed by interface names, left by earlier versions that were killed, caused a traceback."""
    (tmp_path / "replaced.json").write_text(content)
    before = dump(link)

    async def start() -> None:
        tc = HtbTrafficControl(["t0"], Ownership(), tmp_path)
        with pytest.raises(KernelError, match="it records what to restore at the root"):
            await tc.prepare()

    with link.entered():
        asyncio.run(start())
    assert dump(link) == before


def test_recreated_interface_has_one_record_in_the_state_file(link: LiveNode, tmp_path: Path) -> None:
    """Defect: each index that the interface ever had got a record, until the file was too long to be read."""

    async def start() -> None:
        tc = HtbTrafficControl(["u0"], Ownership(), tmp_path)
        for _ in range(3):
            link.run(["ip", "link", "add", "u0", "type", "veth", "peer", "u1"])
            await tc.prepare()
            assert len(json.loads((tmp_path / "replaced.json").read_text())) == 1
            link.run(["ip", "link", "del", "u0"])

    with link.entered():
        asyncio.run(start())


def test_own_changes_are_not_reported_as_foreign(link: LiveNode, tmp_path: Path) -> None:
    """pyroute2 creates the root qdisc through a separate socket, whose changes must count as the throttler's own."""

    async def noticed_changes() -> tuple[list[KernelChange], list[KernelChange]]:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        with closing(LinkNotices(["t0", "t1"], Ownership().htb_major)) as notices:
            await tc.prepare()
            await tc.restore()
            own = list(notices.read())
            link.run(["tc", "qdisc", "replace", "dev", "t0", "root", "pfifo"])
            return own, list(notices.read())

    with link.entered():
        own, foreign = asyncio.run(noticed_changes())
    assert not own
    assert {each.description for each in foreign} == {"root qdisc of t0"}
