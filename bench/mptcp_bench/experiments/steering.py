# SPDX-License-Identifier: GPL-2.0-or-later
"""Steering modes on real downloads: the rate of each path in each mode.

*active-standby*: Wi-Fi is active and Ethernet is standby; for six seconds, Wi-Fi's router drops all packets.
*priority-based*: Wi-Fi is first; for six seconds, the origin sends less than Wi-Fi could carry. *load-balancing*: the
weights are 70/30 and 50/50, or 60/40 and 85/15 while the origin sends less than the paths could carry.
*smallest-delay*: this mode is compared with a policy without rules. Rates count the bytes that arrive at the client.

Another part measures outages of one path in each mode (``experiments.steering_outages``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from typing import Any, ClassVar

from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate, rates

from . import steering_outages as outages
from .columns import Table, columns_of, figure, of_cell
from .devices import DEVICES, policy
from .parameters import choices, parameter, rtt_pair, several, whole
from .scenario import Scenario
from .setup import Setup
from .two_paths import dropping, slow_origin, two_paths

PARTS = ("modes", "outages")
ETHERNET, WIFI, SLOW_ORIGIN = 100, 30, 15
"""Rates of Ethernet, of Wi-Fi, and of the origin while it is slow, in Mbit/s."""
BEFORE_SECONDS, EVENT_SECONDS, AFTER_SECONDS = 6.0, 6.0, 10.0
"""Seconds that are recorded before, during and after the event: an outage, or a slow origin."""
START_SECONDS = 1.0
"""Seconds from the start of the client's program until the mode controls both subflows."""
WINDOW_SECONDS = 10.0
"""Seconds over which a path's share is computed."""
PACED = {"paced load-balancing 60/40": 20, "paced load-balancing 85/15": 12}
"""Rate in Mbit/s at which the origin sends during the whole download, by kind."""
WEIGHTS = {
    "load-balancing 70/30": (70, 30), "load-balancing 50/50": (50, 50), "paced load-balancing 60/40": (60, 40),
    "paced load-balancing 85/15": (85, 15),
}  # fmt: skip
"""Weights of Ethernet and Wi-Fi in percent, by kind."""
MIN_TOTAL = {"smallest-delay": 0.95 * (ETHERNET + WIFI), **{kind: 0.9 * rate for kind, rate in PACED.items()}}
"""Minimum rate in Mbit/s of both paths together, by kind."""
MAX_TOTAL = 1.05 * (ETHERNET + WIFI)
"""Maximum rate in Mbit/s of both paths together."""
RULES = {
    "active-standby": outages.rules("active-standby", ", active: wifi, standby: ethernet"),
    "priority-based": outages.rules("priority-based", ", order: [wifi, ethernet]"),
    **{
        kind: outages.rules("load-balancing", f", weights: {{ethernet: {ethernet}, wifi: {wifi}}}")
        for kind, (ethernet, wifi) in WEIGHTS.items()
    },
    "smallest-delay": outages.rules("smallest-delay"),
    "no rule": "[]",
}
"""The policy's list of rules for each kind of download."""
QUICK_KINDS = ("active-standby", "priority-based", "load-balancing 70/30", "paced load-balancing 60/40")
EVENTS: dict[str, Callable[[Testbed], AbstractContextManager[None]]] = {
    "active-standby": lambda testbed: dropping(testbed["hop2"]),
    "priority-based": lambda testbed: slow_origin(testbed, SLOW_ORIGIN),
}
"""The event in the middle of the transfer, by kind."""


_figure = partial(figure, default=None, digits=3)


@dataclass(frozen=True, slots=True)
class Shares:
    """The measurements of one download; None where its kind has no such value.

    The time of an event that did not happen is infinity.
    """

    standby: float | None = _figure("standby's share before the outage", most=0.001)
    takeover: float | None = _figure("takeover after s", most=1)
    back: float | None = _figure("return to the active path after s", most=AFTER_SECONDS)
    fast: float | None = _figure("Mbit/s, fast origin", least=0.95 * (ETHERNET + WIFI), most=MAX_TOTAL)
    slow_share: float | None = _figure("Ethernet's share, slow origin", most=0.02)
    slow: float | None = _figure("Mbit/s, slow origin", least=0.9 * SLOW_ORIGIN)
    share: float | None = _figure("Ethernet's share")
    deviation: float | None = _figure("largest deviation over 10 s, points", most=5)
    """Maximum difference between Ethernet's share and its weight, in percentage points."""
    total: float | None = _figure(
        "Mbit/s", least=of_cell(lambda cell: MIN_TOTAL[cell.kind]), most=MAX_TOTAL,
        judged=lambda row: row.cell.kind in MIN_TOTAL,
    )  # fmt: skip


