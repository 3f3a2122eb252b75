"""Both daemons on the real kernel: a UDP program at each end that knows nothing of them."""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.services import wait_until
from mptcp_lab.testbed.system_state import differences, kernel_state
from mptcp_tunnel.kernel.packets import Receiver, packet_of
from mptcp_tunnel.message import Key, Kind, Message, packed
from mptcp_tunnel.model import End
from mptcp_tunnel.model import Ends as UdpEnds

pytestmark = pytest.mark.kernel
PORT = 51820
SO_RCVBUFFORCE = 33
FAMILIES = ("-4", "-6")
PEERS = {4: "10.93.9.9", 6: "fd00:93:9::9"}
PEER = PEERS[4]
ECHO = f"""\
import socket
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as server:
    server.bind(("::", {PORT}))
    while True:
        data, address = server.recvfrom(2048)
        server.sendto(data, address)
"""


class Site:
    """Two nodes with two links between them; a relay here, a proxy there."""

    def __init__(self, relay: LiveNode, proxy: LiveNode) -> None:
        self.relay, self.proxy = relay, proxy
        self.version = 4
        """By which the relay comes."""
        self.key = relay.write("tunnel.key", "k" * 32)
        self.key.chmod(0o600)
        self.sockets = {node.name: node.directory / f"{node.name}-tunnel.sock" for node in (relay, proxy)}

    def settings(self, node: LiveNode) -> Path:
        text = f"status_socket: {self.sockets[node.name]}\n"
        if node is self.relay:
            peer = End(ip_address(PEERS[self.version]), PORT)
            text += "tunnels:\n  home:\n    port: 51820\n"
            text += f'    key: {self.key}\n    peer: "{peer}"\n    paths: {{a: u0, b: u1}}\n'
        else:
            text += f"uplinks: [u0, u1]\ntunnels:\n  home: {{port: {PORT}, key: {self.key}}}\n"
        return node.write(f"{node.name}-tunnel.yaml", text)

    def daemon(self, node: LiveNode) -> Any:
        return node.running(
            [sys.executable, "-I", "-m", "mptcp_tunnel.cli", "run", "--config", str(self.settings(node))]
        )

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

    def queued(self, node: LiveNode) -> int:
        """Return how many packets the resequencer got there."""
        return int(node.run(["cat", "/proc/net/netfilter/nfnetlink_queue"]).stdout.split()[7])

    @contextmanager
    def numbers(self, node: LiveNode) -> Iterator[set[int]]:
        """Have the numbers of the packets that come by the paths meanwhile."""
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
                        at = 4 if data[0] >> 4 == 4 else 2
                        found.add(int.from_bytes(data[at : at + 2], "big"))

    def alive(self, node: LiveNode) -> list[bool]:
        return [each["alive"] for each in self.paths(node)]

    def exchange(self, count: int) -> int:
        """Have the program here send so many packets, twenty at once; return how many came back, each once."""
        came = set()
        family = socket.AF_INET if self.version == 4 else socket.AF_INET6
        with self.relay.entered(), socket.socket(family, socket.SOCK_DGRAM) as client:
            client.bind(("", PORT))
            client.settimeout(0.5)
            for start in range(0, count, 20):
                for number in range(start, start + 20):
                    client.sendto(b"\x04" + number.to_bytes(4, "big") * 100, (PEERS[self.version], PORT))
                with suppress(TimeoutError):
                    for _ in range(20):
                        came.add(client.recvfrom(2048)[0][1:5])
        return len(came)


