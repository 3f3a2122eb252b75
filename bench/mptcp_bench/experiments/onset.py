# SPDX-License-Identifier: GPL-2.0-or-later
"""The onset of a cap: the other path's loss when a cap takes effect at once or softly.

The transfers use the real proxy and throttler. In the middle of a download over both paths, a policy that caps Ethernet
is loaded (SIGHUP), alternately with ``landing: at-once`` and ``landing: soft``; between runs the cap is removed.
docs/soft-start.md has the results.

Every 0.1 s, the bytes are counted that have arrived at the client's interfaces or, for an upload, at the proxy's
sockets. BBR slows each path down for 0.2 s every ten seconds (PROBE_RTT). A download begins shortly before the onset,
so that the first such dip comes after the last judged period. An upload is watched for 20 s, until the client's backlog
has drained. This includes two such dips. Rates are on the wire, in bits/s; times are seconds since the transfer's
start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from typing import Any, NamedTuple

from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.congestion import missing_control_here, select
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate, rates, windows

from .. import style
from ..statistics import median_item
from .columns import CELL, RUNS, VARIANT, Results, Table, Turn, columns_of, figure, for_pictures, of_cell
from .devices import DEVICES, payload_share, policy
from .findings import Picture
from .parameters import choices, parameter, rtt_pair, several, whole
from .scenario import Scenario
from .setup import Setup
from .two_paths import client_ends, two_paths, upload_recorder

WIFI_RATE = 30
"""Rate of the uncapped path in Mbit/s."""
CAPPED, OTHER = DEVICES
ONSET_AFTER, EARLIER_SECONDS, EXTRA_SECONDS = 3.5, 2.0, 0.1
"""Seconds from the start of a transfer to the onset of the cap; seconds before the onset in which the other path's
earlier rate is measured; seconds that are recorded after the last judged period."""
STALL_SHARE = 0.5
"""The other path stalls while its rate is below this share of its earlier rate."""
MAX_DEVIATION = 0.05
"""Maximum difference between the capped path's rate over one second and its cap, as a share of the cap. At 1 Mbit/s,
one second has 82 full packets."""
TITLES = {"at-once": "Cap at once", "soft": "Soft cap"}


class Periods(NamedTuple):
    """The judged periods of a transfer, in seconds after the onset of the cap."""

    settled: float
    """End of the period in which the other path's rate and stalls are measured."""
    steady: tuple[float, float]
    """Start and end of the period in which both paths must be in the steady state."""
    in_force: float
    """Latest moment at which the capped path must respect its cap."""


PERIODS = {
    "down": Periods(settled=3.0, steady=(3.0, 5.5), in_force=1.0),
    # An upload is watched as a whole, because the client's backlog may stall the other path long after the cap.
    "up": Periods(settled=20.0, steady=(15.0, 20.0), in_force=15.0),
}


def parse_cap(text: str) -> tuple[int, int]:
    """Return rate and cap in *text*, such as ``100-5``."""
    found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", text)
    # A policy cannot have a cap of 0, and a cap above the path's rate has no effect.
    if found is None or not 0 < int(found[2]) < int(found[1]):
        raise ValueError("allowed are a path's rate and a lower cap in Mbit/s, such as 100-5")
    return int(found[1]), int(found[2])


@dataclass(frozen=True, slots=True)
class Settings:
    cc: tuple[str, ...] = choices("congestion controls of the sender", ("bbr", "cubic"))
    rtt: tuple[tuple[float, float], ...] = parameter(
        "RTTs of Ethernet/Wi-Fi in ms", "2/2,20/20,60/60,20/80", several(rtt_pair), quick="20/20"
    )
    cap: tuple[tuple[int, int], ...] = parameter(
        "Ethernet's rate and cap in Mbit/s", "100-5,100-1,30-2", several(parse_cap), quick="100-5"
    )
    runs: int = parameter("number of runs per variant", "10", whole(), quick="3")
    variant: tuple[str, ...] = choices("how the cap takes effect", TITLES)
    direction: tuple[str, ...] = choices("direction of the transfer and the cap", PERIODS, "down")


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the settings: RTTs of Ethernet and Wi-Fi in ms, Ethernet's rate and its cap in Mbit/s."""

    control: str
    rtts: tuple[float, float]
    ethernet: tuple[int, int]
    direction: str

    def __str__(self) -> str:
        text = "{}, {:g}/{:g} ms, {}→{} Mbit/s".format(self.control, *self.rtts, *self.ethernet)
        return text + ", upload" * (self.direction == "up")

    @property
    def periods(self) -> Periods:
        return PERIODS[self.direction]

    @property
    def max_stall(self) -> float:
        """Maximum seconds for which the other path stalls, including the dips of BBR in an upload."""
        return 0.5 if self.control == "bbr" and self.direction == "up" else 0.1


