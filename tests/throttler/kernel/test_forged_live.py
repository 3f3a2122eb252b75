"""Segments that nobody's stack sent, on the link in front of the proxy, beside real connections: no cap moves.

The frames have random sequence numbers, which the proxy's kernel drops, and the client's or the proxy's address. The
daemon has taken them in when it counts them; what it decided by them is in its status then.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest
from throttler_site import (
    IPPROTO_MPTCP,
    PORT,
    Site,
    ask,
    both_known,
    clients,
    connected,
    connection,
    listening,
    make_site,
    running,
    until,
)
from wire import Link, link

from mptcp_lab.testbed import TWO_PATHS_TWO_INTERFACES, Testbed
from mptcp_lab.testbed.services import Throttler, write_throttler_config

pytestmark = pytest.mark.kernel

MP_PRIO, MP_PRIO_OF_RFC_6824 = (30, b"\x51"), (30, b"\x51\x01")
ADDRESS_IDS = range(1, 9)
REMOVE_ADDR = (30, bytes([0x40, *ADDRESS_IDS]))
SHORT_CONNECTIONS = 5
NOBODY, ROOM = "10.77.1.99", 4
"""An address of the capped path that no host has, and connections."""
_DESTINATION_PORT = slice(36, 38)
"""Of a frame of ours."""
FLOOD_BURST, FLOOD_PAUSE_SECONDS = 50, 0.0005
"""Frames. A handshake here takes a fraction of a millisecond; on real paths a tenth of this would do."""


@pytest.fixture(scope="module", params=["iptables", "nftables"])
def site(request: pytest.FixtureRequest, make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    return make_site(request.param, make_module_testbed, require)


def capped(throttler: Throttler) -> dict[str, Any]:
    """Return the one connection there is, which has its two subflows and its cap."""
    (shown,) = ask(throttler.socket)["connections"]
    found = {each["path"]: (each["state"], each["backup"], each["rate"]) for each in shown["subflows"]}
    assert found == {"ethernet": ("active", False, 5_000_000), "wifi": ("active", False, None)}
    return dict(shown)


def ends(shown: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Return the client's end on each path."""
    remotes = {each["path"]: each["remote"].rsplit(":", 1) for each in shown["subflows"]}
    return {path: (address, int(port)) for path, (address, port) in remotes.items()}


def taken_in(throttler: Throttler, wire: Link, frames: list[bytes]) -> None:
    """Send *frames* and wait until the daemon has read those that its capture passes: with the client's address."""
    before = read(throttler)
    for frame in frames:
        wire.send(frame)
    there = sum(frame[_DESTINATION_PORT] == struct.pack("!H", PORT) for frame in frames)
    until(lambda: read(throttler) >= before + there)


def read(throttler: Throttler) -> int:
    """Return how many segments the daemon has read."""
    return int(ask(throttler.socket)["counters"]["observers"]["segments"])


def forgeries(wire: Link, ends: dict[str, tuple[str, int]]) -> dict[str, list[bytes]]:
    """Return by scene the frames that lifted a cap once."""
    from mptcp_throttler.views.mptcp_layers import MpCapable, tcp_option

    opening = tcp_option(MpCapable())
    return {
        "priority": [
            wire.frame(end, flags="A", options=[option], checksum=checksum)
            for end in ends.values()
            for option in (MP_PRIO, MP_PRIO_OF_RFC_6824)
            for checksum in (None, 1)
        ],
        "replacement": [
            frame
            for end in ends.values()
            for options in ([], [opening])
            for frame in (
                wire.frame(end, flags="S", seq=4711, ack=0, options=options),
                wire.frame(end, from_proxy=True, flags="SA", seq=815, ack=4712, options=options),
            )
        ],
        "ends": [
            wire.frame(end, from_proxy, flags=flags)
            for end in ends.values()
            for from_proxy in (False, True)
            for flags in ("R", "RA", "FA")
        ],
    }


@pytest.mark.parametrize("scene", ["priority", "replacement", "ends"])
def test_no_frame_lifts_a_cap(site: Site, scene: str) -> None:
    with running(site) as throttler, connection(site), link(site) as wire:
        until(lambda: both_known(throttler.socket))
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        shown = capped(throttler)
        taken_in(throttler, wire, forgeries(wire, ends(shown))[scene])
        assert capped(throttler)["token"] == shown["token"]
        assert clients(site.entries()) == ["10.77.1.2"]


def test_what_came_in_with_the_proxys_address_is_not_read(site: Site) -> None:
    with running(site) as throttler, connection(site), link(site) as wire:
        until(lambda: both_known(throttler.socket))
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        end = ends(capped(throttler))["wifi"]
        before = read(throttler)
        taken_in(throttler, wire, [wire.frame(end, from_proxy=True, flags=flags) for flags in ("SA", "R", "FA")] * 100)
        taken_in(throttler, wire, [wire.frame(end, flags="A", options=[MP_PRIO])])
        assert before < read(throttler) < before + 100


def test_nor_before_the_kernels_first_event(site: Site) -> None:
    """A throttler that has just started knows its connections from a dump alone."""
    with connection(site), link(site) as wire, running(site) as throttler:
        until(lambda: both_known(throttler.socket))
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        shown = capped(throttler)
        assert ask(throttler.socket)["counters"]["observers"]["kernel_events"] == 0
        for frames in forgeries(wire, ends(shown)).values():
            taken_in(throttler, wire, frames)
        assert ask(throttler.socket)["counters"]["observers"]["kernel_events"] == 0
        assert capped(throttler)["token"] == shown["token"]
        assert clients(site.entries()) == ["10.77.1.2"]


