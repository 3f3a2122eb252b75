# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for testbeds: all that a program may leave in the system is detected, and no run leaves anything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ssh_hosts import dump_when_links_are_up

from mptcp_lab.testbed import TWO_PATHS, UNSHAPED, End, LiveNode, Testbed, TestbedError, congestion, ownership
from mptcp_lab.testbed.features import fails_when_missing, missing, need
from mptcp_lab.testbed.services import program, wait_until
from mptcp_lab.testbed.system_state import SYSCTLS, differences, kernel_state, whole_state

pytestmark = pytest.mark.kernel
LEGACY, FILTERS = "iptables-legacy", "tc -d filter show"
HOLDS_A_MAP = """
import time
from mptcp_throttler.kernel.bpf import Bpf
bpf = Bpf()
bpf.hash_map("left", 8, 8, 4)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def node(make_module_testbed: Callable[..., Testbed]) -> LiveNode:
    node = make_module_testbed(UNSHAPED)["proxy"]
    dump_when_links_are_up(node)
    return node


def changed_parts(node: LiveNode, run: Path, before: dict[str, str]) -> set[str]:
    """Return the names of the parts of the state that differ from *before*."""
    return {text.partition(":\n")[0] for text in differences(before, whole_state(node, run, more=()))}


TRACES = (
    ("ifb", "ip link add left type ifb", "ip link del left", "ip -d link show"),
    ("veth", "ip route add 192.0.2.0/24 dev wan0", "ip route del 192.0.2.0/24", "ip route show table all"),
    ("veth", "ip -6 route add fd99::/64 dev wan0", "ip -6 route del fd99::/64", "ip -6 route show table all"),
    ("root", "ip rule add fwmark 7 table 99", "ip rule del fwmark 7 table 99", "ip rule show"),
    ("root", "ip -6 rule add fwmark 7 table 99", "ip -6 rule del fwmark 7 table 99", "ip -6 rule show"),
    ("mptcp-pm", "ip mptcp endpoint add 192.0.2.9 id 9", "ip mptcp endpoint del id 9", "ip mptcp endpoint show"),
    ("mptcp", "sysctl -qw net.mptcp.stale_loss_cnt=7", "sysctl -qw net.mptcp.stale_loss_cnt=4", SYSCTLS),
    ("nftables", "nft add table inet left", "nft delete table inet left", "nft list ruleset"),
    (LEGACY, "iptables-legacy -P FORWARD DROP", "iptables-legacy -P FORWARD ACCEPT", "iptables-legacy-save"),
    (LEGACY, "ip6tables-legacy -t mangle -N left", "ip6tables-legacy -t mangle -X", "ip6tables-legacy-save"),
    ("ipset", "ipset create left hash:ip", "ipset destroy left", "ipset save"),
    ("htb", "tc qdisc add dev wan0 root handle 7: htb", "tc qdisc del dev wan0 root", "tc -d qdisc show"),
    ("htb", "tc class add dev wan0 parent 7: classid 7:1 htb rate 1mbit", "", "tc -d class show"),
    ("htb", "tc filter add dev wan0 parent 7: u32 match u32 0 0 flowid 7:1", "", FILTERS),
    ("ingress", "tc qdisc add dev wan0 clsact", "tc qdisc del dev wan0 clsact", "tc -d qdisc show"),
    ("ingress", "tc filter add dev wan0 ingress u32 match u32 0 0 flowid 7:1", "", f"{FILTERS} ingress"),
    ("ingress", "tc filter add dev wan0 egress u32 match u32 0 0 flowid 7:1", "", f"{FILTERS} egress"),
)
"""Traces: the required feature, commands that create and delete the trace, and the dump that shows it."""


def test_state_differs_if_a_trace_is_left_in_the_kernel(node: LiveNode, tmp_path: Path) -> None:
    if fails_when_missing():
        need(*(feature for feature, *_ in TRACES))
    traces = [trace for feature, *trace in TRACES if missing(feature) is None]
    create, delete, dumps = zip(*traces, strict=True)
    before = whole_state(node, tmp_path, more=())
    with node.changed(["sh", "-ec", "\n".join(create)], ["sh", "-ec", "\n".join(delete[::-1])]):
        assert changed_parts(node, tmp_path, before) >= set(dumps)
    assert changed_parts(node, tmp_path, before) == set()


def test_failed_dump_differs_from_every_dump(
    node: LiveNode, tmp_path: Path, require: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    require("nftables")
    before = kernel_state(node)
    broken = tmp_path / "nft"
    broken.write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    failed = kernel_state(node)
    assert "nft list ruleset: exit code 3\n    no such luck" in failed["nft list ruleset"]
    for earlier in (before, failed):
        assert [text.partition(":\n")[0] for text in differences(earlier, failed) if "nft" in text[:20]]


def test_state_differs_if_files_processes_or_bpf_objects_are_left(
    node: LiveNode, tmp_path: Path, require: Callable[..., None]
) -> None:
    require("bpf-pacing")
    before = whole_state(node, tmp_path, more=())
    with node.running([sys.executable, "-c", HOLDS_A_MAP], name="left") as process:
        wait_until(lambda: "ready" in process.output(), "the map exists", process=process)
        (tmp_path / "status.sock").touch()
        (tmp_path / "lock").touch()
        assert changed_parts(node, tmp_path, before) == {"processes", "BPF programs, maps and links", "files"}
    (tmp_path / "status.sock").unlink()
    assert changed_parts(node, tmp_path, before) == set()


def test_namespace_uses_cubic_and_the_host_is_unchanged(make_testbed: Callable[..., Testbed]) -> None:
    # Another run may allow another algorithm for a moment. It then holds this lock.
    with ownership.registry():
        before = congestion.ALLOWED.read_text()
    testbed = make_testbed()
    if "cubic" in before.split():
        assert testbed["proxy"].run(["sysctl", "-n", "net.ipv4.tcp_congestion_control"]).stdout == "cubic\n"
    with ownership.registry():
        assert congestion.ALLOWED.read_text() == before


def test_failed_build_names_the_step_and_leaves_nothing() -> None:
    link = replace(TWO_PATHS.links[3], a=End("origin", "eth0", ("10.77.9.2/24",) * 2))
    testbed = Testbed(replace(TWO_PATHS, name="broken", links=(*TWO_PATHS.links[:3], link)))
    with pytest.raises(TestbedError, match=r"(?s)build broken: \[origin\] ip address add 10\.77\.9\.2/24"):
        testbed.__enter__()
    assert not testbed.claimed.namespaces
    assert testbed.claimed.id not in {run.id for run in ownership.runs()}


DRIVER = """
from pathlib import Path
from mptcp_lab.testbed import *
from mptcp_lab.testbed.services import wait_until
with Testbed(paths([1000000])) as t:
    p = t['core'].popen(['sleep', '600'])
    # At first, the process is ip(8), which enters the namespace.
    wait_until(lambda: Path(f'/proc/{p.pid}/cmdline').read_bytes().startswith(b'sleep'), 'the program runs')
    print(t.claimed.id, p.pid, t.directory, flush=True)
    input()