@contextmanager
def bed(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[Setup]:
    [cell] = cells
    with Testbed(paths(two_paths((cell.ethernet[0], WIFI_RATE), cell.rtts)), seed=seed) as testbed:
        is_upload = cell.direction == "up"
        if is_upload and not select(cell.control, [testbed["client"].namespace]):
            raise TestbedError(f"{cell.control} is not available for the client")
        yield Setup.start(testbed, policy("[]"), down=not is_upload, up=is_upload, control=cell.control)


def measure(setup: Setup, turn: Turn[Cell]) -> Outcome:
    """Make a transfer, load the cap, and judge. Raises TestbedError without both subflows."""
    cell, is_download, share = turn.cell, turn.cell.direction == "down", payload_share(4, multipath=True)
    addresses = [setup.client.address(name) for name in DEVICES]
    setup.load_while_idle(policy("[]"), [])
    with (
        setup.client.running(setup.download if is_download else setup.upload),
        Recorder(setup.client, DEVICES)
        if is_download
        else upload_recorder(setup.proxy, setup.client, share) as recorder,
    ):
        recorder.wait(ONSET_AFTER)
        if len(client_ends(setup.proxy, addresses)) != 2:
            raise TestbedError("the transfer does not have two subflows")
        onset = recorder.now
        throttle = f"{{rate: {cell.ethernet[1]} Mbit/s, landing: {turn.variant}}}"
        setup.load(policy(f"[{{name: cap, paths: [ethernet], direction: {cell.direction}, throttle: {throttle}}}]"))
        recorder.wait(onset + cell.periods.steady[1] + EXTRA_SECONDS)
    return judge(recorder.samples, cell, onset)


_soft_figure = partial(figure, judged=lambda row: row.variant == "soft")
"""Returns a field with an aim for soft caps."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The judged values of one run. Shares are relative to the other path's rate before the onset."""

    onset: float
    kept: float = _soft_figure("kept", aim="rate kept by the other path, share", least=0.95)
    """Mean rate of the other path until :attr:`Periods.settled`, as a share of its rate before the onset."""
    stalled: float = _soft_figure(
        "stalled s", aim="stall of the other path", unit=" s", most=of_cell(lambda cell: cell.max_stall)
    )
    in_force: float = _soft_figure(
        "in force s", aim="cap in force after", unit=" s", most=of_cell(lambda cell: cell.periods.in_force)
    )
    """Seconds from the onset until the capped path exceeds its cap by at most ``MAX_DEVIATION``; infinity if this never
    happens."""
    deviation: float = _soft_figure("deviation", aim="deviation from the cap in force", digits=3, most=MAX_DEVIATION)
    """Greatest difference between rate and cap after :attr:`Periods.in_force`, as a share of the cap."""
    steady: float = _soft_figure("steady", aim="rate of both paths in the steady state, share", digits=3, least=0.98)
    """Rate of both paths together in :attr:`Periods.steady`, as a share of the sum of the cap and the other link."""
    samples: tuple[Sample, ...] = for_pictures()


def judge(samples: Sequence[Sample], cell: Cell, onset: float) -> Outcome:
    """Judge a transfer whose cap began at *onset*.

    Raises ValueError if there are too few samples, or if the other path carried no data before the onset.
    """
    periods, cap = cell.periods, cell.ethernet[1] * 1e6
    before = mean_rate(samples, OTHER, onset - EARLIER_SECONDS, onset)
    if before <= 0:
        raise ValueError("no data arrived over the other path before the cap")
    watched = [sample for sample in samples if onset <= sample.time <= onset + periods.settled]
    stalled = [
        rate.time - begin.time
        for begin, rate in zip(watched, rates(watched), strict=False)
        if rate.bits[OTHER] < STALL_SHARE * before
    ]
    seconds = windows(samples, (CAPPED,), 1.0, onset)
    begin, end = (onset + each for each in periods.steady)
    return Outcome(
        kept=mean_rate(samples, OTHER, onset, onset + periods.settled) / before,
        stalled=sum(stalled),
        in_force=next((start - onset for start, rate in seconds if rate <= cap * (1 + MAX_DEVIATION)), inf),
        deviation=max(abs(rate / cap - 1) for start, rate in seconds if start >= onset + periods.in_force),
        steady=sum(mean_rate(samples, path, begin, end) for path in DEVICES) / (cap + WIFI_RATE * 1e6),
        onset=onset,
        samples=tuple(samples),
    )


def pictures(results: Results[Cell, Outcome]) -> list[Picture]:
    """Return the picture of the first cell with runs of both variants; empty if no cell has both."""
    cell = next((each for each in results.cells if all(results.of(each, variant) for variant in TITLES)), None)
    if cell is None:
        return []
    panels = [partial(_draw_panel, cell, results.of(cell, variant), title) for variant, title in TITLES.items()]
    subtitle = f"{cell}; one transfer through the proxy"
    return [Picture("onset", lambda target: style.draw_panels(target, "The onset of a cap", subtitle, panels))]


def _draw_panel(cell: Cell, outcomes: Sequence[Outcome], title: str, axes: Any) -> None:
    """Draw the run in which the other path kept the median share of its rate."""
    run = median_item(outcomes, lambda outcome: outcome.kept)
    drawn_rates = [each for each in rates(run.samples) if -2 <= each.time - run.onset <= 5]
    for device, path in zip(DEVICES, (style.ETHERNET, style.WIFI), strict=True):
        mbits = [each.bits[device] / 1e6 for each in drawn_rates]
        style.draw_path(axes, [each.time - run.onset for each in drawn_rates], mbits, path)
    axes.axvline(0, color=style.INK, linestyle=style.DASHED, linewidth=1, zorder=4)
    axes.set_ylim(0, cell.ethernet[0] * 1.08)
    axes.set_title(f"{title}: Wi-Fi keeps {run.kept:.0%}", loc="left", fontsize=11)
    style.label_axes(axes, "seconds since the cap", "Mbit/s")


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "bpf-pacing", "apache2", "squid", "curl", "mptcpize"),
    cells=lambda chosen: [Cell(*each) for each in product(chosen.cc, chosen.rtt, chosen.cap, chosen.direction)],
    skip_reason=lambda cell: missing_control_here(cell.control),
    variants=lambda chosen, cell: chosen.variant,
    bed=bed,
    measure=measure,
    tables=(
        Table("A new cap: rate that the other path keeps", (RUNS, *columns_of(Outcome)), (CELL, ("cap", VARIANT[1]))),
    ),
    pictures=pictures,
)