@pytest.fixture
def site(module_testbed: Testbed) -> Iterator[Site]:
    relay, proxy = module_testbed["client"], module_testbed["origin"]
    for number in range(2):
        sides = [(f"10.93.{number}.1", f"10.93.{number}.2", 24), (f"fd00:93:{number}::1", f"fd00:93:{number}::2", 64)]
        relay.run(["ip", "link", "add", f"u{number}", "type", "veth", "peer", f"u{number}", "netns", proxy.namespace])
        for node, side in ((relay, 0), (proxy, 1)):
            # No address comes later, by itself.
            node.run(["ip", "link", "set", f"u{number}", "up", "addrgenmode", "none"])
            for each in sides:
                node.run(["ip", "addr", "add", f"{each[side]}/{each[2]}", "dev", f"u{number}", "nodad"])
        for peer, (near, far, _) in zip(PEERS.values(), sides, strict=True):
            where = ["via", far, "dev", f"u{number}"]
            relay.run(["ip", "route", "add", peer, *where, "table", str(100 + number)])
            relay.run(["ip", FAMILIES[near.count(":") > 0], "rule", "add", "from", near, "lookup", str(100 + number)])
            if number == 0:
                relay.run(["ip", "route", "add", peer, *where])
    for peer in PEERS.values():
        proxy.run(["ip", "addr", "add", peer, "dev", "lo", "nodad"])
    for node in (relay, proxy):
        wait_until(lambda: node.run(["ip", "link"]).stdout.count("state UP") >= 3, "both links are up")  # noqa: B023
    yield Site(relay, proxy)
    for length, peer in zip((32, 128), PEERS.values(), strict=True):
        proxy.run(["ip", "addr", "del", f"{peer}/{length}", "dev", "lo"])
    for number in range(2):
        for family, near in zip(FAMILIES, (f"10.93.{number}.1", f"fd00:93:{number}::1"), strict=True):
            relay.run(["ip", family, "rule", "del", "from", near, "lookup", str(100 + number)])
        relay.run(["ip", "link", "del", f"u{number}"])


@contextmanager
def both(site: Site) -> Iterator[tuple[Process, Process]]:
    with site.daemon(site.proxy) as proxy, site.daemon(site.relay) as relay:
        for node, process in ((site.proxy, proxy), (site.relay, relay)):
            wait_until(partial(site.answers, node), f"the daemon of {node.name} answers", process=process)
        wait_until(lambda: site.alive(site.relay) == site.alive(site.proxy) == [True, True], "both paths live")
        wait_until(lambda: site.exchange(20) == 20, "the programs reach each other")
        yield relay, proxy
        for each in (relay, proxy):
            each.stop()


def test_a_program_uses_both_paths_and_nothing_is_left(site: Site, require: Callable[..., None]) -> None:
    before = [kernel_state(node) for node in (site.relay, site.proxy)]
    echo = [sys.executable, "-I", "-c", ECHO]
    with site.proxy.running(echo), both(site):
        assert site.exchange(500) >= 495
        for node in (site.relay, site.proxy):
            wait_until(lambda: min(each["packets_sent"] for each in site.paths(node)) > 100, "both carry something")  # noqa: B023
    for node, state in zip((site.relay, site.proxy), before, strict=True):
        assert differences(state, kernel_state(node)) == []


def test_what_a_path_takes_is_found(site: Site) -> None:
    for node in (site.relay, site.proxy):
        node.run(["ip", "link", "set", "u1", "mtu", "1430"])
    with site.proxy.running([sys.executable, "-I", "-c", ECHO]), both(site):
        wait_until(lambda: [each["mtu"] for each in site.paths(site.relay)] == [1500, 1420], "both are known")
    for node in (site.relay, site.proxy):
        node.run(["ip", "link", "set", "u1", "mtu", "1500"])


def test_killed_daemons_leave_the_tunnel_and_their_successors_nothing(site: Site) -> None:
    before = [kernel_state(node) for node in (site.relay, site.proxy)]
    with site.proxy.running([sys.executable, "-I", "-c", ECHO]), both(site) as (relay, proxy):
        site.exchange(20)
        relay.kill()
        proxy.kill()
        assert site.exchange(200) >= 195, "the programs go on with what they were told"
        with both(site):
            assert site.exchange(200) >= 195
    for node, state in zip((site.relay, site.proxy), before, strict=True):
        assert differences(state, kernel_state(node)) == []


def test_a_path_that_is_silent_is_left_and_comes_back(site: Site) -> None:
    echo = [sys.executable, "-I", "-c", ECHO]
    with site.proxy.running(echo), both(site):
        site.exchange(20)
        with site.proxy.link_down("u1"):
            wait_until(lambda: site.alive(site.relay) == site.alive(site.proxy) == [True, False], "it is silent")
            assert site.exchange(200) >= 195
        wait_until(lambda: site.alive(site.relay) == [True, True], "it is back", timeout=5)


