# SPDX-License-Identifier: GPL-2.0-or-later
"""Outages in the steering modes: one path fails during a transfer, in one of three ways, and returns.

The failing path has 30 Mbit/s, and modes with an order prefer it. The other path has 20 Mbit/s. The RTT is 20 ms. Every
0.1 s the experiment records how many bytes the application has received. A mode is compared with the same outage
without a mode: the transfer must not be slower, and the application must not wait longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from mptcp_lab.testbed import Testbed, TestbedError
from mptcp_lab.testbed.recorder import Recorder, Sample, longest_gap, mean_rate

from ..statistics import compare, fmean
from .columns import Column, Row, Table, columns_of, figure
from .devices import DEVICES, policy
from .setup import Setup
from .two_paths import client_ends, dropping, slow_origin


def rules(mode: str, options: str = "") -> str:
    """Return a policy's list of rules, with one rule that steers by *mode*."""
    return f"[{{name: steered, steer: {{mode: {mode}{options}}}}}]"


NONE = "none"
"""The mode of a policy without rules."""
RULES = {
    NONE: "[]",
    "active-standby": rules("active-standby", ", active: ethernet, standby: wifi"),
    "priority-based": rules("priority-based", ", order: [ethernet, wifi]"),
    "load-balancing": rules("load-balancing", ", weights: {ethernet: 60, wifi: 40}"),
    "smallest-delay": rules("smallest-delay"),
}
"""The policy's list of rules for each mode. Connections open over Ethernet, which fails."""
FAILING, FAILING_RATE, OTHER_RATE = DEVICES[0], 30, 20
"""The client's device on the failing path, and the rates of this path and of the other path in Mbit/s."""
BY_ORDER = ("active-standby", "priority-based")
FAULTS = ("link", "router", "silent")
"""The client's own link goes down; the path's router goes down, which the core network reports by ICMP, while the
client's link stays up; the path's router drops all packets."""
LOADS = ("full", "paced", "upload")
"""A download at full speed; a download at full speed, so that all paths are established, and then at the origin's rate
``PACE``; an upload at full speed."""
PACE, RTT = 12, 20
"""Rate of the slow origin in Mbit/s, and RTT of both paths in ms."""
FAST_SECONDS, WARM_UP_SECONDS = 4.0, 8.0
"""Seconds at full speed before a paced load, and seconds of the transfer before the failure."""
APPLICATION = "application"
"""Name of the counter of the bytes that the application has received."""
MIN_RATE = 1_000_000
"""Rate in bits/s. An application that receives less than this over 0.1 s has a pause."""
SETTLE_SECONDS, MAX_PAUSE_SECONDS = 2.0, 1.0
"""Seconds after the failure that are left out of the rate, if the outage is at least twice as long; maximum length of
the application's pause in seconds."""
MARGIN = 0.15
"""Non-inferiority margin: the share by which a transfer in a mode may be slower than one without a mode. Two runs
without a mode differ by this share."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the settings."""

    bed: ClassVar = "outages"
    rates: ClassVar = (FAILING_RATE, OTHER_RATE)
    rtts: ClassVar = (RTT, RTT)
    mode: str
    fault: str
    outage: int
    load: str

    def __str__(self) -> str:
        return f"{self.mode}, {self.fault}, {self.outage} s, {self.load}"

    def measure(self, setup: Setup) -> Outage:
        """Make a transfer in a mode while a path fails and returns."""
        setup.load_while_idle(policy(RULES[self.mode]), [] if self.mode == NONE else ["steered"])
        client, uploading = setup.client, self.load == "upload"
        with ExitStack() as stack:
            process = stack.enter_context(client.running(setup.upload if uploading else setup.download))
            written = Path(f"/proc/{process.pid}/io")

            def read() -> dict[str, int]:
                """Return the bytes that an upload's origin, or a download's program, has received."""
                if uploading:
                    return {APPLICATION: setup.testbed["origin"].interface_bytes("eth0").received}
                return {APPLICATION: int(written.read_text().split("wchar: ")[1].split()[0])}

            recorder = stack.enter_context(Recorder(client, [APPLICATION], read=read))
            if self.load == "paced":
                recorder.wait(FAST_SECONDS)
                stack.enter_context(slow_origin(setup.testbed, PACE))
            recorder.wait(WARM_UP_SECONDS)
            if len(client_ends(setup.proxy, [client.address(name) for name in DEVICES])) != 2:
                raise TestbedError("the transfer does not have two subflows")
            failed = recorder.now
            with self._failure(setup.testbed):
                recorder.wait(failed + self.outage)
            restored = recorder.now
            # One second more than is judged.
            recorder.wait(restored + MAX_PAUSE_SECONDS + 1)
            if not process.running:
                raise TestbedError(f"the transfer ended with {process.returncode}")
        return outage_values(recorder.samples, failed, restored)

    def _failure(self, testbed: Testbed) -> AbstractContextManager[None]:
        router = testbed["hop1"]
        if self.fault == "link":
            return testbed["client"].link_down(FAILING)
        return router.link_down("wan") if self.fault == "router" else dropping(router)


