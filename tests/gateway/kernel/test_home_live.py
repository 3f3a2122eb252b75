# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a home whose devices need no settings: a forwarder tunnels their connections through a real Squid."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from unit_capabilities import capability_prefix

from mptcp_gateway import connect
from mptcp_lab.testbed import RELAY, LiveNode, Testbed
from mptcp_lab.testbed import home as home_setup
from mptcp_lab.testbed.home import (
    SITE,
    SITE6,
    UPLINKS,
    add_site_addresses,
    silent_link,
    start_parent,
    wait_for_site,
    write_settings,
)
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.services import Origin, python_command, start_origin, wait_until
from mptcp_lab.testbed.system_state import differences, kernel_state

pytestmark = pytest.mark.kernel
FILES = {"small.bin": 100_000, "large.bin": 12_000_000}
BANNER = """
import socketserver
class Greeting(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"220 here\\r\\n")
        self.wfile.write(b"250 " + self.rfile.readline())
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("", 25), Greeting).serve_forever()
"""
READ_BANNER = f"""
import socket
with socket.create_connection(("{SITE}", 25), 10) as connection:
    first = connection.recv(100)
    connection.sendall(b"hello\\r\\n")
    print((first + connection.recv(100)).decode().replace("\\r\\n", " "))
"""
ECHO = f"""
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("{SITE}", 443))
while True:
    data, client = server.recvfrom(2000)
    server.sendto(client[0].encode(), client)
"""
REQUEST_ECHO = f"""
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    client.settimeout(3)
    client.connect(("{SITE}", 443))
    try:
        client.send(b"x")
        print(client.recv(100).decode())
    except OSError as error:
        print(type(error).__name__)
"""


@dataclass
class Home:
    testbed: Testbed
    origin: Origin

    @property
    def device(self) -> LiveNode:
        return self.testbed["client"]

    @property
    def relay(self) -> LiveNode:
        return self.testbed["relay"]

    @contextmanager
    def gateway(self, lan_options: str = "") -> Iterator[Process]:
        self.settings = write_settings(self.relay, self.testbed["proxy"].service_address(), lan_options)
        with home_setup.gateway(self.relay, self.settings, capability_prefix("mptcp-gateway")) as process:
            yield process

    def forwarder(self) -> AbstractContextManager[Process]:
        return home_setup.forwarder(self.relay, self.settings, capability_prefix("mptcp-forwarder"))

    def status(self) -> dict[str, Any]:
        command = home_setup.command(self.relay, "status", self.settings)
        directory = str(self.relay.directory / home_setup.DIRECTORY)
        output = self.relay.run([*command, "--forwarder", directory, "--json"]).stdout
        home: dict[str, Any] = json.loads(output)["home"]
        return home

    def metrics(self) -> list[str]:
        command = home_setup.command(self.relay, "status", self.settings)
        directory = str(self.relay.directory / home_setup.DIRECTORY)
        return self.relay.run([*command, "--forwarder", directory, "--prometheus"]).stdout.splitlines()

    def doctor_checks_except(self, status: str) -> list[str]:
        """Return the names of the doctor's checks whose status is not *status*."""
        command = home_setup.command(self.relay, "doctor", self.settings)
        directory = str(self.relay.directory / home_setup.DIRECTORY)
        output = self.relay.run([*command, "--forwarder", directory, "--json"], check=False)
        return [each["check"] for each in json.loads(output.stdout) if each["status"] != status]

    def forwarder_counts(self) -> dict[str, Any]:
        return home_setup.forwarder_status(self.relay)

    def wait_for_count(self, key: str, count: int) -> bool:
        wait_until(lambda: self.forwarder_counts()[key] >= count, f"the forwarder's {key} is at least {count}")
        return True

    def banner(self) -> str:
        return self.device.run(python_command(READ_BANNER)).stdout.strip()

    def echo(self) -> str:
        """Return the source address with which a UDP packet arrived at port 443, or the name of the error."""
        return self.device.run(python_command(REQUEST_ECHO)).stdout.strip()

    def downloaded_text(self) -> str:
        return (self.device.directory / "download").read_text(errors="replace")

    @contextmanager
    def flow(self) -> Iterator[Callable[[], str]]:
        """Yield a function that sends one more packet from the same port, and returns its source address on arrival."""
        with self.device.entered():
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with sender:
            sender.settimeout(0.2)
            sender.connect((SITE, 443))

            def send_packet() -> str:
                try:
                    sender.send(b"x")
                    return sender.recv(100).decode()
                except OSError:
                    return ""

            yield send_packet

    @contextmanager
    def refusing_parent(self) -> Iterator[None]:
        """Let the parent's port refuse connections."""
        parent = self.testbed["proxy"]
        rule = "tcp dport 3128 tcp flags & (syn | ack) == syn reject with tcp reset"
        chain = "add chain inet refuse in { type filter hook input priority 0; }"
        parent.run(["nft", f"add table inet refuse; {chain}; add rule inet refuse in {rule}"])
        try:
            yield
        finally:
            parent.run(["nft", "delete table inet refuse"])

    def get(self, url: str, *options: str) -> str:
        """Return what curl prints about a download: status, seconds to the first byte, and total seconds."""
        file = self.device.directory / "download"
        output_format = "%{http_code} %{time_starttransfer} %{time_total}"
        command = ["curl", "-sk", "-m", "60", "-o", str(file), "-w", output_format, *options, url]
        return self.device.run(command, check=False, timeout=70).stdout

    def downloads(self, url: str, name: str, *options: str) -> bool:
        output = self.get(f"{url}/{name}", *options)
        content = (self.device.directory / "download").read_bytes()
        return output.startswith("200") and hashlib.sha256(content).hexdigest() == self.origin.digests[name]

    @contextmanager
    def received_bytes(self) -> Iterator[dict[str, int]]:
        before = {device: self.relay.interface_bytes(device).received for device in UPLINKS}
        found: dict[str, int] = {}
        yield found
        found |= {device: self.relay.interface_bytes(device).received - before[device] for device in UPLINKS}


