# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests on a host that lacks a feature: the throttler ends with one line and status 1, or reports the lack and runs."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from faults import GENEROUS
from missing_features import (
    AF_INET,
    AF_NETLINK,
    AF_PACKET,
    IPPROTO_RAW,
    NETLINK_NETFILTER,
    NETLINK_SOCK_DIAG,
    Refusal,
    hiding_library,
    refusing,
    without_files,
)
from throttler_site import (
    IPPROTO_MPTCP,
    POLICY,
    Site,
    ask,
    clients,
    connected,
    connection,
    listening,
    make_site,
    until,
)

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.services import STATUS_SOCKET, program, throttler_mounts, write_throttler_config
from mptcp_throttler.shaping.plan import DRAIN_SECONDS

pytestmark = pytest.mark.kernel

IPPROTO_TCP = 6
UPLOADS = POLICY.replace("throttle: {rate: 5 Mbit/s}", "direction: both\n    throttle: {rate: 5 Mbit/s}")
ONE_IS_ENOUGH = POLICY.replace("throttle:", "when: {min_subflows: 1}\n    lift_last: false\n    throttle:")
ORDER = POLICY + "  - name: order\n    steer: {mode: active-standby, active: wifi, standby: ethernet}\n"
AT_WORK = "throttling on wan0 with "


@dataclass(frozen=True)
class Lack:
    """A feature that the host lacks, and the message about it."""

    line: str
    name: str | None = None
    """A name in netlink messages that the kernel does not know."""
    refusals: tuple[Refusal, ...] = ()
    files: str | None = None
    empty: str | None = None
    """A directory that is empty on this host."""
    netfilter: str = "iptables"
    policy: str = POLICY
    runs: str | None = None
    """Backend with which the throttler still runs. None: it does not run."""
    settings: Mapping[str, Any] = field(default_factory=dict)


def no_socket(family: int, protocol: int) -> tuple[Refusal, ...]:
    return (("socket", {0: family, 2: protocol}, errno.EPROTONOSUPPORT),)


LACKS = {
    "HTB": Lack(
        "install HTB at the root of wan0: No such file or directory; the kernel has no HTB (module sch_htb)", "htb"
    ),
    "IFB": Lack(
        "create the IFB device mptcp-up, which rules for uploads need (kernel module ifb): Operation not supported",
        "ifb",
        policy=UPLOADS,
    ),
    "TBF": Lack(
        "set the default queue of mptcp-up to tbf: ENOENT (No such file or directory)",
        "tbf",
        policy=UPLOADS,
    ),
    "ipset": Lack("iptables: ipset has no sets hash:ip,port,ip (module ip_set_hash_ipportip)", "hash:ip,port,ip"),
    "ipset, any backend will do": Lack("", "hash:ip,port,ip", netfilter="auto", runs="nftables"),
    "netfilter": Lack(
        "no netfilter backend: iptables: ipset does not answer (open a netlink socket: Protocol not supported; the "
        "kernel needs netfilter's netlink (module nfnetlink)); nftables: open a netlink socket",
        refusals=no_socket(AF_NETLINK, NETLINK_NETFILTER),
        netfilter="auto",
    ),
    "legacy tables": Lack(
        "no netfilter backend: iptables: legacy iptables does not answer", refusals=no_socket(AF_INET, IPPROTO_RAW)
    ),
    "nftables": Lack(
        "create the nftables table inet mptcp_throttler: Error: Could not process rule: No such file or directory",
        "lookup",
        netfilter="nftables",
    ),
    "libnftables": Lack("no netfilter backend: nftables: ", files="libnftables.so*", netfilter="nftables"),
    "packet sockets": Lack(
        "capture on wan0: the kernel has no packet sockets (module af_packet)",
        refusals=(("socket", {0: AF_PACKET}, errno.EAFNOSUPPORT),),
    ),
    "libpcap": Lack(
        "capture on wan0: libpcap is not installed, which compiles the kernel filter (Debian: libpcap0.8)",
        files="libpcap.so*",
    ),
    "socket diagnostics": Lack(
        "the kernel needs socket diagnostics (modules inet_diag, tcp_diag, mptcp_diag)",
        refusals=no_socket(AF_NETLINK, NETLINK_SOCK_DIAG),
    ),
    "path-manager events": Lack(
        "no path-manager events; the sockets are listed every second instead", "mptcp_pm", runs="iptables"
    ),
    "BPF": Lack(
        "make the BPF map mptcp_throttler: Operation not permitted; caps begin without pacing",
        refusals=(("bpf", {}, errno.EPERM),),
        runs="iptables",
    ),
    "libbpf": Lack(
        "; what a subflow carries after its last sample is not counted", files="libbpf.so*", runs="iptables"
    ),
    "Multipath TCP": Lack(
        "this kernel has no Multipath TCP (Linux 5.6 or newer, option MPTCP): only plain_tcp: cap applies",
        "mptcp_pm",
        refusals=(("socket", {2: IPPROTO_MPTCP}, errno.EPROTONOSUPPORT),),
        empty="/proc/sys/net/mptcp",
        runs="iptables",
    ),
    "Multipath TCP, steering by order": Lack(
        "read sysctl net.mptcp.pm_type: No such file or directory; the kernel has no Multipath TCP (option MPTCP), "
        "or is older than 5.19",
        "mptcp_pm",
        refusals=(("socket", {2: IPPROTO_MPTCP}, errno.EPROTONOSUPPORT),),
        empty="/proc/sys/net/mptcp",
        policy=ORDER,
    ),
    "types of the kernel": Lack(
        "sockets that send nothing keep their limits until they do", empty="/sys/kernel/btf", runs="iptables"
    ),
}


