"""What is left behind shows: each kind of thing that a throttler could leave is a difference of the system's state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from mptcp_bench.experiments.system_state import SYSCTLS, differences, whole_state
from mptcp_lab.testbed import UNSHAPED, LiveNode, Testbed, congestion
from mptcp_lab.testbed.services import wait_until

pytestmark = pytest.mark.kernel
HOLDS_A_MAP = """
import time
from mptcp_throttler.kernel.bpf import Bpf
bpf = Bpf()
bpf.hash_map("left", 8, 8, 4)
print("there", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def node(make_module_testbed: Callable[..., Testbed]) -> LiveNode:
    return make_module_testbed(UNSHAPED)["proxy"]


def changed(node: LiveNode, run: Path, before: dict[str, str]) -> set[str]:
    return {text.partition(":\n")[0] for text in differences(before, whole_state(node, run))}


@pytest.mark.parametrize(
    ("do", "undo", "said"),
    [
        ("ip link add left type ifb", "ip link del left", "ip -d link show"),
        ("ip link set wan0 gso_max_size 3000", "ip link set wan0 gso_max_size 65536", "ip -d link show"),
        ("ip route add 192.0.2.0/24 dev wan0", "ip route del 192.0.2.0/24", "ip route show table all"),
        ("sysctl -qw net.mptcp.stale_loss_cnt=7", "sysctl -qw net.mptcp.stale_loss_cnt=4", SYSCTLS),
        ("sysctl -qw net.ipv4.ip_default_ttl=63", "sysctl -qw net.ipv4.ip_default_ttl=64", SYSCTLS),
        ("nft add table inet left", "nft delete table inet left", "nft list ruleset"),
        ("tc qdisc add dev wan0 root handle 7: htb", "tc qdisc del dev wan0 root", "tc qdisc show"),
    ],
)  # fmt: skip
def test_what_is_left_in_the_kernel_shows(
    node: LiveNode, tmp_path: Path, require: Callable[..., None], do: str, undo: str, said: str
) -> None:
    require({"ip": "ifb", "nf": "nftables"}.get(do[:2], "root"))
    before = whole_state(node, tmp_path)
    with node.changed(do.split(), undo.split()):
        assert said in changed(node, tmp_path, before)
    assert changed(node, tmp_path, before) == set()


def test_a_sysctl_of_the_whole_kernel_does_not_show(node: LiveNode, tmp_path: Path) -> None:
    """Every namespace reads what a congestion control is allowed, and any run may extend the list for a moment."""
    others = set(congestion.AVAILABLE.read_text().split()) - set(congestion.ALLOWED.read_text().split())
    if not others:
        pytest.skip("NOT TESTED: every congestion control of this kernel is allowed")
    name = others.pop()
    before = whole_state(node, tmp_path)
    with congestion.allowed(name):
        assert name in node.run(["sysctl", "-n", "net.ipv4.tcp_allowed_congestion_control"]).stdout.split()
        assert changed(node, tmp_path, before) == set()


def test_files_processes_and_what_they_hold_of_bpf_show(
    node: LiveNode, tmp_path: Path, require: Callable[..., None]
) -> None:
    require("bpf-pacing")
    before = whole_state(node, tmp_path)
    with ExitStack() as stack:
        process = node.popen([sys.executable, "-c", HOLDS_A_MAP], name="left")
        stack.callback(process.stop)
        wait_until(lambda: "there" in process.output(), "the map is there", process=process)
        (tmp_path / "status.sock").touch()
        (tmp_path / "lock").touch()
        assert changed(node, tmp_path, before) == {"processes", "BPF programs, maps and links", "files"}
    (tmp_path / "status.sock").unlink()
    assert changed(node, tmp_path, before) == set()
