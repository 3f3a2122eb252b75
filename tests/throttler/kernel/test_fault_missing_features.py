# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests on a host that lacks a feature: the throttler logs one line, and ends with status 1 or runs without it."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from faults import LONG_TIMEOUT
from missing_features import (
    AF_INET,
    AF_NETLINK,
    AF_PACKET,
    IPPROTO_RAW,
    NETLINK_NETFILTER,
    NETLINK_SOCK_DIAG,
    Refusal,
    compile_hiding_library,
    hide_files,
    refuse_system_calls,
)
from throttler_site import (
    IPPROTO_MPTCP,
    POLICY,
    Site,
    clients,
    connected,
    connection,
    listening,
    make_site,
    read_status,
    until,
)

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.services import STATUS_SOCKET, program, throttler_mounts, write_throttler_config
from mptcp_throttler.shaping.plan import DRAIN_SECONDS

pytestmark = pytest.mark.kernel

IPPROTO_TCP = 6
UPLOAD_POLICY = POLICY.replace("throttle: {rate: 5 Mbit/s}", "direction: both\n    throttle: {rate: 5 Mbit/s}")
ONE_SUBFLOW_POLICY = POLICY.replace("throttle:", "when: {min_subflows: 1}\n    lift_last: false\n    throttle:")
STEERING_POLICY = POLICY + "  - name: order\n    steer: {mode: active-standby, active: wifi, standby: ethernet}\n"
STARTED = "throttling on wan0 with "


@dataclass(frozen=True)
class MissingFeature:
    """A feature that the host lacks, and the message that the throttler logs about it."""

    message: str
    name: str | None = None
    """A name in netlink messages that the kernel does not know."""
    refusals: tuple[Refusal, ...] = ()
    files: str | None = None
    """Pattern for the names of missing libraries."""
    empty_directory: str | None = None
    """A directory that is empty on this host."""
    netfilter: str = "iptables"
    policy: str = POLICY
    running_backend: str | None = None
    """Netfilter backend with which the throttler still runs, or None if it does not run."""
    settings: Mapping[str, Any] = field(default_factory=dict)


def refuse_socket(family: int, protocol: int) -> tuple[Refusal, ...]:
    return (("socket", {0: family, 2: protocol}, errno.EPROTONOSUPPORT),)


MISSING_FEATURES = {
    "HTB": MissingFeature(
        "install HTB at the root of wan0: No such file or directory; the kernel has no HTB (module sch_htb)", "htb"
    ),
    "IFB": MissingFeature(
        "create the IFB device mptcp-up, which rules for uploads need (kernel module ifb): Operation not supported",
        "ifb",
        policy=UPLOAD_POLICY,
    ),
    "TBF": MissingFeature(
        "set the default queue of mptcp-up to tbf: ENOENT (No such file or directory)",
        "tbf",
        policy=UPLOAD_POLICY,
    ),
    "ipset": MissingFeature(
        "iptables: ipset has no sets hash:ip,port,ip (module ip_set_hash_ipportip)", "hash:ip,port,ip"
    ),
    "ipset, any backend allowed": MissingFeature("", "hash:ip,port,ip", netfilter="auto", running_backend="nftables"),
    "netfilter": MissingFeature(
        "no netfilter backend: iptables: ipset does not answer (open a netlink socket: Protocol not supported; the "
        "kernel needs netfilter's netlink (module nfnetlink)); nftables: open a netlink socket",
        refusals=refuse_socket(AF_NETLINK, NETLINK_NETFILTER),
        netfilter="auto",
    ),
    "legacy tables": MissingFeature(
        "no netfilter backend: iptables: legacy iptables does not answer", refusals=refuse_socket(AF_INET, IPPROTO_RAW)
    ),
    "nftables": MissingFeature(
        "create the nftables table inet mptcp_throttler: Error: Could not process rule: No such file or directory",
        "lookup",
        netfilter="nftables",
    ),
    "libnftables": MissingFeature("no netfilter backend: nftables: ", files="libnftables.so*", netfilter="nftables"),
    "packet sockets": MissingFeature(
        "capture on wan0: the kernel has no packet sockets (module af_packet)",
        refusals=(("socket", {0: AF_PACKET}, errno.EAFNOSUPPORT),),
    ),
    "libpcap": MissingFeature(
        "capture on wan0: libpcap, which compiles the kernel filter, is not installed (Debian: libpcap0.8)",
        files="libpcap.so*",
    ),
    "socket diagnostics": MissingFeature(
        "the kernel needs socket diagnostics (modules inet_diag, tcp_diag, mptcp_diag)",
        refusals=refuse_socket(AF_NETLINK, NETLINK_SOCK_DIAG),
    ),
    "path-manager events": MissingFeature(
        "no path-manager events; the sockets are listed every second instead", "mptcp_pm", running_backend="iptables"
    ),
    "BPF": MissingFeature(
        "create the BPF map mptcp_throttler: Operation not permitted; caps begin without pacing",
        refusals=(("bpf", {}, errno.EPERM),),
        running_backend="iptables",
    ),
    "libbpf": MissingFeature(
        "; bytes after a subflow's last sample are not counted", files="libbpf.so*", running_backend="iptables"
    ),
    "Multipath TCP": MissingFeature(
        "this kernel has no Multipath TCP (Linux 5.6 or newer, option MPTCP): only plain_tcp: cap applies",
        "mptcp_pm",
        refusals=(("socket", {2: IPPROTO_MPTCP}, errno.EPROTONOSUPPORT),),
        empty_directory="/proc/sys/net/mptcp",
        running_backend="iptables",
    ),
    "Multipath TCP, steering by order": MissingFeature(
        "read sysctl net.mptcp.pm_type: No such file or directory; the kernel has no Multipath TCP (option MPTCP), "
        "or is older than 5.19",
        "mptcp_pm",
        refusals=(("socket", {2: IPPROTO_MPTCP}, errno.EPROTONOSUPPORT),),
        empty_directory="/proc/sys/net/mptcp",
        policy=STEERING_POLICY,
    ),
    "BTF": MissingFeature(
        "sockets that send nothing keep their limits until they send",
        empty_directory="/sys/kernel/btf",
        running_backend="iptables",
    ),
}


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", "nftables", "ifb", "bpf-pacing")
    return make_site("iptables", make_module_testbed, require)


