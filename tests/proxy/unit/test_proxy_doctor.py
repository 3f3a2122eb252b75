# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the doctor's findings about kernel, libraries and Squid, with recorded output of various hosts."""

from __future__ import annotations

import errno
import socket
import subprocess
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from doctor_findings import is_complete

from mptcp_common.findings import Status
from mptcp_proxy.configuration.check import CheckedConfiguration
from mptcp_proxy.configuration.listeners import listeners
from mptcp_proxy.configuration.source import PhysicalLine, statements
from mptcp_proxy.configuration.workers import Workers
from mptcp_proxy.doctor import gather, host, kernel, libraries, throttler
from mptcp_proxy.doctor.throttler import CommandResult
from mptcp_proxy.places import Role
from mptcp_proxy.squid import Squid, describe

OK, WARN, FAIL = Status.OK, Status.WARN, Status.FAIL


ANNOUNCED = {"address": "192.0.2.1", "id": 1, "signal": True}
ANNOUNCED_PORT = {"address": "192.0.2.9", "port": 4000, "id": 2, "signal": True}
SUBFLOW_ENDPOINT = {"address": "192.0.2.1", "id": 3, "subflow": True}


@pytest.mark.parametrize(
    ("endpoints", "listening", "status", "words"),
    [
        ([], {"*"}, OK, "no other address"),
        ([ANNOUNCED, ANNOUNCED_PORT], {"192.0.2.1"}, OK, "192.0.2.1, 192.0.2.9 port 4000"),
        ([ANNOUNCED], {"*"}, OK, "192.0.2.1"),
        ([ANNOUNCED], {"192.0.2.7", "[2001:db8::1]"}, WARN, "192.0.2.1 is announced to clients"),
        ([{**ANNOUNCED, "address": "2001:db8::1"}], {"[2001:db8::1]"}, OK, "2001:db8::1"),
        # The proxy does not run, so no listener is known.
        ([ANNOUNCED], set(), OK, "192.0.2.1"),
        ([ANNOUNCED, SUBFLOW_ENDPOINT], {"*"}, WARN, "opens subflows to its clients from 192.0.2.1"),
    ],
)
def test_finding_about_the_endpoints(
    endpoints: list[dict[str, Any]], listening: set[str], status: Status, words: str
) -> None:
    finding = kernel.endpoints(endpoints, listening)
    assert finding.status is status
    assert words in finding.text
    assert is_complete(finding)


@pytest.mark.parametrize(
    ("error", "status", "words", "remedy"),
    [
        (None, OK, "supports MPTCP sockets", ""),
        (errno.ENOPROTOOPT, FAIL, "switched off", "sysctl -w net.mptcp.enabled=1"),
        (errno.EPROTONOSUPPORT, FAIL, "built without", "apt install linux-image"),
        (errno.EINVAL, FAIL, "built without", "CONFIG_MPTCP"),
        (errno.EACCES, FAIL, "Permission denied", "ausearch"),
    ],
)
def test_finding_about_the_mptcp_socket(error: int | None, status: Status, words: str, remedy: str) -> None:
    finding = kernel.mptcp_socket(error, "6.1.0")
    assert finding.status is status
    assert words in finding.text
    assert remedy in finding.remedy
    assert is_complete(finding)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"net.mptcp.pm_type": "0", "net.mptcp.scheduler": "default", "net.mptcp.checksum_enabled": "0"}, {}),
        ({"net.mptcp.allow_join_initial_addr_port": "0"}, {"sysctl join address": FAIL}),
        ({"net.mptcp.checksum_enabled": "1"}, {"sysctl checksum": WARN}),
        ({"net.mptcp.scheduler": "burst"}, {"sysctl scheduler": WARN}),
        ({"net.core.wmem_max": "212992"}, {"sysctl send buffer": WARN}),
        ({"net.core.wmem_max": "4194304"}, {}),
        ({"net.mptcp.pm_type": "1"}, {"sysctl path manager": WARN}),
        ({"net.mptcp.pm_type": "0", "net.mptcp.path_manager": "userspace"}, {"sysctl path manager": WARN}),
        ({"net.mptcp.pm_type": "1", "net.mptcp.path_manager": "kernel"}, {}),
    ],
)
def test_finding_about_the_mptcp_sysctls(values: Mapping[str, str], expected: Mapping[str, Status]) -> None:
    findings = list(kernel.mptcp_sysctls(values))
    assert len(findings) == 5
    assert all(map(is_complete, findings))
    assert {finding.check: finding.status for finding in findings if finding.status is not OK} == expected


