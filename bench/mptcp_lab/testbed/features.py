# SPDX-License-Identifier: GPL-2.0-or-later
"""Test which features this kernel and this host have, in a network namespace that is removed after the test."""

from __future__ import annotations

import os
import shutil
import sys
from functools import cache

from .commands import TestbedError, run

_TRIALS = {
    "namespaces": "true",
    "veth": "ip link add veth0 type veth peer name veth1",
    "vlan": "ip link add link lo name vlan0 type vlan id 10",
    "macvlan": "ip link add v0 type veth peer name v1 && ip link add link v0 name macvlan0 type macvlan",
    "mptcp": "sysctl -n net.mptcp.enabled",
    "mptcp-pm": "ip mptcp limits show",
    "tbf": "tc qdisc add dev lo root tbf rate 1mbit burst 4k limit 8k",
    "htb": "tc qdisc add dev lo root handle 1: htb default 1",
    "ingress": "tc qdisc add dev lo clsact",
    "ifb": "ip link add ifb0 type ifb || ip link show ifb0",
    "nfqueue": "iptables-legacy --wait -A FORWARD -j NFQUEUE || iptables --wait -A FORWARD -j NFQUEUE",
    "ipset": "for family in inet inet6; do "
    "ipset create $family hash:ip,port,ip family $family skbinfo counters || exit; done",
    "iptables-legacy": "iptables-legacy --wait -t mangle -S && ip6tables-legacy --wait -t mangle -S",
    "nftables": "nft add table inet t",
    "nft-ingress": "nft add table netdev t && "
    "nft 'add chain netdev t c { type filter hook ingress device lo priority filter; }'",
    "bpf-pacing": f"{sys.executable} -I -m mptcp_lab.testbed.bpf_probe",
}
"""For each feature of the kernel: shell commands that fail without it."""


@cache
def missing(feature: str) -> str | None:
    """Return why *feature* is missing here, or None. *feature* is ``root``, a key above, or a program."""
    if feature == "root":
        return None if os.geteuid() == 0 else "root is needed"
    if feature not in _TRIALS:
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        return None if shutil.which(feature, path=path) else f"the program {feature} is not installed"
    done = run(["unshare", "--net", "sh", "-c", _TRIALS[feature]], check=False)
    if done.returncode == 0:
        return None
    errors = (done.stderr or done.stdout).strip().splitlines()
    return f"the kernel lacks {feature}: '{_TRIALS[feature]}' printed {errors[-1] if errors else 'nothing'!r}"


def fails_when_missing() -> bool:
    """Return whether a missing feature fails a test, as in CI (variable CI), or skips it with a message."""
    return os.environ.get("CI", "").lower() == "true"


def need(*features: str) -> None:
    """Raise TestbedError with all *features* that this host lacks."""
    lacking = [reason for reason in map(missing, features) if reason is not None]
    if lacking:
        raise TestbedError("this host lacks what the run needs:\n" + "\n".join(f"  - {r}" for r in lacking))
