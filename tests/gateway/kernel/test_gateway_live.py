# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the gateway daemon on the real kernel: uplinks fail, return and change, and open connections adapt."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from unit_capabilities import capability_prefix

from mptcp_gateway.plan import TABLES
from mptcp_lab.testbed import LiveNode, Testbed
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.services import program, wait_until
from mptcp_lab.testbed.system_state import differences, kernel_state

pytestmark = pytest.mark.kernel
PARENT, PORT = "10.94.9.9", 3128
SERVER = f"""\
import socket, threading, time
def feed(client):
    try:
        while True:
            client.sendall(bytes(1000))
            time.sleep(0.02)
    except OSError:
        pass
with socket.socket(socket.AF_INET, socket.SOCK_STREAM, {socket.IPPROTO_MPTCP}) as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("{PARENT}", {PORT}))
    server.listen(64)
    while True:
        threading.Thread(target=feed, args=server.accept()[:1], daemon=True).start()
"""


class Home:
    """A relay with two uplinks, u0 and u1, over which it reaches a parent."""

    def __init__(self, relay: LiveNode, parent: LiveNode) -> None:
        self.relay, self.parent = relay, parent
        self.directory = relay.directory / "gateway"
        text = f"uplinks: {{dsl: u0, lte: u1}}\nparents: ['{PARENT}:{PORT}']\n"
        self.settings = relay.write("gateway.yaml", text)

    @contextmanager
    def daemon(self) -> Iterator[Process]:
        command = [program("mptcp-gateway"), "run", "--config", str(self.settings), "--directory", str(self.directory)]
        with self.relay.running([*capability_prefix("mptcp-gateway"), *command]) as process:
            wait_until(lambda: self.verdicts() == ["good", "good"], "both uplinks are good", process=process)
            yield process

    def ways(self) -> list[dict[str, Any]]:
        try:
            found = json.loads((self.directory / "status.json").read_text())["ways"]
        except FileNotFoundError:
            return []
        return [each for each in found if each["version"] == 4]

    def verdicts(self) -> list[str]:
        return [each["verdict"] for each in self.ways()]

    def endpoints(self) -> set[str]:
        return set(re.findall(r"^(10\.94\S+) ", self.relay.run(["ip", "mptcp", "endpoint"]).stdout, re.MULTILINE))

    def device_to_parent(self) -> str:
        found = re.search(r" dev (\S+)", self.relay.run(["ip", "route", "get", PARENT]).stdout)
        return found[1] if found else ""

    def new_connection_works(self) -> bool:
        """Return whether a new connection gets data. After an outage, the kernel may still be resolving addresses."""
        try:
            with self.connect() as client:
                return bool(client.recv(100))
        except OSError:
            return False

    def connect(self) -> socket.socket:
        with self.relay.entered():
            client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
            client.settimeout(10)
            client.connect((PARENT, PORT))
        return client

    @contextmanager
    def connection_attempt(self) -> Iterator[None]:
        """Begin to open a new connection, and yield without waiting for it."""
        with self.relay.entered():
            other = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
        with other:
            other.setblocking(False)
            other.connect_ex((PARENT, PORT))
            yield

    def sources(self) -> set[str]:
        """Return the source addresses of the established subflows."""
        output = self.relay.run(["ss", "-tnH", "state", "established", "dst", PARENT]).stdout
        return set(re.findall(r"(10\.94\.\d+\.\d+)(?:%\w+)?:\d+ +10\.94\.9\.9", output))

    @contextmanager
    def silent(self, *devices: str) -> Iterator[None]:
        """Drop all packets on these devices, without any error to the sender."""
        settings = f"devices = {{ {', '.join(devices)} }} priority 0; policy drop;"
        chains = "".join(
            f"add chain netdev silent {hook} {{ type filter hook {hook} {settings} }};"
            for hook in ("ingress", "egress")
        )
        self.parent.run(["nft", f"add table netdev silent; {chains}"])
        try:
            yield
        finally:
            self.parent.run(["nft", "delete table netdev silent"])


