# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the soft start of caps on real sockets: which subflows are paced, how long, and that no limit remains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from throttling import PATHS, UNCAPPED, ThrottledSite, wait_for_comparisons

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import (
    Origin,
    Throttler,
    start_origin,
    wait_until,
)
from mptcp_throttler.kernel.bpf import largest_send_buffer
from mptcp_throttler.shaping.onset.share import MAX_BYTES, send_buffer

pytestmark = pytest.mark.kernel

ETHERNET = re.compile(r"10\.77\.1\.|fd77:1:")


def path_of(line: str) -> str:
    """Return the path of the subflow that a line of ss(8) describes."""
    return "ethernet" if ETHERNET.search(line) else "wifi"


def policy_with_cap(throttle: str) -> str:
    return PATHS + f"rules: [{{name: cap, paths: [ethernet], throttle: {{{throttle}}}}}]\n"


@dataclass
class Site(ThrottledSite):
    """Origin, proxy and the configuration of a throttler. A test changes the policy by rewriting its file."""

    origin: Origin

    @contextmanager
    def transfer(self, family: int) -> Iterator[None]:
        """Run a download of a few seconds. The download uses both paths when the block begins."""
        client = self.testbed["client"].popen(self.curl(self.origin.url("big", family=family), family=family))
        try:
            wait_until(lambda: len(self.limits()) == 2, "the download has both its subflows")
            yield
        finally:
            self.abort(client)

    def limits(self) -> dict[str, int | None]:
        """Return the pacing limit of each path's subflow, from ss(8), in bit/s."""
        found: dict[str, int | None] = {}
        listing = self.testbed["proxy"].run(["ss", "-tinH", "sport", "=", ":3128"]).stdout
        for line in listing.replace("\n\t", " ").splitlines():
            pacing = re.search(r"pacing_rate \d+bps(?:/(\d+)bps)?", line)
            if pacing is not None:
                found[path_of(line)] = int(pacing[1]) if pacing[1] else None
        return found

    def send_buffers(self) -> dict[str, int]:
        """Return the size of the send buffer of each path's subflow, in bytes."""
        listing = self.testbed["proxy"].run(["ss", "-tmnHO", "state", "established", "sport", "=", ":3128"]).stdout
        found = {}
        for line in listing.splitlines():
            size = re.search(r"skmem:\(.*\btb(\d+)", line)
            if size is not None:
                found[path_of(line)] = int(size[1])
        return found

    def connection_buffer(self) -> int:
        """Return the size of the send buffer of the MPTCP connection, in bytes."""
        listing = self.testbed["proxy"].run(["ss", "-MmnHO", "sport", "=", ":3128"]).stdout
        return max((int(size) for size in re.findall(r"\btb(\d+)", listing)), default=0)

    def capped_subflow_count(self, throttler: Throttler) -> int:
        connections = throttler.status()["connections"]
        return sum(1 for each in connections for subflow in each["subflows"] if subflow["classid"] is not None)


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", "bpf-pacing")
    testbed = make_module_testbed()
    # The kernel enlarges a buffer with the congestion window. With this limit, only the throttler makes a larger one.
    testbed["proxy"].run(["sysctl", "-qw", f"net.ipv4.tcp_wmem=4096 16384 {1 << 20}"])
    return Site.start_on(
        testbed, start_origin(testbed["origin"], {"big": 400_000_000}), settings={"verify_interval": 1}
    )


