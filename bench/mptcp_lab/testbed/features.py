# SPDX-License-Identifier: GPL-2.0-or-later
"""Test which features this kernel and this host have, in a network namespace that is removed after the test.

On a user's machine, a test that needs a missing feature is skipped, with a message. If the variable CI is "true", the
test fails.
"""

from __future__ import annotations

import os
import shutil
import sys
from functools import cache

from .commands import TestbedError, run

_LOAD_BPF = """
from mptcp_throttler.kernel.bpf import SocketPacing
from mptcp_throttler.shaping.model import Ownership
SocketPacing(Ownership()).close()
"""

_TRIALS: dict[str, tuple[str, str]] = {
    "namespaces": ("true", "network namespaces (CONFIG_NET_NS)"),
    "veth": ("ip link add veth0 type veth peer name veth1", "veth (CONFIG_VETH)"),
    "vlan": ("ip link add link lo name vlan0 type vlan id 10", "VLANs (CONFIG_VLAN_8021Q)"),
    "macvlan": (
        "ip link add veth0 type veth peer name veth1 && ip link add link veth0 name macvlan0 type macvlan",
        "macvlan (CONFIG_MACVLAN)",
    ),
    "mptcp": ("sysctl -n net.mptcp.enabled", "Multipath TCP (CONFIG_MPTCP)"),
    "mptcp-pm": ("ip mptcp limits show", "the kernel's mptcp_pm netlink family or 'ip mptcp'"),
    "tbf": ("tc qdisc add dev lo root tbf rate 1mbit burst 4k limit 8k", "tc-tbf (CONFIG_NET_SCH_TBF)"),
    "htb": ("tc qdisc add dev lo root handle 1: htb default 1", "tc-htb (CONFIG_NET_SCH_HTB)"),
    "ingress": ("tc qdisc add dev lo clsact", "tc clsact (CONFIG_NET_CLS_ACT)"),
    "ifb": ("ip link add ifb0 type ifb || ip link show ifb0", "IFB (CONFIG_IFB)"),
    "nfqueue": (
        "iptables-legacy --wait -A FORWARD -j NFQUEUE || iptables --wait -A FORWARD -j NFQUEUE",
        "NFQUEUE (CONFIG_NETFILTER_XT_TARGET_NFQUEUE)",
    ),
    "ipset": (
        "ipset create s4 hash:ip,port,ip skbinfo counters"
        " && ipset create s6 hash:ip,port,ip family inet6 skbinfo counters",
        "ipset hash:ip,port,ip with skbinfo (CONFIG_IP_SET_HASH_IPPORTIP)",
    ),
    "iptables-legacy": (
        "iptables-legacy --wait -t mangle -S && ip6tables-legacy --wait -t mangle -S",
        "legacy iptables (CONFIG_IP_NF_IPTABLES_LEGACY, CONFIG_IP_NF_MANGLE)",
    ),
    "nftables": ("nft add table inet t", "nf_tables (CONFIG_NF_TABLES_INET) or the nft program"),
    "nft-ingress": (
        "nft add table netdev t && nft 'add chain netdev t c { type filter hook ingress device lo priority filter; }'",
        "nftables on ingress (CONFIG_NETFILTER_INGRESS, CONFIG_NF_TABLES_NETDEV)",
    ),
    "bpf-pacing": (
        f"{sys.executable} -I -c '{_LOAD_BPF}'",
        "BPF programs on TCP sockets (CONFIG_CGROUP_BPF) or libbpf 1",
    ),
}  # fmt: skip


@cache
def missing(feature: str) -> str | None:
    """Return why *feature* is missing here, or None. *feature* is ``root``, a key above, or a program."""
    if feature == "root":
        return None if os.geteuid() == 0 else "root is needed"
    if feature not in _TRIALS:
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        return None if shutil.which(feature, path=path) else f"the program {feature} is not installed"
    trial, name = _TRIALS[feature]
    done = run(["unshare", "--net", "sh", "-c", trial], check=False)
    if done.returncode == 0:
        return None
    errors = (done.stderr or done.stdout).strip().splitlines()
    return f"{name} is missing here: '{trial}' printed {errors[-1] if errors else 'nothing'!r}"


def fails_when_missing() -> bool:
    """Return whether a missing feature is a failure. This is so in CI, where no test may be skipped unnoticed."""
    return os.environ.get("CI", "").lower() == "true"


def need(*features: str) -> None:
    """Raise TestbedError that lists all *features* that this host lacks."""
    lacking = [reason for reason in map(missing, features) if reason is not None]
    if lacking:
        raise TestbedError("this host cannot run that:\n" + "\n".join(f"  - {r}" for r in lacking))
