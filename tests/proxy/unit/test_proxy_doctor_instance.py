# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the doctor's findings about one instance: configuration, ports, running service, last reload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doctor_findings import is_complete

from mptcp_common.findings import Status
from mptcp_proxy.configuration.check import NO_SQUID, CheckedConfiguration
from mptcp_proxy.configuration.listeners import listeners
from mptcp_proxy.configuration.source import PhysicalLine, statements
from mptcp_proxy.configuration.workers import Workers
from mptcp_proxy.doctor import host
from mptcp_proxy.listening import ListeningSocket
from mptcp_proxy.places import Role
from mptcp_proxy.problem import Problem
from mptcp_proxy.reloads import Outcome

OK, WARN, FAIL, UNSEEN = Status


def checked(*texts: str, problems: tuple[Problem, ...] = ()) -> CheckedConfiguration:
    lines = tuple(PhysicalLine("squid.conf", number, text) for number, text in enumerate(texts, 1))
    return CheckedConfiguration(lines, tuple(listeners(statements(lines, "n"))), "proxy", Workers(), problems)


@pytest.mark.parametrize(
    ("texts", "own_pids", "is_root", "expected"),
    [
        (["http_port 3128"], frozenset(), True, [(FAIL, "squid (process 7) listens on it")]),
        (["http_port 3128"], frozenset({6, 7}), True, [(OK, "the running proxy listens on it over Multipath TCP")]),
        (["http_port 8081"], frozenset({8}), True, [(FAIL, "the running proxy listens on it over plain TCP")]),
        (["http_port 3130"], frozenset(), True, [(OK, "free")]),
        (["http_port 10.0.0.9:3128"], frozenset(), True, [(FAIL, "squid (process 7) listens on it")]),
        (["http_port 8080"], frozenset(), True, [(FAIL, "another process listens on it")]),
        (["http_port 8080"], frozenset({7}), False, [(UNSEEN, "unknown without root: which process listens on it")]),
        (["http_port 10.0.0.9:8080"], frozenset(), True, [(OK, "free")]),
        (["http_port [::1]:9090"], frozenset(), True, [(FAIL, "x (process 9) listens on it")]),
        (["http_port 80"], frozenset(), False, [(WARN, "free, but below 1024")]),
        (["http_port 80", "http_port 81"], frozenset(), True, [(OK, "free"), (OK, "free")]),
    ],
)  # fmt: skip
def test_finding_about_each_port(
    texts: list[str], own_pids: frozenset[int], is_root: bool, expected: list[tuple[Status, str]]
) -> None:
    sockets = [
        ListeningSocket("*", 3128, "squid", (7,), mptcp=True),
        ListeningSocket("*", 8081, "squid", (8,)),
        ListeningSocket("127.0.0.1", 8080, "", ()),
        ListeningSocket("[::1]", 9090, "x", (9,)),
    ]
    findings = list(host.ports(checked(*texts), sockets, own_pids, is_root))
    assert [(finding.status, finding.text) for finding in findings] == expected
    assert all(map(is_complete, findings))


@pytest.mark.parametrize(
    ("rules", "delivers_locally", "status"),
    [
        ("tcp dport 80 tproxy ip to :80 meta mark set 0x1", True, OK),
        ("tcp dport 80 tproxy to :80", True, OK),
        ("-A PREROUTING -p tcp --dport 80 -j TPROXY --on-port 80 --on-ip 0.0.0.0 --tproxy-mark 0x1/0x1", True, OK),
        ("tcp dport 80 tproxy to :80", False, FAIL),
        ("tcp dport 80 tproxy to :8080", True, FAIL),
        ("", True, FAIL),
        (None, True, UNSEEN),
    ],
)
def test_finding_about_the_transparent_rules(rules: str | None, delivers_locally: bool, status: Status) -> None:
    (finding,) = host.transparent(checked("http_port 3128", "http_port 80 tproxy"), rules, delivers_locally)
    assert finding.status is status
    assert is_complete(finding)


@pytest.mark.parametrize("role", list(Role))
def test_port_without_a_listener_of_a_running_proxy_is_a_failure(role: Role) -> None:
    """Defect: the doctor reported the port as free and ok, although Squid's workers had ended."""
    (finding,) = host.ports(checked("http_port 3128"), [], frozenset({7}), True, role, frozenset({3128}))
    assert finding.status is FAIL
    assert finding.text == f"the {role.value} runs, but no process listens on it"
    assert f"systemctl restart mptcp-{role.value}" in finding.remedy
    assert is_complete(finding)
    # The operator added the port after the last reload, or no proxy runs.
    (finding,) = host.ports(checked("http_port 3129"), [], frozenset({7}), True, role, frozenset({3128}))
    assert (finding.status, finding.text) == (OK, "free")
    (finding,) = host.ports(checked("http_port 3128"), [], frozenset(), True, role, frozenset({3128}))
    assert (finding.status, finding.text) == (OK, "free")


