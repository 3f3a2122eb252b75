# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the doctor on a relay: its findings about endpoints and routes of subflows, and its remedies."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from relaying import PEER, UPLINKS, peer_statement, write_configuration

from mptcp_lab.agent.processes import with_mounts
from mptcp_lab.testbed import RELAY, LiveNode, Process, Testbed
from mptcp_lab.testbed.services import program, python_command, start_proxy, wait_until
from mptcp_proxy import shim

pytestmark = pytest.mark.kernel
Findings = dict[str, dict[str, str]]


@pytest.fixture(autouse=True)
def _needs(require: Callable[..., None]) -> None:
    require("squid", "gcc")
    for name in (shim.LISTEN, shim.TURNS):
        shim.library(name)


def run_doctor(testbed: Testbed, *statements: str) -> Findings:
    """Return the doctor's findings on a relay that does not run. Its configuration has the additional *statements*."""
    node = testbed["relay"]
    config = write_configuration(node, *statements)
    argv = [program("mptcp-proxy"), "doctor", "--role", "relay", "--json", "--config", str(config)]
    empty = node.directory / "empty"
    empty.mkdir(exist_ok=True)
    answer = node.run(with_mounts(argv, {"/run/mptcprelay": str(empty)}), check=False, timeout=120)
    return {finding["check"]: finding for finding in json.loads(answer.stdout)}


def test_advised_command_removes_lost_endpoints(make_testbed: Callable[..., Testbed]) -> None:
    """Defect: the advised command removed no endpoint and exited with status 0."""
    testbed = make_testbed(RELAY)
    node = testbed["relay"]
    node.run(["ip", "mptcp", "endpoint", "flush"])
    for address in ("10.0.0.9", "2001:db8::9"):
        node.run(["ip", "mptcp", "endpoint", "add", address, "subflow"])
    found = run_doctor(testbed, peer_statement(testbed["proxy"]))["uplinks"]
    assert found["status"] == "fail"
    assert "the endpoint 10.0.0.9, 2001:db8::9" in found["text"]
    for command in found["remedy"].split("; "):
        # Only the operator knows the address to be added.
        if "ADDRESS" not in command:
            node.run(["sh", "-c", command])
    assert node.run(["ip", "mptcp", "endpoint", "show"]).stdout == ""


def route_by_metric(testbed: Testbed, *, with_interface: bool) -> LiveNode:
    """Give the relay two default routes that differ only in their metric, and no rules, as NetworkManager does.

    Each provider drops packets from the other provider's addresses. With *with_interface*, the endpoints name their
    interfaces.
    """
    node, core = testbed["relay"], testbed["core"]
    core.run(["nft", "add table inet providers"])
    core.run(["nft", "add chain inet providers in { type filter hook prerouting priority 0; }"])
    node.run(["ip", "mptcp", "endpoint", "flush"])
    for family, protocol in ((4, "ip"), (6, "ip6")):
        addresses = [node.address(device, family) for device in UPLINKS]
        for device, address, foreign in zip(UPLINKS, addresses, reversed(addresses), strict=True):
            interface = ["dev", device] if with_interface else []
            node.run(["ip", f"-{family}", "rule", "delete", "from", address])
            node.run(["ip", "mptcp", "endpoint", "add", address, *interface, "subflow"])
            core.run(["nft", f"add rule inet providers in iifname to-{device} {protocol} saddr {foreign} drop"])
    return node


def start_parent(testbed: Testbed) -> list[str]:
    """Start a parent. Return the statements that configure it, once for each address family."""
    node = testbed["proxy"]
    start_proxy(node)
    return [PEER.format(address=node.service_address(each), limit=2, name=f"by-{each}") for each in (4, 6)]


def failed_checks(found: Findings) -> set[str]:
    return {name for name, each in found.items() if each["status"] == "fail"}


HOLD_CONNECTION = """
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.socket(family, socket.SOCK_STREAM, 262)
if len(sys.argv) > 2:
    s.bind((sys.argv[2], 0))
s.connect((sys.argv[1], 3128))
s.sendall(b"\\r\\n")
time.sleep(600)
"""
"""A client program that connects to a parent from a given source address, or from any address."""


def hold_connection(testbed: Testbed, *, family: int = 4, source: str = "") -> AbstractContextManager[Process]:
    parent = testbed["proxy"].service_address(family)
    return testbed["relay"].running(python_command(HOLD_CONNECTION, parent, *([source] if source else [])), name="held")


def wait_for_second_subflow(testbed: Testbed, family: int) -> None:
    """Open a connection to the parent and wait for its second subflow."""
    node = testbed["proxy"]
    before = node.mib()["MPTcpExtMPJoinAckRx"]
    with hold_connection(testbed, family=family):
        wait_until(lambda: node.mib()["MPTcpExtMPJoinAckRx"] > before, f"a second subflow joins over IPv{family}")


