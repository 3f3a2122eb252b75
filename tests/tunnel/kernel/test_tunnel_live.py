# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests with both daemons on the real kernel. A UDP program that does not know of the tunnel runs at each end."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from operator import sub
from pathlib import Path
from typing import Any

import pytest
from unit_capabilities import capability_prefix

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.services import wait_until
from mptcp_lab.testbed.system_state import differences, kernel_state
from mptcp_tunnel.kernel.packets import Receiver, Sender, packet_of
from mptcp_tunnel.message import Key, Kind, Message, pack
from mptcp_tunnel.model import End
from mptcp_tunnel.model import Ends as UdpEnds

pytestmark = pytest.mark.kernel
PORT = 51820
TUNSETIFF, IFF_TUN_WITHOUT_INFO = 0x400454CA, 0x1001
"""From linux/if_tun.h."""
UDP_SEGMENT = 103
SO_RCVBUFFORCE = 33
FAMILIES = ("-4", "-6")
PEERS = {4: "10.93.9.9", 6: "fd00:93:9::9"}
PEER = PEERS[4]
QUEUES = "/proc/net/netfilter/nfnetlink_queue"
ECHO = f"""\
import socket
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as server:
    server.bind(("::", {PORT}))
    while True:
        data, address = server.recvfrom(2048)
        server.sendto(data, address)
"""


class Site:
    """Two nodes with two links between them: a relay, on which the test's program runs, and a proxy."""

    def __init__(self, relay: LiveNode, proxy: LiveNode) -> None:
        self.relay, self.proxy = relay, proxy
        self.version = 4
        """The IP version that the relay uses."""
        self.key = relay.write("tunnel.key", "k" * 32)
        self.key.chmod(0o600)
        self.split = ""
        """A line of the relay's file that configures how the relay splits its packets."""
        self.sockets = {node.name: node.directory / f"{node.name}-tunnel.sock" for node in (relay, proxy)}

    def settings(self, node: LiveNode) -> Path:
        text = f"status_socket: {self.sockets[node.name]}\n"
        if node is self.relay:
            peer = End(ip_address(PEERS[self.version]), PORT)
            text += "tunnels:\n  home:\n    port: 51820\n"
            text += f'    key: {self.key}\n    peer: "{peer}"\n    paths: {{a: u0, b: u1}}\n    {self.split}\n'
        else:
            text += f"uplinks: [u0, u1]\ntunnels:\n  home: {{port: {PORT}, key: {self.key}}}\n"
        return node.write(f"{node.name}-tunnel.yaml", text)

    def daemon(self, node: LiveNode) -> Any:
        command = [node.program("mptcp-tunnel"), "run", "--config", str(self.settings(node))]
        return node.running([*capability_prefix("mptcp-tunnel"), *command])

    def paths(self, node: LiveNode) -> list[dict[str, Any]]:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.sockets[node.name]))
            with client.makefile() as answer:
                found: list[dict[str, Any]] = json.loads(answer.read())["tunnels"][0]["paths"]
                return found

    def answers(self, node: LiveNode) -> bool:
        try:
            return self.paths(node) is not None
        except (ConnectionRefusedError, FileNotFoundError):
            return False

    def resequenced_packets(self, node: LiveNode) -> int:
        """Return how many packets the resequencer on *node* has received."""
        return int(node.run(["cat", QUEUES]).stdout.split()[7])

    @contextmanager
    def sequence_numbers(self, node: LiveNode) -> Iterator[set[int]]:
        """Collect the sequence numbers of the packets that arrive on the paths until the block ends."""
        found = set[int]()
        with node.entered():
            taps = [socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0) for _ in range(2)]
        for number, tap in enumerate(taps):
            tap.bind((f"u{number}", 3))
            tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 20)
            tap.setblocking(False)
        yield found
        for tap in taps:
            with tap, suppress(BlockingIOError):
                while True:
                    data, (_, _, kind, *_) = tap.recvfrom(2048)
                    if kind == socket.PACKET_HOST and len(data) > 400:
                        offset = 4 if data[0] >> 4 == 4 else 2
                        found.add(int.from_bytes(data[offset : offset + 2], "big"))

    def alive(self, node: LiveNode) -> list[bool]:
        """Return for each path whether the daemon on *node* considers it alive."""
        return [each["alive"] for each in self.paths(node)]

    def exchange(self, count: int) -> int:
        """Send *count* packets from the relay's program, in groups of twenty. Return how many different packets
        returned."""
        arrived = set()
        family = socket.AF_INET if self.version == 4 else socket.AF_INET6
        with self.relay.entered(), socket.socket(family, socket.SOCK_DGRAM) as client:
            client.bind(("", PORT))
            client.settimeout(0.5)
            for start in range(0, count, 20):
                for number in range(start, start + 20):
                    client.sendto(b"\x04" + number.to_bytes(4, "big") * 100, (PEERS[self.version], PORT))
                with suppress(TimeoutError):
                    for _ in range(20):
                        arrived.add(client.recvfrom(2048)[0][1:5])
        return len(arrived)


