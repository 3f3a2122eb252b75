# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the doctor's findings about a relay, with the states of various hosts."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from doctor_findings import is_complete

from mptcp_common.findings import Finding, Status
from mptcp_proxy.configuration.check import CheckedConfiguration
from mptcp_proxy.configuration.source import PhysicalLine
from mptcp_proxy.configuration.workers import Workers
from mptcp_proxy.connection_counts import ConnectionCounts
from mptcp_proxy.doctor import features, gather_relay, kernel, relay
from mptcp_proxy.doctor.relay import Attempt, Uplink
from mptcp_proxy.given_up import GivenUpCounts
from mptcp_proxy.places import Places, Role

OK, WARN, FAIL = Status.OK, Status.WARN, Status.FAIL
ETH, WLAN = Uplink("10.77.1.2", "eth0", "10.77.1.1"), Uplink("10.77.2.2", "wlan0", "10.77.2.1")
ETH6 = Uplink("fd77:1::2", "eth0", "fd77:1::1")
GOOD = Attempt("192.0.2.1:3128", multipath=True, subflows=2)
ONE_SUBFLOW = Attempt("192.0.2.1:3128", multipath=True)
PLAIN = Attempt("192.0.2.1:3128")
UNKNOWN_SUBFLOWS = Attempt("192.0.2.1:3128", multipath=True, subflows=None)
DEAD = Attempt("[2001:db8::1]:3128", "Network is unreachable")


def assert_finding(finding: Finding, status: Status, *words: str) -> None:
    assert finding.status is status
    assert all(word in f"{finding.text} {finding.remedy}" for word in words), finding
    assert is_complete(finding)


@pytest.mark.parametrize(
    ("states", "error", "status", "words"),
    [
        ({"one": True}, "", OK, "1 parent, none"),
        ({"one": True, "two": False}, "", WARN, "considered dead: two"),
        ({}, "403 Forbidden", WARN, "403 Forbidden"),
        ({}, "", WARN, "names none"),
    ],
)
def test_parents_that_squid_considers_dead_are_reported(
    states: dict[str, bool], error: str, status: Status, words: str
) -> None:
    assert_finding(relay.parent_states(states, error, advice="write it"), status, words)


@pytest.mark.parametrize(
    ("subflows", "status", "words"),
    [
        (8, OK, "8 additional subflows"),
        (1, OK, "1 additional subflow"),
        (0, FAIL, "limits set subflows 8"),
        (None, WARN, "read"),
    ],
)
def test_finding_about_the_subflow_limit(subflows: int | None, status: Status, words: str) -> None:
    assert_finding(relay.limit(subflows), status, words)


@pytest.mark.parametrize(
    ("seconds", "counts", "active", "status", "words"),
    [
        (None, (0, 0), False, OK, []),
        ("0", (0, 0), False, OK, []),
        # The kernel had given up MPTCP earlier.
        ("0", (2, 30), False, OK, []),
        ("3600", (0, 0), False, WARN, ["is 3600", "not in force", "sysctl -w net.mptcp.blackhole_timeout=0"]),
        ("3600", (2, 30), False, WARN, ["not in force", "MPTcpExtBlackhole 2", "30 connections"]),
        ("3600", (2, 1), True, FAIL, ["has given up Multipath TCP", "3600", "MPTcpExtBlackhole 2", "1 connection used",
                                      "MPTcpExtMPCapableSYNTXDisabled", "sysctl -w net.mptcp.blackhole_timeout=0"]),
    ],
)  # fmt: skip
def test_doctor_reports_that_the_kernel_gave_up_multipath_tcp(
    seconds: str | None, counts: tuple[int, int], active: bool, status: Status, words: list[str]
) -> None:
    assert_finding(relay.blackhole(seconds, GivenUpCounts(*counts), active), status, *words)


def test_finding_explains_plain_tcp_if_the_kernel_gave_up_multipath_tcp() -> None:
    plain = Attempt("192.0.2.1:3128", given_up=True)
    found = relay.parent("p:3128", [plain])
    assert_finding(found, FAIL, "plain TCP", "blackhole_timeout=0")
    assert "sysctl blackhole" in found.why
    assert "sysctl blackhole" not in relay.parent("p:3128", [PLAIN]).why