def command_without(missing: MissingFeature, directory: Path, argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return *argv* changed so that it runs on a host without the feature *missing*, and the environment for it."""
    argv, env = list(argv), {}
    if missing.name is not None:
        env = {"LD_PRELOAD": str(compile_hiding_library(directory)), "HIDDEN": missing.name}
    if missing.refusals:
        argv = refuse_system_calls(missing.refusals, argv)
    if missing.files is not None:
        argv = hide_files(missing.files, directory, argv)
    return argv, env


def start(site: Site, missing: MissingFeature, directory: Path) -> Process:
    """Start a throttler on a host without the feature *missing*, and wait until it works or has ended."""
    write_throttler_config(site.proxy, site.policy, settings={"netfilter": missing.netfilter, **missing.settings})
    site.policy.write_text(missing.policy)
    argv, env = command_without(missing, directory, [program("mptcp-throttler"), "run", "--config", str(site.config)])
    mounts = dict(throttler_mounts(site.proxy))
    if missing.empty_directory is not None:
        mounts[missing.empty_directory] = str(directory)
    process = site.proxy.popen(argv, name="throttler", mounts=mounts, env=env)
    until(lambda: not process.running or STARTED in process.output(), timeout=2 * LONG_TIMEOUT)
    return process


@pytest.mark.nightly(except_for=("[HTB]", "any backend", "[BPF]"))
@pytest.mark.parametrize("missing", MISSING_FEATURES.values(), ids=MISSING_FEATURES)
def test_throttler_reports_a_missing_feature_in_one_line(site: Site, tmp_path: Path, missing: MissingFeature) -> None:
    before = site.state()
    process = start(site, missing, tmp_path)
    if missing.running_backend is not None:
        assert STARTED + missing.running_backend in process.output()
        process.signal(signal.SIGTERM)
    assert process.wait(60) == (0 if missing.running_backend is not None else 1), process.output()
    output = process.output()
    assert sum(missing.message in line for line in output.splitlines()) == 1 or not missing.message, output
    assert "Traceback" not in output
    site.assert_nothing_left(before)


ALL_MISSING_FEATURES = {**MISSING_FEATURES, "forwarding at ingress": MissingFeature("", "fwd", policy=UPLOAD_POLICY)}
"""Only the check reports the lack of the last feature early. The daemon would notice it at the first capped upload."""
REPORTED_BY_CHECK = {  # For each missing feature, a part of the only message about it.
    "libpcap": "libpcap cannot be loaded: ",
    "libnftables": "libnftables cannot be loaded: ",
    "libbpf": "warning: libbpf.so.1 cannot be loaded: ",
    "HTB": "HTB does not work (No such file or directory); it needs the kernel option CONFIG_NET_SCH_HTB: ",
    "IFB": "policy: IFB does not work (Operation not supported); it needs the kernel option CONFIG_IFB: ",
    "TBF": "policy: TBF does not work (No such file or directory); it needs the kernel option CONFIG_NET_SCH_TBF: ",
    "packet sockets": "AF_PACKET does not work (Address family not supported by protocol); it needs the kernel option "
    "CONFIG_PACKET",
    "socket diagnostics": "NETLINK_SOCK_DIAG does not work (Protocol not supported); it needs the kernel option "
    "CONFIG_INET_DIAG: ",
    "ipset": "netfilter: iptables does not work (ipset has no sets hash:ip,port,ip (module ip_set_hash_ipportip)); "
    "it needs the kernel option CONFIG_IP_NF_MANGLE, ",
    "ipset, any backend allowed": "",
    "legacy tables": "netfilter: iptables does not work (legacy iptables does not answer (",
    "netfilter": "netfilter: netfilter does not work (iptables: ipset does not answer (open a netlink socket: ",
    "nftables": "netfilter: nftables does not work (create the nftables table inet mptcp_throttler: Error: Could not "
    "process rule: No such file or directory); it needs the kernel option CONFIG_NF_TABLES",
    "forwarding at ingress": "policy: nftables at ingress does not work (",
}
REPORTED_BY_DOCTOR = {
    "HTB": {"tc HTB": "fail"},
    "IFB": {"IFB": "warn"},
    "TBF": {"tc TBF": "warn"},
    "packet sockets": {"packet sockets": "fail"},
    "socket diagnostics": {"socket diagnostics": "fail"},
    "ipset": {"iptables": "warn"},
    "legacy tables": {"iptables": "warn"},
    "nftables": {"nftables": "warn", "nftables ingress": "warn"},
    "forwarding at ingress": {"nftables ingress": "warn"},
    "netfilter": {"iptables": "fail", "nftables": "fail", "nftables ingress": "warn"},
}
"""The doctor's lines and their status. The doctor knows neither the policy (uploads) nor the configured backend."""


@pytest.mark.nightly(except_for=("HTB", "libpcap"))
@pytest.mark.parametrize("name", REPORTED_BY_CHECK)
def test_check_reports_a_missing_feature(site: Site, tmp_path: Path, name: str) -> None:
    """Defect: the check found no errors on a kernel that lacked HTB, the configured backend, or IFB for uploads."""
    missing, words = ALL_MISSING_FEATURES[name], REPORTED_BY_CHECK[name]
    write_throttler_config(site.proxy, site.policy, settings={"netfilter": missing.netfilter})
    site.policy.write_text(missing.policy)
    check = [program("mptcp-throttler"), "check", "--config", str(site.config)]
    for is_missing in (False, True):
        argv, env = command_without(missing, tmp_path, check) if is_missing else (check, {})
        process = site.proxy.popen(argv, name="check", env=env)
        status, output = process.wait(60), process.output()
        assert status == (1 if is_missing and missing.running_backend is None else 0), output
        # Ignore the messages that no proxy listens here, and that no client network is directly connected.
        ignored = " errors", "no program listens", "note: paths: "
        reported = [line for line in output.splitlines() if not any(each in line for each in ignored)]
        assert [words in each for each in reported] == [True] * (is_missing and bool(words)), output


def test_check_passes_without_ifb_if_the_policy_caps_no_uploads(site: Site, tmp_path: Path) -> None:
    write_throttler_config(site.proxy, site.policy, settings={"netfilter": "nftables"})
    site.policy.write_text(POLICY)
    check = [program("mptcp-throttler"), "check", "--config", str(site.config)]
    argv, env = command_without(MISSING_FEATURES["IFB"], tmp_path, check)
    process = site.proxy.popen(argv, name="check", env=env)
    assert process.wait(60) == 0, process.output()


@pytest.mark.nightly(except_for=("HTB",))
@pytest.mark.parametrize("name", REPORTED_BY_DOCTOR)
def test_doctor_reports_a_missing_feature(site: Site, tmp_path: Path, name: str) -> None:
    """Defect: the doctor did not mention IFB, socket diagnostics, packet sockets and nftables at ingress.

    Without nfnetlink, libnftables ended the doctor's process, and nothing was reported.
    """
    expected = REPORTED_BY_DOCTOR[name]
    argv, env = command_without(ALL_MISSING_FEATURES[name], tmp_path, [program("mptcp-proxy"), "doctor", "--json"])
    process = site.proxy.popen(argv, name="doctor", env=env)
    process.wait(120)
    output = process.output()
    findings = {each["check"]: each for each in json.loads(output[output.index("[") : output.rindex("]") + 1])}
    lines = {line for each in REPORTED_BY_DOCTOR.values() for line in each}
    assert {line: findings[line]["status"] for line in lines} == {**dict.fromkeys(lines, "ok"), **expected}


def test_throttler_reports_disabled_mptcp_and_caps_once_it_is_enabled(site: Site, tmp_path: Path) -> None:
    off = ["sysctl", "-w", "net.mptcp.enabled=0"]
    with site.proxy.changed(off, ["sysctl", "-w", "net.mptcp.enabled=1"]):
        process = start(site, MissingFeature("", running_backend="iptables"), tmp_path)
        assert "Multipath TCP is switched off (net.mptcp.enabled = 0): " in process.output()
    with connection(site):
        until(lambda: len(site.entries()) == 1, timeout=LONG_TIMEOUT)
    process.signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_connections_of_an_older_listener_are_capped_after_mptcp_is_disabled(site: Site, tmp_path: Path) -> None:
    """Defect: the log claimed that such connections have one subflow and are capped only with min_subflows 1."""
    off = ["sysctl", "-w", "net.mptcp.enabled=0"]
    with listening(site) as listener, site.proxy.changed(off, ["sysctl", "-w", "net.mptcp.enabled=1"]):
        process = start(site, MissingFeature("", running_backend="iptables"), tmp_path)
        assert "older listeners and their connections continue" in process.output()
        with connected(site, listener):
            until(lambda: len(site.entries()) == 1, timeout=LONG_TIMEOUT)
        with site.proxy.entered(), pytest.raises(OSError, match=os.strerror(errno.ENOPROTOOPT)):
            socket.socket(socket.AF_INET6, socket.SOCK_STREAM, IPPROTO_MPTCP)
    process.signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_plain_connections_are_not_capped_on_a_kernel_without_mptcp(site: Site, tmp_path: Path) -> None:
    before = site.state()
    process = start(site, replace(MISSING_FEATURES["Multipath TCP"], policy=ONE_SUBFLOW_POLICY), tmp_path)
    output = process.output()
    assert "no path-manager events; the sockets are listed every second instead" in output
    with connection(site, protocol=IPPROTO_TCP) as (client, proxy):
        proxy.sendall(bytes(100_000))
        received = 0
        while received < 100_000:
            received += len(client.recv(100_000))
        # The daemon has read the segments that passed its capture filter.
        status_socket = Path(throttler_mounts(site.proxy)["/run/mptcp-throttler"]) / STATUS_SOCKET
        until(lambda: read_status(status_socket)["counters"]["observers"]["segments"] > 0, timeout=LONG_TIMEOUT)
        status = read_status(status_socket)
        assert (status["connections"], site.entries()) == ([], {})
    process.signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert "ERROR" not in process.output()
    assert "Traceback" not in process.output()
    site.assert_nothing_left(before)


def test_caps_follow_socket_lists_if_there_are_no_path_manager_events(site: Site, tmp_path: Path) -> None:
    process = start(site, replace(MISSING_FEATURES["path-manager events"], settings={"verify_interval": 600}), tmp_path)
    with connection(site):
        until(lambda: clients(site.entries()) == ["10.77.1.2"], timeout=LONG_TIMEOUT)
    # An entry is kept for some time, because data of its subflow may be in flight.
    until(lambda: not site.entries(), timeout=DRAIN_SECONDS + LONG_TIMEOUT)
    process.signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_second_throttler_in_the_network_namespace_is_refused(site: Site, tmp_path: Path) -> None:
    first = start(site, MissingFeature(""), tmp_path)
    before = site.kernel_dump()
    other = tmp_path / "state"
    other.mkdir()
    for number in range(3):
        other_paths = {"state_directory": str(other), "status_socket": str(other / "s")}
        second = start(site, MissingFeature("", settings=other_paths), tmp_path)
        assert second.wait(60) == 1, number
        expected = f"mptcp-throttler already runs in this network namespace: process {first.pid}"
        assert expected in second.output()
    assert site.kernel_dump() == before
    first.signal(signal.SIGTERM)
    assert first.wait(60) == 0