def link_addresses(number: int, host: int = 1) -> tuple[tuple[str, str, int], tuple[str, str, int]]:
    """Return, for each IP version, the addresses of the relay and the proxy on link *number*, and the prefix length.

    The relay's address ends in *host*.
    """
    return (
        (f"10.93.{number}.{host}", f"10.93.{number}.2", 24),
        (f"fd00:93:{number}::{host}", f"fd00:93:{number}::2", 64),
    )


def create_link(relay: LiveNode, proxy: LiveNode, number: int, host: int = 1) -> None:
    """Create link *number* between both nodes. The relay's addresses end in *host*."""
    relay.run(["ip", "link", "add", f"u{number}", "type", "veth", "peer", f"u{number}", "netns", proxy.namespace])
    for node, side in ((relay, 0), (proxy, 1)):
        # Without addrgenmode none, the kernel would add a link-local address later.
        node.run(["ip", "link", "set", f"u{number}", "up", "addrgenmode", "none"])
        for each in link_addresses(number, host):
            node.run(["ip", "addr", "add", f"{each[side]}/{each[2]}", "dev", f"u{number}", "nodad"])
    for family, peer, (near, far, _) in zip(FAMILIES, PEERS.values(), link_addresses(number, host), strict=True):
        relay.run(["ip", "route", "add", peer, "via", far, "dev", f"u{number}", "table", str(100 + number)])
        relay.run(["ip", family, "rule", "add", "from", near, "lookup", str(100 + number)])


def remove_link(relay: LiveNode, number: int, host: int = 1) -> None:
    for family, (near, _, _) in zip(FAMILIES, link_addresses(number, host), strict=True):
        relay.run(["ip", family, "rule", "del", "from", near, "lookup", str(100 + number)])
    relay.run(["ip", "link", "del", f"u{number}"])


@pytest.fixture
def site(module_testbed: Testbed) -> Iterator[Site]:
    relay, proxy = module_testbed["client"], module_testbed["origin"]
    for number in range(2):
        create_link(relay, proxy, number)
    for version, peer in PEERS.items():
        relay.run(["ip", "route", "add", peer, "via", "10.93.0.2" if version == 4 else "fd00:93:0::2"])
        proxy.run(["ip", "addr", "add", peer, "dev", "lo", "nodad"])
    for node in (relay, proxy):
        wait_until(lambda: node.run(["ip", "link"]).stdout.count("state UP") >= 3, "both links are up")  # noqa: B023
    yield Site(relay, proxy)
    for length, peer in zip((32, 128), PEERS.values(), strict=True):
        proxy.run(["ip", "addr", "del", f"{peer}/{length}", "dev", "lo"])
    for number in range(2):
        remove_link(relay, number)