@pytest.mark.parametrize("values", [{"net.mptcp.pm_type": "1"}, {"net.mptcp.path_manager": "userspace"}])
def test_userspace_path_manager_is_ok_if_the_throttler_steers(values: Mapping[str, str]) -> None:
    (finding,) = (each for each in kernel.mptcp_sysctls(values, steers=True) if each.check == "sysctl path manager")
    assert finding.status is OK
    assert "the throttler's" in finding.text
    (finding,) = (each for each in kernel.mptcp_sysctls(values) if each.check == "sysctl path manager")
    assert finding.status is WARN
    assert finding.remedy.startswith("mptcp-throttler cleanup; ")


STATUS_OUTPUT: dict[str, Any] = {
    "paced": True,
    "interfaces": ["wan0"],
    "netfilter": "nftables",
    "policy": {"rules": ["a", "b"]},
    "path_manager": "kernel",
    "reloads": {"last_refused": None},
}
REFUSED = {**STATUS_OUTPUT, "reloads": {"last_refused": {"time": 1.0, "errors": ["p.yaml:3: wrong", "more"]}}}


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (None, WARN, "there is no /etc/t.yaml"),
        (CommandResult(0, "p.yaml:1: note: odd\n"), OK, "good for this host"),
        (CommandResult(1, "t.yaml:7: no interface\nt.yaml:8: no group\n"), FAIL, "t.yaml:7: no interface, and 1 more"),
        # Defect: a note hid why the throttler did not start.
        (CommandResult(1, "p.yaml: note: paths: odd\nt.yaml:7: no interface\n"), FAIL, "t.yaml:7: no interface"),
        (CommandResult(1, ""), FAIL, "mptcp-throttler check fails with status 1"),
    ],
)
def test_finding_about_the_settings_of_the_throttler(answer: CommandResult | None, status: Status, words: str) -> None:
    finding = throttler.settings(Path("/etc/t.yaml"), answer, (Path("/t.yaml.example"), Path("/p.yaml.example")))
    assert (finding.status, words in finding.text) == (status, True)
    assert is_complete(finding)


def test_remedy_copies_existing_example_settings(tmp_path: Path) -> None:
    """Defect: the remedy copied files of conf/, which exists only in a checkout, to the current directory."""
    packaged, checkout = gather._EXAMPLES
    assert all(path.is_file() for path in checkout)
    rules = (Path(__file__).parents[3] / "debian/rules").read_text()
    assert "/etc/mptcp-$$owner/$$name.yaml.example" in rules
    assert {path.parent for path in packaged} == {Path("/etc/mptcp-throttler")}
    assert [path.name for path in packaged] == [f"{path.name}.example" for path in checkout]
    settings = tmp_path / "a b/throttler.yaml"
    subprocess.run(throttler.settings(settings, None, checkout).remedy, shell=True, cwd=tmp_path, check=True)
    assert [(settings.parent / path.name).read_bytes() for path in checkout] == [path.read_bytes() for path in checkout]


@pytest.mark.parametrize(
    ("output", "error", "status", "words"),
    [
        (STATUS_OUTPUT, "", OK, "it runs, with 2 rules on wan0 (nftables)"),
        (REFUSED, "", WARN, "it refused its last reload: p.yaml:3: wrong"),
        (None, "mptcp-throttler: no daemon answers at /run/s", WARN, "no daemon answers at /run/s"),
        (None, "", WARN, "it does not answer"),
    ],
)
def test_finding_about_the_throttler(output: dict[str, Any] | None, error: str, status: Status, words: str) -> None:
    finding = throttler.daemon(output, CommandResult(1, error))
    assert (finding.status, finding.text) == (status, words)
    assert is_complete(finding)


