# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for caps on real uploads through the proxy: the IFB device, its classes and its nftables table."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from policy_values import a_throttle
from throttling import PATHS, ThrottledSite

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import (
    Sink,
    Throttler,
    start_sink,
    wait_until,
)
from mptcp_throttler.kernel.netfilter.nftables import NftablesNetfilter
from mptcp_throttler.kernel.tc.htb import IfbTrafficControl
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Direction, Share
from mptcp_throttler.shaping.commands import NftTable, upload_device
from mptcp_throttler.shaping.model import ClassSpec, Ownership, Target, class_spec

pytestmark = pytest.mark.kernel

DOWNLOADS = PATHS + "rules: [{name: down, paths: [ethernet], throttle: {rate: 5 Mbit/s}}]\n"
UPLOADS = PATHS + "rules: [{name: up, paths: [ethernet], direction: up, throttle: {rate: 5 Mbit/s}}]\n"
BOTH = PATHS + "rules: [{name: both, paths: [ethernet], direction: both, throttle: {rate: 5 Mbit/s}}]\n"
DEVICE = "mptcp-up"


@dataclass
class Site(ThrottledSite):
    """A proxy, the server that receives its uploads, and the configuration of a throttler."""

    sink: Sink
    body: Path

    @contextmanager
    def upload(self, family: int = 4) -> Iterator[None]:
        upload = self.curl(self.sink.url(family), "-H", "Expect:", "-T", str(self.body), family=family)
        client = self.testbed["client"].popen(upload)
        try:
            yield
        finally:
            client.kill()

    def kernel_objects(self) -> str:
        """Return the throttler's upload device and netdev tables, as the kernel lists them."""
        links = self.node.run(["sh", "-c", f"ip -o link show {DEVICE} 2>/dev/null || true"]).stdout
        return links + self.node.run(["nft", "list", "tables", "netdev"]).stdout

    def bytes_by_class(self) -> dict[str, int]:
        """Map each class of a cap on the device to the bytes that passed it."""
        listing = self.node.run(["tc", "-s", "class", "show", "dev", DEVICE]).stdout
        found = re.findall(r"class htb (4d50:[0-7]\w*) .*\n Sent (\d+) bytes", listing)
        return {classid: int(octets) for classid, octets in found}


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", "nftables", "ifb", "nft-ingress")
    testbed = make_module_testbed()
    body = testbed.directory / "body"
    with open(body, "wb") as file:
        file.truncate(1_000_000_000)
    return Site.start_on(testbed, start_sink(testbed["origin"]), body, settings={"verify_interval": 1})


def wait_for_subflow(throttler: Throttler, path: str) -> dict[str, Any]:
    """Wait until there is a subflow on *path*, and return it. A cap may be in force earlier."""
    found: list[dict[str, Any]] = []

    def exists() -> bool:
        subflows = [each for connection in throttler.status()["connections"] for each in connection["subflows"]]
        found[:] = [each for each in subflows if each["path"] == path]
        return len(found) == 1

    wait_until(exists, f"there is a subflow on path {path}", process=throttler.process)
    return found[0]


@pytest.mark.nightly(except_for=("[6]",))
@pytest.mark.parametrize("family", [4, 6])
def test_upload_cap_shapes_only_the_chosen_subflow(site: Site, family: int) -> None:
    throttler = site.start(UPLOADS)
    with site.upload(family):
        # Wait for this subflow first: until it exists, an anticipated cap may be lifted.
        free = wait_for_subflow(throttler, "wifi")
        wait_until(lambda: throttler.status()["counters"]["upload_entries"] == 1, "the cap is in force")
        capped = wait_for_subflow(throttler, "ethernet")
        assert capped["upload"]["rule"] == "up"
        assert capped["upload"]["rate"] == 5_000_000
        assert capped["upload"]["reason"].startswith("upload: rule up caps path ethernet at 5 Mbit/s")
        assert capped["classid"] is None, "the download has a cap"
        assert free["upload"]["classid"] is None
        before = site.bytes_by_class()[capped["upload"]["classid"]]
        wait_until(
            lambda: site.bytes_by_class()[capped["upload"]["classid"]] > before + 300_000, "packets pass the class"
        )
        table = site.node.run(["nft", "list", "table", "netdev", "mptcp_throttler"]).stdout
        assert table.count(": jump class_") == 1
    wait_until(
        lambda: throttler.status()["counters"]["upload_entries"] == 0, "the entry is removed with the connection"
    )
    site.stop_cleanly(throttler)
    assert not site.kernel_objects()