@pytest.fixture(scope="module")
def host(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", "nftables", "ifb", "bpf-pacing")
    return make_site("iptables", make_module_testbed, require)


def with_lack(lack: Lack, directory: Path, argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return *argv* changed so that it runs on a host with that *lack*, and the environment for it."""
    argv, env = list(argv), {}
    if lack.name is not None:
        env = {"LD_PRELOAD": str(hiding_library(directory)), "HIDDEN": lack.name}
    if lack.refusals:
        argv = refusing(lack.refusals, argv)
    if lack.files is not None:
        argv = without_files(lack.files, directory, argv)
    return argv, env


def start(host: Site, lack: Lack, directory: Path) -> Process:
    """Start a throttler on a host with that *lack*, and wait until it works or has ended."""
    write_throttler_config(host.proxy, host.policy, settings={"netfilter": lack.netfilter, **lack.settings})
    host.policy.write_text(lack.policy)
    argv, env = with_lack(lack, directory, [program("mptcp-throttler"), "run", "--config", str(host.config)])
    mounts = dict(throttler_mounts(host.proxy))
    if lack.empty is not None:
        mounts[lack.empty] = str(directory)
    process = host.proxy.popen(argv, name="throttler", mounts=mounts, env=env)
    until(lambda: not process.running or AT_WORK in process.output(), timeout=2 * GENEROUS)
    return process


@pytest.mark.nightly(besides=("[HTB]", "any backend", "[BPF]"))
@pytest.mark.parametrize("lack", LACKS.values(), ids=LACKS)
def test_throttler_reports_a_missing_feature_in_one_line(host: Site, tmp_path: Path, lack: Lack) -> None:
    before = host.state()
    process = start(host, lack, tmp_path)
    if lack.runs is not None:
        assert AT_WORK + lack.runs in process.output()
        process.signal(15)
    assert process.wait(60) == (0 if lack.runs is not None else 1), process.output()
    output = process.output()
    assert sum(lack.line in line for line in output.splitlines()) == 1 or not lack.line, output
    assert "Traceback" not in output
    host.assert_nothing_left(before)


ALL_LACKS = {**LACKS, "forwarding at ingress": Lack("", "fwd", policy=UPLOADS)}
"""Without a check, the daemon would notice the last lack only at the first upload that it caps."""
REPORTED_BY_CHECK = {
    "libpcap": "libpcap cannot be loaded: ",
    "libnftables": "libnftables cannot be loaded: ",
    "libbpf": "warning: libbpf.so.1 cannot be loaded: ",
    "HTB": "HTB does not work (No such file or directory), kernel option CONFIG_NET_SCH_HTB: ",
    "IFB": "policy: IFB does not work (Operation not supported), kernel option CONFIG_IFB: ",
    "TBF": "policy: TBF does not work (No such file or directory), kernel option CONFIG_NET_SCH_TBF: ",
    "packet sockets": "AF_PACKET does not work (Address family not supported by protocol), kernel option CONFIG_PACKET",
    "socket diagnostics": "NETLINK_SOCK_DIAG does not work (Protocol not supported), kernel option CONFIG_INET_DIAG: ",
    "ipset": "netfilter: iptables does not work (ipset has no sets hash:ip,port,ip (module ip_set_hash_ipportip)), "
    "kernel option CONFIG_IP_NF_MANGLE, ",
    "ipset, any backend will do": "",
    "legacy tables": "netfilter: iptables does not work (legacy iptables does not answer (",
    "netfilter": "netfilter: netfilter does not work (iptables: ipset does not answer (open a netlink socket: ",
    "nftables": "netfilter: nftables does not work (create the nftables table inet mptcp_throttler: Error: Could not "
    "process rule: No such file or directory), kernel option CONFIG_NF_TABLES",
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


@pytest.mark.nightly(besides=("HTB", "libpcap"))
@pytest.mark.parametrize("name", REPORTED_BY_CHECK)
def test_check_reports_a_missing_feature(host: Site, tmp_path: Path, name: str) -> None:
    """Defect: the check found no errors on a kernel that lacked HTB, the configured backend, or IFB for uploads."""
    lack, words = ALL_LACKS[name], REPORTED_BY_CHECK[name]
    write_throttler_config(host.proxy, host.policy, settings={"netfilter": lack.netfilter})
    host.policy.write_text(lack.policy)
    check = [program("mptcp-throttler"), "check", "--config", str(host.config)]
    for lacking in (False, True):
        argv, env = with_lack(lack, tmp_path, check) if lacking else (check, {})
        process = host.proxy.popen(argv, name="check", env=env)
        status, output = process.wait(60), process.output()
        assert status == (1 if lacking and lack.runs is None else 0), output
        # Ignore the messages that no proxy listens here, and that no client's network is near.
        ignored = " errors", "nobody listens", "note: paths: "
        reported = [line for line in output.splitlines() if not any(each in line for each in ignored)]
        assert [words in each for each in reported] == [True] * (lacking and bool(words)), output


def test_check_passes_without_ifb_if_the_policy_caps_no_uploads(host: Site, tmp_path: Path) -> None:
    write_throttler_config(host.proxy, host.policy, settings={"netfilter": "nftables"})
    host.policy.write_text(POLICY)
    check = [program("mptcp-throttler"), "check", "--config", str(host.config)]
    argv, env = with_lack(LACKS["IFB"], tmp_path, check)
    process = host.proxy.popen(argv, name="check", env=env)
    assert process.wait(60) == 0, process.output()


@pytest.mark.nightly(besides=("HTB",))
@pytest.mark.parametrize("name", REPORTED_BY_DOCTOR)
def test_doctor_reports_a_missing_feature(host: Site, tmp_path: Path, name: str) -> None:
    """Defect: the doctor did not mention IFB, socket diagnostics, packet sockets and nftables at ingress.

    Without nfnetlink, libnftables ended the doctor's process, and nothing was reported.
    """
    expected = REPORTED_BY_DOCTOR[name]
    argv, env = with_lack(ALL_LACKS[name], tmp_path, [program("mptcp-proxy"), "doctor", "--json"])
    process = host.proxy.popen(argv, name="doctor", env=env)
    process.wait(120)
    output = process.output()
    findings = {each["check"]: each for each in json.loads(output[output.index("[") : output.rindex("]") + 1])}
    lines = {line for each in REPORTED_BY_DOCTOR.values() for line in each}
    assert {line: findings[line]["status"] for line in lines} == {**dict.fromkeys(lines, "ok"), **expected}


def test_throttler_reports_disabled_mptcp_and_caps_once_it_is_enabled(host: Site, tmp_path: Path) -> None:
    off = ["sysctl", "-w", "net.mptcp.enabled=0"]
    with host.proxy.changed(off, ["sysctl", "-w", "net.mptcp.enabled=1"]):
        process = start(host, Lack("", runs="iptables"), tmp_path)
        assert "Multipath TCP is switched off (net.mptcp.enabled = 0): " in process.output()
    with connection(host):
        until(lambda: len(host.entries()) == 1, timeout=GENEROUS)
    process.signal(15)
    assert process.wait(60) == 0


def test_listener_from_before_mptcp_was_disabled_keeps_it_and_is_capped(host: Site, tmp_path: Path) -> None:
    """Defect: the log reported that connections then have one subflow, and that rules with min_subflows 1 cap them."""
    off = ["sysctl", "-w", "net.mptcp.enabled=0"]
    with listening(host) as listener, host.proxy.changed(off, ["sysctl", "-w", "net.mptcp.enabled=1"]):
        process = start(host, Lack("", runs="iptables"), tmp_path)
        assert "one from before, and its connections, go on" in process.output()
        with connected(host, listener):
            until(lambda: len(host.entries()) == 1, timeout=GENEROUS)
        with host.proxy.entered(), pytest.raises(OSError, match=os.strerror(errno.ENOPROTOOPT)):
            socket.socket(socket.AF_INET6, socket.SOCK_STREAM, IPPROTO_MPTCP)
    process.signal(15)
    assert process.wait(60) == 0


def test_plain_connections_pass_uncapped_on_a_kernel_without_mptcp(host: Site, tmp_path: Path) -> None:
    before = host.state()
    process = start(host, replace(LACKS["Multipath TCP"], policy=ONE_IS_ENOUGH), tmp_path)
    output = process.output()
    assert "no path-manager events; the sockets are listed every second instead" in output
    with connection(host, protocol=IPPROTO_TCP) as (client, proxy):
        proxy.sendall(bytes(100_000))
        received = 0
        while received < 100_000:
            received += len(client.recv(100_000))
        # The daemon has read the segments that passed its capture filter.
        status_socket = Path(throttler_mounts(host.proxy)["/run/mptcp-throttler"]) / STATUS_SOCKET
        until(lambda: ask(status_socket)["counters"]["observers"]["segments"] > 0, timeout=GENEROUS)
        status = ask(status_socket)
        assert (status["connections"], host.entries()) == ([], {})
    process.signal(15)
    assert process.wait(60) == 0
    assert "ERROR" not in process.output()
    assert "Traceback" not in process.output()
    host.assert_nothing_left(before)


def test_caps_follow_socket_lists_if_there_are_no_path_manager_events(host: Site, tmp_path: Path) -> None:
    process = start(host, replace(LACKS["path-manager events"], settings={"verify_interval": 600}), tmp_path)
    with connection(host):
        until(lambda: clients(host.entries()) == ["10.77.1.2"], timeout=GENEROUS)
    # An entry is kept for a while, in case data of its subflow are still in flight.
    until(lambda: not host.entries(), timeout=DRAIN_SECONDS + GENEROUS)
    process.signal(15)
    assert process.wait(60) == 0


def test_a_second_throttler_in_the_same_network_namespace_is_refused(host: Site, tmp_path: Path) -> None:
    first = start(host, Lack(""), tmp_path)
    before = host.kernel_dump()
    other = tmp_path / "state"
    other.mkdir()
    for number in range(3):
        elsewhere = {"state_directory": str(other), "status_socket": str(other / "s")}
        second = start(host, Lack("", settings=elsewhere), tmp_path)
        assert second.wait(60) == 1, number
        expected = f"mptcp-throttler already runs in this network namespace: process {first.pid}"
        assert expected in second.output()
    assert host.kernel_dump() == before
    first.signal(15)
    assert first.wait(60) == 0