@contextmanager
def daemons(site: Site) -> Iterator[tuple[Process, Process]]:
    with site.daemon(site.proxy) as proxy, site.daemon(site.relay) as relay:
        for node, process in ((site.proxy, proxy), (site.relay, relay)):
            wait_until(partial(site.answers, node), f"the daemon of {node.name} answers", process=process)
        wait_until(lambda: site.alive(site.relay) == site.alive(site.proxy) == [True, True], "both paths are alive")
        yield relay, proxy
        for each in (relay, proxy):
            each.stop()


@contextmanager
def connected_daemons(site: Site) -> Iterator[tuple[Process, Process]]:
    """Run both daemons, and wait until the programs reach each other through the tunnel."""
    with daemons(site) as processes:
        wait_until(lambda: site.exchange(20) == 20, "the programs reach each other")
        yield processes


def test_program_uses_both_paths_and_daemons_clean_up(site: Site, require: Callable[..., None]) -> None:
    before = [kernel_state(node) for node in (site.relay, site.proxy)]
    echo = [sys.executable, "-I", "-c", ECHO]
    with site.proxy.running(echo), connected_daemons(site):
        assert site.exchange(500) >= 495
        for node in (site.relay, site.proxy):
            wait_until(lambda: min(each["packets_sent"] for each in site.paths(node)) > 100, "both paths carry packets")  # noqa: B023
    for node, state in zip((site.relay, site.proxy), before, strict=True):
        assert differences(state, kernel_state(node)) == []


def test_packet_size_of_each_path_is_found(site: Site) -> None:
    for node in (site.relay, site.proxy):
        node.run(["ip", "link", "set", "u1", "mtu", "1430"])
    with site.proxy.running([sys.executable, "-I", "-c", ECHO]), connected_daemons(site):
        wait_until(
            lambda: [each["mtu"] for each in site.paths(site.relay)] == [1500, 1420],
            "the sizes of both paths are known",
        )
    for node in (site.relay, site.proxy):
        node.run(["ip", "link", "set", "u1", "mtu", "1500"])


def test_tunnel_survives_killed_daemons_and_new_daemons_clean_up(site: Site) -> None:
    before = [kernel_state(node) for node in (site.relay, site.proxy)]
    with site.proxy.running([sys.executable, "-I", "-c", ECHO]), connected_daemons(site) as (relay, proxy):
        site.exchange(20)
        relay.kill()
        proxy.kill()
        # The packets that the resequencers hold when they end are lost. The BPF programs keep their last configuration.
        wait_until(lambda: site.exchange(200) >= 195, "packets pass without a daemon")
        with connected_daemons(site):
            assert site.exchange(200) >= 195
    for node, state in zip((site.relay, site.proxy), before, strict=True):
        assert differences(state, kernel_state(node)) == []


def test_second_daemon_changes_nothing(site: Site) -> None:
    """Defect: the second daemon removed the first daemon's device, and took its status socket."""
    with site.proxy.running([sys.executable, "-I", "-c", ECHO]), connected_daemons(site):
        before = kernel_state(site.relay)
        settings = site.settings(site.relay)
        other = settings.with_name("other-tunnel.yaml")
        other.write_text(settings.read_text().replace("-tunnel.sock", "-other.sock"))
        for each in (settings, other):
            with site.relay.running([site.relay.program("mptcp-tunnel"), "run", "--config", str(each)]) as second:
                assert second.wait(20) != 0
                assert "already" in second.output()
                assert second.output().count("\n") == 1
        assert differences(before, kernel_state(site.relay)) == []
        assert site.alive(site.relay) == [True, True]
        assert site.exchange(100) >= 98


