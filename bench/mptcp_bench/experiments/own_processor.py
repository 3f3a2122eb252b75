# SPDX-License-Identifier: GPL-2.0-or-later
"""A processor only for the proxy: everything else runs on the others, including the receipt of what the proxy sends.

Between namespaces of one machine, the kernel receives a packet in its sender's context. It would charge the proxy for
the receiving work of its clients and its origin, which on a network are other machines. Receive packet steering (Linux:
Documentation/networking/scaling.rst, RPS) moves this work to another processor. Packets for the proxy are received on
the proxy's own processor, as from a network card whose interrupts go there.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mptcp_lab.agent.processes import descendants
from mptcp_lab.testbed import Testbed, TestbedError

PROXY = "proxy"
"""The node whose packets are received on the proxy's own processor."""
_WORD = 32
"""Bits per word of a processor mask in sysfs."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The processors of the proxy, and the processors of all other programs."""

    proxy: frozenset[int]
    others: frozenset[int]


def here() -> Shares:
    """Return shares in which the proxy has this program's first processor. Raises TestbedError if there is no other."""
    first, *rest = sorted(os.sched_getaffinity(0))
    if not rest:
        raise TestbedError("processors=apart: this machine has one processor, and the proxy is to have its own")
    return Shares(frozenset({first}), frozenset(rest))


def mask(processors: Collection[int]) -> str:
    """Return *processors* in sysfs form: comma-separated words of 32 bits in hexadecimal, the highest first."""
    bits = sum(1 << number for number in processors)
    words = [f"{bits >> shift & (1 << _WORD) - 1:08x}" for shift in range(0, max(bits.bit_length(), 1), _WORD)]
    return ",".join(reversed(words))


def steer(testbed: Testbed, shares: Shares) -> None:
    """Make the kernel receive packets on the processors of the node at which they arrive."""
    for node in testbed.topology.nodes:
        chosen = mask(shares.proxy if node.name == PROXY else shares.others)
        # Nothing needs to be undone: devices and settings vanish with the namespace.
        script = 'for queue in /sys/class/net/*/queues/rx-*; do echo "$0" >"$queue/rps_cpus"; done'
        testbed[node.name].run(["sh", "-ec", script, chosen])


def pin(pid: int, processors: Collection[int]) -> None:
    """Restrict all threads of process *pid* and of its descendants to *processors*.

    A thread inherits the restriction from the thread that starts it. A thread that is not restricted yet may start
    another thread at this moment, so all are restricted again. :func:`strays` detects a program that keeps choosing
    other processors.
    """
    for _ in range(100):
        if not (found := strays(pid, processors)):
            return
        for thread in found:
            with suppress(ProcessLookupError):  # the thread has ended
                os.sched_setaffinity(thread, processors)


def strays(pid: int, processors: Collection[int]) -> list[int]:
    """Return the threads of *pid* and its descendants that may run elsewhere, as a program can choose."""
    found = []
    for process in (pid, *descendants(pid)):
        with suppress(FileNotFoundError):
            for thread in (int(each.name) for each in Path(f"/proc/{process}/task").iterdir()):
                with suppress(ProcessLookupError):
                    if not os.sched_getaffinity(thread) <= set(processors):
                        found.append(thread)
    return found