@pytest.fixture(scope="module")
def home(make_module_testbed: Callable[..., Testbed], require: Callable[..., None]) -> Home:
    require("squid", "apache2", "curl", "gcc", "openssl", "nftables")
    testbed = make_module_testbed(RELAY)
    origin = testbed["origin"]
    add_site_addresses(testbed)
    start_parent(testbed["proxy"])
    site = Home(testbed, start_origin(origin, FILES, ports=(80, 8081), tls_port=443))
    wait_for_site(testbed)
    for script in (BANNER, ECHO):
        origin.popen(python_command(script), name="server")
    return site


def test_tcp_of_any_kind_uses_both_uplinks(home: Home) -> None:
    # The kernel changes these two when ip_forward changes.
    home.relay.run(["sysctl", "-qw", "net.ipv4.conf.all.accept_redirects=0", "net.ipv4.conf.lan0.forwarding=1"])
    before = kernel_state(home.relay)
    with home.gateway(), home.forwarder() as forwarder:
        for url in (f"http://{SITE}", f"https://{SITE}", f"http://{SITE}:8081", f"http://[{SITE6}]"):
            assert home.downloads(url, "small.bin"), url

        def uses_both_uplinks() -> bool:
            with home.received_bytes() as counts:
                assert home.downloads(f"https://{SITE}", "large.bin")
            return min(counts.values()) > FILES["large.bin"] / 10

        wait_until(uses_both_uplinks, "a download uses both uplinks")
        assert home.banner() == "220 here 250 hello", "a server that speaks first was not reached"
        assert home.doctor_checks_except("ok") == []
        chain = "add chain ip other f { type filter hook forward priority 0; policy drop; }"
        home.relay.run(["nft", f"add table ip other; {chain}"])
        assert home.doctor_checks_except("ok") == ["other firewalls"]
        home.relay.run(["nft", "delete table ip other"])
        assert "mptcp" in home.get(f"http://{connect.CHECK_ADDRESS}/") + home.downloaded_text()
        wait_until(lambda: home.forwarder_counts()["open"] == 0, "all connections have ended")
        assert home.forwarder_counts()["direct_because"] == ""
        forwarder.stop()
    assert differences(before, kernel_state(home.relay)) == []


def test_devices_stay_online_without_forwarder_or_parent(home: Home) -> None:
    with home.gateway():
        with home.forwarder() as forwarder:
            assert home.downloads(f"http://{SITE}", "small.bin")
            wait_until(lambda: home.status()["forwarder"]["connections"] == 1, "the status reports the connection")
            assert 'mptcp_gateway_uplink{uplink="eth0",verdict="good",version="4"} 1.0' in home.metrics()
            assert "mptcp_forwarder_connections_total 1.0" in home.metrics()
            forwarder.kill()
        assert home.downloads(f"http://{SITE}", "small.bin", "-m", "2"), (
            "without a forwarder, NAT did not work within two seconds"
        )
        with home.forwarder() as forwarder, home.refusing_parent():
            assert home.downloads(f"http://{SITE}", "small.bin", "-m", "2")
            assert home.wait_for_count("direct", 1)
            forwarder.stop()


def test_rules_of_a_killed_gateway_are_removed_if_there_is_no_lan_any_longer(home: Home) -> None:
    """Defect: the firewall rules of a killed gateway remained, although the host was no longer a gateway."""
    with home.gateway() as process:
        process.kill()
    assert "mptcp_gateway" in home.relay.run(["nft", "list", "tables"]).stdout
    home.settings.write_text(re.sub("lan: .*", "", home.settings.read_text()))
    with home_setup.gateway(home.relay, home.settings):
        assert "mptcp_gateway" not in home.relay.run(["nft", "list", "tables"]).stdout


