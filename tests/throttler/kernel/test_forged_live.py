# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests with forged segments on the proxy's link, while real connections exist: the segments lift no cap.

The frames have the client's or the proxy's address and random sequence numbers, so that the proxy's kernel drops them.
"""

from __future__ import annotations

import itertools
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest
from proxy_link import Link, link
from throttler_site import (
    IPPROTO_MPTCP,
    PORT,
    Site,
    clients,
    connection,
    knows_both_subflows,
    make_site,
    read_status,
    running,
    until,
)

from mptcp_lab.testbed import TWO_PATHS_TWO_INTERFACES, Testbed
from mptcp_lab.testbed.services import Throttler, write_throttler_config

pytestmark = pytest.mark.kernel

MP_PRIO, MP_PRIO_OF_RFC_6824 = (30, b"\x51"), (30, b"\x51\x01")
ADDRESS_IDS = range(1, 9)
REMOVE_ADDR = (30, bytes([0x40, *ADDRESS_IDS]))
SHORT_CONNECTIONS = 5
UNUSED_ADDRESS = "10.77.1.99"
"""An address on the capped path that belongs to no host and has no connections."""
SUBTYPES, LENGTHS = range(16), range(3, 40)
FLAGS = ("A", "S", "SA", "FA", "R")
FLOOD_BURST, FLOOD_PAUSE_SECONDS = 50, 0.0005
"""Frames per burst, and seconds between bursts. A handshake takes less than a millisecond here. On real paths, a tenth
of this rate would be enough for an attacker."""


@pytest.fixture(scope="module", params=["iptables", "nftables"])
def site(request: pytest.FixtureRequest, make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    return make_site(request.param, make_module_testbed, require)


def check_capped(throttler: Throttler) -> dict[str, Any]:
    """Return the only connection, after checking that it has its two subflows and its cap."""
    (reported,) = read_status(throttler.socket)["connections"]
    found = {each["path"]: (each["backup"], each["rate"]) for each in reported["subflows"]}
    assert found == {"ethernet": (False, 5_000_000), "wifi": (False, None)}
    assert len(reported["subflows"]) == 2
    return dict(reported)


def client_endpoints(reported: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Return the client's address and port on each path."""
    remotes = {each["path"]: each["remote"].rsplit(":", 1) for each in reported["subflows"]}
    return {path: (address.strip("[]"), int(port)) for path, (address, port) in remotes.items()}


def send_and_wait(throttler: Throttler, proxy_link: Link, frames: list[bytes], port: int = 20_000) -> None:
    """Send *frames* and wait until the daemon has read them.

    As a marker, a join that the proxy refuses is sent last.
    """
    from mptcp_layers import MpJoinSyn, tcp_option

    def refused_join_count() -> int:
        return int(read_status(throttler.socket)["counters"]["tracker"]["joins_refused"])

    before = refused_join_count()
    for frame in frames:
        proxy_link.send(frame)
    proxy_link.send(
        proxy_link.frame((UNUSED_ADDRESS, port), flags="S", ack=0, options=[tcp_option(MpJoinSyn(token=0))])
    )
    until(lambda: refused_join_count() > before)


def lookups_are_complete(throttler: Throttler) -> bool:
    """Return whether the daemon has asked the kernel about every doubtful subflow."""
    counters = read_status(throttler.socket)["counters"]
    return bool(counters["observers"]["questions"] > 0 and counters["tables"]["questions"] == 0)


def segments_read(throttler: Throttler) -> int:
    """Return the number of segments that the daemon has read."""
    return int(read_status(throttler.socket)["counters"]["observers"]["segments"])