OTHER_PORTS = "listen_ports: [3129, 3130]\n"


@pytest.mark.parametrize(
    ("output", "more_settings", "words"),
    [
        # The throttler's settings are as shipped, but squid.conf has another port.
        (None, "", "/etc/squid.conf or an announced address has port 3129, but the throttler covers only 3128"),
        (
            STATUS_OUTPUT,
            "",
            "/etc/squid.conf or an announced address has port 3129, but the throttler covers only 3128",
        ),
        (None, OTHER_PORTS, None),
        # An older throttler does not report its ports.
        (STATUS_OUTPUT, OTHER_PORTS, None),
        # The operator changed the settings after the throttler's start.
        (
            STATUS_OUTPUT | {"listen_ports": [3128]},
            OTHER_PORTS,
            "/etc/squid.conf or an announced address has port 3129, but the throttler covers only 3128",
        ),
        (STATUS_OUTPUT | {"listen_ports": [3128, 3129]}, "", None),
    ],
)
def test_port_that_the_throttler_does_not_watch_is_reported(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    output: dict[str, Any] | None,
    more_settings: str,
    words: str | None,
) -> None:
    """Defect: with another port in squid.conf nothing was capped, and the doctor reported no problem."""
    settings = tmp_path / "throttler.yaml"
    settings.write_text("interfaces: [wan0]\npolicy: policy.yaml\n" + more_settings)
    answers = [CommandResult(0, "")]
    monkeypatch.setattr(gather, "_throttler", lambda *_: (answers.pop(), ""))
    *_, finding = gather._throttler_findings(settings, output, CommandResult(0, ""), (3129,), "/etc/squid.conf")
    assert finding.check == "throttled ports"
    assert is_complete(finding)
    if words is None:
        assert finding.status is OK
    else:
        assert (finding.status, finding.text) == (WARN, words)
        assert f"add 3129 to listen_ports of {settings}, as in listen_ports: [3128, 3129]; " in finding.remedy
        assert finding.remedy.endswith("systemctl restart mptcp-throttler")


@pytest.mark.parametrize("has_settings", [False, True])
def test_unknown_ports_have_no_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_settings: bool) -> None:
    settings = tmp_path / "throttler.yaml"
    if has_settings:
        settings.write_text(OTHER_PORTS)
    monkeypatch.setattr(gather, "_throttler", lambda *_: (CommandResult(1, "wrong"), ""))
    findings = list(gather._throttler_findings(settings, None, CommandResult(1, ""), (3128,), "/etc/squid.conf"))
    assert [each.check for each in findings] == ["throttler settings", "throttler"]
    assert list(throttler.ports((), (3128,), "/etc/squid.conf", settings)) == []


@pytest.mark.parametrize(
    ("output", "has_libbpf", "release", "has_btf", "status", "words"),
    [
        (None, True, "6.1.0-18-amd64", True, OK, "has type information"),
        (STATUS_OUTPUT, False, "4.19", False, OK, "run in the kernel"),
        (None, False, "6.1.0", True, WARN, "libbpf.so.1 cannot be loaded"),
        (None, True, "5.15.0", True, WARN, "older than 5.16"),
        (None, True, "6.1.0", False, WARN, "has no /sys/kernel/btf/vmlinux"),
        ({**STATUS_OUTPUT, "paced": False}, True, "6.1.0", True, WARN, "could not load"),
    ],
)
def test_finding_about_bpf(
    output: dict[str, Any] | None, has_libbpf: bool, release: str, has_btf: bool, status: Status, words: str
) -> None:
    finding = throttler.bpf(output, lambda _: has_libbpf, release, has_btf)
    assert (finding.status, words in finding.text) == (status, True)
    assert is_complete(finding)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("add_addr_accepted 0 subflows 2 \n", OK),
        ("subflows 8 add_addr_accepted 8\n", OK),
        ("add_addr_accepted 8 subflows 0\n", FAIL),
        ("", WARN),
        ('Object "mptcp" is unknown, try "ip help".', WARN),
    ],
)
def test_finding_about_the_path_manager_limits(text: str, status: Status) -> None:
    finding = kernel.path_manager_limits(text)
    assert finding.status is status
    assert is_complete(finding)