def test_doctor_reports_the_status_of_the_running_service() -> None:
    assert list(host.service(None, Role.PROXY)) == []
    serving = Outcome(pid=1, started=1, count=0, serving="serving: port 3128 over Multipath TCP")
    (finding,) = host.service(serving, Role.PROXY)
    assert (finding.status, finding.text) == (OK, "serving: port 3128 over Multipath TCP")
    (finding,) = host.service(replace(serving, problems=("the disk is full", "x")), Role.RELAY)
    assert (finding.status, finding.text) == (WARN, "the disk is full; x")
    assert "mptcp-relay" in finding.remedy
    assert is_complete(finding)


def test_finding_about_free_space() -> None:
    enough, no_space = (
        host.free_space(Path("/run/n"), is_full, "reloads are refused", "df /run/n") for is_full in (False, True)
    )
    assert (enough.status, no_space.status) == (OK, WARN)
    assert no_space.check == "free space in /run/n"
    assert is_complete(no_space)


def test_finding_about_the_configuration() -> None:
    error = Problem("via maybe: no", "squid.conf", 3)
    warning = Problem("strange", "squid.conf", 4, warning=True)
    assert host.configuration(checked("via on", problems=(warning,)), "squid.conf", Role.PROXY).status is OK
    finding = host.configuration(checked("via maybe", problems=(error, warning, error)), "squid.conf", Role.PROXY)
    assert finding.status is FAIL
    assert finding.text == "squid.conf:3: via maybe: no, and 1 more"
    assert "mptcp-proxy check --config squid.conf" in finding.remedy
    # A missing Squid has its own finding.
    assert host.configuration(checked("via on", problems=(NO_SQUID,)), "squid.conf", Role.PROXY).status is OK


def test_included_file_that_only_root_may_read_is_not_a_fault() -> None:
    """Defect: for an ordinary user, the doctor reported that the proxy refuses to start."""
    denied = Problem('acl a src "/etc/list": Can not open file /etc/list for reading', "squid.conf", 3)
    with_denial = checked("via on", problems=(denied,))
    assert host.unreadable_file(with_denial, lambda name: name == "/etc/list") == "/etc/list"
    assert host.unreadable_file(with_denial, lambda name: name == "squid.conf") == "squid.conf"
    assert host.unreadable_file(with_denial, lambda _: False) == ""
    assert host.configuration(with_denial, "squid.conf", Role.PROXY, "/etc/list").status is UNSEEN


def test_file_that_the_unit_cannot_open_is_reported() -> None:
    """Defect: the doctor accepted the file because root can open it."""
    warning = Problem("strange", "relay.conf", 4, warning=True)
    unseen = Problem("include /root/x: mptcp-relay.service does not see it", "relay.conf", 3, "elsewhere", warning=True)
    with_warnings = checked("via on", problems=(warning, unseen, NO_SQUID))
    finding = host.configuration(replace(with_warnings, unit_warnings=(unseen, unseen)), "relay.conf", Role.RELAY)
    assert finding.status is WARN
    assert finding.text == f"relay.conf:3: {unseen.text} (allowed: elsewhere), and 1 more"
    assert finding.remedy == "mptcp-proxy check --role relay --config relay.conf"
    assert is_complete(finding)
    # A problem for which the proxy refuses to start comes first.
    with_error = replace(with_warnings, problems=(Problem("no", "relay.conf", 9), unseen), unit_warnings=(unseen,))
    assert host.configuration(with_error, "relay.conf", Role.RELAY).status is FAIL


@pytest.mark.parametrize(
    ("outcome", "unknown", "status", "words"),
    [
        (None, "", OK, "no relay with the name home runs"),
        (Outcome(pid=1, started=1, count=0), "", OK, "the relay has not reloaded since its start"),
        (Outcome(pid=1, started=1, count=3, time=1795000000.5), "", OK, "accepted at 20"),
        (
            Outcome(pid=1, started=1, count=3, refused="relay.conf:3: wrong", time=1795000000.5),
            "",
            WARN,
            ": relay.conf:3: wrong",
        ),
        (
            Outcome(pid=1, started=1, count=3, time=1795000000.5, unconfirmed="no process listens"),
            "",
            WARN,
            ", but no process listens",
        ),
        (None, "reloads.json: Permission denied; only root can make a proxy reload", UNSEEN, "unknown without root"),
    ],
)
def test_finding_about_the_last_reload(outcome: Outcome | None, unknown: str, status: Status, words: str) -> None:
    finding = host.last_reload(outcome, unknown, "relay.conf", "home", Role.RELAY)
    assert finding.status is status
    assert words in finding.text
    assert is_complete(finding)
    if outcome and outcome.refused:
        assert finding.text.startswith("refused at 20")
        assert finding.remedy == (
            "mptcp-proxy check --role relay --config relay.conf && mptcp-proxy reload --service-name home"
        )
