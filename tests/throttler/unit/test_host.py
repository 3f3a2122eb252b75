# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the check of settings on a host: files that the daemon's user cannot read, interfaces, and features."""

from __future__ import annotations

import grp
import os
from pathlib import Path

import pytest
from short_policies import CAP, rules

from mptcp_common import readable, tcp_table
from mptcp_throttler.config.host import (
    host_problems,
    kernel_problems,
    library_problems,
    needed_features,
    stacked_interfaces,
    unreadable_files,
)
from mptcp_throttler.config.settings import Settings, load_settings
from mptcp_throttler.kernel.tc.link import Link, lower_interfaces
from mptcp_throttler.policy.load import load_policy


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can find out what others can read")
    for directory in (tmp_path, *tmp_path.parents):
        if directory.is_relative_to("/tmp") and directory != Path("/tmp"):
            directory.chmod(0o755)
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\n")
    path.chmod(0o644)
    return path


def test_readable_file_is_no_problem(policy_file: Path) -> None:
    assert list(unreadable_files([policy_file], "nobody")) == []


def test_policy_that_only_root_can_read_is_reported(policy_file: Path) -> None:
    """Defect: the check succeeded because it ran as root, but the daemon failed."""
    policy_file.chmod(0o600)
    (problem,) = unreadable_files([policy_file], "nobody")
    expected = "the throttler's user nobody cannot read it; chmod o+r it, or chgrp nobody and chmod g+r"
    assert str(problem) == f"{policy_file}: {expected}"