def test_daemon_restores_rules_routes_and_filters(site: Site) -> None:
    """systemd-networkd removes rules that it does not know, and a firewall that is reloaded removes all tables."""
    states = [kernel_state(node) for node in (site.relay, site.proxy)]
    with site.proxy.running([sys.executable, "-I", "-c", ECHO]), connected_daemons(site):
        before = kernel_state(site.relay)
        for family in FAMILIES:
            site.relay.run(["ip", family, "rule", "flush", "pref", "7712"])
            site.relay.run(["ip", family, "route", "flush", "table", "7712"])
        site.relay.run(["tc", "qdisc", "del", "dev", "mptcp-udp", "clsact"])
        site.relay.run(["tc", "filter", "del", "dev", "u0", "ingress"])
        site.relay.run(["sh", "-c", "nft delete table inet mptcp_tunnel || iptables -t raw -F PREROUTING"])
        (number,) = re.findall(r"^\s*7712\s+(\d+)", site.relay.run(["cat", QUEUES]).stdout, re.M)
        os.kill(int(number), signal.SIGKILL)
        wait_until(lambda: differences(before, kernel_state(site.relay)) == [], "all objects exist again", timeout=30)
        wait_until(lambda: "7712" in site.relay.run(["cat", QUEUES]).stdout, "the resequencer runs again", timeout=30)
        assert site.exchange(200) >= 195
        assert site.resequenced_packets(site.relay) > 0
    for node, state in zip((site.relay, site.proxy), states, strict=True):
        assert differences(state, kernel_state(node)) == []


def test_silent_path_is_unused_until_it_answers_again(site: Site) -> None:
    echo = [sys.executable, "-I", "-c", ECHO]
    with site.proxy.running(echo), connected_daemons(site):
        site.exchange(20)
        with site.proxy.link_down("u1"):
            wait_until(lambda: site.alive(site.relay) == site.alive(site.proxy) == [True, False], "the path is silent")
            assert site.exchange(200) >= 195
        wait_until(lambda: site.alive(site.relay) == [True, True], "the path is alive again", timeout=5)


def test_dead_path_stays_unused_when_the_other_becomes_silent(site: Site) -> None:
    """Defect: when the relay's daemon had died, the proxy's daemon no longer updated its BPF programs.

    After 5 s, the BPF programs used all paths.
    """
    with (
        site.proxy.running([sys.executable, "-I", "-c", ECHO]),
        connected_daemons(site) as (relay, _),
        site.proxy.link_down("u1"),
    ):
        wait_until(lambda: site.alive(site.relay) == site.alive(site.proxy) == [True, False], "the path is silent")
        relay.kill()
        wait_until(lambda: site.paths(site.proxy)[0]["silent_s"] > 6, "the other path has been silent for long")
        before = [each["packets_sent"] for each in site.paths(site.proxy)]
        site.exchange(200)
        wait_until(lambda: site.paths(site.proxy)[0]["packets_sent"] > before[0], "packets use the other path")
        assert site.alive(site.proxy) == [False, False]
        assert site.paths(site.proxy)[1]["packets_sent"] == before[1]


def test_uplink_is_used_again_after_it_returns_as_a_new_device(site: Site) -> None:
    """The relay's address on the uplink changes, and the proxy's device is also new."""
    with site.proxy.running([sys.executable, "-I", "-c", ECHO]), connected_daemons(site):
        site.exchange(20)
        remove_link(site.relay, 1)
        wait_until(
            lambda: "does not exist" in site.paths(site.relay)[1]["trouble"], "the relay reports the missing uplink"
        )
        wait_until(lambda: sum(site.alive(site.proxy)) == 1, "the proxy has stopped using the path")
        assert site.exchange(100) >= 98
        create_link(site.relay, site.proxy, 1, host=7)
        wait_until(lambda: site.alive(site.relay) == [True, True], "the path is alive again")
        wait_until(lambda: site.paths(site.proxy)[-1]["remote"] == "10.93.1.7", "the proxy knows the new address")
        before = [each["packets_sent"] for each in site.paths(site.proxy)]
        assert site.exchange(200) >= 195
        wait_until(
            lambda: all(each["packets_sent"] > sent for each, sent in zip(site.paths(site.proxy), before, strict=True)),
            "both paths carry packets",
        )
        remove_link(site.relay, 1, host=7)
        create_link(site.relay, site.proxy, 1)  # Restore the fixture's link