def test_fail_closed_blocks_devices_without_forwarder_or_parent(home: Home) -> None:
    with home.gateway(", fail: closed"):
        assert home.get(f"http://{SITE}/small.bin").startswith("000"), "a device had access without a forwarder"
        with home.forwarder() as forwarder:
            assert home.downloads(f"http://{SITE}", "small.bin")
            with home.refusing_parent():
                assert home.get(f"http://{SITE}/small.bin").startswith("000")
            forwarder.stop()


def test_configured_destinations_bypass_the_forwarder(home: Home) -> None:
    with home.gateway(f", past: {{destinations: [{SITE6}], ports: [8081, 443]}}"), home.forwarder() as forwarder:
        for url in (f"http://[{SITE6}]", f"http://{SITE}:8081"):
            assert home.downloads(url, "small.bin")
        assert home.echo() == home.relay.address("eth0"), "UDP was not sent past the forwarder"
        assert home.forwarder_counts()["connections"] == 0
        forwarder.stop()


def test_quic_is_refused_unless_it_may_pass(home: Home) -> None:
    with home.gateway():
        assert home.echo() == "ConnectionRefusedError"
    with home.gateway(", quic: pass"):
        assert home.echo() == home.relay.address("eth0")


def test_other_protocols_use_a_tunnel_while_it_is_up(home: Home) -> None:
    relay, origin = home.relay, home.testbed["origin"]
    relay.run(["ip", "link", "add", "vpn0", "type", "veth", "peer", "vpn0", "netns", origin.namespace])
    for node, host in ((relay, 1), (origin, 2)):
        node.run(["ip", "addr", "add", f"10.95.0.{host}/24", "dev", "vpn0"])
        node.run(["ip", "link", "set", "vpn0", "up"])
    # A VPN's interface has no neighbours that could be resolved.
    link = json.loads(origin.run(["ip", "-j", "link", "show", "vpn0"]).stdout)[0]
    relay.run(["ip", "neigh", "replace", SITE, "lladdr", link["address"], "dev", "vpn0"])
    with home.gateway(", quic: pass, tunnel: vpn0"), home.flow() as flow:
        wait_until(lambda: flow() == "10.95.0.1", "packets use the tunnel")
        relay.run(["ip", "link", "set", "vpn0", "down"])
        wait_until(lambda: flow() == relay.address("eth0"), "packets use the best uplink")
    relay.run(["ip", "link", "del", "vpn0"])


def test_device_on_the_network_of_an_uplink_is_forwarded(home: Home) -> None:
    """The device is the host *core*: one of its addresses is in the network of the uplink eth0."""
    core, relay = home.testbed["core"], home.relay
    core_address, gateway = "10.77.1.77", relay.address("eth0")
    core.run(["ip", "addr", "add", f"{core_address}/24", "dev", "to-eth0"])
    core.run(["ip", "rule", "add", "from", core_address, "to", SITE, "lookup", "400"])
    core.run(["ip", "route", "add", SITE, "via", gateway, "dev", "to-eth0", "table", "400"])

    def download() -> str:
        output_format = ["-o", "/dev/null", "-w", "%{http_code} %{size_download}"]
        command = ["curl", "-s", "-m", "10", "--interface", core_address, *output_format, f"http://{SITE}/small.bin"]
        return core.run(command, check=False, timeout=20).stdout

    expected = f"200 {FILES['small.bin']}"
    home.settings = write_settings(relay, home.testbed["proxy"].service_address(), home="eth0")
    with home_setup.gateway(relay, home.settings, capability_prefix("mptcp-gateway")):
        assert download() == expected, "the download through NAT failed"
        with home.forwarder() as forwarder:
            assert download() == expected
            wait_until(lambda: home.forwarder_counts()["connections"] == 1, "the connection was forwarded")
            assert home.forwarder_counts()["direct"] == 0
            forwarder.stop()
    core.run(["ip", "rule", "del", "from", core_address, "to", SITE, "lookup", "400"])


def test_udp_flow_leaves_a_dead_uplink(home: Home) -> None:
    """Defect: for a long-lived flow the kernel kept translating to the dead uplink's address."""
    with home.gateway(", quic: pass"), home.forwarder() as forwarder, home.flow() as flow:
        wait_until(lambda: flow() == home.relay.address("eth0"), "packets use the first uplink")
        with silent_link(home.testbed["core"], "eth0"):
            assert home.downloads(f"http://{SITE}", "small.bin"), "the download that reveals the outage failed"
            wait_until(lambda: flow() == home.relay.address("wlan0"), "packets use the other uplink")
        wait_until(lambda: home_setup.verdicts(home.relay) == ["good", "good"], "the uplink is good again")
        assert flow() == home.relay.address("wlan0"), "the flow left its uplink"
        forwarder.stop()
