# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the doctor's finding about paths whose clients squid.conf does not allow."""

from __future__ import annotations

from pathlib import Path

import pytest
from doctor_findings import is_complete

from mptcp_common.findings import Status
from mptcp_proxy.configuration.source import PhysicalLine, statements
from mptcp_proxy.doctor.refused_paths import refused_paths

SHIPPED = Path(__file__).parents[3] / "conf/squid.conf"
POLICY = """\
version: 1
paths:
  wifi: {clients: [192.168.0.0/16, "fd00::/8"]}
  lte: {clients: [100.64.0.0/10, "2001:db8:1::/48"]}
rules: []
"""
CLIENTS = "acl clients src 192.168.0.0/16 fd00::/8"
ALLOW, DENY = "http_access allow clients", "http_access deny all"


def findings_for(*lines: str, policy: str = POLICY) -> list[tuple[Status, str]]:
    configuration = statements([PhysicalLine("squid.conf", n, line) for n, line in enumerate(lines, 1)], "mptcpproxy")
    findings = list(refused_paths(policy, list(configuration), "squid.conf"))
    assert all(map(is_complete, findings))
    return [(each.status, f"{each.text} {each.remedy}") for each in findings]


def test_path_clients_that_the_shipped_rules_deny_are_reported() -> None:
    """Defect: clients of the example on the policy page got 403 without an explanation."""
    ((status, text),) = findings_for(*SHIPPED.read_text().splitlines())
    assert status is Status.WARN
    assert "100.64.0.0/10 (path lte), 2001:db8:1::/48 (path lte)" in text
    assert "acl clients src 100.64.0.0/10 2001:db8:1::/48;" in text
    # The advised lines solve the problem.
    advised_line = "acl clients src 100.64.0.0/10 2001:db8:1::/48"
    ((status, _),) = findings_for(
        *SHIPPED.read_text().replace("acl clients src fc00", f"{advised_line}\nacl clients src fc00").splitlines()
    )
    assert status is Status.OK


@pytest.mark.parametrize(
    "lines",
    [
        [CLIENTS, "acl more src 100.64.3.0/24 2001:db8::/32", ALLOW, "http_access allow more", DENY],
        [CLIENTS, ALLOW, "http_access allow !clients", DENY],
        [CLIENTS, "acl known proxy_auth REQUIRED", ALLOW, "http_access allow known", DENY],
        [CLIENTS, "acl known srcdomain .example.org", ALLOW, "http_access allow known", DENY],
        [CLIENTS, "acl web port 80", ALLOW, "http_access allow web", DENY],
        # Squid's implicit last rule is the opposite of the last rule.
        [CLIENTS, "acl bad port 25", ALLOW, "http_access deny bad"],
    ],
)
def test_path_clients_that_a_rule_may_allow_are_not_reported(lines: list[str]) -> None:
    assert [status for status, _ in findings_for(*lines)] == [Status.OK]


@pytest.mark.parametrize(
    "lines",
    [
        [CLIENTS, "acl phones src phones.example.org", ALLOW, "http_access allow phones", DENY],
        [CLIENTS, "follow_x_forwarded_for allow all", ALLOW, DENY],
    ],
)
def test_no_finding_if_the_clients_of_a_rule_are_unknown(lines: list[str]) -> None:
    assert findings_for(*lines) == []


def test_policy_without_clients_or_with_mistakes_has_no_warning() -> None:
    for policy in ("version: 1\nrules: []\n", "paths: {a: {interface: eth0}}", "paths: [x]", "{", ""):
        assert findings_for(CLIENTS, ALLOW, DENY, policy=policy) == []
    ((status, _),) = findings_for(CLIENTS, ALLOW, DENY, policy="paths: {a: {clients: [nonsense, 192.168.1.0/24]}}")
    assert status is Status.OK


def test_path_clients_that_are_denied_first_are_reported() -> None:
    ((status, text),) = findings_for(
        "acl lte src 100.64.0.0/10 2001:db8::/32", "http_access deny lte", "http_access allow all"
    )
    assert status is Status.WARN
    assert "http_access allow path_clients" in text
