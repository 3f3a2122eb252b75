# SPDX-License-Identifier: GPL-2.0-or-later
"""A processor for the proxy only: everything else, including the receipt of what it sends, runs on the others.

Between namespaces of one machine the kernel receives a packet in its sender's context, so a proxy is charged for the
receiving side of its clients and of its origin, which on a network are other machines. Receive packet steering (Linux:
Documentation/networking/scaling.rst, RPS) moves that to another processor. Packets for the proxy are received on the
proxy's own, as from a network card whose interrupts go there.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mptcp_lab.agent.processes import descendants
from mptcp_lab.testbed import Testbed, TestbedError

PROXY = "proxy"
"""The node whose packets its own processor receives."""
_WORD = 32
"""Bits per word of a processor mask in sysfs."""
_PASSES = 100
"""Most passes over the threads of a program."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Assignment of the processors."""

    proxy: frozenset[int]
    others: frozenset[int]

    @classmethod
    def of(cls, processors: Collection[int]) -> Self:
        """Return shares with the first of *processors* as the proxy's. Raises TestbedError if there is only one."""
        first, *rest = sorted(processors)
        if not rest:
            raise TestbedError("processors=apart: this machine has one processor, and the proxy is to have its own")
        return cls(frozenset({first}), frozenset(rest))


def here() -> Shares:
    """Return the shares of the processors available to this program."""
    return Shares.of(os.sched_getaffinity(0))


def mask(processors: Collection[int]) -> str:
    """Return *processors* in sysfs form: comma-separated words of 32 bits in hexadecimal, the highest first."""
    bits = sum(1 << number for number in processors)
    words = [f"{bits >> shift & (1 << _WORD) - 1:08x}" for shift in range(0, max(bits.bit_length(), 1), _WORD)]
    return ",".join(reversed(words))


def steer(testbed: Testbed, shares: Shares) -> None:
    """Receive packets on the processors of the node at which they arrive."""
    for node in testbed.topology.nodes:
        chosen = mask(shares.proxy if node.name == PROXY else shares.others)
        # Devices and settings vanish with the namespace.
        script = 'for queue in /sys/class/net/*/queues/rx-*; do echo "$0" >"$queue/rps_cpus"; done'
        testbed[node.name].run(["sh", "-ec", script, chosen])


def pin(pid: int, processors: Collection[int]) -> None:
    """Restrict all threads of process *pid* and its descendants to *processors*.

    Threads started later inherit the restriction, but a thread started by one not yet restricted does not: hence
    several passes. :func:`strays` detects a program that keeps choosing other processors.
    """
    for _ in range(_PASSES):
        if not (found := strays(pid, processors)):
            return
        for thread in found:
            with suppress(ProcessLookupError):  #  # it ended meanwhile
                os.sched_setaffinity(thread, processors)


def strays(pid: int, processors: Collection[int]) -> list[int]:
    """Return the threads of *pid* and its descendants that may run elsewhere: a program can choose that itself."""
    found = []
    for thread in _threads(pid):
        with suppress(ProcessLookupError):
            if not os.sched_getaffinity(thread) <= set(processors):
                found.append(thread)
    return found


def _threads(pid: int) -> list[int]:
    found = []
    for process in (pid, *descendants(pid)):
        with suppress(FileNotFoundError):
            found += [int(each.name) for each in Path(f"/proc/{process}/task").iterdir()]
    return found