"""


@pytest.mark.usefixtures("dead_runs")
def test_cleanup_removes_only_killed_runs_and_reports_what_it_cannot_delete() -> None:
    def dead() -> list[tuple[str, ...]]:
        """Return the namespaces of the run, if it is dead."""
        return [run.namespaces for run in ownership.runs() if run.id == identifier and not run.alive]

    with subprocess.Popen([sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        identifier, orphan, directory = child.stdout.readline().decode().split()
        done, failures = ownership.remove_stale()
        assert identifier not in "\n".join((*done, *failures))
        assert len(list(ownership.NAMESPACES.glob(f"mpx-{identifier}-*"))) == 4
        child.kill()
    # Make the next deletion of a namespace fail: ip-netns(8) removes one mount and finds another one below it.
    core = f"mpx-{identifier}-core"
    target = str(ownership.NAMESPACES / core)
    subprocess.run(["mount", "--bind", target, target], check=True)
    argv, name = [program("mptcp-bench"), "cleanup"], f"testbed {identifier} of process {child.pid}"
    failed = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert failed.returncode == 1
    assert f"mptcp-bench cleanup: {name}: delete namespace {core}: " in failed.stderr
    assert identifier not in failed.stdout
    assert dead() == [(core,)]
    cleaned = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert f"removed {name}\n" in cleaned.stdout
    assert identifier not in cleaned.stderr
    assert dead() == []
    assert not list(ownership.NAMESPACES.glob(f"mpx-{identifier}-*"))
    assert not Path(directory).exists()
    assert not Path(f"/proc/{orphan}/cmdline").exists() or not Path(f"/proc/{orphan}/cmdline").read_bytes()