def forgeries(proxy_link: Link, endpoints: dict[str, tuple[str, int]]) -> tuple[list[bytes], ...]:
    """Return three lists of forged frames. Some of them lifted a cap in earlier versions.

    They change priorities, replace a connection, or end it. The last list makes the daemon ask the kernel.
    """
    from mptcp_layers import Dss, MpCapable, MpFail, MpFastclose, MpTcprst, tcp_option

    opening = tcp_option(MpCapable())
    priority = [
        proxy_link.frame(end, flags="A", options=[option], checksum=checksum)
        for end in endpoints.values()
        for option in (MP_PRIO, MP_PRIO_OF_RFC_6824)
        for checksum in (None, 1)
    ]
    replacement = [
        frame
        for end in endpoints.values()
        for options in ([], [opening])
        for frame in (
            proxy_link.frame(end, flags="S", seq=4711, ack=0, options=options),
            proxy_link.frame(end, from_proxy=True, flags="SA", seq=815, ack=4712, options=options),
        )
    ]
    # These are options that close a connection or a subflow, or make it fall back to plain TCP.
    ending = [
        proxy_link.frame(end, from_proxy, flags=flags, options=[] if option is None else [tcp_option(option)])
        for end in endpoints.values()
        for from_proxy in (False, True)
        for flags, option in (
            ("R", None),
            ("RA", None),
            ("FA", None),
            ("A", MpFastclose(receiver_key=4711)),
            ("R", MpFastclose(receiver_key=4711)),
            ("A", MpFail(data_sequence=4711)),
            ("RA", MpFail(data_sequence=4711)),
            ("A", MpTcprst(reason=3)),
            ("R", MpTcprst(reason=3)),
            ("FA", Dss(flags="FM", data_sequence=4711, subflow_sequence=0, data_length=1)),
        )
    ]
    return priority, replacement, ending


@pytest.mark.nightly(except_for=("nftables",))
@pytest.mark.parametrize("family", [4, 6])
def test_forged_frames_lift_no_cap(site: Site, family: int) -> None:
    with running(site) as throttler, connection(site, family) as (client, proxy), link(site) as proxy_link:
        capped_client = [site.client.address("eth0", family)]
        until(lambda: knows_both_subflows(throttler.socket))
        until(lambda: clients(site.entries()) == capped_client)
        reported = check_capped(throttler)
        for frames in forgeries(proxy_link, client_endpoints(reported)):
            send_and_wait(throttler, proxy_link, frames)
            assert check_capped(throttler)["token"] == reported["token"]
        until(lambda: lookups_are_complete(throttler))
        assert check_capped(throttler)["token"] == reported["token"]
        assert clients(site.entries()) == capped_client
        # The kernel has not accepted any of these frames either.
        proxy.sendall(b"?")
        assert client.recv(1) == b"?"


@pytest.mark.nightly(except_for=("nftables",))
def test_options_of_any_subtype_and_length_lift_no_cap(site: Site) -> None:
    """Most of these options are malformed, or have an undefined subtype."""
    rng = random.Random(1)
    options = [
        bytes([30, length, subtype << 4 | rng.getrandbits(4)]) + rng.randbytes(length - 3)
        for subtype in SUBTYPES
        for length in LENGTHS
    ]
    with running(site) as throttler, connection(site), link(site) as proxy_link:
        until(lambda: knows_both_subflows(throttler.socket))
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        reported, entries, before = check_capped(throttler), site.entries(), segments_read(throttler)
        kinds = list(itertools.product(client_endpoints(reported).values(), FLAGS, (False, True)))
        for number, (end, flags, from_proxy) in enumerate(kinds):
            frames = proxy_link.frames_with_options(end, options, flags=flags, from_proxy=from_proxy)
            send_and_wait(throttler, proxy_link, frames, 20_000 + number)
        sent = len(options) * len(kinds)
        assert segments_read(throttler) > before + sent // 4, (
            "the throttler ignored more than most DSS options and the options with the proxy's address"
        )
        assert read_status(throttler.socket)["counters"]["observers"]["segments_dropped"] == 0
        assert check_capped(throttler)["token"] == reported["token"]
        assert site.entries() == entries


@pytest.mark.nightly(except_for=("nftables",))
def test_incoming_segments_with_the_proxys_address_are_ignored(site: Site) -> None:
    with running(site) as throttler, connection(site), link(site) as proxy_link:
        until(lambda: knows_both_subflows(throttler.socket))
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        end = client_endpoints(check_capped(throttler))["wifi"]
        before = segments_read(throttler)
        send_and_wait(
            throttler,
            proxy_link,
            [proxy_link.frame(end, from_proxy=True, flags=flags) for flags in ("SA", "R", "FA")] * 100,
        )
        # The daemon read the marker, but not the 300 forged segments.
        assert before < segments_read(throttler) < before + 100


