# SPDX-License-Identifier: GPL-2.0-or-later
"""Outages in the steering modes: one path fails in mid-transfer, in one of three ways, and comes back.

The failing path has 30 Mbit/s, and is the first one for the modes with an order. The other path has 20 Mbit/s. The RTT
is 20 ms. Every 0.1 s the experiment records how many bytes the application has received and what each path carries. A
mode is compared with the same outage without a mode: the transfer must not be slower, and the application must not wait
longer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from mptcp_lab.testbed import LiveNode, Testbed, TestbedError
from mptcp_lab.testbed.process import Process
from mptcp_lab.testbed.recorder import Recorder, Sample, longest_gap, mean_rate, rates

from ..statistics import fmean
from .aims import no_less
from .columns import Column, Row, Table
from .devices import DEVICES, policy
from .setup import Setup
from .two_paths import client_ends, dropping, slow_origin

NONE = "none"
"""The mode of a policy without rules."""
MODES: dict[str, str | None] = {
    NONE: None,
    "active-standby": "{mode: active-standby, active: ethernet, standby: wifi}",
    "priority-based": "{mode: priority-based, order: [ethernet, wifi]}",
    "load-balancing": "{mode: load-balancing, weights: {ethernet: 60, wifi: 40}}",
    "smallest-delay": "{mode: smallest-delay}",
}
"""The steering rule of each mode. Ethernet fails, over which connections open."""
LOST, LOST_RATE, OTHER_RATE = DEVICES[0], 30, 20
"""The client's device on the failing path, and the rates of this path and of the other path in Mbit/s."""
BY_ORDER = ("active-standby", "priority-based")
FAULTS = ("link", "router", "silent")
"""The client's own link goes down; the path's router disappears, which the core network reports by ICMP, while the
client's link stays up; the path's router drops everything."""
LOADS = ("full", "paced", "upload")
"""A download at full speed; a download at full speed, so that all paths open, and then at the rate ``PACE`` of the
origin; an upload at full speed."""
PACE, RTT = 12, 20
"""Rate of the slow origin in Mbit/s, and RTT of both paths in ms."""
FAST, WARM = 4.0, 8.0
"""Seconds at full speed before a paced load, and seconds before the failure."""
BACK_AT_LEAST, BACK_AT_MOST = 8.0, 20.0
"""Minimum and maximum seconds that are recorded after the outage; between them, 1.5 times the outage."""
APPLICATION = "application"
"""Name of the counter of the bytes that the application has received."""
MIN_PROGRESS = 1_000_000
"""Rate in bits/s. An application that receives less in 0.1 s stands still."""
SETTLE = 2.0
"""Seconds after the failure that are left out of the rate, if the outage is at least twice as long."""
SWITCHED = 1.0
"""Maximum seconds for which the application may stand still."""
BACK = 0.5
"""A failed path that carries this share of its earlier rate is back."""
BACK_WINDOW = 0.5
"""Seconds for which the failed path must carry that share."""
SLOWER = 0.15
"""Non-inferiority margin: the share by which a mode may be slower than the same outage without a mode. Two runs without
a mode differ by this share."""
FIRST_ALONE = 1.05 * LOST_RATE
"""Maximum rate in Mbit/s before the failure, in any run, if a mode with an order must use only its first path."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the varied settings."""

    mode: str
    fault: str
    outage: int
    load: str

    def __str__(self) -> str:
        return f"{self.mode}, {self.fault}, {self.outage} s, {self.load}"

    @property
    def bed(self) -> str:
        return "outages"

    @property
    def rates(self) -> tuple[int, int]:
        return LOST_RATE, OTHER_RATE

    @property
    def rtts(self) -> tuple[float, float]:
        return RTT, RTT

    @property
    def rule(self) -> str:
        """The text of the policy's list of rules."""
        steer = MODES[self.mode]
        return "[]" if steer is None else f"[{{name: steered, steer: {steer}}}]"

    @property
    def unsteered(self) -> Cell:
        """The same outage without a steering mode."""
        return replace(self, mode=NONE)

    def measure(self, setup: Setup) -> Outage:
        """Transfer in a mode while a path fails and comes back."""
        setup.load_between(policy(self.rule), [] if self.mode == NONE else ["steered"])
        uploading = self.load == "upload"
        with ExitStack() as stack:
            process = stack.enter_context(setup.client.running(setup.upload if uploading else setup.download))
            done = _received_by(setup.testbed["origin"]) if uploading else _written_by(process)

            def read() -> dict[str, int]:
                seen = setup.client.counters()
                octets = {name: seen[name].sent if uploading else seen[name].received for name in DEVICES}
                return {**octets, APPLICATION: done()}

            with Recorder(setup.client, DEVICES, read=read) as recorder:
                if self.load == "paced":
                    recorder.wait(FAST)
                    stack.enter_context(slow_origin(setup.testbed, PACE))
                recorder.wait(WARM)
                if len(client_ends(setup.proxy, [setup.client.address(name) for name in DEVICES])) != 2:
                    raise TestbedError("the transfer has not two subflows")
                failed = recorder.now
                with failing(setup.testbed, self):
                    recorder.wait(failed + self.outage)
                restored = recorder.now
                recorder.wait(restored + min(BACK_AT_MOST, max(BACK_AT_LEAST, 1.5 * self.outage)))
                if not process.running:
                    raise TestbedError(f"the transfer ended with {process.returncode}")
        return outage(Watched(recorder.samples, failed, restored))