def test_group_from_the_units_drop_in_counts(policy_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the check ignored groups from the unit's drop-ins, and refused a valid configuration."""
    policy_file.chmod(0o640)
    groups = {"mptcp-throttler.service": [policy_file.stat().st_gid]}
    assert len(list(unreadable_files([policy_file], "nobody"))) == 1
    monkeypatch.setattr(readable, "groups_of_unit", groups.__getitem__)
    assert list(unreadable_files([policy_file], "nobody")) == []


def test_directory_that_the_user_cannot_enter_is_reported(policy_file: Path) -> None:
    policy_file.parent.chmod(0o700)
    assert len(list(unreadable_files([policy_file], "nobody"))) == 1


def test_file_is_not_checked_for_an_unknown_user_or_without_root(
    policy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy_file.chmod(0o600)
    assert list(unreadable_files([policy_file], "no-such-user-here")) == []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert list(unreadable_files([policy_file], "nobody")) == []


def settings_with_group(name: str) -> Settings:
    return load_settings(f"interfaces: [lo]\npolicy: p.yaml\nstatus_group: {name}\n", "t.yaml")


def test_status_group_must_be_one_of_the_daemons_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    name = grp.getgrgid(0).gr_name
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 1000)
    monkeypatch.setattr(os, "getgroups", lambda: [1000])
    (problem,) = host_problems(settings_with_group(name), as_daemon=True)
    assert str(problem).startswith(f"t.yaml:3: status_group: the throttler's user is not in {name}; systemctl edit")
    assert f"SupplementaryGroups={name}" in str(problem)
    assert list(host_problems(settings_with_group(name))) == [], (
        "the check refused a group of the daemon because its own user is not in that group"
    )
    monkeypatch.setattr(os, "getgroups", lambda: [1000, 0])
    assert list(host_problems(settings_with_group(name), as_daemon=True)) == []


TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0C38 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
"""


def test_listening_ports_are_read_from_the_kernels_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [tmp_path / name for name in ("tcp", "tcp6", "none")]
    tables[0].write_text(TABLE)
    tables[1].write_text(TABLE.splitlines()[0])
    monkeypatch.setattr(tcp_table, "TABLES", tables)
    assert [each.local_port for each in tcp_table.sockets(tcp_table.LISTEN)] == [3128]


def warnings_for(interfaces: str, *links: Link) -> list[str]:
    settings = load_settings(f"policy: p.yaml\ninterfaces: [{interfaces}]\n", "t.yaml")
    return [str(each).partition(", and packets")[0] for each in stacked_interfaces(settings, lower_interfaces(links))]


ETH0 = Link("eth0", 2)
VLAN = Link("eth0.10", 3, kind="vlan", below=2)


def test_interface_that_is_stacked_on_another_is_reported() -> None:
    """Defect: no warning was printed. Packets that passed both interfaces got half the rate of their upload cap."""
    expected = ["t.yaml:2: warning: interfaces: eth0.10 is stacked on eth0"]
    assert warnings_for("eth0, eth0.10", ETH0, VLAN) == warnings_for("eth0.10, eth0", VLAN, ETH0) == expected
    assert warnings_for("eth0", ETH0, VLAN) == warnings_for("eth0.10", ETH0, VLAN) == []


def test_bond_or_its_vlan_is_stacked_on_the_port() -> None:
    bond, port = Link("bond0", 4, kind="bond"), Link("eth1", 5, master=4)
    vlan_of_bond = Link("bond0.10", 6, kind="vlan", below=4)
    assert warnings_for("eth1, bond0", bond, port) == ["t.yaml:2: warning: interfaces: bond0 is stacked on eth1"]
    assert warnings_for("eth1, bond0.10", bond, port, vlan_of_bond) == [
        "t.yaml:2: warning: interfaces: bond0.10 is stacked on eth1"
    ]
    assert warnings_for("eth0, bond0", ETH0, bond, port) == []


def test_veth_pair_and_tunnel_are_not_stacked() -> None:
    ends = Link("v0", 7, kind="veth", below=8), Link("v1", 8, kind="veth", below=7)
    assert warnings_for("v0, v1", *ends) == []
    # The tunnel's packets are encapsulated on eth0, where the capture does not recognize them.
    assert warnings_for("eth0, gre1", ETH0, Link("gre1", 9, kind="gre", below=2)) == []
    assert warnings_for("eth0, eth0.10", Link("eth0", 2), Link("eth0.10", 3, kind="vlan", below=77)) == []


DOWNLOADS = rules(f"name: r, paths: [a], {CAP}")
UPLOADS = rules(f"name: r, direction: up, paths: [a], {CAP}")
MESSAGES_WITHOUT_NFTABLES = {
    (
        "auto",
        DOWNLOADS,
    ): "warning: netfilter: libnftables cannot be loaded: the throttler then needs the kernel's legacy",
    ("nftables", DOWNLOADS): "netfilter: libnftables cannot be loaded: nftables needs it; apt install libnftables1",
    ("iptables", DOWNLOADS): None,
    (
        "iptables",
        UPLOADS,
    ): "policy: libnftables cannot be loaded: uploads and plain TCP need it; apt install libnftables1",
}


def problems_without(
    missing: str, netfilter: str = "auto", policy: str = DOWNLOADS, release: str = "6.1.0-18-amd64"
) -> list[str]:
    """Return the messages on a host without the library *missing*."""
    settings = load_settings(f"interfaces: [lo]\npolicy: p.yaml\nnetfilter: {netfilter}\n", "t.yaml")
    loaded = load_policy(policy, "p.yaml")
    return [str(each) for each in library_problems(settings, loaded, lambda name: missing not in name, release, True)]


def test_host_with_all_libraries_has_no_problem() -> None:
    assert problems_without("no such library") == []


def test_missing_libpcap_is_a_problem() -> None:
    (problem,) = problems_without("pcap")
    assert problem.startswith("t.yaml: libpcap cannot be loaded: it compiles the throttler's capture filter")


@pytest.mark.parametrize(
    ("netfilter", "policy"), MESSAGES_WITHOUT_NFTABLES, ids=["auto", "nftables", "iptables", "iptables with uploads"]
)
def test_missing_libnftables_is_a_problem_if_it_is_needed(netfilter: str, policy: str) -> None:
    expected = MESSAGES_WITHOUT_NFTABLES[netfilter, policy]
    assert [
        each.partition(": ")[2][: len(expected or "")] for each in problems_without("nftables", netfilter, policy)
    ] == ([] if expected is None else [expected])


def test_missing_bpf_is_a_warning() -> None:
    (problem,) = problems_without("bpf")
    assert problem.startswith("t.yaml: warning: libbpf.so.1 cannot be loaded: caps then begin later than a connection")
    (problem,) = problems_without("no such library", release="5.10.0-28-amd64")
    assert problem.startswith("t.yaml: warning: Linux 5.10.0-28-amd64 is older than 5.16: caps then begin")


ALWAYS_NEEDED, UPLOAD_FEATURES = (
    {"htb", "pfifo", "packet sockets", "socket diagnostics"},
    {"ifb", "tbf", "nftables at ingress"},
)


def settings_with(netfilter: str) -> Settings:
    return load_settings(f"interfaces: [lo]\npolicy: p.yaml\nnetfilter: {netfilter}\n", "t.yaml")


@pytest.mark.parametrize("policy", [DOWNLOADS, UPLOADS], ids=["downloads", "uploads"])
def test_kernel_features_for_uploads_are_tried_only_for_upload_rules(policy: str) -> None:
    settings, loaded = settings_with("iptables"), load_policy(policy, "p.yaml")
    tried = needed_features(settings, loaded, lambda _: True)
    assert set(tried) == {"iptables"} | ALWAYS_NEEDED | (UPLOAD_FEATURES if policy == UPLOADS else set())
    problems = [
        str(each)
        for each in kernel_problems(
            settings, loaded, dict.fromkeys(ALWAYS_NEEDED | UPLOAD_FEATURES | {"iptables"}, "no")
        )
    ]
    assert len(problems) == len(tried)
    needed = "it needs the kernel option CONFIG_IFB: capped uploads queue on an IFB device"
    ifb = f"t.yaml:2: policy: IFB does not work (no); {needed}"
    assert [each.startswith(ifb) for each in problems if "IFB does" in each] == [True] * (policy == UPLOADS)


@pytest.mark.parametrize(
    ("netfilter", "expected"),
    [
        ("iptables", "iptables does not work (refused); it needs the kernel option CONFIG_IP_NF_MANGLE, "),
        ("nftables", "nftables does not work (refused); it needs the kernel option CONFIG_NF_TABLES "),
        ("auto", "netfilter does not work (refused); it needs the kernel option CONFIG_NF_TABLES "),
    ],
)
def test_only_the_configured_backend_is_tried(netfilter: str, expected: str) -> None:
    """Defect: the check tried no backend and succeeded, but the daemon did not start."""
    settings, loaded = settings_with(netfilter), load_policy(DOWNLOADS, "p.yaml")
    assert set(needed_features(settings, loaded, lambda _: True)) - ALWAYS_NEEDED == {netfilter}
    (problem,) = kernel_problems(settings, loaded, dict.fromkeys(("iptables", "nftables", "auto"), "refused"))
    assert str(problem).startswith(f"t.yaml:3: netfilter: {expected}")
    assert list(kernel_problems(settings, loaded, {netfilter: None})) == []


def test_feature_without_its_library_is_reported_once() -> None:
    needed_by_backend = {
        backend: needed_features(settings_with(backend), load_policy(UPLOADS, "p.yaml"), lambda _: False)
        for backend in ("iptables", "nftables", "auto")
    }
    needed_by_all = ALWAYS_NEEDED | {"ifb", "tbf"}
    assert {backend: set(found) - needed_by_all for backend, found in needed_by_backend.items()} == {
        "iptables": {"iptables"},
        "nftables": set(),
        "auto": {"auto"},
    }
