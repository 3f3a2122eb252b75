# SPDX-License-Identifier: GPL-2.0-or-later
"""Bytes that a node receives for each of its addresses over time. This distinguishes subflows on the same device.

nftables counts the bytes; each packet's Ethernet header is added, as a link counts it. Packet merging is off in the
testbed, so that each counted packet is one on the wire.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Self

from mptcp_lab.testbed import LiveNode
from mptcp_lab.testbed.plan import ETHERNET_HEADER
from mptcp_lab.testbed.recorder import Recorder, Sample

INTERVAL = 0.25
"""Seconds between two readings."""
TABLE = "bench_counters"
PREFIX = "from_"
"""Prefix of the counters' names, because some short names are keywords of nft(8)."""


class PacketCounters(Recorder):
    """Record the bytes that arrive at *node* for each of *addresses*, by name, while the context is entered."""

    def __init__(self, node: LiveNode, addresses: Mapping[str, str]) -> None:
        super().__init__(node, tuple(addresses), interval=INTERVAL)
        self._node = node
        self._addresses = dict(addresses)

    def __enter__(self) -> Self:
        self._node.run(["nft", table(self._addresses)])
        return super().__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            self._node.run(["nft", "delete", "table", "inet", TABLE])

    def wait(self, until: float) -> None:
        """Sleep until *until* seconds after the start."""
        time.sleep(max(0.0, until - self.now))

    def _take(self) -> None:
        text = self._node.run(["nft", "-j", "list", "counters", "table", "inet", TABLE]).stdout
        self._samples.append(Sample(self.now, octets(text)))


def table(addresses: Mapping[str, str]) -> str:
    """Return the table with a counter for each address, in nft(8) syntax."""
    counters = "".join(f"counter {PREFIX}{name} {{ }}\n" for name in addresses)
    rules = "".join(
        f"{'ip6' if ':' in address else 'ip'} daddr {address} counter name {PREFIX}{name}\n"
        for name, address in addresses.items()
    )
    return f"table inet {TABLE} {{\n{counters}chain input {{\ntype filter hook input priority 0\n{rules}}}\n}}\n"


def octets(text: str) -> dict[str, int]:
    """Return each counter's bytes, including Ethernet headers, from the output of ``nft -j list counters``."""
    found = (each["counter"] for each in json.loads(text)["nftables"] if "counter" in each)
    return {each["name"].removeprefix(PREFIX): each["bytes"] + ETHERNET_HEADER * each["packets"] for each in found}
