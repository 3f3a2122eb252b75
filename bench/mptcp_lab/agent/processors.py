# SPDX-License-Identifier: GPL-2.0-or-later
"""Measure the use of this host's processors between two readings of proc(5) stat and pressure stall information.

Other programs and other guests of the hypervisor (stolen time) may lower the measured rates.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .processes import descendants

STAT = Path("/proc/stat")
PRESSURE = Path("/proc/pressure/cpu")
_WAITED_PATTERN = re.compile(r"^some .*\btotal=(\d+)", re.MULTILINE)
_COUNTED_FIELDS = 8
"""Number of leading fields in /proc/stat whose sum is the total time. Other fields contain the same time again."""
_IDLE, _WAITING_FOR_DISK, _STOLEN = 3, 4, 7
_PROGRAM_FIELDS = 3
"""Number of leading fields with the time that programs used: user, nice, system. Interrupts belong to no program."""
_TICK = os.sysconf("SC_CLK_TCK")
_SCHEDULER_CLOCK = 2
"""Clock type for a process's user and system time, as the scheduler measures it in nanoseconds."""

MAX_STOLEN = 0.05
MAX_WAITING = 0.5
MAX_OTHERS = 0.25
"""Shares of the time: stolen, spent waiting, used by other programs. Above them, rates may be too low."""


@dataclass(frozen=True)
class Reading:
    """The kernel's counters at one moment."""

    time: float
    """Time of the reading in monotonic seconds."""
    ticks: Mapping[str, tuple[int, ...]]
    """Fields of /proc/stat for each processor, such as ``cpu0``, and for all together, ``cpu``."""
    waited: int | None
    """Microseconds in which at least one program waited for a processor; None if the kernel does not count them."""
    own: float | None = None
    """Processor seconds that our own programs used; None if they were not measured."""


@dataclass(frozen=True)
class Usage:
    """The use of the processors' time between two readings, as shares of this time."""

    stolen: float
    idle: float
    waiting: float | None
    """Share of the time in which at least one program waited for a processor; None if the kernel does not count it."""
    others: float | None = None
    """Share of the time that other programs than ours used; None if it is unknown."""
    least_idle: float | None = None
    """:attr:`idle` of the busiest processor, which one program can fill; None if the kernel lists no processors."""

    @property
    def busy(self) -> bool:
        """Whether the machine may have caused a low rate. Waiting alone shows nothing: our programs may wait, too."""
        waited = self.waiting is None or self.waiting > MAX_WAITING
        contended = waited and self.others is not None and self.others > MAX_OTHERS
        return contended or self.stolen > MAX_STOLEN

    def __str__(self) -> str:
        waiting = "" if self.waiting is None else f", programs waited for processors {self.waiting:.0%} of it"
        others = "" if self.others is None else f", other programs used {self.others:.0%}"
        return f"processors idle {self.idle:.0%} of the time, stolen {self.stolen:.0%}{others}{waiting}"


def parse(moment: float, stat: str, pressure: str | None, own: float | None = None) -> Reading:
    """Parse /proc/stat and /proc/pressure/cpu. *own* is :attr:`Reading.own`."""
    lines = (line.split() for line in stat.split("\n") if line.startswith("cpu"))
    ticks = {name: tuple(map(int, fields)) for name, *fields in lines if len(fields) >= _COUNTED_FIELDS}
    waited = _WAITED_PATTERN.search(pressure or "")
    return Reading(moment, ticks, int(waited.group(1)) if waited else None, own)


def usage(before: Reading, after: Reading) -> Usage:
    """Return the usage between two readings. If too little time has passed, the usage is all idle."""
    # A processor that was switched off or on between the readings is in only one of them. zip(strict=) would need
    # Python 3.10.
    passed = {
        name: [new - old for old, new in zip(ticks, after.ticks[name])][:_COUNTED_FIELDS]  # noqa: B905
        for name, ticks in before.ticks.items()
        if name in after.ticks
    }
    ticks = passed.pop("cpu")
    total, seconds = sum(ticks), after.time - before.time
    if total <= 0 or seconds <= 0:
        return Usage(0.0, 1.0, None)
    waiting = others = None
    if before.waited is not None and after.waited is not None:
        waiting = (after.waited - before.waited) / 1e6 / seconds
    if before.own is not None and after.own is not None:
        # A process's time is exact, but a processor's is counted in ticks, so the difference may be negative.
        others = max(0.0, sum(ticks[:_PROGRAM_FIELDS]) - (after.own - before.own) * _TICK) / total
    least = min((_idle(each) for each in passed.values() if sum(each) > 0), default=None)
    return Usage(ticks[_STOLEN] / total, _idle(ticks), waiting, others, least)


def _idle(ticks: list[int]) -> float:
    return (ticks[_IDLE] + ticks[_WAITING_FOR_DISK]) / sum(ticks)


def read(own: int | None = None) -> Reading:
    """Read this host's counters. Our own programs are process *own* and all its descendants, including ended ones."""
    pressure = None
    with suppress(OSError):  # a kernel without CONFIG_PSI, or booted with psi=0
        pressure = PRESSURE.read_text()
    seconds = None if own is None else tree_seconds(own, ended=True)
    return parse(time.monotonic(), STAT.read_text(), pressure, seconds)


def process_seconds(pid: int, *, ended: bool = False) -> float:
    """Return the processor seconds of process *pid*; with *ended* also those of its ended children.

    The process's own time is exact, clock_getcpuclockid(3). For ended children the kernel counts ticks, proc(5).
    Raises OSError if the process does not exist.
    """
    seconds = time.clock_gettime(~pid << 3 | _SCHEDULER_CLOCK)
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