def test_a_relay_that_comes_by_the_other_ip_version_is_followed(site: Site) -> None:
    """Defect: the program at the proxy had the far end of the first one, to which nothing led any more."""
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
                queued = site.queued(site.proxy)
                with site.numbers(site.proxy) as numbers:
                    assert site.exchange(200) >= 195
                assert site.queued(site.proxy) >= queued + 195, "the resequencer has them"
                assert len(numbers) >= 150
                assert max(numbers) - min(numbers) < 250, "each has the next number"
                wait_until(
                    lambda: sum(each["packets_sent"] for each in site.paths(site.proxy)) >= sum(before) + 195,  # noqa: B023
                    "the answers went by the paths",
                )
                relay.stop()
        proxy.stop()


def test_a_backlog_of_messages_is_not_answered(site: Site) -> None:
    """Defect: after a stall the answers came to old probes for as long as the backlog was, and paths seemed dead."""
    with site.proxy.running([sys.executable, "-I", "-c", ECHO]), both(site) as (_, proxy):
        with site.proxy.entered(), closing(Receiver("u0")) as tap:
            while not (waited := tap.read(1)):
                site.exchange(20)
            payload = waited[0].payload
        with site.relay.entered():
            copier = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with copier:
            copier.bind(("10.93.0.1", 6666))
            copier.settimeout(60)
            proxy.signal(signal.SIGSTOP)
            for _ in range(50):
                copier.sendto(payload, (PEER, PORT))
            time.sleep(1)  # so long do they wait, at least
            proxy.signal(signal.SIGCONT)
            wait_until(lambda: site.alive(site.relay) == [True, True], "the paths live")
            copier.sendto(payload, (PEER, PORT))
            copier.recv(2048)
            copier.setblocking(False)
            with pytest.raises(BlockingIOError):
                copier.recv(2048)


def test_forged_and_repeated_messages_move_nothing(site: Site) -> None:
    """Of a wrong key, true ones from another address and in a victim's name, and plain nonsense."""
    victim, attacker = End(ip_address("10.93.0.77"), 99), ("10.93.0.1", 6666)
    to = End(ip_address(PEER), PORT)
    with site.proxy.running([sys.executable, "-I", "-c", ECHO]), both(site):
        before = [each["remote"] for each in site.paths(site.proxy)]
        site.relay.run(["ip", "addr", "add", f"{victim.address}/24", "dev", "u0"])
        with site.proxy.entered():
            tap = Receiver("u0")
        with site.relay.entered():
            copier, hears = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
            spoofer = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        asked, answered, sockets = Counter[socket.socket](), Counter[socket.socket](), (copier, hears)
        with closing(tap), copier, hears, spoofer:
            copier.bind(attacker)
            hears.bind((str(victim.address), victim.port))
            copied = 0
            while copied < 100:
                site.exchange(20)
                waited = tap.read(64)
                stamps = [each.came for each in waited]
                assert stamps == sorted(set(stamps)), "each has the time at which it came, none that of reading"
                for _, payload, _ in waited:
                    copied += 1
                    for _ in range(3):
                        copier.sendto(payload, (PEER, PORT))
                        spoofer.sendto(packet_of(UdpEnds(victim, to), payload), (PEER, 0))
                    for each in sockets:
                        asked[each] += 3 * len(payload)
            for number in range(2000):
                message = Message(Kind.PROBE, number % 9, time.monotonic_ns(), 1, 1, 1, 1, 0)
                copier.sendto(packed(message, Key(b"x" * 32)), (PEER, PORT))
                copier.sendto(b"\xf4\x02" + bytes(number % 1000), (PEER, PORT))
            assert site.exchange(100) >= 98
            for each in sockets:
                each.setblocking(False)
                with suppress(BlockingIOError):
                    while True:
                        answered[each] += len(each.recv(2048))
                assert answered[each] <= asked[each], "nobody gets more than was sent in his name"
        assert answered[hears] > 0, "what was copied is true"
        assert [each["remote"] for each in site.paths(site.proxy)] == before
        assert site.alive(site.relay) == site.alive(site.proxy) == [True, True]