@pytest.fixture
def home(module_testbed: Testbed) -> Iterator[Home]:
    relay, parent = module_testbed["client"], module_testbed["origin"]
    for number in range(2):
        relay.run(["ip", "link", "add", f"u{number}", "type", "veth", "peer", f"u{number}", "netns", parent.namespace])
        for node, host in ((relay, 1), (parent, 2)):
            node.run(["ip", "addr", "add", f"10.94.{number}.{host}/24", "dev", f"u{number}"])
            node.run(["ip", "link", "set", f"u{number}", "up", "addrgenmode", "none"])
        relay.run(default_route(number))
    parent.run(["ip", "addr", "add", f"{PARENT}/32", "dev", "lo"])
    parent.run(["ip", "mptcp", "limits", "set", "subflows", "8"])
    with parent.running([sys.executable, "-I", "-c", SERVER]):
        yield Home(relay, parent)
    parent.run(["ip", "addr", "del", f"{PARENT}/32", "dev", "lo"])
    for number in range(2):
        relay.run(["ip", "link", "del", f"u{number}"])


def default_route(number: int) -> list[str]:
    return f"ip route add default via 10.94.{number}.2 dev u{number} metric {number + 1}".split()


def test_silent_uplink_is_unused_until_it_answers_again(home: Home) -> None:
    """Defect: after a long outage old connections stayed on the other uplink, and new ones began on the dead one."""
    before = kernel_state(home.relay)
    with home.daemon() as daemon, home.connect() as connection:
        wait_until(lambda: home.sources() == {"10.94.0.1", "10.94.1.1"}, "the connection uses both uplinks")
        assert home.device_to_parent() == "u0"
        with home.silent("u0"):
            # Only a new connection reveals that the uplink is dead.
            with home.connection_attempt():
                wait_until(lambda: home.verdicts() == ["no answer", "good"], "the uplink is dead")
            wait_until(lambda: home.endpoints() == {"10.94.1.1"}, "the endpoint is removed")
            wait_until(lambda: home.device_to_parent() == "u1", "new connections begin on the other uplink")
            with home.connect() as new_client:
                assert new_client.recv(100)
            assert connection.recv(100)
        wait_until(lambda: home.sources() == {"10.94.0.1", "10.94.1.1"}, "the open connection uses both uplinks again")
        # The kernel may open a subflow from a returned endpoint before the routes of new connections change.
        wait_until(lambda: home.device_to_parent() == "u0", "new connections begin on the first uplink again")
        assert connection.recv(100)
        daemon.stop()
    assert differences(before, kernel_state(home.relay)) == []


def test_uplink_that_returns_during_a_trial_is_good(home: Home) -> None:
    """Defect: the fourth SYN has no MPTCP option, and the daemon concluded that the uplink strips Multipath TCP."""
    with home.daemon() as daemon:
        with home.silent("u0"), home.connection_attempt():
            wait_until(lambda: home.verdicts() == ["no answer", "good"], "the uplink is dead")
            wait_until(lambda: home.ways()[0]["for_seconds"] >= 1, "the third SYN is also lost")
        verdicts: list[str] = []

        def is_good() -> bool:
            verdicts.extend(home.verdicts()[:1])
            return verdicts[-1:] == ["good"]

        wait_until(is_good, "the uplink is good again")
        assert set(verdicts) == {"no answer", "good"}
        daemon.stop()


def test_new_address_of_an_uplink_is_used(home: Home) -> None:
    with home.daemon() as daemon, home.connect() as connection:
        home.relay.run(["ip", "addr", "del", "10.94.1.1/24", "dev", "u1"])  # the kernel also removes its default route
        wait_until(lambda: home.endpoints() == {"10.94.0.1"}, "the endpoint of the old address is removed")
        home.relay.run(["ip", "addr", "add", "10.94.1.7/24", "dev", "u1"])
        home.relay.run(default_route(1))
        wait_until(lambda: home.sources() == {"10.94.0.1", "10.94.1.7"}, "the open connection uses both uplinks")
        assert connection.recv(100)
        daemon.stop()


def test_uplink_without_carrier_is_unused(home: Home) -> None:
    """The kernel keeps the address and the default route of such a link."""
    with home.daemon() as daemon, home.connect() as connection:
        wait_until(lambda: home.sources() == {"10.94.0.1", "10.94.1.1"}, "the connection uses both uplinks")
        home.parent.run(["ip", "link", "set", "u0", "down"])
        wait_until(lambda: home.endpoints() == {"10.94.1.1"}, "the endpoint is removed")
        assert home.device_to_parent() == "u1"
        home.parent.run(["ip", "link", "set", "u0", "up"])
        wait_until(lambda: home.sources() == {"10.94.0.1", "10.94.1.1"}, "the open connection uses both uplinks again")
        # The kernel may open a subflow from a returned endpoint before the routes of new connections change.
        wait_until(lambda: home.device_to_parent() == "u0", "new connections begin on the first uplink again")
        assert connection.recv(100)
        daemon.stop()