@pytest.mark.nightly(except_for=("iptables",))
def test_handshake_that_the_kernel_drops_opens_no_connection(site: Site) -> None:
    """The third ACK of the handshake has the keys of both sides."""
    with running(site) as throttler, connection(site), link(site) as proxy_link:
        until(lambda: knows_both_subflows(throttler.socket))
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        reported = check_capped(throttler)
        proxy_link.fake_handshake((UNUSED_ADDRESS, 10_000))
        send_and_wait(throttler, proxy_link, [])  # Wait until the daemon has read the handshake.
        assert check_capped(throttler)["token"] == reported["token"]
        assert clients(site.entries()) == ["10.77.1.2"]


@pytest.mark.nightly(except_for=("iptables",))
def test_priority_change_by_the_clients_kernel_changes_caps(site: Site) -> None:
    """The client's kernel requests backup priority. The proxy then uses only the other path while that path works."""
    with running(site) as throttler, connection(site):
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        site.client.run(["ip", "mptcp", "endpoint", "change", "10.77.2.2", "backup"])
        try:
            until(
                lambda: (
                    [each["backup"] for each in read_status(throttler.socket)["connections"][0]["subflows"]]
                    == [False, True]
                )
            )
            until(lambda: not site.entries())
        finally:
            site.client.run(["ip", "mptcp", "endpoint", "change", "10.77.2.2", "nobackup"])
        until(lambda: clients(site.entries()) == ["10.77.1.2"])


@contextmanager
def flood(proxy_link: Link, frame: bytes) -> Iterator[None]:
    """Send *frame* many thousand times per second within the block."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(FLOOD_PAUSE_SECONDS):
            for _ in range(FLOOD_BURST):
                proxy_link.send(frame)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()


@pytest.fixture(scope="module")
def two_interfaces(make_module_testbed: Callable[..., Testbed], site: Site) -> Site:
    """A proxy with one address and one interface per path. No periodic comparison with the kernel happens."""
    testbed = make_module_testbed(TWO_PATHS_TWO_INTERFACES)
    policy = testbed.directory / "policy.yaml"
    policy.write_text(
        "version: 1\npaths: {second: {interfaces: [wan1]}}\n"
        "rules: [{name: cap, paths: [second], throttle: {rate: 5 Mbit/s}}]\n"
    )
    settings = {"netfilter": site.backend, "verify_interval": 600}
    config = write_throttler_config(testbed["proxy"], policy, interfaces=("wan0", "wan1"), settings=settings)
    return Site(testbed, site.backend, policy, config)


@pytest.mark.nightly(except_for=("nftables",))
def test_join_keeps_its_interface_during_a_flood_of_remove_addr(two_interfaces: Site) -> None:
    site = two_interfaces
    address, service = site.client.address("eth0"), (site.proxy.address("wan0"), PORT)
    # The forged frames use the same link as the joins, so that the daemon reads both in the order of their arrival.
    core = site.testbed["core"]
    with running(site) as throttler, closing(Link(core, site.proxy, "to-proxy1", "wan1")) as proxy_link:
        with site.proxy.entered():
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
        with listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(service)
            listener.listen()
            for port in range(45_000, 45_000 + SHORT_CONNECTIONS):
                with site.client.entered():
                    client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
                with client, flood(proxy_link, proxy_link.frame((address, port), flags="A", options=[REMOVE_ADDR])):
                    client.settimeout(60)
                    client.bind((address, port))
                    client.connect(service)
                    proxy, _ = listener.accept()
                    with proxy:
                        client.sendall(b"?")
                        assert proxy.recv(1) == b"?"
                        until(partial(has_expected_caps, throttler, port))


@pytest.mark.nightly(except_for=("nftables",))
def test_older_connections_are_capped_according_to_their_routes_interface(two_interfaces: Site) -> None:
    with connection(two_interfaces), running(two_interfaces) as throttler:
        until(lambda: capped_by_interface(throttler) == {"wan0": False, "wan1": True})


def capped_by_interface(throttler: Throttler, port: int | None = None) -> dict[str | None, bool]:
    """Map the outgoing interface of each subflow to whether the subflow has a class.

    With *port*, use only the connection that its client opened from this port.
    """
    return {
        each["interface"]: each["classid"] is not None
        for connection in read_status(throttler.socket)["connections"]
        for each in connection["subflows"]
        if port is None or is_connection_from(connection, port)
    }


def has_expected_caps(throttler: Throttler, port: int) -> bool:
    return capped_by_interface(throttler, port) == {"wan0": False, "wan1": True}


def is_connection_from(connection: dict[str, Any], port: int) -> bool:
    return any(each["initial"] and each["remote"].endswith(f":{port}") for each in connection["subflows"])