def test_proxy_follows_a_changed_gateway(site: Site) -> None:
    """Defect: the proxy's daemon looked up the route to a relay only when the relay's address changed."""
    with site.proxy.running([sys.executable, "-I", "-c", ECHO]), connected_daemons(site):
        # The ARP entries are permanent, because a node that sends an ARP request would reveal its own address.
        for node, other, neighbour in ((site.proxy, site.relay, "10.93.1.9"), (site.relay, site.proxy, "10.93.1.2")):
            address = other.run(["cat", "/sys/class/net/u1/address"]).stdout.strip()
            node.run(["ip", "neigh", "replace", neighbour, "dev", "u1", "nud", "permanent", "lladdr", address])
        site.proxy.run(["ip", "route", "add", "10.93.1.1", "via", "10.93.1.9", "dev", "u1"])
        # No host answers ARP requests for the old gateway
        site.relay.run(["sysctl", "-q", "net.ipv4.conf.u1.arp_ignore=8"])
        site.proxy.run(["ip", "neigh", "flush", "to", "10.93.1.1"])

        def both_paths_carry_packets() -> bool:
            before = [each["packets_sent"] for each in site.paths(site.proxy)]
            arrived = site.exchange(200)
            after = [each["packets_sent"] for each in site.paths(site.proxy)]
            return arrived >= 195 and min(map(sub, after, before)) > 20

        wait_until(both_paths_carry_packets, "packets use the new gateway", timeout=30)
        site.proxy.run(["ip", "route", "del", "10.93.1.1", "via", "10.93.1.9", "dev", "u1"])
        for node, neighbour in ((site.proxy, "10.93.1.9"), (site.relay, "10.93.1.2")):
            node.run(["ip", "neigh", "del", neighbour, "dev", "u1"])
        site.relay.run(["sysctl", "-q", "net.ipv4.conf.u1.arp_ignore=0"])


@contextmanager
def bare_ip_link(site: Site) -> Iterator[None]:
    """Replace u1 by a link without Ethernet header, as with PPP and many mobile modems.

    It consists of two TUN devices, and a thread that copies packets between them.
    """
    with ExitStack() as scope:
        files = []
        for node, address in ((site.relay, "10.93.1.1"), (site.proxy, "10.93.1.2")):
            with node.entered():
                file = os.open("/dev/net/tun", os.O_RDWR)
                scope.callback(os.close, file)
                fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", b"u1", IFF_TUN_WITHOUT_INFO))
            files.append(file)
            node.run(["ip", "addr", "add", f"{address}/24", "dev", "u1"])
            node.run(["ip", "link", "set", "u1", "up", "addrgenmode", "none"])
        site.relay.run(["ip", "route", "add", PEER, "via", "10.93.1.2", "dev", "u1", "table", "101"])
        site.relay.run(["ip", "rule", "add", "from", "10.93.1.1", "lookup", "101"])
        scope.callback(site.relay.run, ["ip", "rule", "del", "from", "10.93.1.1", "lookup", "101"])
        pipe_reader, pipe_writer = os.pipe()
        scope.callback(os.close, pipe_reader)

        def copy_packets() -> None:
            while pipe_reader not in (readable := select.select([*files, pipe_reader], [], [])[0]):
                for each in readable:
                    os.write(files[1 - files.index(each)], os.read(each, 2048))

        thread = threading.Thread(target=copy_packets)
        thread.start()
        scope.callback(thread.join)
        scope.callback(os.close, pipe_writer)
        yield


def test_uplink_without_ethernet_header_carries_packets(site: Site) -> None:
    remove_link(site.relay, 1)
    with bare_ip_link(site), site.proxy.running([sys.executable, "-I", "-c", ECHO]), connected_daemons(site):
        assert site.exchange(500) >= 495
        for node in (site.relay, site.proxy):
            wait_until(
                lambda: min(each["packets_received"] for each in site.paths(node)) > 100,  # noqa: B023
                "both paths deliver packets",
            )
    create_link(site.relay, site.proxy, 1)  # Restore the fixture's link