def test_daemon_cleans_up_after_a_killed_one(home: Home) -> None:
    before = kernel_state(home.relay)
    with home.daemon() as daemon:
        daemon.kill()
    assert home.endpoints() == {"10.94.0.1", "10.94.1.1"}
    (home.directory / "status.json").unlink()
    with home.daemon() as daemon:
        daemon.stop()
    assert differences(before, kernel_state(home.relay)) == []


def test_endpoints_and_routes_of_others_are_restored(home: Home) -> None:
    """Defect: the daemon did not restore NetworkManager's endpoints, and its rules matched all packets."""

    def kernel_objects() -> str:
        return home.relay.run(["ip", "mptcp", "endpoint"]).stdout

    for endpoint in ("10.94.0.1 subflow", "10.94.1.1 signal", "10.94.3.3 dev u1 subflow backup"):
        home.relay.run(["ip", "mptcp", "endpoint", "add", *endpoint.split()])
    home.relay.run(["ip", "route", "add", "default", "via", "10.94.1.2", "dev", "u1", "metric", "0"])
    try:
        before = {line.split(" id ")[0]: sorted(line.split()[3:]) for line in kernel_objects().splitlines()}
        with home.daemon() as daemon:
            assert home.device_to_parent() == "u0"
            assert " dev u1 " in home.relay.run(["ip", "route", "get", "192.0.2.77"]).stdout, (
                "packets to another host did not keep their route"
            )
            with home.silent("u0"):
                with home.connection_attempt():
                    wait_until(lambda: home.verdicts() == ["no answer", "good"], "the uplink is dead")
                wait_until(lambda: home.endpoints() == {"10.94.1.1", "10.94.3.3"}, "the endpoint is removed")
            daemon.stop()
        after = {line.split(" id ")[0]: sorted(line.split()[3:]) for line in kernel_objects().splitlines()}
        assert after == before
    finally:
        home.relay.run(["ip", "mptcp", "endpoint", "flush"])
        home.relay.run(["ip", "route", "del", "default", "via", "10.94.1.2", "dev", "u1", "metric", "0"])


def test_uplinks_survive_a_silent_or_refusing_parent(home: Home) -> None:
    """Defect: the daemon declared all uplinks dead, so that open connections lost their subflows."""
    start = "add table inet refuse; add chain inet refuse in { type filter hook input priority 0; };"
    rule = f"add rule inet refuse in tcp dport {PORT} tcp flags & (syn | ack) == syn"
    home.parent.run(["nft", f"{start} {rule} reject with tcp reset"])
    try:
        with home.daemon() as daemon:
            assert all("refused" in each["reason"] for each in home.ways()), (
                "the reason of a way does not mention the refusal"
            )
            home.parent.run(["nft", f"flush chain inet refuse in; {rule} drop"])
            with home.connection_attempt():
                wait_until(lambda: all("timed out" in each["reason"] for each in home.ways()), "the trials have failed")
            assert home.verdicts() == ["good", "good"]
            assert home.endpoints() == {"10.94.0.1", "10.94.1.1"}
            home.parent.run(["nft", "delete table inet refuse"])
            wait_until(lambda: not any(each["reason"] for each in home.ways()), "no way has a problem any longer")
            assert home.verdicts() == ["good", "good"]
            daemon.stop()
    finally:
        home.parent.run(["nft", "add table inet refuse; delete table inet refuse"])


def test_path_that_drops_large_packets_is_noticed(home: Home) -> None:
    """Connections can be opened over this path, but stall at their first full-sized packet."""
    chain = "add chain netdev narrow in { type filter hook ingress device u0 priority 0; }"
    home.parent.run(["nft", f"add table netdev narrow; {chain}; add rule netdev narrow in meta length > 1300 drop"])
    try:
        with home.daemon() as daemon:
            wait_until(lambda: "full-sized" in home.ways()[0]["reason"], "the loss of large packets is noticed")
            assert home.ways()[1]["reason"] == ""
            daemon.stop()
    finally:
        home.parent.run(["nft", "delete table netdev narrow"])