def failing(testbed: Testbed, cell: Cell) -> AbstractContextManager[None]:
    """Let the path of *cell* fail, in the cell's way, until the context ends."""
    router = testbed["hop1"]
    if cell.fault == "link":
        return testbed["client"].link_down(LOST)
    return router.link_down("wan") if cell.fault == "router" else dropping(router)


def _received_by(origin: LiveNode) -> Callable[[], int]:
    return lambda: origin.interface_bytes("eth0").received


def _written_by(process: Process) -> Callable[[], int]:
    """Return a function that reads how many bytes *process* has written, which is what a downloader has received."""
    io = Path(f"/proc/{process.pid}/io")
    return lambda: int(io.read_text().split("wchar: ")[1].split()[0])


@dataclass(frozen=True, slots=True)
class Watched:
    """The recorded transfer. Times are in seconds on the samples' clock."""

    samples: tuple[Sample, ...]
    failed: float
    restored: float


@dataclass(frozen=True, slots=True)
class Outage:
    """The judged values of one transfer with an outage."""

    before: float
    """Rate of the application before the outage, Mbit/s."""
    during: float
    """Rate of the application in the outage, Mbit/s; without its first ``SETTLE`` seconds if it is long."""
    still: float
    """Longest time in seconds that the application stood still, beginning in the outage or lasting into it."""
    back: float
    """Seconds from the end of the outage until the failed path carries data again; infinity if it never does."""
    after: float
    """Rate of the application after the outage, Mbit/s."""


def outage(watched: Watched) -> Outage:
    """Judge one transfer.

    Raises ValueError if there are too few samples, or if the application received nothing before the failure: in a
    comparison of two transfers without data, neither would be slower.
    """
    samples, failed, restored = watched.samples, watched.failed, watched.restored
    end = samples[-1].time
    begin = failed + SETTLE if restored - failed >= 2 * SETTLE else failed
    before = mean_rate(samples, APPLICATION, max(0.5, failed - 3), failed) / 1e6
    if before <= 0:
        raise ValueError("the application had nothing before the failure")
    return Outage(
        before,
        mean_rate(samples, APPLICATION, begin, restored) / 1e6,
        longest_gap(samples, [APPLICATION], MIN_PROGRESS, failed, restored + SWITCHED),
        _back(watched),
        mean_rate(samples, APPLICATION, restored, end) / 1e6,
    )


def _back(watched: Watched) -> float:
    samples, restored = watched.samples, watched.restored
    before = mean_rate(samples, LOST, max(0.5, watched.failed - 3), watched.failed)
    there = [each for each in rates(samples) if each.time > restored]
    for number, each in enumerate(there):
        window = [later.bits[LOST] for later in there[number:] if later.time <= each.time + BACK_WINDOW]
        if each.bits[LOST] >= BACK * before and fmean(window) >= BACK * before:
            return each.time - restored
    return inf


OutageRow = Row[Cell, Outage]


def _without_mode(row: OutageRow) -> list[Outage]:
    return row.results.of(row.cell.unsteered)


def _steered(row: OutageRow) -> bool:
    return row.cell != row.cell.unsteered


def _several(row: OutageRow) -> bool:
    """Return whether means can be compared: both have several runs, and the other rate is not 0."""
    without = _without_mode(row)
    return min(len(row.measured), len(without)) > 1 and any(each.during for each in without)


def _compared(row: OutageRow) -> list[float]:
    """Return the lower bound, with 95 % confidence, of the rate in a mode divided by the rate without a mode."""
    steered, without = ([each.during for each in there] for there in (row.measured, _without_mode(row)))
    ratio = no_less("", steered, without, SLOWER).value if _several(row) else None
    return [] if ratio is None else [ratio]


def _least(row: OutageRow) -> float | None:
    """Return the minimum rate for a single run, or if the rate without a mode is 0, so that no ratio exists."""
    without = [each.during for each in _without_mode(row)]
    return round((1 - SLOWER) * fmean(without), 2) if without and not _several(row) else None


def _longest_still(row: OutageRow) -> float:
    """Return the limit of a stall. Without an order, a mode may take as long as the kernel does without a mode."""
    beside = [] if row.cell.mode in BY_ORDER else [each.still for each in _without_mode(row)]
    return round(max([SWITCHED, *beside]), 2)


def _first_alone(row: OutageRow) -> bool:
    """Return whether only the first path may be used before the failure.

    Priority-based uses both paths for downloads at full speed, which is also how paced downloads begin.
    """
    return row.cell.mode == "active-standby" or (row.cell.mode in BY_ORDER and row.cell.load == "upload")


TABLE: Table[Any, Outage] = Table(
    "Outages under the steering modes",
    (
        Column("Mbit/s before", "before", digits=1),
        Column(
            "", "before", "most", "Mbit/s before the failure, by the first path alone", most=FIRST_ALONE,
            judged=_first_alone,
        ),
        Column(
            "in it", "during", digits=1, aim="Mbit/s", least=_least,
            judged=lambda row: _steered(row) and _least(row) is not None,
        ),
        Column("", _compared, aim="Mbit/s, × without a mode, lower bound", least=1 - SLOWER, judged=_steered),
        Column(
            "stands still s", "still", digits=1, aim="stands still for s", most=_longest_still,
            judged=lambda row: _steered(row) and row.cell.load != "upload",
        ),
        Column("back s", "back", digits=1),
    ),
    (
        ("load", lambda row: row.cell.load),
        ("fault", lambda row: row.cell.fault),
        ("outage s", lambda row: str(row.cell.outage)),
        ("mode", lambda row: row.cell.mode),
    ),
    of=lambda row: isinstance(row.cell, Cell),
)  # fmt: skip
