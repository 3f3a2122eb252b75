"""What a throttler may leave behind: the kernel's state of its network namespace, processes, BPF objects and files.

Read with the tools that an operator has, and compared as their text.
"""

from __future__ import annotations

import os
from pathlib import Path

from mptcp_lab.testbed import LiveNode

SYSCTLS = "find /proc/sys/net/mptcp /proc/sys/net/ipv4 -type f -perm /222 -exec grep -Hs . {} +"
"""Those that belong to the network namespace. What belongs to the whole kernel the namespace may read at the most
(ensure_safe_net_sysctl in net/sysctl_net.c, tcp_allowed_congestion_control in net/ipv4/sysctl_net_ipv4.c): whatever
changes it meanwhile is in another namespace."""
DUMPS = (
    "ip -d link show",
    "ip route show table all",
    "ip -6 route show table all",
    "ip rule show",
    "ip mptcp endpoint show",
    "ip mptcp limits show",
    SYSCTLS,
    "tc qdisc show",
    "tc class show dev wan0",
    "tc filter show dev wan0",
    "tc filter show dev wan0 ingress",
    "iptables-legacy-save -t mangle",
    "ip6tables-legacy-save -t mangle",
    "ipset save",
    "nft list ruleset",
)
"""What a throttler may change in a network namespace (docs/contract.md). Links show GSO limits and IFB devices."""
FILES = ("/run/mptcp-throttler", "/var/lib/mptcp-throttler", "/sys/fs/bpf")
"""Directories in which a throttler may leave files: its state, its ledger, BPF objects that outlive their process."""


def kernel_state(node: LiveNode) -> dict[str, str]:
    """Return what a throttler may change in *node*'s kernel, as its tools print it, without counters and times."""
    state = {}
    for command in DUMPS:
        lines = node.run(command.split(), check=False).stdout.splitlines()
        kept = (line for line in lines if not line.startswith("#"))
        state[command] = "\n".join(line.split(" [")[0] if line.startswith(":") else line for line in kept)
    return state


def whole_state(node: LiveNode, run: Path) -> dict[str, str]:
    """Return :func:`kernel_state` with processes, the BPF objects that they hold, and files.

    *run* is what the throttler on *node* sees as /run/mptcp-throttler.
    """
    pids = sorted(map(int, node.run(["ip", "netns", "pids", node.namespace]).stdout.split()))
    found = [(pid, _command(pid)) for pid in pids]
    state = kernel_state(node)
    # The command that lists them is one of them.
    state["processes"] = "\n".join(sorted(command for _, command in found if command and "netns pids" not in command))
    state["BPF programs, maps and links"] = "\n".join(
        f"{command}: {held}" for pid, command in found for held in _bpf(pid)
    )
    files = (path for each in (run, *map(Path, FILES)) for path in sorted(each.rglob("*")))
    # The lock's file is empty and stays: who removes it could remove that of a successor.
    state["files"] = "\n".join(str(path) for path in files if path.name != "lock")
    return state


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        # It has ended meanwhile.
        return ""


def _bpf(pid: int) -> list[str]:
    """Return what process *pid* holds of BPF: a program or map that is not pinned lives as long as its descriptors."""
    found = []
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(entry)
            if target.startswith("anon_inode:bpf"):
                found.append(target)
    except OSError:
        return []
    return sorted(found)


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the commands whose output changed, each with both outputs."""
    changed = [command for command in before if before[command] != after[command]]
    return [f"{command}:\n--- before\n{before[command]}\n--- after\n{after[command]}" for command in changed]
