# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the check that finds which clients may query Squid over SNMP, ICP and HTCP."""

from __future__ import annotations

import pytest
from in_squid_conf import parse

from mptcp_proxy.configuration.access import open_proxy_problems, port_problems

OWN = ["acl own src 10.0.0.0/8", "http_access allow own", "http_access deny all"]
HALVES = ["acl a src 0.0.0.0/1", "acl b src 128.0.0.0/1"]
"""Two ACLs that together contain all IPv4 addresses."""
SECRET = "acl secret snmp_community 8sjdk2"
DEFAULT_COMMUNITY = "acl default snmp_community public"
PORTS = {
    "snmp_access": ("snmp_port 3401", "the addresses of clients"),
    "icp_access": ("icp_port 3130", "which pages are in the cache, over ICP (icp_port 3130)"),
    "htcp_access": ("htcp_port 4827", "which pages are in the cache, and since when, over HTCP"),
    "htcp_clr_access": ("htcp_port 4827", "remove pages from the cache"),
}
"""By access directive: the directive of its port, and what clients may learn or do."""


def warnings(*texts: str) -> list[str]:
    statements = parse(*OWN, *texts)
    assert list(open_proxy_problems(statements)) == [], "a rule for another protocol counted as a rule of an open proxy"
    problems = list(port_problems(statements))
    assert all(problem.warning for problem in problems)
    return [str(problem) for problem in problems]


@pytest.mark.parametrize("directive", PORTS)
def test_rule_that_allows_queries_of_all_clients_is_a_warning(directive: str) -> None:
    """Defect: the check gave no warning."""
    port, effect = PORTS[directive]
    (line,) = warnings(port, f"{directive} allow all")
    assert line.startswith(f"squid.conf:5: warning: {directive} allow all: 100 % of the Internet's IPv4 addresses may ")
    assert effect in line
    # Several rules together allow all clients. After a last rule that denies, Squid allows all other clients.
    assert len(warnings(port, *HALVES, f"{directive} allow a", f"{directive} allow b", f"{directive} deny all")) == 1
    assert len(warnings(port, f"{directive} deny own")) == 1


@pytest.mark.parametrize("directive", PORTS)
def test_rule_for_own_clients_or_none_has_no_warning(directive: str) -> None:
    port, _ = PORTS[directive]
    assert warnings(port) == []
    assert warnings(port, f"{directive} allow own", f"{directive} deny all") == []
    assert warnings(port, f"{directive} allow own localhost") == []
    assert warnings(port, f"{directive} deny all", f"{directive} allow all") == []


@pytest.mark.parametrize("directive", PORTS)
def test_port_that_is_off_or_on_loopback_has_no_warning(directive: str) -> None:
    port, _ = PORTS[directive]
    name, rule = port.split()[0], f"{directive} allow all"
    assert warnings(rule) == warnings(f"{name} 0", rule) == warnings(port, f"{name} 0", rule) == []
    assert len(warnings(f"{name} 0", port, rule)) == 1
    assert len(warnings("if ${process_number} = 1", port, "endif", rule)) == 1
    assert len(warnings(port, "if ${process_number} = 1", f"{name} 0", "endif", rule)) == 1
    address = "snmp_incoming_address" if name == "snmp_port" else "udp_incoming_address"
    assert warnings(port, f"{address} 127.0.0.1", rule) == []
    assert len(warnings(port, f"{address} 192.0.2.1", rule)) == 1


def test_icp_port_with_the_name_udp_port_is_checked() -> None:
    assert len(warnings("udp_port 3130", "icp_access allow all")) == 1


def test_snmp_community_protects_unless_it_is_a_default() -> None:
    port = "snmp_port 3401"
    assert warnings(port, SECRET, "snmp_access allow secret", "snmp_access deny all") == []
    assert warnings(port, SECRET, "snmp_access deny !secret", "snmp_access allow all") == []
    assert len(warnings(port, DEFAULT_COMMUNITY, "snmp_access allow default", "snmp_access deny all")) == 1
    assert warnings(port, DEFAULT_COMMUNITY, "snmp_access allow default own", "snmp_access deny all") == []