@pytest.mark.parametrize(
    ("endpoints", "status", "words"),
    [
        ([ETH, WLAN], OK, ["2: 10.77.1.2 on eth0, 10.77.2.2 on wlan0"]),
        (
            [],
            FAIL,
            ["none", "endpoint add 10.77.1.2 dev eth0 subflow && ip mptcp endpoint add 10.77.2.2 dev wlan0 subflow"],
        ),
        ([ETH], FAIL, ["10.77.1.2 on eth0", "ip mptcp endpoint add 10.77.2.2 dev wlan0 subflow"]),
        # Two addresses of one interface count as one uplink.
        ([ETH, ETH6], FAIL, ["two interfaces are needed"]),
        ([ETH, WLAN, Uplink("10.0.0.9", "")], FAIL, ["no interface has the address of the endpoint 10.0.0.9"]),
    ],
)
def test_finding_about_the_uplinks(endpoints: list[Uplink], status: Status, words: list[str]) -> None:
    assert_finding(relay.uplinks(endpoints, [ETH, WLAN]), status, *words)


def test_remedy_adds_no_endpoint_if_the_gateway_manages_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(relay, "GATEWAY", tmp_path)
    found = relay.uplinks([ETH], [ETH, WLAN])
    assert found.status is FAIL
    assert "endpoint add" not in found.remedy


def test_remedy_removes_a_lost_endpoint_by_its_id() -> None:
    """Defect: "delete id 0 ADDRESS" removed no endpoint, because id 0 means the initial subflow."""
    lost = [Uplink("10.0.0.9", "", id=3), Uplink("2001:db8::9", "", id=7)]
    assert relay.uplinks([ETH, *lost], [ETH, WLAN]).remedy.split("; ") == [
        "ip mptcp endpoint delete id 3",
        "ip mptcp endpoint delete id 7",
        "ip mptcp endpoint add ADDRESS dev INTERFACE subflow",
    ]


@pytest.mark.parametrize(
    ("uplink_routes", "status", "words"),
    [
        ([(ETH, "192.0.2.1", "eth0"), (WLAN, "192.0.2.1", "wlan0")], OK, ["leave through that uplink"]),
        (
            [(ETH, "192.0.2.1", "eth0"), (WLAN, "192.0.2.1", "eth0")],
            FAIL,
            # Table 101 is already in use.
            [
                "10.77.2.2 (wlan0) to 192.0.2.1: through eth0",
                "via 10.77.2.1 dev wlan0 table 102 && ip -4 rule add from 10.77.2.2",
            ],
        ),
        ([(ETH6, "2001:db8::1", "")], FAIL, ["no route", "ip -6 rule add from fd77:1::2 table 102"]),
        ([(Uplink("10.0.0.9", "usb0"), "192.0.2.1", "eth0")], FAIL, ["via GATEWAY dev usb0"]),
        # The endpoint is bound to eth0 (``dev``), so a routing rule would have no effect.
        (
            [(Uplink("10.77.2.2", "wlan0", id=3, bound="eth0"), "192.0.2.1", "eth0")],
            FAIL,
            [": through eth0 ip mptcp endpoint delete id 3 && ip mptcp endpoint add 10.77.2.2 dev wlan0 subflow   #"],
        ),
        ([], WARN, ["nothing to check"]),
    ],
)
def test_finding_about_the_routes_of_the_uplinks(
    uplink_routes: list[tuple[Uplink, str, str]], status: Status, words: list[str]
) -> None:
    assert_finding(relay.routes(uplink_routes, {101}), status, *words)


def test_outgoing_addresses_of_squid_are_read() -> None:
    texts = (
        "tcp_outgoing_address 10.77.1.2 by_eth0",
        "tcp_outgoing_address localhost",
        "tcp_outgoing_address [FD77:1:0::2]",
        "tcp_outgoing_address no.such.name.invalid",
        "tcp_outgoing_address",
        "if false",
        "tcp_outgoing_address 10.77.2.2",
        "endif",
        "tcp_outgoing_tos 0x20 by_eth0",
    )
    lines = tuple(PhysicalLine("relay.conf", number, text) for number, text in enumerate(texts, 1))
    found = gather_relay._outgoing_addresses(
        CheckedConfiguration(lines, (), "proxy", Workers(), ()), Places("mptcprelay")
    )
    assert {"10.77.1.2", "127.0.0.1", "fd77:1::2"} <= {*found} <= {"10.77.1.2", "127.0.0.1", "::1", "fd77:1::2"}


