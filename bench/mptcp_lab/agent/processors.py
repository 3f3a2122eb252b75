# SPDX-License-Identifier: GPL-2.0-or-later
"""How busy this host's processors were between two readings of /proc/stat, see proc(5).

The hypervisor may give time to other guests (stolen time), and other programs may use the time that ours need. Both
lower the measured rates. Time that our own programs used does not count as a reason for a low rate.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .processes import descendants

STAT = Path("/proc/stat")
_COUNTED = 8
"""Number of leading fields in /proc/stat whose sum is the total time. Later fields are already part of ``user`` and
``nice``."""
_IDLE, _WAITING_FOR_DISK, _STOLEN = 3, 4, 7
_PROGRAMS = 3
"""Number of leading fields with the time that programs used: user, nice, system. Interrupts belong to no program."""
_TICK = os.sysconf("SC_CLK_TCK")
_SCHEDULER = 2
"""Clock type for a process's user and system time, as the scheduler measures it in nanoseconds."""

MAX_STOLEN, MAX_OTHERS, MIN_IDLE = 0.05, 0.25, 0.05
"""Shares of the time. If more is stolen, or more is used by others while less is idle, the machine may limit rates."""


@dataclass(frozen=True)
class Reading:
    """The kernel's counters at one moment."""

    ticks: Mapping[str, tuple[int, ...]]
    """Fields of /proc/stat for each processor, such as ``cpu0``, and for all together, ``cpu``."""
    own: float | None = None
    """Processor seconds that our own programs used; None if they were not measured."""


@dataclass(frozen=True)
class Usage:
    """The use of the processors' time between two readings, as shares of this time."""

    stolen: float
    idle: float
    others: float | None = None
    """Share of the time that other programs than ours used; None if it is unknown."""
    least_idle: float | None = None
    """:attr:`idle` of the busiest processor. A single busy program can fill one processor.

    The value is higher if a program that never sleeps moved between processors. None if the kernel lists no processors.
    """

    @property
    def busy(self) -> bool:
        """Whether the machine may have caused a missed rate.

        It is not enough that processors were never idle, because our own programs may have used all the time.
        """
        contended = self.others is not None and self.others > MAX_OTHERS and self.idle < MIN_IDLE
        return contended or self.stolen > MAX_STOLEN

    def __str__(self) -> str:
        others = "" if self.others is None else f", other programs used {self.others:.0%}"
        return f"processors idle {self.idle:.0%} of the time, stolen {self.stolen:.0%}{others}"


def parse(stat: str, own: float | None = None) -> Reading:
    """Parse /proc/stat. *own*: processor seconds of our own programs."""
    lines = (line.split() for line in stat.split("\n") if line.startswith("cpu"))
    return Reading({name: tuple(map(int, fields)) for name, *fields in lines}, own)


def usage(before: Reading, after: Reading) -> Usage:
    """Return the usage between two readings. If too little time has passed, the usage is all idle."""
    # A processor that was switched off or on between the readings is in only one of them.
    passed = {name: _passed(before.ticks[name], after.ticks[name]) for name in before.ticks if name in after.ticks}
    ticks = passed.pop("cpu")
    total = sum(ticks)
    if total <= 0:
        return Usage(0.0, 1.0)
    others = None
    if before.own is not None and after.own is not None:
        # A process's time is exact, but a processor's is counted in ticks, so the difference may be negative.
        others = max(0.0, sum(ticks[:_PROGRAMS]) - (after.own - before.own) * _TICK) / total
    least = min((_idle(each) for each in passed.values() if sum(each) > 0), default=None)
    return Usage(ticks[_STOLEN] / total, _idle(ticks), others, least)


def _passed(before: tuple[int, ...], after: tuple[int, ...]) -> list[int]:
    # zip(strict=) would need Python 3.10.
    return [new - old for old, new in zip(before, after)][:_COUNTED]  # noqa: B905


def _idle(ticks: list[int]) -> float:
    return (ticks[_IDLE] + ticks[_WAITING_FOR_DISK]) / sum(ticks)


def read(own: int | None = None) -> Reading:
    """Read this host's counters. Our own programs are process *own* and all its descendants, including ended ones."""
    seconds = None if own is None else tree_seconds(own, ended=True)
    return parse(STAT.read_text(), seconds)


def process_seconds(pid: int, *, ended: bool = False) -> float:
    """Return the processor seconds of process *pid* with its threads; with *ended* also those of its ended children.

    The process's own time is exact, clock_getcpuclockid(3). For ended children the kernel counts ticks, proc(5), which
    exist from the parent's wait(2) for a child until the parent's end.

    :raises OSError: the process does not exist
    """
    seconds = time.clock_gettime(~pid << 3 | _SCHEDULER)
    if ended:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds += sum(map(int, fields[13:15])) / _TICK
    return seconds


def tree_seconds(pid: int, *, ended: bool = False) -> float:
    """Return the sum of :func:`process_seconds` over *pid* and all its descendants."""
    total = 0.0
    for each in (pid, *descendants(pid)):
        with suppress(OSError):
            total += process_seconds(each, ended=ended)
    return total
