# SPDX-License-Identifier: GPL-2.0-or-later
"""A processor only for the proxy: clients and origin use the others, also to receive packets from the proxy.

Between namespaces of one machine, the kernel receives a packet in its sender's context, so that the proxy would do the
receiving work of its clients and its origin. Receive packet steering (Linux: Documentation/networking/scaling.rst, RPS)
moves this work to another processor, and the receipt of packets for the proxy to the proxy's processor.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mptcp_lab.testbed import Testbed


@dataclass(frozen=True, slots=True)
class Shares:
    """The processors of the proxy and of all other programs. If both are empty, nothing is restricted."""

    proxy: frozenset[int] = frozenset()
    others: frozenset[int] = frozenset()


def shares_of_this_machine() -> Shares:
    """Return shares in which the proxy has this program's first processor."""
    first, *rest = sorted(os.sched_getaffinity(0))
    return Shares(frozenset({first}), frozenset(rest))


def mask(processors: Collection[int]) -> str:
    """Return *processors* in sysfs form: comma-separated words of 32 bits in hexadecimal, the highest first."""
    bits = sum(1 << number for number in processors)
    words = [f"{bits >> shift & 0xFFFFFFFF:08x}" for shift in range(0, max(bits.bit_length(), 1), 32)]
    return ",".join(reversed(words))


def steer(testbed: Testbed, shares: Shares) -> None:
    """Make the kernel receive packets on the processors of the node at which they arrive."""
    for node in testbed.topology.nodes:
        chosen = mask(shares.proxy if node.name == "proxy" else shares.others)
        # The settings vanish with the namespace.
        script = 'for queue in /sys/class/net/*/queues/rx-*; do echo "$0" >"$queue/rps_cpus"; done'
        testbed[node.name].run(["sh", "-ec", script, chosen])


@contextmanager
def running_on(processors: Collection[int]) -> Iterator[None]:
    """Restrict the programs that this thread starts during the scope to *processors*, if there are any."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
