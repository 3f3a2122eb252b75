# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that leftovers are visible: each trace that a throttler could leave shows in the system's state."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ssh_hosts import dump_when_links_are_up

from mptcp_lab.testbed import UNSHAPED, LiveNode, Testbed
from mptcp_lab.testbed.features import fails_when_missing, missing, need
from mptcp_lab.testbed.services import wait_until
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


def changed(node: LiveNode, run: Path, before: dict[str, str]) -> set[str]:
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
"""Traces: required features, commands that create and delete them, and the dump that shows them."""


def test_state_differs_when_something_is_left_in_the_kernel(node: LiveNode, tmp_path: Path) -> None:
    if fails_when_missing():
        need(*(feature for feature, *_ in TRACES))
    traces = [trace for feature, *trace in TRACES if missing(feature) is None]
    do, undo, dumps = zip(*traces, strict=True)
    before = whole_state(node, tmp_path, more=())
    with node.changed(["sh", "-ec", "\n".join(do)], ["sh", "-ec", "\n".join(undo[::-1])]):
        assert changed(node, tmp_path, before) >= set(dumps)
    assert changed(node, tmp_path, before) == set()


def test_failed_dump_differs_from_all_dumps(
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
        assert changed(node, tmp_path, before) == {"processes", "BPF programs, maps and links", "files"}
    (tmp_path / "status.sock").unlink()
    assert changed(node, tmp_path, before) == set()
