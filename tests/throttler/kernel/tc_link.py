# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers for the kernel tests of traffic control: HTB classes, root qdiscs of others, and a dump of the result."""

from __future__ import annotations

from pathlib import Path

from mptcp_lab.testbed import LiveNode
from mptcp_throttler.kernel.tc.egress import HtbTrafficControl
from mptcp_throttler.shaping.model import ClassSpec, Ownership

# The arguments are minor, rate, ceil, burst, cburst, quantum, and the packets of the queue.
CLASSES = {
    0x10: ClassSpec(0x10, 5_000_000, 5_000_000, 3028, 3028, 6250, 20),
    0x11: ClassSpec(0x11, 512_000, 1_024_000, 3028, 3028, 1514, 16),
    0x12: ClassSpec(0x12, 40_000_000_000, 90_000_000_000, 250_000, 225_000, 60_000, 1000),
}
ROOTS = {
    "the default": [],
    "pfifo": ["qdisc add dev t0 root handle 8: pfifo limit 77"],
    "tbf with a child": [
        "qdisc add dev t0 root handle 7: tbf rate 10mbit burst 5000 limit 30000",
        "qdisc add dev t0 parent 7:1 handle 70: pfifo limit 12",
    ],
    "a tree": [
        "qdisc add dev t0 root handle 7: tbf rate 10mbit burst 5000 limit 30000",
        "qdisc add dev t0 parent 7:1 handle 5: tbf rate 5mbit burst 4000 limit 20000",
        "qdisc add dev t0 parent 5:1 handle 6: pfifo limit 12",
    ],
}


def dump(host: LiveNode) -> str:
    """Return the output of tc and ip about t0, without counters."""
    text = "".join(
        host.run(argv).stdout
        for argv in (
            ["tc", "-d", "qdisc", "show", "dev", "t0"],
            ["tc", "-d", "class", "show", "dev", "t0"],
            ["ip", "-d", "-o", "link", "show", "t0"],
        )
    )
    words = [line.split() for line in text.splitlines()]
    return "\n".join(
        sorted(
            " ".join(w for i, w in enumerate(line) if line[i - 1] not in ("refcnt", "direct_packets_stat"))
            for line in words
        )
    )


async def limit_gso(tc: HtbTrafficControl, size: int) -> None:
    tc.set_gso_limit(lambda before: min(size, before))
    await tc.settle()


async def leave_classes(state: Path) -> None:
    """Prepare both interfaces and create the classes, as a throttler does, but remove nothing at the end."""
    tc = HtbTrafficControl(["t0", "t1"], Ownership(), state)
    await tc.prepare()
    await limit_gso(tc, 6250)
    for _ in range(2):  # The second time, the classes exist already.
        await tc.upsert_classes(CLASSES.values())