@pytest.mark.parametrize(
    ("values", "interfaces", "strict"),
    [
        ({"all": 0, "eth0": 0, "eth1": 0}, {"eth0", "eth1"}, []),
        ({"all": 1, "eth0": 0, "eth1": 0}, {"eth0", "eth1"}, ["eth0", "eth1"]),
        ({"all": 1, "eth0": 2, "eth1": 0}, {"eth0", "eth1"}, ["eth1"]),
        ({"all": 2, "eth0": 1, "eth1": 1}, {"eth0", "eth1"}, []),
        ({"all": 0, "eth0": 1, "eth1.5": 1}, {"eth0", "eth1.5"}, ["eth0", "eth1.5"]),
        # With one interface, answers cannot take another path.
        ({"all": 1, "eth0": 1}, {"eth0"}, []),
        ({"all": 0, "eth0": 0, "docker0": 1}, {"eth0", "eth1"}, []),
    ],
)
def test_finding_about_the_reverse_path_filter(
    values: Mapping[str, int], interfaces: set[str], strict: list[str]
) -> None:
    finding = kernel.reverse_path_filter(values, frozenset(interfaces))
    assert finding.status is (WARN if strict else OK)
    assert is_complete(finding)
    for name in strict:
        # sysctl(8) swaps dots and slashes in names, so the dot of a VLAN is written as a slash.
        assert f"sysctl -w net.ipv4.conf.{name.replace('.', '/')}.rp_filter=2" in finding.remedy
    assert finding.remedy.count("sysctl -w") == len(strict)


@pytest.mark.parametrize(
    ("current", "available", "status", "remedy"),
    [
        ("cubic", "reno cubic", OK, ""),
        ("bbr", "reno bbr", OK, ""),
        ("reno", "reno cubic", WARN, "tcp_congestion_control=cubic"),
        ("reno", "reno bbr", WARN, "tcp_congestion_control=bbr"),
        ("reno", "reno", WARN, "modprobe tcp_bbr"),
    ],
)
def test_finding_about_the_congestion_control(current: str, available: str, status: Status, remedy: str) -> None:
    names = ("net.ipv4.tcp_congestion_control", "net.ipv4.tcp_available_congestion_control")
    finding = kernel.congestion_control(dict(zip(names, (current, available), strict=True)))
    assert finding.status is status
    assert remedy in finding.remedy
    assert is_complete(finding)


@pytest.mark.parametrize(
    ("installed", "status"), [({"libpcap.so.0.8", "libnftables.so.1"}, OK), ({"libpcap.so.1"}, OK)]
)
def test_pcap_may_have_several_names(installed: set[str], status: Status) -> None:
    assert libraries.pcap(installed.__contains__).status is status


def test_doctor_reports_missing_libraries() -> None:
    pcap, nftables = libraries.pcap(lambda _: False), libraries.nftables(lambda _: False)
    assert (pcap.status, nftables.status) == (FAIL, WARN)
    assert is_complete(pcap)
    assert is_complete(nftables)


@pytest.mark.parametrize(
    ("version", "status"), [("5.7", OK), ("6.13", OK), ("7.0.1", OK), ("10.1", OK), ("4.13", WARN), ("3.5.28", WARN)]
)
def test_finding_about_the_version_of_squid(version: str, status: Status) -> None:
    found = describe("/usr/sbin/squid", f"Squid Cache: Version {version}\nService Name: squid\n")
    assert found.version == version
    assert host.squid(found).status is status


def test_description_of_squid_is_parsed() -> None:
    text = "Squid Cache: Version 6.13\nconfigure options:  '--prefix=/usr' '--with-default-user=proxy' '--disable-x'"
    assert describe("/s", text) == Squid("/s", "6.13", "proxy")
    assert describe("/s", "gibberish") == Squid("/s", "unknown", "nobody")
    assert host.squid(None).status is FAIL


PROFILES = "/usr/sbin/dhclient (enforce)\n/usr/sbin/squid ({mode})\n/usr/sbin/squid//null-1 (complain)\n"


