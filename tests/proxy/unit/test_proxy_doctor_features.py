# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the doctor's findings about kernel and netfilter features for the throttler, and about the preload
library."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from doctor_findings import is_complete

from mptcp_common import throttler_needs
from mptcp_common.findings import Status
from mptcp_common.library_counters import COUNTERS
from mptcp_common.throttler_needs import BACKENDS, backends_without_modules
from mptcp_common.throttler_trial import Results, attempt, in_fresh_namespace
from mptcp_proxy.doctor import features, reading
from mptcp_proxy.places import Role
from mptcp_proxy.shim import LISTEN, TURNS

OK, WARN, FAIL = Status.OK, Status.WARN, Status.FAIL
BOTH = [LISTEN, TURNS]
TURNS_FEATURES = {"fair-turns", "may-write", "joined-writes"}

NEEDED = ("htb", "pfifo", "packet sockets", "socket diagnostics")
UPLOADS = ("tbf", "ifb", "nftables at ingress")


@pytest.mark.parametrize(
    ("environment", "loaded", "status", "disabled"),
    [
        ({"MPTCP_TURNS": "fair"}, BOTH, OK, set()),
        ({"MPTCP_TURNS": "fair", "MPTCP_WITHOUT": "zero-read,may-write"}, BOTH, OK, {"zero-read", "may-write"}),
        ({"MPTCP_TURNS": "kernel"}, BOTH, OK, TURNS_FEATURES),
        ({"MPTCP_TURNS": "kernel", "MPTCP_WITHOUT": "zero-read"}, [LISTEN], OK, {*TURNS_FEATURES, "zero-read"}),
        ({"MPTCP_TURNS": "kernel"}, [LISTEN], FAIL, set()),
        ({"MPTCP_TURNS": "fair"}, [LISTEN], FAIL, set()),
        ({"MPTCP_TURNS": "fair"}, [TURNS], FAIL, set()),
        ({}, [], FAIL, set()),
    ],
)
def test_doctor_reports_the_features_of_the_libraries(
    environment: dict[str, str], loaded: list[str], status: Status, disabled: set[str]
) -> None:
    finding = features.library_features(environment, loaded, Role.RELAY)
    assert finding.status is status
    _, _, listed = finding.text.partition("off: ")
    assert set(filter(None, listed.split(", "))) == disabled
    assert is_complete(finding)


def test_doctor_reports_the_counters_of_the_libraries() -> None:
    environment = {"MPTCP_TURNS": "fair", "MPTCP_WITHOUT": "zero-read"}
    finding = features.library_features(
        environment, BOTH, Role.PROXY, {name: count for count, name in enumerate(COUNTERS, 1)}
    )
    assert "; off: zero-read; 1 turns, 2 turns cut, 3 writes joined, " in finding.text
    assert finding.text.endswith(", 8 clients that waited for a descriptor")


def test_doctor_accepts_available_kernel_features() -> None:
    findings = list(features.throttler_features(dict.fromkeys((*NEEDED, *UPLOADS))))
    assert [finding.status for finding in findings] == [OK] * 7
    # A relay has no throttler, so the doctor tries no feature for it.
    assert list(features.throttler_features({"mptcp": None})) == []


@pytest.mark.parametrize(
    ("feature", "check", "option", "module"),
    [
        ("htb", "tc HTB", "CONFIG_NET_SCH_HTB", "sch_htb"),
        ("pfifo", "tc pfifo", "CONFIG_NET_SCH_FIFO", "sch_fifo"),
        ("tbf", "tc TBF", "CONFIG_NET_SCH_TBF", "sch_tbf"),
        ("ifb", "IFB", "CONFIG_IFB", "ifb"),
        ("nftables at ingress", "nftables ingress", "CONFIG_NF_TABLES_NETDEV", "-a nf_tables nft_fwd_netdev"),
        ("packet sockets", "packet sockets", "CONFIG_PACKET", "af_packet"),
        ("socket diagnostics", "socket diagnostics", "CONFIG_INET_DIAG", "-a inet_diag"),
    ],
)
def test_missing_kernel_feature_is_named(feature: str, check: str, option: str, module: str) -> None:
    """Defect: IFB, socket diagnostics and packet sockets had no finding."""
    results: dict[str, str | None] = {**dict.fromkeys((*NEEDED, *UPLOADS)), feature: "No such device"}
    findings = {finding.check: finding for finding in features.throttler_features(results)}
    found = findings.pop(check)
    assert found.status is (WARN if feature in UPLOADS else FAIL), (
        "wrong status: only policies with rules for uploads need UPLOADS"
    )
    assert f"(No such device); it needs the kernel option {option}" in found.text
    assert f"modprobe {module}" in found.remedy
    assert is_complete(found)
    assert {finding.status for finding in findings.values()} == {OK}


