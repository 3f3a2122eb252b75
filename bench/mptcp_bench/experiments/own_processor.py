"""A processor for the proxy alone: what it sends is received, and everything else runs, on the others.

Between namespaces of one machine the kernel receives a packet in the context of its sender, so that a proxy is charged
for the receiving side of its clients and of its origin, which on a network are other machines. Receive packet steering
(Linux: Documentation/networking/scaling.rst, RPS) has another processor do that. What arrives for the proxy is received
on its own, as from a network card whose interrupts come there.
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
"""Bits of a word of a processor mask in sysfs."""
_PASSES = 100
"""Over the threads of a program, at the most."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Whose the processors are."""

    proxy: frozenset[int]
    others: frozenset[int]

    @classmethod
    def of(cls, processors: Collection[int]) -> Self:
        """Return the first of *processors* as the proxy's. Raises TestbedError where there is but one."""
        first, *rest = sorted(processors)
        if not rest:
            raise TestbedError("processors=apart: this machine has one processor, and the proxy is to have its own")
        return cls(frozenset({first}), frozenset(rest))


def here() -> Shares:
    """Return the shares of the processors that this program may use."""
    return Shares.of(os.sched_getaffinity(0))


def mask(processors: Collection[int]) -> str:
    """Return *processors* as sysfs has them: words of 32 bits in hexadecimal, the highest first, with commas."""
    bits = sum(1 << number for number in processors)
    words = [f"{bits >> shift & (1 << _WORD) - 1:08x}" for shift in range(0, max(bits.bit_length(), 1), _WORD)]
    return ",".join(reversed(words))


def steer(testbed: Testbed, shares: Shares) -> None:
    """Have packets received on the processors of the node that they arrive at."""
    for node in testbed.topology.nodes:
        chosen = mask(shares.proxy if node.name == PROXY else shares.others)
        # The devices go with the namespace, and their settings with them.
        script = 'for queue in /sys/class/net/*/queues/rx-*; do echo "$0" >"$queue/rps_cpus"; done'
        testbed[node.name].run(["sh", "-ec", script, chosen])


def pin(pid: int, processors: Collection[int]) -> None:
    """Let all threads of process *pid*, and of those below it, run on *processors* alone.

    What they start later inherits it; what one starts before its own turn does not, so that there is another pass. A
    program that goes on choosing others for itself is left to :func:`strays`.
    """
    for _ in range(_PASSES):
        if not (found := strays(pid, processors)):
            return
        for thread in found:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.sched_setaffinity(thread, processors)


def strays(pid: int, processors: Collection[int]) -> list[int]:
    """Return the threads of *pid*, and of those below it, that may run elsewhere: a program can choose that itself."""
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