@pytest.mark.parametrize(
    ("attempts", "error", "status", "words"),
    [
        ([GOOD], "", OK, "192.0.2.1:3128: Multipath TCP with 2 subflows"),
        ([GOOD, DEAD], "", WARN, "[2001:db8::1]:3128: Network is unreachable"),
        ([ONE_SUBFLOW], "", FAIL, "1 subflow"),
        ([ONE_SUBFLOW, PLAIN], "", FAIL, "MPTcpExtMPJoin"),
        ([PLAIN], "", FAIL, "plain TCP"),
        ([UNKNOWN_SUBFLOWS], "", Status.UNSEEN, "a second subflow"),
        ([UNKNOWN_SUBFLOWS, DEAD], "", WARN, "Network is unreachable"),
        ([PLAIN, DEAD], "", FAIL, "on the parent: mptcp-proxy doctor   # and check"),
        ([DEAD], "", FAIL, "Network is unreachable"),
        ([], "Name or service not known", FAIL, "Name or service not known"),
    ],
)
def test_finding_about_a_parent(attempts: list[Attempt], error: str, status: Status, words: str) -> None:
    assert_finding(relay.parent("p:3128", attempts, error), status, words)


def test_remedy_names_an_ipv6_parent_without_brackets() -> None:
    """Defect: the remedy passed [2001:db8::1] to ping and getent, which do not accept brackets."""
    assert relay.parent("[2001:db8::1]:3128", [GOOD, DEAD]).remedy == "ping 2001:db8::1"
    assert relay.parent("[2001:db8::1]:3128", [], "no answer").remedy == "getent ahosts 2001:db8::1"


@pytest.mark.parametrize(
    ("listed_parents", "without_library", "counts", "status", "words"),
    [
        (["a:1"], 0, ConnectionCounts(), OK, "0 connections to parents, none over plain TCP"),
        (
            ["a:1", "b:1"],
            0,
            ConnectionCounts(multiple_subflows=3, single_subflow=1),
            OK,
            "4 connections to parents, 3 with two subflows or more",
        ),
        (["a:1"], 0, ConnectionCounts(single_subflow=2), WARN, "one subflow each"),
        (
            ["a:1"],
            0,
            ConnectionCounts(multiple_subflows=9, plain_tcp=1),
            FAIL,
            "1 of 10 connections to parents over plain TCP",
        ),
        ([], 0, ConnectionCounts(multiple_subflows=9), FAIL, "lacks a:1"),
        (["a:1"], 2, ConnectionCounts(), FAIL, "without the preload library (2 of its processes)"),
    ],
)
def test_finding_about_a_running_relay(
    listed_parents: list[str], without_library: int, counts: ConnectionCounts, status: Status, words: str
) -> None:
    (finding,) = relay.running_relay(listed_parents, ["a:1"], without_library, counts)
    assert_finding(finding, status, words)


def test_doctor_reports_a_relay_without_parents() -> None:
    assert_finding(relay.no_parent(""), FAIL, "cache_peer")
    assert_finding(relay.no_parent("/etc/relay.conf"), Status.UNSEEN, "/etc/relay.conf")
    (finding,) = relay.running_relay([], ["192.0.2.1:3128"], 0, None)
    assert_finding(finding, Status.UNSEEN)


def test_findings_use_the_words_of_the_role() -> None:
    assert "parents" in kernel.mptcp_socket(errno.ENOPROTOOPT, "6.1", Role.RELAY).why
    assert "clients" in kernel.mptcp_socket(errno.ENOPROTOOPT, "6.1").why
    assert "connection to a parent" in features.shim({"shim": None}, "/x.so", "", Role.RELAY).text
    assert "listener" in features.shim({"shim": None}, "/x.so", "").text