def test_reload_adds_and_removes_upload_shaping(site: Site) -> None:
    throttler = site.start(DOWNLOADS)
    with site.upload():
        wait_for_subflow(throttler, "wifi")
        wait_until(lambda: throttler.status()["counters"]["entries"] == 1, "the cap on download is in force")
        assert not site.kernel_objects(), "a policy without upload rules created an upload device"
        assert wait_for_subflow(throttler, "ethernet")["upload"] is None
        site.reload(throttler, BOTH)
        wait_until(lambda: throttler.status()["counters"]["upload_entries"] == 1, "the cap on upload is in force, too")
        assert wait_for_subflow(throttler, "ethernet")["classid"] is not None
        assert {each["direction"] for each in throttler.status()["classes"]} == {"down", "up"}
        site.reload(throttler, DOWNLOADS)
        wait_until(lambda: not site.kernel_objects(), "device and table are removed")
        assert wait_for_subflow(throttler, "ethernet")["classid"] is not None
    site.stop_cleanly(throttler)


def test_successor_adopts_or_removes_the_upload_device(site: Site) -> None:
    throttler = site.start(UPLOADS)
    with site.upload():
        wait_until(lambda: len(site.bytes_by_class()) == 1, "the class exists")
        wait_for_subflow(throttler, "wifi")
        wait_until(lambda: throttler.status()["counters"]["upload_entries"] == 1, "the cap is in force")
        wait_until(lambda: throttler.status()["classes"][0]["rate"] == 5_000_000, "the class has the final rate")
        before = site.bytes_by_class()
        throttler.process.kill()
        throttler = site.start(UPLOADS)
        assert site.bytes_by_class().keys() == before.keys()
        assert throttler.status()["counters"]["upload_reconciler"]["classes_upserted"] == 0
        throttler.process.kill()
        throttler = site.start(DOWNLOADS)
        assert not site.kernel_objects()
    site.stop_cleanly(throttler)


def test_cleanup_removes_the_upload_device_of_a_killed_throttler(site: Site) -> None:
    site.start(UPLOADS).process.kill()
    assert DEVICE in site.kernel_objects()
    site.cleanup()
    assert not site.kernel_objects()


def test_removed_upload_device_is_created_again(site: Site) -> None:
    throttler = site.start(UPLOADS)
    with site.upload():
        wait_for_subflow(throttler, "wifi")
        wait_until(lambda: throttler.status()["counters"]["upload_entries"] == 1, "the cap is in force")
        site.node.run(["ip", "link", "del", DEVICE])
        wait_until(lambda: DEVICE in site.kernel_objects(), "the device is restored")
        wait_until(lambda: len(site.bytes_by_class()) == 1, "the class is restored")
        (classid,) = site.bytes_by_class()
        before = site.bytes_by_class()[classid]
        wait_until(lambda: site.bytes_by_class()[classid] > before + 100_000, "packets pass the class again")
    site.stop_cleanly(throttler)


def test_reload_is_refused_if_another_device_has_the_name(site: Site) -> None:
    throttler = site.start(DOWNLOADS)
    site.node.run(["ip", "link", "add", DEVICE, "type", "veth", "peer", "name", "other"])
    try:
        site.reload(throttler, UPLOADS)
        wait_until(lambda: "policy not reloaded" in throttler.process.output(), "the reload is refused")
        assert f"interface {DEVICE} is not an IFB device" in throttler.process.output()
        assert throttler.status()["policy"]["rules"] == ["down"]
    finally:
        site.node.run(["ip", "link", "del", DEVICE])
    site.stop_cleanly(throttler)


def test_commands_printed_for_uploads_create_the_daemons_state(testbed: Testbed, require: Any) -> None:
    require("htb", "nftables", "ifb", "nft-ingress")
    classes = {0x10: class_spec(0x10, a_throttle(5_000_000, 5_000_000, None, Share.PATH), direction=Direction.UP)}
    entries = {
        FourTuple(ip_address(proxy).packed, 3128, ip_address(client).packed, 4000): Target(0x10, 0x10000)
        for proxy, client in (("10.77.8.2", "10.77.1.2"), ("fd77:8::2", "fd77:1::2"))
    }
    table = NftTable(Ownership(), ["wan0"])
    commands = [*upload_device(classes, Ownership()), *table.shell_commands(entries)]
    testbed["proxy"].run(["sh", "-e"], input="\n".join(commands))

    async def read_state() -> tuple[dict[int, ClassSpec], dict[FourTuple, Target]]:
        tc, netfilter = IfbTrafficControl(Ownership()), NftablesNetfilter(table)
        await tc.prepare()
        await netfilter.prepare()
        found = (await tc.read())[1], await netfilter.read_entries()
        await netfilter.remove()
        await tc.restore()
        netfilter.close()
        return found

    with testbed["proxy"].entered():
        found, read = asyncio.run(read_state())
    assert read == entries
    assert found.keys() == classes.keys()
    assert classes[0x10].same_as(found[0x10])