def _without_mode(row: Row[Cell, Outage], name: str) -> list[float]:
    """Return the value *name* of each run of the same outage without a mode."""
    return [getattr(each, name) for each in row.results.of(replace(row.cell, mode=NONE))]


def _max_pause(row: Row[Cell, Outage]) -> float:
    """Return the limit of a pause. A mode without an order may pause as long as transfers without a mode."""
    others = [] if row.cell.mode in BY_ORDER else _without_mode(row, "pause")
    return round(max([MAX_PAUSE_SECONDS, *others]), 2)


def _ratio_bound(row: Row[Cell, Outage]) -> list[float]:
    """Return the lower bound, with 95 % confidence, of the rate in a mode divided by the rate without a mode.

    A single run has no bound; then the ratio itself is returned.
    """
    steered, without = row.values("during"), _without_mode(row, "during")
    if not steered or not any(without):
        return []
    low = compare(steered, without, 1 - MARGIN).low
    return [(fmean(steered) if low is None else low + (1 - MARGIN) * fmean(without)) / fmean(without)]


@dataclass(frozen=True, slots=True)
class Outage:
    """The judged values of one transfer with an outage."""

    before: float = figure("Mbit/s before", digits=1)
    """Rate of the application before the outage, Mbit/s."""
    during: float = figure("Mbit/s in the outage", digits=1)
    """Rate of the application in the outage, Mbit/s; without its first ``SETTLE_SECONDS`` if it is long."""
    pause: float = figure(
        "longest pause s", digits=1, aim="longest pause of the application, s", most=_max_pause,
        judged=lambda row: row.cell.mode != NONE and row.cell.load != "upload",
    )  # fmt: skip
    """Longest time in seconds, at least partly in the outage, in which the application received almost nothing."""


def outage_values(samples: Sequence[Sample], failed: float, restored: float) -> Outage:
    """Return the values of one transfer, whose path failed and returned at these times on the samples' clock.

    Raises ValueError if there are too few samples, or if the application received no data before the failure.
    """
    begin = failed + SETTLE_SECONDS if restored - failed >= 2 * SETTLE_SECONDS else failed
    before = mean_rate(samples, APPLICATION, max(0.5, failed - 3), failed) / 1e6
    if before <= 0:
        raise ValueError("the application received no data before the failure")
    return Outage(
        before,
        mean_rate(samples, APPLICATION, begin, restored) / 1e6,
        longest_gap(samples, [APPLICATION], MIN_RATE, failed, restored + MAX_PAUSE_SECONDS),
    )


TABLE: Table[Any, Outage] = Table(
    "Outages under the steering modes",
    (
        *columns_of(Outage),
        Column(
            "", _ratio_bound, aim="Mbit/s, × without a mode, lower bound", least=1 - MARGIN,
            judged=lambda row: row.cell.mode != NONE,
        ),
    ),
    (
        ("load", lambda row: row.cell.load),
        ("fault", lambda row: row.cell.fault),
        ("outage s", lambda row: str(row.cell.outage)),
        ("mode", lambda row: row.cell.mode),
    ),
    of=lambda row: isinstance(row.cell, Cell),
)  # fmt: skip