@pytest.mark.nightly(except_for=("NetworkManager",))
@pytest.mark.parametrize("setting", ["NetworkManager's", "another address is Squid's own"])
def test_route_metrics_suffice_for_endpoints_with_an_interface(
    make_testbed: Callable[..., Testbed], setting: str
) -> None:
    """Defect: the doctor demanded rules, although subflows of such endpoints leave through their own uplinks anyway."""
    testbed = make_testbed(RELAY)
    route_by_metric(testbed, with_interface=True)
    # Packets from this address leave through its uplink in both cases.
    source = ["tcp_outgoing_address 10.77.1.2"] if setting.startswith("another") else []
    statements = [*start_parent(testbed), *source]
    for family in (4, 6):
        wait_for_second_subflow(testbed, family)
    assert failed_checks(run_doctor(testbed, *statements)) == set()


@pytest.mark.nightly
def test_unanswered_subflow_does_not_count(make_testbed: Callable[..., Testbed]) -> None:
    """Defect: the doctor relied on the kernel's count, which includes a subflow as soon as its SYN is sent."""
    testbed = make_testbed(RELAY)
    core = testbed["core"]
    core.run(["nft", "add table inet provider"])
    core.run(["nft", "add chain inet provider in { type filter hook prerouting priority 0; }"])
    core.run(["nft", "add rule inet provider in iifname to-wlan0 tcp flags & syn == syn drop"])
    found = run_doctor(testbed, *start_parent(testbed))
    proxy = testbed["proxy"]
    for parent in (f"{proxy.service_address(4)}:3128", f"[{proxy.service_address(6)}]:3128"):
        finding = found[f"parent {parent}"]
        assert (finding["status"], finding["text"]) == ("fail", f"{parent}: Multipath TCP with 1 subflow")


THROUGH_ETH0 = "10.77.2.2 (wlan0) to 10.77.8.2: through eth0"
FAULTS: dict[str, tuple[bool, list[str], list[str], str]] = {
    "no interface": (False, [], [], f"{THROUGH_ETH0}; fd77:2::2 (wlan0) to fd77:8::2: through eth0"),
    "another interface": (
        True,
        ["ip mptcp endpoint delete id 2", "ip mptcp endpoint add 10.77.2.2 dev eth0 id 2 subflow"],
        [],
        THROUGH_ETH0,
    ),
    "Squid's own": (True, [], ["tcp_outgoing_address 10.77.2.2"], THROUGH_ETH0),
    "rp_filter": (True, ["sysctl -qw net.ipv4.conf.wlan0.rp_filter=1"], [], THROUGH_ETH0),
    "no route": (
        True,
        ["ip -4 route delete default dev wlan0", "ip -6 route delete default dev wlan0"],
        [],
        "10.77.2.2 (wlan0) to 10.77.8.2: no route; fd77:2::2 (wlan0) to fd77:8::2: no route",
    ),
}
"""For each fault: whether endpoints name their interfaces, commands, statements to add, and the finding's text."""


@pytest.mark.nightly(except_for=("no route",))
@pytest.mark.parametrize("fault", FAULTS)
def test_remedy_corrects_the_routes_of_uplinks(make_testbed: Callable[..., Testbed], fault: str) -> None:
    with_interface, commands, added_statements, text = FAULTS[fault]
    testbed = make_testbed(RELAY)
    node = route_by_metric(testbed, with_interface=with_interface)
    for command in commands:
        node.run(command.split())
    statements = [*start_parent(testbed), *added_statements]
    found = run_doctor(testbed, *statements)["routes of uplinks"]
    assert (found["status"], found["text"]) == ("fail", text)

    # Check that the finding is true: the kernel retransmits the subflow's SYN, or delays it because it looks for the
    # parent on the link.
    before = node.mib()["TcpExtTCPSynRetrans"]

    def is_unanswered() -> bool:
        neighbours = node.run(["ip", "neighbour", "show", "dev", "wlan0"]).stdout
        return "10.77.8.2 " in neighbours or node.mib()["TcpExtTCPSynRetrans"] > before

    with hold_connection(testbed, source="10.77.2.2" if added_statements else ""):
        wait_until(is_unanswered, "a subflow gets no answer")

    # Only the operator knows the gateway of a missing route.
    remedy = found["remedy"].replace("via GATEWAY", "via 10.77.2.1", 1).replace("via GATEWAY", "via fd77:2::1")
    for command in remedy.split("#")[0].split("&&"):
        node.run(["sh", "-c", command])
    for family in (4, 6):
        wait_for_second_subflow(testbed, family)
    assert failed_checks(run_doctor(testbed, *statements)) == set()
