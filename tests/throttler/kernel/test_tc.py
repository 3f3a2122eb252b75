"""Traffic control on real interfaces: classes, adoption, and the root that was there put back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.services import wait_until
from mptcp_throttler.kernel.netlink import NetlinkSocket
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.kernel.tc import root_qdisc
from mptcp_throttler.kernel.tc.egress import HtbTrafficControl
from mptcp_throttler.shaping.model import ClassSpec, Ownership

pytestmark = pytest.mark.kernel

CLASSES = {
    0x10: ClassSpec(0x10, 5_000_000, 5_000_000, 3028, 3028, 6250, 20),
    0x11: ClassSpec(0x11, 512_000, 1_024_000, 3028, 3028, 1514, 16),
    0x12: ClassSpec(0x12, 40_000_000_000, 90_000_000_000, 250_000, 225_000, 60_000, 1000),
}
FILTER = "dev t1 parent 1: protocol ip u32 match ip dst 192.0.2.1 flowid 1:2"
ROOTS = {
    "the default": [],
    "pfifo": ["qdisc add dev t0 root handle 8: pfifo limit 77"],
    "tbf with a child": [
        "qdisc add dev t0 root handle 7: tbf rate 10mbit burst 5000 limit 30000",
        "qdisc add dev t0 parent 7:1 handle 70: pfifo limit 12",
    ],
    "a tree of HTB": [
        "qdisc add dev t0 root handle 1: htb default 20",
        "class add dev t0 parent 1: classid 1:1 htb rate 50mbit",
        "class add dev t0 parent 1:1 classid 1:20 htb rate 5mbit ceil 10mbit",
        "class add dev t0 parent 1:1 classid 1:30 htb rate 7gbit ceil 10gbit",
        "qdisc add dev t0 parent 1:20 handle 20: pfifo limit 33",
    ],
    "tbf over HTB over pfifo": [
        "qdisc add dev t0 root handle 7: tbf rate 10mbit burst 5000 limit 30000",
        "qdisc add dev t0 parent 7:1 handle 5: htb default 1",
        "class add dev t0 parent 5: classid 5:1 htb rate 5mbit",
        "qdisc add dev t0 parent 5:1 handle 3: pfifo limit 12",
    ],
    "HTB over tbf over pfifo": [
        "qdisc add dev t0 root handle 9: htb default 1",
        "class add dev t0 parent 9: classid 9:1 htb rate 50mbit",
        "qdisc add dev t0 parent 9:1 handle 8: tbf rate 10mbit burst 5000 limit 30000",
        "qdisc add dev t0 parent 8:1 handle 2: pfifo limit 12",
    ],
}


@pytest.fixture(scope="module")
def host(module_testbed: Testbed) -> LiveNode:
    return module_testbed["origin"]


@pytest.fixture
def link(host: LiveNode, require: object) -> Iterator[LiveNode]:
    """A pair of interfaces, t0 and t1, in the namespace of *host*."""
    require("htb")  # type: ignore[operator]
    host.run(["ip", "link", "add", "t0", "type", "veth", "peer", "t1"])
    for device in ("t0", "t1"):
        host.run(["ip", "link", "set", device, "up"])
    # Which it is later than it is told to be, and what it was like is compared.
    wait_until(lambda: "state UP" in host.run(["ip", "link", "show", "t0"]).stdout, "t0 is up")
    yield host
    host.run(["ip", "link", "del", "t0"])


def dump(host: LiveNode) -> str:
    """Return what tc and ip say of t0, the counters aside."""
    text = "".join(
        host.run(argv).stdout
        for argv in (
            ["tc", "-d", "qdisc", "show", "dev", "t0"],
            ["tc", "-d", "class", "show", "dev", "t0"],
            ["ip", "-d", "-o", "link", "show", "t0"],
        )
    )
    words = [line.split() for line in text.splitlines()]
    return "\n".join(
        sorted(
            " ".join(w for i, w in enumerate(line) if line[i - 1] not in ("refcnt", "direct_packets_stat"))
            for line in words
        )
    )


async def with_classes(state: Path) -> None:
    """Take both interfaces, make the classes, and stop without cleaning up."""
    tc = HtbTrafficControl(["t0", "t1"], Ownership(), state)
    async with tc.opened():
        await tc.prepare()
        await limit_gso(tc, 6250)
        for _ in range(2):
            await tc.upsert_classes(CLASSES.values())


@pytest.mark.parametrize("root", ROOTS)
def test_a_successor_adopts_the_classes_and_puts_the_root_back(link: LiveNode, tmp_path: Path, root: str) -> None:
    for command in ROOTS[root]:
        link.run(["tc", *command.split()])
    before = dump(link)

    async def successor() -> dict[int, ClassSpec]:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        async with tc.opened():
            await tc.prepare()
            found = await tc.read_classes()
            for _ in range(2):
                await tc.restore()
        return found

    with link.entered():
        asyncio.run(with_classes(tmp_path))
        during = dump(link)
        found = asyncio.run(successor())
    assert "gso_max_size 6250" in during
    assert found.keys() == CLASSES.keys()
    assert all(found[minor].same_as(spec) for minor, spec in CLASSES.items()), found
    assert dump(link) == before
    assert not list(tmp_path.glob("*.json"))


def renamed(host: LiveNode, name: str, new: str) -> None:
    """Rename an interface, which before Linux 6.2 has to be down for it."""
    for words in (f"{name} down", f"{name} name {new}", f"{new} up"):
        host.run(["ip", "link", "set", *words.split()])


async def started(state: Path, interfaces: list[str]) -> HtbTrafficControl:
    """Return what a start with *interfaces* has prepared, with smaller segments."""
    tc = HtbTrafficControl(interfaces, Ownership(), state)
    async with tc.opened():
        await tc.prepare()
        await limit_gso(tc, 6250)
    return tc


def test_a_start_with_fewer_interfaces_puts_the_others_back(link: LiveNode, tmp_path: Path) -> None:
    """Defect: after a kill they stayed shaped, and their segments small, until the successor was stopped."""
    for command in ROOTS["a tree of HTB"]:
        link.run(["tc", *command.split()])
    before = dump(link)
    with link.entered():
        asyncio.run(with_classes(tmp_path))
        assert dump(link) != before
        asyncio.run(started(tmp_path, ["t1"]))
    assert dump(link) == before
    assert json.loads((tmp_path / "replaced.json").read_text()).keys() == {"t1"}
    assert "htb 4d50: root" in link.run(["tc", "qdisc", "show", "dev", "t1"]).stdout


def test_what_cannot_be_put_back_at_the_start_is_said_and_tried_again_at_the_stop(
    link: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = dump(link)

    def refuses(netlink: NetlinkSocket, index: int, interface: str, tree: list[root_qdisc.Saved]) -> None:
        raise KernelError("refused")

    async def stop() -> None:
        tc = HtbTrafficControl(["t1"], Ownership(), tmp_path)
        async with tc.opened():
            await tc.restore()

    with link.entered():
        asyncio.run(with_classes(tmp_path))
        with monkeypatch.context() as patched:
            patched.setattr(root_qdisc, "restore", refuses)
            assert asyncio.run(started(tmp_path, ["t1"])).prepared
        assert "t0, which is not among 'interfaces' any more: refused" in caplog.text
        assert dump(link) != before
        asyncio.run(stop())
    assert dump(link) == before


def test_a_start_that_is_refused_leaves_the_others_capped(link: LiveNode, tmp_path: Path) -> None:
    with link.entered():
        asyncio.run(with_classes(tmp_path))
        left = dump(link)
        with pytest.raises(KernelError, match="no interface nowhere0"):
            asyncio.run(started(tmp_path, ["nowhere0"]))
    assert dump(link) == left


def test_an_interface_that_was_renamed_before_the_start_keeps_what_it_had(link: LiveNode, tmp_path: Path) -> None:
    """Defect: its segments stayed small after the stop, for what was noted of it had its old name."""
    for command in ROOTS["a tree of HTB"]:
        link.run(["tc", *command.split()])
    before = dump(link)

    async def successor() -> None:
        tc = await started(tmp_path, ["t9", "t1"])
        async with tc.opened():
            await tc.restore()

    with link.entered():
        asyncio.run(with_classes(tmp_path))
        renamed(link, "t0", "t9")
        try:
            asyncio.run(successor())
        finally:
            renamed(link, "t9", "t0")
    assert dump(link) == before


def test_a_start_takes_no_root_off_an_interface_that_has_the_name_of_another_now(
    link: LiveNode, tmp_path: Path
) -> None:
    """Defect: t1, which is called t0 now, was taken for one that is configured no more, and lost its root."""
    before = dump(link)

    async def successor() -> tuple[str, str]:
        tc = await started(tmp_path, ["t0"])
        roots = [link.run(["tc", "qdisc", "show", "dev", name]).stdout for name in ("t0", "t9")]
        async with tc.opened():
            await tc.restore()
        return roots[0], roots[1]

    with link.entered():
        asyncio.run(with_classes(tmp_path))
        renamed(link, "t0", "t9")
        renamed(link, "t1", "t0")
        try:
            ours, left = asyncio.run(successor())
        finally:
            renamed(link, "t0", "t1")
            renamed(link, "t9", "t0")
    assert "htb 4d50: root" in ours
    assert "4d50:" not in left
    assert dump(link) == before
    assert "4d50:" not in link.run(["tc", "qdisc", "show", "dev", "t1"]).stdout


def test_a_class_that_one_interface_lost_is_seen_and_repaired(link: LiveNode, tmp_path: Path) -> None:
    async def scenario() -> tuple[dict[int, ClassSpec], dict[int, ClassSpec]]:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        async with tc.opened():
            damaged = await tc.read_classes()
            await tc.upsert_classes([CLASSES[0x10]])
            repaired = await tc.read_classes()
            await tc.delete_classes([0x10, 0x10, 0x99])
            await tc.restore()
        return damaged, repaired

    with link.entered():
        asyncio.run(with_classes(tmp_path))
        link.run(["tc", "class", "del", "dev", "t1", "classid", "4d50:10"])
        damaged, repaired = asyncio.run(scenario())
    assert not damaged[0x10].same_as(CLASSES[0x10])
    assert repaired[0x10].same_as(CLASSES[0x10])


@pytest.mark.parametrize("parent", ["1:", "1:1"])
def test_a_root_that_could_not_be_put_back_is_not_replaced(link: LiveNode, tmp_path: Path, parent: str) -> None:
    for command in (
        "qdisc add dev t0 root handle 1: htb",
        "class add dev t0 parent 1: classid 1:1 htb rate 9mbit",
        "class add dev t0 parent 1:1 classid 1:2 htb rate 9mbit",
        f"filter add dev t0 parent {parent} protocol ip u32 match ip dst 192.0.2.1 flowid 1:2",
    ):
        link.run(["tc", *command.split()])
    before = dump(link)
    with link.entered(), pytest.raises(KernelError, match="has filters"):
        asyncio.run(with_classes(tmp_path))
    assert dump(link) == before


def test_a_restoration_that_failed_half_way_is_taken_up_again(
    link: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ROOTS["a tree of HTB"]:
        link.run(["tc", *command.split()])
    before = dump(link)
    whole = root_qdisc.restore

    def fails_half_way(netlink: NetlinkSocket, index: int, interface: str, tree: list[root_qdisc.Saved]) -> None:
        whole(netlink, index, interface, tree[:2])
        raise KernelError("refused")

    async def restore() -> None:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        async with tc.opened():
            await tc.restore()

    with link.entered():
        asyncio.run(with_classes(tmp_path))
        with monkeypatch.context() as patched:
            patched.setattr(root_qdisc, "restore", fails_half_way)
            with pytest.raises(KernelError, match="refused"):
                asyncio.run(restore())
        assert dump(link) != before
        asyncio.run(restore())
    assert dump(link) == before


def test_a_root_that_somebody_removed_does_not_make_our_gso_size_the_original(link: LiveNode, tmp_path: Path) -> None:
    before = dump(link)

    async def again() -> None:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        async with tc.opened():
            await tc.prepare()
            await tc.restore()

    with link.entered():
        asyncio.run(with_classes(tmp_path))
        link.run(["tc", "qdisc", "del", "dev", "t0", "root"])
        asyncio.run(again())
    assert dump(link) == before


def test_a_root_without_its_classes_is_completed(link: LiveNode, tmp_path: Path) -> None:
    """A daemon may be killed between the root and the classes."""
    link.run(["tc", "qdisc", "replace", "dev", "t0", "root", "handle", "4d50:", "htb", "default", "0xffff"])
    with link.entered():
        asyncio.run(with_classes(tmp_path))
    classes = link.run(["tc", "class", "show", "dev", "t0"]).stdout
    assert "class htb 4d50:fffe root" in classes
    assert "class htb 4d50:ffff parent 4d50:fffe" in classes
    assert "class htb 4d50:10 parent 4d50:fffe" in classes


def test_a_root_that_the_operator_changed_meanwhile_is_left_alone(link: LiveNode, tmp_path: Path) -> None:
    async def restore() -> None:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        async with tc.opened():
            await tc.restore()

    with link.entered():
        asyncio.run(with_classes(tmp_path))
        link.run(["tc", "qdisc", "replace", "dev", "t0", "root", "handle", "9:", "pfifo", "limit", "5"])
        asyncio.run(restore())
    assert "pfifo 9: root" in dump(link)


def test_an_interface_that_is_not_there_is_named(link: LiveNode, tmp_path: Path) -> None:
    async def scenario() -> None:
        tc = HtbTrafficControl(["nowhere0"], Ownership(), tmp_path)
        async with tc.opened():
            await tc.prepare()

    with link.entered(), pytest.raises(KernelError, match="no interface nowhere0"):
        asyncio.run(scenario())


def test_where_the_second_interface_is_refused_the_first_is_put_back(link: LiveNode, tmp_path: Path) -> None:
    for command in ROOTS["a tree of HTB"]:
        link.run(["tc", *command.split()])
    link.run(["tc", "qdisc", "add", "dev", "t1", "root", "handle", "1:", "htb"])
    link.run(["tc", "filter", "add", *FILTER.split()])
    before = dump(link)

    async def start() -> None:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        async with tc.opened():
            with pytest.raises(KernelError, match="t1 has filters"):
                await tc.prepare()
            assert not tc.prepared

    with link.entered():
        asyncio.run(start())
    assert dump(link) == before
    state = tmp_path / "replaced.json"
    assert not state.exists() or "t0" not in state.read_text()


def test_an_interface_that_was_ours_before_is_kept_where_another_is_refused(link: LiveNode, tmp_path: Path) -> None:
    async def start(interfaces: list[str]) -> None:
        tc = HtbTrafficControl(interfaces, Ownership(), tmp_path)
        async with tc.opened():
            await tc.prepare()

    with link.entered():
        asyncio.run(start(["t0"]))
        link.run(["tc", "qdisc", "add", "dev", "t1", "root", "handle", "1:", "htb"])
        link.run(["tc", "filter", "add", *FILTER.split()])
        with pytest.raises(KernelError, match="t1 has filters"):
            asyncio.run(start(["t0", "t1"]))
    assert "htb 4d50: root" in dump(link)


DAMAGE = {
    "root": "tc qdisc del dev t1 root",
    "class of the link": "tc class change dev t0 parent 4d50: classid 4d50:fffe htb rate 1mbit",
    "GSO": "ip link set t0 gso_max_size 40000",
}


async def limit_gso(tc: HtbTrafficControl, size: int) -> None:
    tc.want_gso(lambda before: min(size, before))
    await tc.settle()


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_somebody_did_to_an_interface_is_found_and_undone(link: LiveNode, tmp_path: Path, damage: str) -> None:
    async def scenario() -> None:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        async with tc.opened():
            await tc.prepare()
            await limit_gso(tc, 6250)
            assert await tc.check() == []
            link.run(DAMAGE[damage].split())
            assert len(await tc.check()) == 1
            await tc.prepare()
            assert await tc.check() == []
            await tc.restore()

    with link.entered():
        asyncio.run(scenario())


def test_many_tasks_may_use_it_at_once(link: LiveNode, tmp_path: Path) -> None:
    """As during busy reloads: two dumps on one netlink socket met as EBUSY, and the GSO limit stayed as it was."""

    async def scenario() -> None:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        async with tc.opened():
            await tc.prepare()
            await tc.upsert_classes(CLASSES.values())
            for size in range(5000, 5040):
                await asyncio.gather(tc.check(), tc.read_classes(), tc.upsert_classes(CLASSES.values()), tc.check())
                await asyncio.gather(limit_gso(tc, size), tc.read_classes(), tc.prepare())
                assert await tc.check() == []
            assert f"gso_max_size {size}" in dump(link)
            await tc.restore()

    with link.entered():
        asyncio.run(scenario())


def test_a_class_that_is_refused_does_not_keep_the_others(link: LiveNode, tmp_path: Path) -> None:
    impossible = ClassSpec(0xFFFF + 0x10, 5_000_000, 5_000_000, 3028, 3028, 6250, 20)

    async def scenario() -> None:
        tc = HtbTrafficControl(["t0", "t1"], Ownership(), tmp_path)
        async with tc.opened():
            await tc.prepare()
            with pytest.raises(KernelError):
                await tc.upsert_classes([impossible, *CLASSES.values()])
            found = await tc.read_classes()
            assert CLASSES.keys() <= found.keys()
            await tc.restore()

    with link.entered():
        asyncio.run(scenario())
