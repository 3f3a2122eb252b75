"""Segments that nobody's stack sent, on the link in front of the proxy, beside real connections: no cap moves.

The frames have random sequence numbers, which the proxy's kernel drops, and the client's or the proxy's address. The
daemon has taken them in when it counts them; what it decided by them is in its status then.
"""

from __future__ import annotations

import itertools
import random
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
_DESTINATION_PORT = {b"\x08\x00": slice(36, 38), b"\x86\xdd": slice(56, 58)}
"""Of a frame of ours, by the type of its packet: IPv4 and IPv6."""
_TYPE = slice(12, 14)
SUBTYPES, LENGTHS = range(16), range(3, 40)
FLAGS = ("A", "S", "SA", "FA", "R")
FLOOD_BURST, FLOOD_PAUSE_SECONDS = 50, 0.0005
"""Frames. A handshake here takes a fraction of a millisecond; on real paths a tenth of this would do."""


@pytest.fixture(scope="module", params=["iptables", "nftables"])
def site(request: pytest.FixtureRequest, make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    return make_site(request.param, make_module_testbed, require)


def capped(throttler: Throttler) -> dict[str, Any]:
    """Return the one connection there is, which has its two subflows and its cap."""
    (shown,) = ask(throttler.socket)["connections"]
    assert as_capped(shown) == {"ethernet": ("active", False, 5_000_000), "wifi": ("active", False, None)}
    return dict(shown)


def as_capped(shown: dict[str, Any]) -> dict[str, tuple[str, bool, int | None]]:
    """Return state, backup flag and cap of each of its subflows, by path."""
    return {each["path"]: (each["state"], each["backup"], each["rate"]) for each in shown["subflows"]}


def ends(shown: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Return the client's end on each path."""
    remotes = {each["path"]: each["remote"].rsplit(":", 1) for each in shown["subflows"]}
    return {path: (address.strip("[]"), int(port)) for path, (address, port) in remotes.items()}


def taken_in(throttler: Throttler, wire: Link, frames: list[bytes]) -> None:
    """Send *frames* and wait until the daemon has read those that its capture passes: with the client's address."""
    before = read(throttler)
    for frame in frames:
        wire.send(frame)
    there = sum(frame[_DESTINATION_PORT[frame[_TYPE]]] == struct.pack("!H", PORT) for frame in frames)
    until(lambda: read(throttler) >= before + there)


def read(throttler: Throttler) -> int:
    """Return how many segments the daemon has read."""
    return int(ask(throttler.socket)["counters"]["observers"]["segments"])


def forgeries(wire: Link, ends: dict[str, tuple[str, int]]) -> dict[str, list[bytes]]:
    """Return by scene frames of which some lifted a cap once."""
    from mptcp_layers import Dss, MpCapable, MpFail, MpFastclose, MpTcprst, tcp_option

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
        # By options that close a connection, or a subflow, or have it fall back to plain TCP.
        "closing": [
            wire.frame(end, from_proxy, flags=flags, options=[tcp_option(option)])
            for end in ends.values()
            for from_proxy in (False, True)
            for flags, option in (
                ("A", MpFastclose(receiver_key=4711)),
                ("R", MpFastclose(receiver_key=4711)),
                ("A", MpFail(data_sequence=4711)),
                ("RA", MpFail(data_sequence=4711)),
                ("A", MpTcprst(reason=3)),
                ("R", MpTcprst(reason=3)),
                ("FA", Dss(flags="FM", data_sequence=4711, subflow_sequence=0, data_length=1)),
            )
        ],
    }


@pytest.mark.nightly(besides=("nftables",))
@pytest.mark.parametrize(
    ("scene", "family"),
    [
        *((scene, 4) for scene in ("priority", "replacement", "ends", "closing")),
        *((scene, 6) for scene in ("priority", "closing")),
    ],
)
def test_no_frame_lifts_a_cap(site: Site, scene: str, family: int) -> None:
    with running(site) as throttler, connection(site, family) as (client, proxy), link(site) as wire:
        capped_client = [site.client.address("eth0", family)]
        until(lambda: both_known(throttler.socket))
        until(lambda: clients(site.entries()) == capped_client)
        shown = capped(throttler)
        taken_in(throttler, wire, forgeries(wire, ends(shown))[scene])
        assert capped(throttler)["token"] == shown["token"]
        assert clients(site.entries()) == capped_client
        # Nor has the kernel taken any of them for the client's.
        proxy.sendall(b"?")
        assert client.recv(1) == b"?"


@pytest.mark.nightly(besides=("nftables",))
def test_no_option_of_any_subtype_and_length_lifts_a_cap(site: Site) -> None:
    """Most are malformed; of subtypes that nobody has defined, too."""
    rest = random.Random(1)
    options = [
        bytes([30, length, subtype << 4 | rest.getrandbits(4)]) + rest.randbytes(length - 3)
        for subtype in SUBTYPES
        for length in LENGTHS
    ]
    ports = itertools.count(20_000)
    with running(site) as throttler, connection(site), link(site) as wire:
        until(lambda: both_known(throttler.socket))
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        shown, entries = capped(throttler), site.entries()

        def found(remote: str) -> list[dict[str, Any]]:
            """Return the connections with a subflow to *remote*."""
            every = ask(throttler.socket)["connections"]
            return [each for each in every if any(subflow["remote"] == remote for subflow in each["subflows"])]

        sent, before = 0, read(throttler)
        for end in ends(shown).values():
            for flags, from_proxy in itertools.product(FLAGS, (False, True)):
                for frame in wire.with_each(end, options, flags=flags, from_proxy=from_proxy):
                    wire.send(frame)
                    sent += 1
                # The capture does not pass all. What comes behind them by the same link is read after them.
                mark = (NOBODY, next(ports))
                wire.handshake(mark)
                until(partial(found, "{}:{}".format(*mark)))
        assert sent == len(SUBTYPES) * len(LENGTHS) * 20
        assert read(throttler) > before + sent // 4, "those that came in, but for most of subtypes of data"
        assert ask(throttler.socket)["counters"]["observers"]["segments_dropped"] == 0
        (still,) = [each for each in ask(throttler.socket)["connections"] if each["token"] == shown["token"]]
        assert as_capped(still) == as_capped(shown)
        assert {client: classid for client, classid in site.entries().items() if client in entries} == entries


@pytest.mark.nightly(besides=("nftables",))
def test_what_came_in_with_the_proxys_address_is_not_read(site: Site) -> None:
    with running(site) as throttler, connection(site), link(site) as wire:
        until(lambda: both_known(throttler.socket))
        until(lambda: clients(site.entries()) == ["10.77.1.2"])
        end = ends(capped(throttler))["wifi"]
        before = read(throttler)
        taken_in(throttler, wire, [wire.frame(end, from_proxy=True, flags=flags) for flags in ("SA", "R", "FA")] * 100)
        taken_in(throttler, wire, [wire.frame(end, flags="A", options=[MP_PRIO])])
        assert before < read(throttler) < before + 100


@pytest.mark.nightly(besides=("nftables",))
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


@pytest.mark.nightly(besides=("iptables",))
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


@pytest.mark.nightly(besides=("iptables",))
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


@pytest.mark.nightly(besides=("nftables",))
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


@pytest.mark.nightly(besides=("nftables",))
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
