"""On a host that lacks something the throttler refuses with one line and status 1, or says what it does without."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
from throttler_site import POLICY, Site, connection, make_site, until

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.services import program, throttler_mounts, write_throttler_config

pytestmark = pytest.mark.kernel

UPLOADS = POLICY.replace("throttle: {rate: 5 Mbit/s}", "direction: both\n    throttle: {rate: 5 Mbit/s}")
AT_WORK = "throttling on wan0 with "


@dataclass(frozen=True)
class Lack:
    """What a host has not, and what is said of it."""

    line: str
    name: str | None = None
    """In messages to the kernel."""
    refusals: tuple[Refusal, ...] = ()
    files: str | None = None
    empty: str | None = None
    """A directory with nothing in it."""
    netfilter: str = "iptables"
    policy: str = POLICY
    runs: str | None = None
    """It goes on, with this backend."""
    settings: Mapping[str, Any] = field(default_factory=dict)


def no_socket(family: int, protocol: int) -> tuple[Refusal, ...]:
    return (("socket", {0: family, 2: protocol}, errno.EPROTONOSUPPORT),)


LACKS = {
    "HTB": Lack(
        "put HTB at the root of wan0: No such file or directory; the kernel has no HTB (module sch_htb)", "htb"
    ),
    "IFB": Lack(
        "make the IFB device mptcp-up, which rules for uploads need (kernel module ifb): Operation not supported",
        "ifb",
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
        "no path-manager events; subflows are known from their packets alone", "mptcp_pm", runs="iptables"
    ),
    "BPF": Lack(
        "make the BPF map mptcp_throttler: Operation not permitted; caps begin without pacing",
        refusals=(("bpf", {}, errno.EPERM),),
        runs="iptables",
    ),
    "libbpf": Lack(
        "; what a subflow carries after its last sample is not counted", files="libbpf.so*", runs="iptables"
    ),
    "types of the kernel": Lack(
        "sockets that send nothing keep their limits until they do", empty="/sys/kernel/btf", runs="iptables"
    ),
}


@pytest.fixture(scope="module")
def host(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", "nftables", "ifb", "bpf-pacing")
    return make_site("iptables", make_module_testbed, require)


def start(host: Site, lack: Lack, directory: Path) -> Process:
    """Start a throttler on a host with that *lack*, and wait until it has begun its work or ended."""
    write_throttler_config(host.proxy, host.policy, settings={"netfilter": lack.netfilter, **lack.settings})
    host.policy.write_text(lack.policy)
    argv = [program("mptcp-throttler"), "run", "--config", str(host.config)]
    mounts, env = dict(throttler_mounts(host.proxy)), {}
    if lack.name is not None:
        env = {"LD_PRELOAD": str(hiding_library(directory)), "HIDDEN": lack.name}
    if lack.refusals:
        argv = refusing(lack.refusals, argv)
    if lack.files is not None:
        argv = without_files(lack.files, directory, argv)
    if lack.empty is not None:
        mounts[lack.empty] = str(directory)
    process = host.proxy.popen(argv, name="throttler", mounts=mounts, env=env)
    until(lambda: not process.running or AT_WORK in process.output(), timeout=2 * GENEROUS)
    return process


@pytest.mark.parametrize("lack", LACKS.values(), ids=LACKS)
def test_one_line_says_what_is_missing(host: Site, tmp_path: Path, lack: Lack) -> None:
    before = host.state()
    process = start(host, lack, tmp_path)
    if lack.runs is not None:
        assert AT_WORK + lack.runs in process.output()
        process.signal(15)
    assert process.wait(60) == (0 if lack.runs is not None else 1), process.output()
    said = process.output()
    assert sum(lack.line in line for line in said.splitlines()) == 1 or not lack.line, said
    assert "Traceback" not in said
    host.nothing_left(before)


MISSED_BY_CHECK = {
    "libpcap": "libpcap cannot",
    "libnftables": "libnftables cannot",
    "libbpf": "warning: libbpf.so.1 cannot",
}


@pytest.mark.parametrize("name", MISSED_BY_CHECK)
def test_check_says_it_before_the_start(host: Site, tmp_path: Path, name: str) -> None:
    lack = LACKS[name]
    assert lack.files is not None
    write_throttler_config(host.proxy, host.policy, settings={"netfilter": lack.netfilter})
    host.policy.write_text(POLICY)
    check = [program("mptcp-throttler"), "check", "--config", str(host.config)]
    for argv, words in ((check, None), (without_files(lack.files, tmp_path, check), MISSED_BY_CHECK[name])):
        process = host.proxy.popen(argv, name="check")
        status, said = process.wait(60), process.output()
        assert status == (1 if words is not None and lack.runs is None else 0), said
        assert sum(f"{words} be loaded: " in line for line in said.splitlines()) == (words is not None), said


def test_without_multipath_tcp_it_says_so_and_waits(host: Site, tmp_path: Path) -> None:
    off = ["sysctl", "-w", "net.mptcp.enabled=0"]
    with host.proxy.changed(off, ["sysctl", "-w", "net.mptcp.enabled=1"]):
        process = start(host, Lack("", runs="iptables"), tmp_path)
        assert "Multipath TCP is switched off (net.mptcp.enabled = 0)" in process.output()
    with connection(host):
        until(lambda: len(host.entries()) == 1, timeout=GENEROUS)
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
        expected = f"a throttler is running already in this network namespace: process {first.pid}"
        assert expected in second.output()
    assert host.kernel_dump() == before
    first.signal(15)
    assert first.wait(60) == 0