def judge(kind: str, samples: Sequence[Sample], event: float) -> Shares:
    """Return the measurements of a download of *kind*, whose event began at *event*. Raises ValueError."""

    def total(start: float, end: float) -> float:
        """Return the rate of both paths together, in Mbit/s, between two times."""
        return sum(mean_rate(samples, device, start, end) for device in DEVICES) / 1e6

    def share(start: float, end: float) -> float:
        """Return Ethernet's share of all bytes that arrived between two times."""
        return mean_rate(samples, "eth0", start, end) / 1e6 / max(1e-6, total(start, end))

    def seconds_until(device: str, start: float, minimum: float) -> float:
        """Return the seconds from *start* until *device* has more than *minimum* Mbit/s."""
        later = (rate for rate in rates(samples) if rate.time > start + 0.1)
        return next((rate.time - start for rate in later if rate.bits[device] > minimum * 1e6), inf)

    end, restored = samples[-1].time, event + EVENT_SECONDS
    if kind == "active-standby":
        takeover, back = seconds_until("eth0", event, 1), seconds_until("wlan0", restored, 0.8 * WIFI)
        return Shares(standby=share(START_SECONDS, event), takeover=takeover, back=back)
    if kind == "priority-based":
        slow = restored - 3, restored
        return Shares(fast=total(2.5, event), slow_share=share(*slow), slow=total(*slow))
    deviation = None
    if kind in WEIGHTS:
        starts = [sample.time for sample in samples if sample.time + WINDOW_SECONDS < end]
        deviation = max(abs(100 * share(start, start + WINDOW_SECONDS) - WEIGHTS[kind][0]) for start in starts)
    return Shares(share=share(0, end), deviation=deviation, total=total(2, end))


@dataclass(frozen=True, slots=True)
class Cell:
    """RTTs of Ethernet and Wi-Fi in milliseconds, and the kind of download."""

    rates: ClassVar = (ETHERNET, WIFI)
    rtts: tuple[float, float]
    kind: str

    def __str__(self) -> str:
        return f"{self.bed}, {self.kind}"

    @property
    def bed(self) -> str:
        """Name of the bed, which cells with the same RTTs share."""
        return "{:g}/{:g} ms".format(*self.rtts)

    def measure(self, setup: Setup) -> Shares:
        """Make a download in a mode, with the mode's event."""
        setup.load_while_idle(policy(RULES[self.kind]), [] if self.kind == "no rule" else ["steered"])
        paced = slow_origin(setup.testbed, PACED[self.kind]) if self.kind in PACED else nullcontext()
        with paced, setup.client.running(setup.download), Recorder(setup.client, DEVICES) as recorder:
            recorder.wait(BEFORE_SECONDS)
            event = recorder.now
            with EVENTS[self.kind](setup.testbed) if self.kind in EVENTS else nullcontext():
                recorder.wait(event + EVENT_SECONDS)
            recorder.wait(event + EVENT_SECONDS + AFTER_SECONDS)
        return judge(self.kind, recorder.samples, event)


@dataclass(frozen=True, slots=True)
class Settings:
    part: tuple[str, ...] = choices("parts to measure", PARTS)
    rtt: tuple[tuple[float, float], ...] = parameter(
        "RTTs of Ethernet/Wi-Fi in ms (part modes)", "20/20,60/20", several(rtt_pair), quick="20/20"
    )
    runs: int = parameter("number of runs per cell", "5", whole(), quick="1")
    kind: tuple[str, ...] = choices("kinds of download (part modes)", RULES, quick=",".join(QUICK_KINDS))
    mode: tuple[str, ...] = choices("modes (part outages)", outages.RULES, quick="none,active-standby,priority-based")
    fault: tuple[str, ...] = choices("faults (part outages)", outages.FAULTS, quick="silent")
    outage: tuple[int, ...] = parameter(
        "durations of an outage in seconds (part outages)", "2,8,30", several(whole()), quick="8"
    )
    load: tuple[str, ...] = choices("loads (part outages)", outages.LOADS, quick="paced")


def cells(chosen: Settings) -> list[Cell | outages.Cell]:
    """Return the chosen cells of each part, with the modes of each outage next to each other."""
    by_part: dict[str, list[Cell | outages.Cell]] = {
        "modes": [Cell(*each) for each in product(chosen.rtt, chosen.kind)],
        "outages": [
            outages.Cell(mode, fault, outage, load)
            for load, fault, outage, mode in product(chosen.load, chosen.fault, chosen.outage, chosen.mode)
        ],
    }
    return [cell for part in PARTS if part in chosen.part for cell in by_part[part]]


@contextmanager
def bed(chosen: Settings, cells: Sequence[Cell | outages.Cell], seed: int) -> Iterator[Setup]:
    first = cells[0]
    with Testbed(paths(two_paths(first.rates, first.rtts)), seed=seed) as testbed:
        yield Setup.start(testbed, policy("[]"), up=isinstance(first, outages.Cell))


SCENARIO: Scenario[Settings, Any, Setup, Any] = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize"),
    cells=cells,
    shared_bed=lambda cell: cell.bed,
    bed=bed,
    measure=lambda setup, turn: turn.cell.measure(setup),
    tables=(
        Table(
            "Steering modes", columns_of(Shares),
            (("RTT ms", lambda row: row.cell.bed[:-3]), ("mode", lambda row: row.cell.kind)),
            of=lambda row: isinstance(row.cell, Cell), wrapped=[column.heading for column in columns_of(Shares)],
        ),
        outages.TABLE,
    ),
)  # fmt: skip