@pytest.mark.parametrize(
    ("results", "statuses"),
    [
        ({"iptables": None, "nftables": None}, [OK, OK]),
        ({"iptables": "no mangle table", "nftables": None}, [WARN, OK]),
        ({"iptables": None, "nftables": "no library"}, [OK, WARN]),
        ({"iptables": "b", "nftables": "c"}, [FAIL, FAIL]),
    ],
)
def test_one_netfilter_backend_is_enough(results: features.Results, statuses: list[Status]) -> None:
    findings = list(features.netfilter(results))
    assert [finding.status for finding in findings] == statuses
    assert all(map(is_complete, findings))


@pytest.mark.parametrize(
    ("results", "error", "status", "words"),
    [
        ({"shim": None, "mptcp": None}, "", OK, "turns a listener into an MPTCP listener"),
        ({}, "", OK, "is built"),
        ({}, "/x.so is not built", FAIL, "/x.so is not built"),
        ({"shim": "stayed plain TCP", "mptcp": "Protocol not available"}, "", WARN, "could not be tested"),
        ({"shim": "stayed plain TCP", "mptcp": None}, "", FAIL, "stayed plain TCP"),
    ],
)
def test_finding_about_the_preload_library(results: features.Results, error: str, status: Status, words: str) -> None:
    finding = features.shim(results, "/x.so", error)
    assert finding.status is status
    assert words in finding.text
    assert is_complete(finding)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (
            "echo unshare: unshare failed: Not permitted >&2; exit 1",
            "unshare failed: Not permitted",
        ),
        ("exit 3", "the test failed: exit status 3"),
    ],
)
def test_failed_trial_shows_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, reason: str
) -> None:
    """Defect: the doctor showed the command and the exit status of unshare instead of its message."""
    unshare = tmp_path / "unshare"
    unshare.write_text(f"#!/bin/sh\n{program}\n")
    unshare.chmod(0o755)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    results, refusal = in_fresh_namespace("mptcp_common.throttler_trial", ["htb"])
    assert results == {}
    assert refusal.endswith(reason)
    assert "Command" not in refusal


def test_reason_of_each_failed_attempt_is_returned() -> None:
    def raise_not_found() -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file", "iptables-legacy")

    def raise_not_supported() -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    results = attempt({"good": lambda: None, "absent": raise_not_found, "refused": raise_not_supported})
    assert results["good"] is None
    assert results["absent"] == "iptables-legacy is not installed"
    assert "Operation not supported" in str(results["refused"])


@pytest.mark.parametrize(
    ("loaded", "nftables", "expected_trials"),
    [
        (True, None, [{"iptables", "nftables"}]),
        (False, None, [{"nftables"}]),
        (False, "No such file or directory", [{"nftables"}, {"iptables"}]),
    ],
)
def test_iptables_is_not_tested_if_nftables_works(
    loaded: bool, nftables: str | None, expected_trials: list[set[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: the doctor loaded iptables modules, so that the daemon chose iptables at its next start."""
    trials: list[set[str]] = []

    def trial(module: str, features: list[str]) -> tuple[Results, str]:
        if module == "mptcp_throttler.kernel.feature_probe":
            trials.append(set(BACKENDS) & set(features))
        return {each: nftables if each == "nftables" else None for each in features}, ""

    monkeypatch.setattr(reading, "in_fresh_namespace", trial)
    monkeypatch.setattr(throttler_needs, "Path", lambda name: tmp_path if loaded else tmp_path / "absent")
    assert backends_without_modules() == (BACKENDS if loaded else ("nftables",))
    results, refusal = reading.probe(Role.PROXY, "")
    assert trials == expected_trials
    assert (results["nftables"], refusal) == (nftables, "")