def test_proxy_follows_a_relay_to_the_other_ip_version(site: Site) -> None:
    """Defect: the program at the proxy kept the first address of the relay's program, which was no longer reachable."""
    with site.proxy.running([sys.executable, "-I", "-c", ECHO]), site.daemon(site.proxy) as proxy:
        wait_until(partial(site.answers, site.proxy), "the proxy's daemon answers", process=proxy)
        for site.version in (4, 6, 4):
            with site.daemon(site.relay) as relay:
                wait_until(partial(site.answers, site.relay), "the relay's daemon answers", process=relay)
                wait_until(
                    lambda: (
                        [ip_address(each["remote"]).version for each in site.paths(site.proxy)] == 2 * [site.version]
                    ),
                    "the relay is known by its new addresses",
                )
                wait_until(lambda: site.exchange(20) == 20, "the programs reach each other")
                before = [each["packets_sent"] for each in site.paths(site.proxy)]
                queued = site.resequenced_packets(site.proxy)
                with site.sequence_numbers(site.proxy) as numbers:
                    assert site.exchange(200) >= 195
                assert site.resequenced_packets(site.proxy) >= queued + 195, (
                    "the resequencer did not receive the packets"
                )
                assert len(numbers) >= 150
                assert max(numbers) - min(numbers) < 250, "the numbers of the packets are not consecutive"
                wait_until(
                    lambda: sum(each["packets_sent"] for each in site.paths(site.proxy)) >= sum(before) + 195,  # noqa: B023
                    "the answers used the paths",
                )
                relay.stop()
        proxy.stop()


def test_old_queued_probes_are_not_answered(site: Site) -> None:
    """Defect: after a pause, the daemon first answered all old probes in the queue, and the paths seemed dead until
    then."""
    with site.proxy.running([sys.executable, "-I", "-c", ECHO]), connected_daemons(site) as (_, proxy):
        with site.proxy.entered(), closing(Receiver("u0")) as tap:
            while not (probes := tap.read(1)):
                site.exchange(20)
            payload = probes[0].payload
        with site.relay.entered():
            copier = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with copier:
            copier.bind(("10.93.0.1", 6666))
            copier.settimeout(60)
            proxy.signal(signal.SIGSTOP)
            for _ in range(50):
                copier.sendto(payload, (PEER, PORT))
            time.sleep(1)  # The messages wait at least this long
            wait_until(lambda: site.alive(site.relay) == [False, False], "the relay reports that no path answers")
            proxy.signal(signal.SIGCONT)
            wait_until(lambda: site.alive(site.relay) == [True, True], "the paths are alive")
            copier.sendto(payload, (PEER, PORT))
            copier.recv(2048)
            copier.setblocking(False)
            with pytest.raises(BlockingIOError):
                copier.recv(2048)


@pytest.mark.parametrize("class_id", [0, 0x4D500001, 0x80010001, 0xFFFFFFFE])
def test_messages_keep_their_class_and_do_not_return_to_their_sender(site: Site, class_id: int) -> None:
    with site.relay.entered(), closing(Sender("u0")) as sender, closing(Receiver("u0")) as relay_tap:
        with site.proxy.entered(), closing(Receiver("u0")) as receiver:
            ends = UdpEnds(End(ip_address("10.93.0.1"), 4000), End(ip_address("10.93.0.2"), 4000))
            for sent_class in (class_id, class_id, 0):
                sender.send(ends, b"\xf4\x02" + sent_class.to_bytes(4, "big"), sent_class)
            tap = select.poll()
            arrived = list[bytes]()
            tap.register(receiver, select.POLLIN)
            while len(arrived) < 3 and tap.poll(5000):
                arrived += [each.payload[2:] for each in receiver.read(9)]
        assert arrived == [each.to_bytes(4, "big") for each in (class_id, class_id, 0)]
        assert relay_tap.read(9) == []