def test_what_the_kernel_says_of_priority_counts(site: Site) -> None:
    """The client's own host asks for it; from then on the proxy sends nothing on that path while the other is well."""
    with running(site) as throttler, connection(site):
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        site.client.run(["ip", "mptcp", "endpoint", "change", "10.77.2.2", "backup"])
        try:
            until(
                lambda: (
                    [each["backup"] for each in ask(throttler.socket)["connections"][0]["subflows"]] == [False, True]
                )
            )
            until(lambda: not site.entries())
        finally:
            site.client.run(["ip", "mptcp", "endpoint", "change", "10.77.2.2", "nobackup"])
        until(lambda: clients(site.entries()) == ["10.77.1.2"])


@contextmanager
def flood(wire: Link, frame: bytes) -> Iterator[None]:
    """Send *frame* many thousand times a second."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(FLOOD_PAUSE_SECONDS):
            for _ in range(FLOOD_BURST):
                wire.send(frame)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()


@pytest.fixture(scope="module")
def small(make_module_testbed: Callable[..., Testbed], site: Site) -> Site:
    """A throttler with room for a few connections; no comparison with the kernel comes to help."""
    testbed = make_module_testbed()
    settings = {"netfilter": site.backend, "verify_interval": 600, "max_connections": ROOM}
    config = write_throttler_config(testbed["proxy"], site.policy, settings=settings)
    return Site(testbed, site.backend, site.policy, config)


def test_a_real_connection_has_its_cap_where_forged_ones_take_all_room(small: Site) -> None:
    ports = itertools.count(20_000)
    with running(small) as throttler, listening(small) as listener, link(small) as wire:

        def forge() -> list[str]:
            """Have as many more as there is room for; return whose connections the throttler has then."""
            for _ in range(ROOM):
                wire.handshake((NOBODY, next(ports)))
            subflows = [each for found in ask(throttler.socket)["connections"] for each in found["subflows"]]
            return [each["remote"].rsplit(":", 1)[0] for each in subflows]

        def evicted() -> int:
            return int(ask(throttler.socket)["counters"]["tracker"]["unconfirmed_evicted"])

        until(lambda: forge() == ROOM * [NOBODY])
        with connected(small, listener):
            # An entry of one that was forged, and anticipated to have a second subflow, stays for ten seconds.
            until(lambda: NOBODY in forge() and "10.77.1.2" in clients(small.entries()))
            before = evicted()
            until(lambda: NOBODY in forge() and evicted() > before + ROOM)
            assert "10.77.1.2" in clients(small.entries()), "those that the kernel has stay"


@pytest.fixture(scope="module")
def two_interfaces(make_module_testbed: Callable[..., Testbed], site: Site) -> Site:
    """One address of the proxy, an interface for each path; no comparison with the kernel comes to help."""
    testbed = make_module_testbed(TWO_PATHS_TWO_INTERFACES)
    policy = testbed.directory / "policy.yaml"
    policy.write_text(
        "version: 1\npaths: {second: {interfaces: [wan1]}}\n"
        "rules: [{name: cap, paths: [second], throttle: {rate: 5 Mbit/s}}]\n"
    )
    settings = {"netfilter": site.backend, "verify_interval": 600}
    config = write_throttler_config(testbed["proxy"], policy, interfaces=("wan0", "wan1"), settings=settings)
    return Site(testbed, site.backend, policy, config)


def test_a_join_keeps_its_interface_under_a_flood_of_remove_addr(two_interfaces: Site) -> None:
    site = two_interfaces
    address, service = site.client.address("eth0"), (site.proxy.address("wan0"), PORT)
    # By the link of the joins, so that the daemon reads both in the order in which they came.
    core = site.testbed["core"]
    with running(site) as throttler, closing(Link(core, site.proxy, "to-proxy1", "wan1")) as wire:
        with site.proxy.entered():
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
        with listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(service)
            listener.listen()
            for port in range(45_000, 45_000 + SHORT_CONNECTIONS):
                with site.client.entered():
                    client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
                with client, flood(wire, wire.frame((address, port), flags="A", options=[REMOVE_ADDR])):
                    client.settimeout(60)
                    client.bind((address, port))
                    client.connect(service)
                    proxy, _ = listener.accept()
                    with proxy:
                        client.sendall(b"?")
                        assert proxy.recv(1) == b"?"
                        until(partial(has_its_cap, throttler, port))


def test_connections_older_than_the_daemon_leave_by_their_routes(two_interfaces: Site) -> None:
    with connection(two_interfaces), running(two_interfaces) as throttler:
        until(lambda: capped_by_interface(throttler) == {"wan0": False, "wan1": True})


def capped_by_interface(throttler: Throttler, port: int | None = None) -> dict[str | None, bool]:
    """Return of the active subflows by which interface each leaves, and whether it has a class of its own.

    *port*: of the one connection alone that its client began from there.
    """
    return {
        each["interface"]: each["classid"] is not None
        for connection in ask(throttler.socket)["connections"]
        for each in connection["subflows"]
        if each["state"] == "active" and (port is None or begins_at(connection, port))
    }


def has_its_cap(throttler: Throttler, port: int) -> bool:
    return capped_by_interface(throttler, port) == {"wan0": False, "wan1": True}


def begins_at(connection: dict[str, Any], port: int) -> bool:
    return any(each["initial"] and each["remote"].endswith(f":{port}") for each in connection["subflows"])
