# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that a new socket sends into the class of its cap from its first segment.

The throttler makes no decision about a socket while it is stopped (SIGSTOP): the socket is undecided.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from bpf_objects import unsent_limits_of_sockets
from throttler_site import Site, connection, running, until

from mptcp_lab.testbed.services import Throttler

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("unchanged_kernel")]
SEGMENT_BYTES = 1400
"""Less than one MSS."""


@pytest.fixture(autouse=True)
def _require_pacing(require: Any) -> None:
    require("bpf-pacing")


@contextmanager
def suspend(throttler: Throttler) -> Iterator[None]:
    """Stop the throttler's process (SIGSTOP) within the block."""
    throttler.process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        throttler.process.signal(signal.SIGCONT)


@contextmanager
def running_until_killed(site: Site) -> Iterator[None]:
    throttler = site.start()
    until(lambda: "4d50:10" in site.proxy.run(["tc", "class", "show", "dev", "wan0"]).stdout)
    yield
    throttler.process.kill()


def classes_of_sockets(site: Site) -> list[str]:
    """Return the SO_PRIORITY values of subflows that are classes of the throttler."""
    shown = site.proxy.run(["ss", "-tnH", "--tos", "state", "established", "sport", "=", ":3128"]).stdout
    return re.findall(r"class_id:(0x4d50\w{4})", shown)


def unsent_limits(site: Site) -> set[int]:
    """Return the TCP_NOTSENT_LOWAT values that were set on sockets. MPTCP itself sets the maximum on its subflows."""
    with site.proxy.entered():
        return set(unsent_limits_of_sockets().values()) - {0, 0xFFFFFFFF}


def capped_bytes(site: Site) -> int:
    """Return the bytes that the class of the cap has sent."""
    shown = site.proxy.run(["tc", "-s", "class", "show", "dev", "wan0"]).stdout
    found = re.search(r"class htb 4d50:(?!fff)\w+ .*\n Sent (\d+) bytes", shown)
    assert found is not None, shown
    return int(found[1])


@pytest.mark.nightly(except_for=("iptables-4", "nftables-6"))
@pytest.mark.parametrize("family", [4, 6])
def test_first_segments_use_the_class_before_an_entry_exists(site: Site, family: int) -> None:
    with running(site) as throttler:
        until(lambda: "4d50:10" in site.proxy.run(["tc", "class", "show", "dev", "wan0"]).stdout)
        with suspend(throttler), site.client.link_down("wlan0"), connection(site, family) as (client, proxy):
            # Each end has sent one byte of data so far. ACKs and FINs do not go into the class.
            assert capped_bytes(site) < 200
            for _ in range(10):
                proxy.sendall(bytes(SEGMENT_BYTES))
                assert len(client.recv(SEGMENT_BYTES)) > 0
            assert capped_bytes(site) > 10 * SEGMENT_BYTES * 0.9
            assert not site.entries()


@pytest.mark.nightly(except_for=("nftables",))
def test_undecided_socket_leaves_the_class_after_60_segments(site: Site) -> None:
    with running(site) as throttler:
        until(lambda: "4d50:10" in site.proxy.run(["tc", "class", "show", "dev", "wan0"]).stdout)
        with suspend(throttler), site.client.link_down("wlan0"), connection(site) as (client, proxy):
            for _ in range(60):
                proxy.sendall(bytes(SEGMENT_BYTES))
                remaining = SEGMENT_BYTES
                while remaining:
                    remaining -= len(client.recv(remaining))
            before = capped_bytes(site)
            assert before < 60 * SEGMENT_BYTES * 0.9, "the socket did not leave the class during the transfer"
            proxy.sendall(bytes(SEGMENT_BYTES))
            assert client.recv(SEGMENT_BYTES)
            assert capped_bytes(site) == before


@pytest.mark.nightly(except_for=("iptables",))
def test_undecided_socket_gets_a_larger_limit_of_unsent_bytes(site: Site) -> None:
    with running(site) as throttler:
        until(lambda: "4d50:10" in site.proxy.run(["tc", "class", "show", "dev", "wan0"]).stdout)
        with suspend(throttler), site.client.link_down("wlan0"), connection(site) as (client, proxy):
            assert unsent_limits(site) == {625}, "the limit is not the bytes of one millisecond at the rate of the cap"
            for _ in range(400):
                proxy.sendall(bytes(SEGMENT_BYTES))
                remaining = SEGMENT_BYTES
                while remaining:
                    remaining -= len(client.recv(remaining))
            assert unsent_limits(site) == {65_536}


@pytest.mark.nightly(except_for=("nftables",))
def test_socket_leaves_the_class_if_its_client_has_one_path(site: Site) -> None:
    with running(site):
        with site.client.link_down("wlan0"), connection(site) as (client, proxy):
            until(lambda: bool(site.uncapped()))
            before = capped_bytes(site)
            proxy.sendall(bytes(SEGMENT_BYTES))
            assert client.recv(SEGMENT_BYTES)
            assert capped_bytes(site) == before
        # The entry is removed with the connection.
        until(lambda: not site.uncapped())


@pytest.mark.nightly(except_for=("iptables",))
def test_cleanup_removes_sockets_from_the_class_of_a_killed_throttler(site: Site) -> None:
    with ExitStack() as stack:
        with running_until_killed(site):
            stack.enter_context(site.client.link_down("wlan0"))
            stack.enter_context(connection(site))
            assert classes_of_sockets(site) == ["0x4d500010"]
        assert classes_of_sockets(site) == ["0x4d500010"]
        assert site.throttler("cleanup").returncode == 0
        assert classes_of_sockets(site) == []