def test_forged_and_repeated_messages_change_no_address(site: Site) -> None:
    """Send messages with a wrong key, copies from another address, copies with a victim's address, and random bytes."""
    victim, attacker = End(ip_address("10.93.0.77"), 99), ("10.93.0.1", 6666)
    proxy_end = End(ip_address(PEER), PORT)
    with site.proxy.running([sys.executable, "-I", "-c", ECHO]), connected_daemons(site):
        before = [each["remote"] for each in site.paths(site.proxy)]
        site.relay.run(["ip", "addr", "add", f"{victim.address}/24", "dev", "u0"])
        with site.proxy.entered():
            tap = Receiver("u0")
        with site.relay.entered():
            copier, victim_socket = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
            spoofer = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        sent, received, sockets = Counter[socket.socket](), Counter[socket.socket](), (copier, victim_socket)
        with closing(tap), copier, victim_socket, spoofer:
            copier.bind(attacker)
            victim_socket.bind((str(victim.address), victim.port))
            copied = 0
            while copied < 100:
                site.exchange(20)
                probes = tap.read(64)
                stamps = [each.received_at for each in probes]
                assert stamps == sorted(set(stamps)), "the time stamps do not show when the messages arrived"
                for _, payload, _ in probes:
                    copied += 1
                    for _ in range(3):
                        copier.sendto(payload, (PEER, PORT))
                        spoofer.sendto(packet_of(UdpEnds(victim, proxy_end), payload), (PEER, 0))
                    for each in sockets:
                        sent[each] += 3 * len(payload)
            for number in range(2000):
                message = Message(Kind.PROBE, number % 9, time.monotonic_ns(), 1, 1, 1, 1, 0)
                copier.sendto(pack(message, Key(b"x" * 32)), (PEER, PORT))
                copier.sendto(b"\xf4\x02" + bytes(number % 1000), (PEER, PORT))
            assert site.exchange(100) >= 98
            for each in sockets:
                each.setblocking(False)
                with suppress(BlockingIOError):
                    while True:
                        received[each] += len(each.recv(2048))
                assert received[each] <= sent[each], "an address got more bytes than were sent with it as the source"
        assert received[victim_socket] > 0, "the copied messages were not answered"
        assert [each["remote"] for each in site.paths(site.proxy)] == before
        assert site.alive(site.relay) == site.alive(site.proxy) == [True, True]


def wireguard(node: LiveNode, private: str, public: str, address: str, endpoint: str = "") -> Any:
    """Run WireGuard as the program that uses the tunnel."""
    text = f"[Interface]\nPrivateKey = {private}\nListenPort = {PORT}\n"
    text += f"[Peer]\nPublicKey = {public}\nAllowedIPs = 10.99.0.0/24\n{endpoint}"
    settings = node.write(f"{node.name}-wireguard.conf", text)
    steps = (
        f"until wg setconf wg0 {settings}; do sleep 0.05; done",
        f"ip addr add {address}/24 dev wg0",
        "ip link set wg0 up mtu 1380",
    )
    # WireGuard creates a socket in /var/run, with the same name on both nodes.
    script = f"mount -t tmpfs none /var/run; ({' && '.join(steps)}) & exec wireguard-go --foreground wg0"
    in_userspace = "WG_I_PREFER_BUGGY_USERSPACE_TO_POLISHED_KMOD=1"
    return node.running(["unshare", "--mount", "env", in_userspace, "sh", "-c", script])