@pytest.mark.nightly(except_for=("[6]",))
@pytest.mark.parametrize("family", [4, 6])
def test_cap_paces_its_socket_and_class_and_is_lifted_again(site: Site, family: int) -> None:
    throttler = site.start(UNCAPPED)
    with site.transfer(family):
        wait_for_comparisons(throttler)
        assert site.limits() == {"ethernet": None, "wifi": None}
        assert max(site.send_buffers().values()) < send_buffer(2_000_000), (
            "without a cap, a buffer exceeds the kernel's size"
        )
        site.reload(throttler, policy_with_cap("rate: 5 Mbit/s"))
        wait_until(lambda: site.capped_subflow_count(throttler) == 1, "the cap is in force")
        wait_until(lambda: site.limits() == {"ethernet": 5_000_000, "wifi": None}, "only the capped subflow is paced")
        site.reload(throttler, policy_with_cap("rate: 8 Mbit/s"))
        wait_until(lambda: site.limits()["ethernet"] == 8_000_000, "the socket has the higher limit")
        site.reload(throttler, policy_with_cap("rate: 2 Mbit/s"))
        wait_until(lambda: site.limits()["ethernet"] == 2_000_000, "the socket has the lower limit")
        wait_until(lambda: throttler.status()["classes"][0]["rate"] == 2_000_000, "the class has the lower rate")
        site.reload(throttler, UNCAPPED)
        wait_until(lambda: site.limits() == {"ethernet": None, "wifi": None}, "the limit is removed with the cap")
        site.stop_cleanly(throttler)


def test_cap_with_landing_at_once_does_not_pace_sockets(site: Site) -> None:
    throttler = site.start(UNCAPPED)
    with site.transfer(4):
        site.reload(throttler, policy_with_cap("rate: 5 Mbit/s, landing: at-once"))
        wait_until(lambda: site.capped_subflow_count(throttler) == 1, "the cap is in force")
        wait_for_comparisons(throttler)
        assert site.limits() == {"ethernet": None, "wifi": None}
        site.stop_cleanly(throttler)


def test_stop_removes_the_pacing_limit(site: Site) -> None:
    throttler = site.start(UNCAPPED)
    with site.transfer(4):
        site.reload(throttler, policy_with_cap("rate: 5 Mbit/s"))
        wait_until(lambda: site.limits()["ethernet"] == 5_000_000, "the capped subflow is paced")
        site.stop_cleanly(throttler)
        assert site.limits() == {"ethernet": None, "wifi": None}


def test_successor_removes_the_pacing_limit_of_a_killed_throttler(site: Site) -> None:
    throttler = site.start(UNCAPPED)
    with site.transfer(4):
        site.reload(throttler, policy_with_cap("rate: 5 Mbit/s"))
        wait_until(lambda: site.limits()["ethernet"] == 5_000_000, "the capped subflow is paced")
        throttler.process.kill()
        assert site.limits()["ethernet"] in (2_500_000, 5_000_000), (
            "the limit is neither the rate nor half of it, as after an excess"
        )
        successor = site.start(UNCAPPED)
        wait_until(lambda: site.limits() == {"ethernet": None, "wifi": None}, "the successor removes the limit")
        site.stop_cleanly(successor)


@pytest.mark.nightly(except_for=("[4]",))
@pytest.mark.parametrize("family", [4, 6])
def test_low_cap_enlarges_the_send_buffer_of_its_subflow_only(site: Site, family: int) -> None:
    if largest_send_buffer() < MAX_BYTES:
        pytest.skip("net.core.wmem_max is below 2 MiB")
    throttler = site.start(UNCAPPED)
    with site.transfer(family):
        site.reload(throttler, policy_with_cap("rate: 6 Mbit/s"))
        wait_until(lambda: site.capped_subflow_count(throttler) == 1, "the cap of 6 Mbit/s is in force")
        assert max(site.send_buffers().values()) < send_buffer(2_000_000)
        site.reload(throttler, policy_with_cap("rate: 2 Mbit/s"))
        wait_until(
            lambda: site.send_buffers()["ethernet"] == send_buffer(2_000_000), "the capped subflow has its buffer"
        )
        wait_until(lambda: site.connection_buffer() > send_buffer(2_000_000), "the connection has its buffer")
        assert site.send_buffers()["wifi"] < send_buffer(2_000_000)
        site.reload(throttler, UNCAPPED)
        wait_until(
            lambda: site.send_buffers()["ethernet"] == MAX_BYTES, "without a cap the subflow has the kernel's maximum"
        )
        site.stop_cleanly(throttler)
