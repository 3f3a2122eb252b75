# SPDX-License-Identifier: GPL-2.0-or-later
"""Bytes received by a node for each of its addresses, over time, for several subflows on one device.

nftables counts them, with each packet's Ethernet header, like a link. Packet merging is off in the testbed, so that
each counted packet is one on the wire.
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
"""Of the counters' names: some short ones are keywords of nft(8)."""


class PacketCounters(Recorder):
    """Counts the bytes that arrive at *node* for each of *addresses*, by name, from entry to exit."""

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
        """Wait until *until* seconds after the start."""
        time.sleep(max(0.0, until - self.now))

    def _take(self) -> None:
        text = self._node.run(["nft", "-j", "list", "counters", "table", "inet", TABLE]).stdout
        self._samples.append(Sample(self.now, octets(text)))


def table(addresses: Mapping[str, str]) -> str:
    """Return the table in nft(8) syntax."""
    counters = "".join(f"counter {PREFIX}{name} {{ }}\n" for name in addresses)
    rules = "".join(
        f"{'ip6' if ':' in address else 'ip'} daddr {address} counter name {PREFIX}{name}\n"
        for name, address in addresses.items()
    )
    return f"table inet {TABLE} {{\n{counters}chain input {{\ntype filter hook input priority 0\n{rules}}}\n}}\n"


def octets(text: str) -> dict[str, int]:
    """Return the bytes of each counter with its packets' Ethernet headers, from ``nft -j list counters``."""
    found = (each["counter"] for each in json.loads(text)["nftables"] if "counter" in each)
    return {each["name"].removeprefix(PREFIX): each["bytes"] + ETHERNET_HEADER * each["packets"] for each in found}