def test_wireguard_download_survives_the_loss_of_a_path(site: Site) -> None:
    """WireGuard is not modified. The client must receive exactly the bytes that were sent."""
    keys = [subprocess.run(["wg", "genkey"], text=True, capture_output=True, check=True).stdout for _ in range(2)]
    public_keys = [
        subprocess.run(["wg", "pubkey"], input=key, text=True, capture_output=True, check=True).stdout for key in keys
    ]
    sent = random.Random(1).randbytes(24 << 20)
    with ExitStack() as scope:
        scope.enter_context(daemons(site))
        endpoint = f"Endpoint = {PEER}:{PORT}\n"
        scope.enter_context(wireguard(site.relay, keys[0], public_keys[1], "10.99.0.1", endpoint))
        scope.enter_context(wireguard(site.proxy, keys[1], public_keys[0], "10.99.0.2"))
        for node in (site.relay, site.proxy):
            wait_until(lambda: "10.99.0" in node.run(["ip", "addr"]).stdout, "WireGuard is up")  # noqa: B023
        with site.proxy.entered():
            listener = scope.enter_context(socket.create_server(("10.99.0.2", 5000)))
        with site.relay.entered():
            client = scope.enter_context(socket.create_connection(("10.99.0.2", 5000), timeout=60))
        server = scope.enter_context(listener.accept()[0])
        server_thread = threading.Thread(target=server.sendall, args=[sent])
        server_thread.start()
        received = receive(client, len(sent) // 3)
        with site.proxy.link_down("u1"):
            received += receive(client, len(sent) // 3)
        received += receive(client, len(sent) - len(received))
        server_thread.join()
        assert received == sent
        assert min(each["packets_sent"] for each in site.paths(site.proxy)) > 100


def receive(client: socket.socket, minimum: int) -> bytes:
    found = b""
    while len(found) < minimum:
        found += client.recv(1 << 16)
    return found


@contextmanager
def udp_program(node: LiveNode) -> Iterator[socket.socket]:
    """Open the UDP socket of a program that uses the tunnel."""
    with node.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind(("0.0.0.0", PORT))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        bound.settimeout(1)
        yield bound


def receive_packets(program: socket.socket, count: int) -> list[bytes]:
    """Return the packets that arrive until none arrives for a second, at most *count*."""
    found = list[bytes]()
    with suppress(TimeoutError):
        while len(found) < count:
            found.append(program.recv(2048))
    return found


def sent_packets(site: Site) -> list[int]:
    """Return the number of packets that the relay has sent on each path, according to its daemon."""
    return [each["packets_sent"] for each in site.paths(site.relay)]


@contextmanager
def connected_programs(site: Site, line: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Run both daemons with *line* in the relay's file.

    Yields the sockets of the programs at the relay and the proxy.
    """
    site.split = line
    with daemons(site), udp_program(site.relay) as relay_program, udp_program(site.proxy) as proxy_program:

        def is_reached() -> bool:
            relay_program.sendto(b"?", (PEER, PORT))
            return bool(receive_packets(proxy_program, 1))

        wait_until(is_reached, "the programs reach each other")
        receive_packets(proxy_program, 100)  # discard copies
        yield relay_program, proxy_program


def test_gso_bundles_are_split_over_both_paths(site: Site) -> None:
    """wireguard-go uses UDP GSO. The uplinks compute no checksums, so that wrong checksums are detected."""
    for number in range(2):
        site.relay.run(["ethtool", "-K", f"u{number}", "tx", "off"])
    packets = [number.to_bytes(4, "big") * 250 for number in range(400)]
    with connected_programs(site, "mode: rate") as (relay_program, proxy_program):
        before = sent_packets(site)
        relay_program.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, len(packets[0]))
        for start in range(0, len(packets), 40):
            relay_program.sendto(b"".join(packets[start : start + 40]), (PEER, PORT))
            assert receive_packets(proxy_program, 40) == packets[start : start + 40], (
                "packets were lost or out of order"
            )
        wait_until(lambda: min(map(sub, sent_packets(site), before)) > 100, "both paths carry packets, not bundles")
        relay_program.sendto(b"light", (PEER, PORT))
        assert receive_packets(proxy_program, 2) == [b"light"], "the packet did not arrive exactly once"


def test_small_and_expedited_packets_are_duplicated(site: Site) -> None:
    with connected_programs(site, "duplicate: true") as (relay_program, proxy_program):
        for size, service, copies in ((100, 0, 2), (1000, 0, 1), (1000, 0xB8, 2)):
            before = sent_packets(site)
            relay_program.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, service)
            packets = [number.to_bytes(4, "big") * (size // 4) for number in range(50)]
            for packet in packets:
                relay_program.sendto(packet, (PEER, PORT))
            assert sorted(receive_packets(proxy_program, 50 * copies)) == sorted(packets * copies)
            if copies == 2:
                wait_until(lambda: min(map(sub, sent_packets(site), before)) >= 50, "each path carries a copy")  # noqa: B023
