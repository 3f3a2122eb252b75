# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests the kernel features that the tunnel needs, in a network namespace that ends with the process.

Prints one JSON object with a member for each feature: null if it works, otherwise the reason why it does not.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Final, NamedTuple

from mptcp_common.throttler_trial import attempt, in_fresh_namespace
from mptcp_tunnel.kernel.network import Network, index_of
from mptcp_tunnel.kernel.programs import Programs
from mptcp_tunnel.kernel.resequencer import Resequencer


class Need(NamedTuple):
    what: str
    why: str
    remedy: str


NEEDS: Final = {
    "device": Need(
        "virtual devices and rules by port",
        "packets are routed to a virtual device",
        "modprobe veth   # CONFIG_VETH, CONFIG_FIB_RULES",
    ),
    "programs": Need(
        "BPF programs at clsact",
        "they split and join packets",
        "modprobe -a sch_ingress cls_bpf   # CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF; apt install libbpf1",
    ),
    "queue": Need(
        "netfilter queues",
        "packets wait in a queue until the packets before them have arrived",
        "modprobe -a nfnetlink_queue nft_queue   # or xt_NFQUEUE and iptables; apt install nftables",
    ),
}


def find_missing_features() -> dict[Need, str]:
    """Return the features that this host lacks, each with the reason. Never raises an exception: a feature that cannot
    be tested counts as missing."""
    results, refusal = in_fresh_namespace(__name__, ())
    if refusal:
        return {Need("a test of the kernel's features", "missing features are unknown", "run this as root"): refusal}
    return {NEEDS[feature]: reason for feature, reason in results.items() if reason is not None}


def main() -> None:
    with ExitStack() as scope:
        network = Network()
        scope.callback(network.close)

        def device() -> None:
            network.create()

        def programs() -> None:
            loaded = Programs(*network.create(), ports=())
            scope.callback(loaded.close)
            loaded.attach_splitter()
            loaded.attach_joiner(index_of("lo"))

        def queue() -> None:
            Resequencer().close()

        print(json.dumps(attempt({"device": device, "programs": programs, "queue": queue})))


if __name__ == "__main__":
    main()
