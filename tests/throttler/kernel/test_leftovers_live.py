# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that a throttler leaves nothing in the kernel when it is stopped, or killed and followed by ``cleanup``."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from bpf_objects import unsent_limits_of_sockets
from throttling import PATHS, UNCAPPED, ThrottledSite

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.host import Program
from mptcp_lab.testbed.services import Origin, Throttler, start_origin, wait_until

pytestmark = pytest.mark.kernel

CAPPED = PATHS + "rules: [{name: cap, paths: [ethernet], throttle: {rate: 2 Mbit/s}}]\n"
AT_ONCE = CAPPED.replace("2 Mbit/s", "2 Mbit/s, landing: at-once") + "anticipate: false\n"
"""A policy that sets no pacing limit, only the initial limit on unsent bytes of each subflow. Anticipation is off,
because it would set only the class."""
PATH_RATE = 100.0
"""Rate of the capped path in Mbit/s."""
ETHERNET = re.compile(r"10\.77\.1\.")


def search_group(pattern: str, text: str) -> str:
    """Return the group of *pattern* in *text*, which must match."""
    found = re.search(pattern, text)
    assert found is not None, text
    return found[1]


@dataclass
class Site(ThrottledSite):
    origin: Origin

    @contextmanager
    def download(self) -> Iterator[Program]:
        """Run a download over both paths until the block ends. Yields the client program."""
        client = self.testbed["client"].popen(self.curl(self.origin.url("big")))
        try:
            wait_until(lambda: len(self.subflows()) == 2, "the download has both its subflows")
            yield client
        finally:
            self.abort(client)

    def subflows(self) -> dict[str, str]:
        """Return the output of ss(8) for the subflow of each path."""
        listing = self.node.run(["ss", "-tineH", "sport", "=", ":3128"]).stdout.replace("\n\t", " ")
        return {
            "ethernet" if ETHERNET.search(line) else "wifi": line
            for line in listing.splitlines()
            if "bytes_acked" in line
        }

    def limits(self) -> dict[str, int | None]:
        """Return the pacing limit of each path's subflow, in bit/s."""
        found = {each: re.search(r"pacing_rate \d+bps/(\d+)bps", line) for each, line in self.subflows().items()}
        return {each: match and int(match[1]) for each, match in found.items()}

    def megabits_per_second(self, seconds: float) -> float:
        """Return the rate of the Ethernet subflow over *seconds*, in Mbit/s."""

        def acknowledged_bytes() -> int:
            return int(search_group(r"bytes_acked:(\d+)", self.subflows()["ethernet"]))

        began = time.monotonic()
        before = acknowledged_bytes()
        time.sleep(seconds)
        # Divide by the actual time, because ss itself may take long.
        return (acknowledged_bytes() - before) * 8e-6 / (time.monotonic() - began)

    def unsent_limits(self) -> dict[str, int]:
        """Return TCP_NOTSENT_LOWAT of each path's socket, which ss(8) does not show. 0 is the kernel's default."""
        cookies = {each: int(search_group(r"\bsk:([0-9a-f]+)", line), 16) for each, line in self.subflows().items()}
        with self.node.entered():
            found = unsent_limits_of_sockets()
        return {each: found[cookie] for each, cookie in cookies.items()}


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", "bpf-pacing")
    testbed = make_module_testbed()
    return Site.start_on(testbed, start_origin(testbed["origin"], {"big": 400_000_000}))


@pytest.mark.nightly
def test_cleanup_restores_the_speed_of_a_download(site: Site) -> None:
    throttler = site.start(CAPPED)
    with site.download():
        wait_until(lambda: site.limits() == {"ethernet": 2_000_000, "wifi": None}, "the capped subflow is paced")
        kill(throttler)
        assert site.megabits_per_second(1) < 4
        assert throttler.socket.exists()
        output = site.cleanup()
        assert "the pacing limit of 1 subflow lifted" in output
        assert not throttler.socket.exists()
        assert site.limits() == {"ethernet": None, "wifi": None}
        wait_until(lambda: site.megabits_per_second(1) > PATH_RATE / 5, "the download uses the whole path again")


def kill(throttler: Throttler) -> None:
    throttler.process.signal(signal.SIGKILL)
    throttler.process.wait(60)


@contextmanager
def paused_download_of_killed_throttler(site: Site) -> Iterator[None]:
    """Start a capped download, stop the client, so that no more data are acknowledged, and kill the throttler."""
    throttler = site.start(CAPPED)
    with site.download() as client:
        wait_until(lambda: site.limits() == {"ethernet": 2_000_000, "wifi": None}, "the capped subflow is paced")
        client.signal(signal.SIGSTOP)
        wait_until(lambda: site.megabits_per_second(1) == 0, "the client's buffers are full")
        kill(throttler)
        yield


def test_cleanup_removes_all_limits_of_a_paused_download(site: Site) -> None:
    with paused_download_of_killed_throttler(site):
        assert site.limits()["ethernet"] is not None
        site.cleanup()
        assert site.limits() == {"ethernet": None, "wifi": None}
        assert site.unsent_limits() == {"ethernet": 0, "wifi": 0}


def test_successor_without_caps_removes_all_limits_of_a_paused_download(site: Site) -> None:
    with paused_download_of_killed_throttler(site):
        successor = site.start(UNCAPPED)
        wait_until(lambda: site.limits() == {"ethernet": None, "wifi": None}, "the limit is lifted")
        assert site.unsent_limits() == {"ethernet": 0, "wifi": 0}
        site.stop_cleanly(successor)


@pytest.mark.nightly
def test_successor_and_stop_remove_the_initial_limits_of_a_subflow(site: Site) -> None:
    throttler = site.start(AT_ONCE)
    with site.download():
        assert site.limits() == {"ethernet": None, "wifi": None}
        assert site.unsent_limits()["ethernet"] > 0
        kill(throttler)
        successor = site.start(UNCAPPED)
        assert site.unsent_limits() == {"ethernet": 0, "wifi": 0}
        site.stop_cleanly(successor)
    throttler = site.start(CAPPED)
    with site.download():
        wait_until(lambda: site.limits() == {"ethernet": 2_000_000, "wifi": None}, "the capped subflow is paced")
        site.stop_cleanly(throttler)
        assert site.limits() == {"ethernet": None, "wifi": None}
        assert site.unsent_limits() == {"ethernet": 0, "wifi": 0}


def test_cleanup_does_not_mention_sockets_if_none_was_changed(site: Site) -> None:
    with site.download():
        assert "sockets" not in site.cleanup()
