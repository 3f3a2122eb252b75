"""How busy this host's processors were between two moments: proc(5) stat, and pressure stall information; by whom.

Time may be taken from outside (stolen by the hypervisor for other guests) or by other programs, for whose turns ours
wait. Both make every rate less than what the links would carry.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .processes import descendants

STAT = Path("/proc/stat")
PRESSURE = Path("/proc/pressure/cpu")
_SOME = re.compile(r"^some .*\btotal=(\d+)", re.MULTILINE)
_COUNTED = 8
"""Fields of /proc/stat's first line that add up to all time: those behind them are in ``user`` and ``nice`` already."""
_IDLE, _WAITING_FOR_DISK, _STOLEN = 3, 4, 7

MOST_STOLEN = 0.05
MOST_WAITING = 0.5
LEAST_IDLE = 0.1
"""Shares of the time beyond which rates say as much of the machine as of what was to be measured."""


@dataclass(frozen=True)
class Reading:
    """The kernel's counters at one moment."""

    time: float
    """Seconds, of a clock that does not jump."""
    ticks: tuple[int, ...]
    """Of all processors together: the fields of /proc/stat."""
    waited: int | None
    """Microseconds in which some program waited for a processor; None where the kernel does not count them."""


@dataclass(frozen=True)
class Usage:
    """What the processors' time was spent on between two readings, as shares of it."""

    stolen: float
    idle: float
    waiting: float | None
    """The share of the time in which some program waited for a processor; None where that is not counted."""

    @property
    def busy(self) -> bool:
        """Whether a rate that was missed meanwhile may be the machine's fault."""
        waited = self.waiting is not None and self.waiting > MOST_WAITING
        return waited or self.stolen > MOST_STOLEN or self.idle < LEAST_IDLE

    def __str__(self) -> str:
        waiting = "" if self.waiting is None else f", programs waited for them {self.waiting:.0%} of it"
        return f"processors idle {self.idle:.0%} of the time, stolen {self.stolen:.0%}{waiting}"


def parse(moment: float, stat: str, pressure: str | None) -> Reading:
    """Return the reading of the texts of /proc/stat and /proc/pressure/cpu; ValueError where they are not these."""
    name, *fields = stat.split("\n", 1)[0].split()
    if name != "cpu" or len(fields) < _COUNTED:
        raise ValueError(f"{STAT}: its first line is not that of all processors: {stat[:80]!r}")
    some = _SOME.search(pressure or "")
    return Reading(moment, tuple(map(int, fields)), int(some.group(1)) if some else None)


def usage(before: Reading, after: Reading) -> Usage:
    """Return what happened between two readings; of two that are too close, nothing did."""
    # zip(strict=) came with Python 3.10.
    ticks = [late - early for early, late in zip(before.ticks, after.ticks)][:_COUNTED]  # noqa: B905
    total, seconds = sum(ticks), after.time - before.time
    if total <= 0 or seconds <= 0:
        return Usage(0.0, 1.0, None)
    waiting = None
    if before.waited is not None and after.waited is not None:
        waiting = (after.waited - before.waited) / 1e6 / seconds
    return Usage(ticks[_STOLEN] / total, (ticks[_IDLE] + ticks[_WAITING_FOR_DISK]) / total, waiting)


def read() -> Reading:
    """Read this host's counters now."""
    pressure = None
    with suppress(OSError):  # a kernel without CONFIG_PSI, or booted with psi=0
        pressure = PRESSURE.read_text()
    return parse(time.monotonic(), STAT.read_text(), pressure)


def process_seconds(pid: int) -> float:
    """Return user and system time of process *pid*, with its threads; proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tree_seconds(pid: int) -> float:
    """Return the same of *pid* and its children together, those that ended aside."""
    total = 0.0
    for each in (pid, *descendants(pid)):
        with suppress(OSError):
            total += process_seconds(each)
    return total