@pytest.mark.parametrize(
    ("profiles", "local_rules", "status"),
    [
        ("", "", OK),
        (PROFILES.format(mode="complain"), "", OK),
        (PROFILES.format(mode="enforce"), "", FAIL),
        ("squid (enforce)\n", "", FAIL),
        (PROFILES.format(mode="enforce"), "/opt/x.so mr,\n", FAIL),
        (
            PROFILES.format(mode="enforce"),
            "/opt/x.so mr,\n/opt/squid_turns.so mr,\n/{,var/}run/mptcpproxy/** rwk,\n/var/log/mptcpproxy/** rwk,\n",
            OK,
        ),
    ],
)
def test_finding_about_apparmor(profiles: str, local_rules: str, status: Status) -> None:
    finding = host.apparmor(profiles, local_rules, "/opt/x.so", "mptcpproxy")
    assert finding.status is status
    assert is_complete(finding)
    if status is FAIL:
        assert ("/opt/x.so" in finding.remedy) == ("/opt/x.so" not in local_rules)
        assert "/opt/squid_turns.so mr," in finding.remedy
        assert "apparmor_parser -r" in finding.remedy


@pytest.mark.parametrize(
    ("hard_limit", "file_nr", "status"),
    [(65536, "1000\t0\t9000000\n", OK), (-1, "1000 0 9000000", OK), (1024, "1000 0 9000000", WARN),
     (65536, "99000 0 100000", WARN), (65536, "", OK)],
)  # fmt: skip
def test_finding_about_the_descriptor_limit(hard_limit: int, file_nr: str, status: Status) -> None:
    finding = host.descriptors(hard_limit, file_nr)
    assert finding.status is status
    assert is_complete(finding)


@pytest.mark.parametrize(
    ("available", "modules", "status", "text"),
    [
        ("reno cubic bbr", "", OK, "bbr is available"),
        ("reno cubic", "kernel/net/ipv4/tcp_bbr.ko.xz:\nkernel/x.ko:\n", WARN, "not loaded"),
        ("reno cubic bbr2", "kernel/net/ipv4/tcp_bbr2.ko:\n", WARN, "no bbr"),
        ("", "", WARN, "no bbr"),
    ],
)
@pytest.mark.parametrize("role", Role)
def test_finding_about_the_congestion_control_of_mptcp(
    available: str, modules: str, status: Status, text: str, role: Role
) -> None:
    values = {"net.ipv4.tcp_available_congestion_control": available}
    finding = kernel.multipath_congestion_control(values, modules, role)
    assert ("parents" in finding.check) == (role is Role.RELAY)
    assert finding.status is status
    assert text in finding.text
    assert is_complete(finding)
    if status is WARN:
        assert finding.remedy.startswith("modprobe tcp_bbr ")


def test_interfaces_are_named_without_address_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: eth0:1 counted as a second interface, and strict filtering on an interface whose only address has a label
    was ignored."""

    class Routes:
        def get_addr(self, family: int) -> list[dict[str, int]]:
            assert family == socket.AF_INET
            return [{"index": index} for index in (1, 2, 2, 3, 4)]

    def name(index: int) -> str:
        if index == 4:
            raise OSError("the interface was deleted")
        return {1: "lo", 2: "eth0", 3: "eth1.5"}[index]

    monkeypatch.setattr(gather, "IPRoute", lambda: nullcontext(Routes()))
    monkeypatch.setattr(socket, "if_indextoname", name)
    assert gather._interfaces() == {"eth0", "eth1.5"}


def test_loopback_port_is_not_a_port_of_clients() -> None:
    """Defect: the doctor always reported the console's loopback port as a port whose clients are not capped."""
    ports = ["http_port 3128", "http_port 127.0.0.1:3129", "http_port [::1]:3130", "http_port localhost:3131"]
    lines = tuple(PhysicalLine("squid.conf", number, text) for number, text in enumerate(ports, 1))
    found = tuple(listeners(statements(lines, "n")))
    assert gather._ports_of_clients(CheckedConfiguration(lines, found, "proxy", Workers(), ())) == {3128}