def test_uplinks_with_the_same_network_are_both_used(home: Home) -> None:
    """Two unconfigured routers use the same network on both uplinks."""
    for number, host in ((0, 2), (1, 3)):
        home.relay.run(["ip", "addr", "add", f"192.168.1.{host}/24", "dev", f"u{number}"])
        home.relay.run(["ip", "addr", "del", f"10.94.{number}.1/24", "dev", f"u{number}"])
        home.relay.run(f"ip route replace default via 192.168.1.1 dev u{number} metric {number + 1}".split())
        home.parent.run(["ip", "addr", "add", "192.168.1.1/32", "dev", f"u{number}"])
        home.parent.run(["ip", "route", "add", f"192.168.1.{host}/32", "dev", f"u{number}"])
    with home.daemon() as daemon, home.connect() as connection:
        addresses = r"192\.168\.1\.[23]"

        def sources() -> set[str]:
            output = home.relay.run(["ss", "-tnH", "state", "established", "dst", PARENT]).stdout
            return set(re.findall(rf"({addresses})(?:%\w+)?:\d+ +10\.94\.9\.9", output))

        wait_until(lambda: sources() == {"192.168.1.2", "192.168.1.3"}, "the connection uses both uplinks")
        before = [home.relay.interface_bytes(f"u{number}").received for number in range(2)]
        wait_until(
            lambda: all(home.relay.interface_bytes(f"u{number}").received > before[number] for number in range(2)),
            "each subflow uses its own device",
        )
        assert connection.recv(100)
        daemon.stop()


def test_both_uplinks_are_used_again_after_an_outage(home: Home) -> None:
    with home.daemon() as daemon:
        with home.silent("u0", "u1"), home.connection_attempt():
            wait_until(lambda: all("timed out" in each["reason"] for each in home.ways()), "the trials have failed")
            for number in range(2):
                home.parent.run(["ip", "link", "set", f"u{number}", "down"])
            wait_until(lambda: all("link is down" in each["reason"] for each in home.ways()), "the links are down")
            for number in range(2):
                home.parent.run(["ip", "link", "set", f"u{number}", "up"])
        wait_until(lambda: home.verdicts() == ["good", "good"], "both are good")
        wait_until(lambda: home.endpoints() == {"10.94.0.1", "10.94.1.1"}, "both are endpoints")
        wait_until(home.new_connection_works, "new connections get data")
        daemon.stop()


@pytest.mark.nightly
def test_flapping_uplink_does_not_disturb_the_other(home: Home) -> None:
    with home.daemon() as daemon, home.connect() as connection:
        for _ in range(6):
            home.parent.run(["ip", "link", "set", "u0", "down"])
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                assert connection.recv(1000), "the transfer stopped"
            home.parent.run(["ip", "link", "set", "u0", "up"])
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                assert connection.recv(1000), "the transfer stopped"
        assert home.verdicts()[1] == "good"
        wait_until(lambda: home.sources() == {"10.94.0.1", "10.94.1.1"}, "the connection uses both uplinks in the end")
        daemon.stop()


def test_plan_prints_the_commands_that_the_daemon_runs(home: Home) -> None:
    """After the commands that ``plan`` prints have been run, the daemon finds nothing to change."""
    home.settings.write_text(f"{home.settings.read_text()}lan: {{devices: [lan0]}}\n")

    def kernel_objects() -> list[str]:
        outputs = [home.relay.run(["ip", *words.split()]).stdout for words in ("-4 rule", "-6 rule", "mptcp endpoint")]
        tables = [home.relay.run(["ip", "route", "show", "table", str(each)], check=False).stdout for each in TABLES]
        return sorted("".join([*outputs, *tables]).splitlines())

    command = [sys.executable, "-I", "-m", "mptcp_gateway.cli", "plan", "--config", str(home.settings)]
    lines = home.relay.run(command).stdout.splitlines()
    home.relay.run(["sh", "-ec", "\n".join(line for line in lines if line.startswith("ip "))])
    try:
        before = kernel_objects()
        with home.daemon() as daemon:
            assert kernel_objects() == before
            daemon.stop()
        assert not any(" lookup 77" in each for each in kernel_objects())
    finally:
        home.relay.run(["ip", "mptcp", "endpoint", "flush"])
