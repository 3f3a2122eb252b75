# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures 2 to 7: downloads over Ethernet, over Wi-Fi, and through the proxy over both.

In each repetition, a figure's downloads run in a random order, unless the figure is about their order. A download that
used another protocol or other paths than intended, or received other bytes, is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ..experiments.columns import CELL, RUNS, Table
from ..experiments.findings import Picture
from ..experiments.scenario import Scenario
from . import drawing
from .claims import verdicts
from .downloads import Downloads
from .measurements import COLUMNS, MB, Download, Found, Trial
from .settings import ETHERNET, WIFI, Settings, build_lab, check_host

MAX_SHORT_SIZE = 40 * MB
ETHERNET_ALONE = Trial("tcp-ethernet", "TCP, Ethernet alone", 90 * MB, path=ETHERNET)
WIFI_ALONE = Trial("tcp-wifi", "TCP, Wi-Fi alone", 20 * MB, path=WIFI)
BASELINES = tuple(replace(trial, kind="baseline") for trial in (ETHERNET_ALONE, WIFI_ALONE))
LARGE_BUFFER = 720_000
"""Bytes of the larger receive buffer of Figure 4, and of the receive buffer of Figure 5."""
AMPLE_BUFFER = 1_440_000
"""Minimum bytes of the ample receive buffer, with which Figure 4 compares the computed buffer."""
TABLE: Table[Any, Any] = Table(
    "Statistics: mean ± 95 % confidence interval (Student's t)", (RUNS, *COLUMNS.values()), (CELL,), transposed=True
)


def _cells(trials: Sequence[Trial], chosen: Settings) -> list[Trial]:
    """Return the downloads of each repetition."""
    cells = []
    for trial in trials:
        size = min(trial.size // 3, MAX_SHORT_SIZE) if chosen.short and trial.size > 5 * MB else trial.size
        cell = replace(trial, size=size, cap=chosen.cap if trial.throttled else 0)
        if trial.path and chosen.is_known(trial.path):
            cell = replace(cell, link=chosen.rate(trial.path), rtt=chosen.path(trial.path).rtt)
        cells.append(cell)
    return cells


def _cells_of_figure_4(chosen: Settings) -> list[Trial]:
    """Return the downloads of Figure 4. If the paper's formula has a value, the last one has the computed buffer."""
    cells = _cells(BUFFERS, chosen)
    if (needed := chosen.buffer_needed) is not None:
        title = f"buffer {needed / MB:g} MB"
        cells.append(replace(cells[-1], key="needed", title=title, receive_buffer=round(needed)))
        if 3 * needed > AMPLE_BUFFER:
            cells[-2] = replace(cells[-2], title=f"buffer {3 * needed / MB:g} MB", receive_buffer=round(3 * needed))
    return cells


def _figure(
    name: str,
    *trials: Trial,
    repetitions: int = 5,
    short_repetitions: int = 2,
    is_ordered: bool = False,
    interval: float = 0.1,
) -> Scenario[Settings, Trial, Downloads, Download]:
    """Return the scenario of a figure. *interval* is the time between two samples in seconds."""

    @contextmanager
    def bed(chosen: Settings, cells: Sequence[Trial], seed: int) -> Iterator[Downloads]:
        with build_lab(chosen, seed) as (hosts, check):
            yield Downloads(hosts, cells, chosen, check, interval=interval)

    def pictures(found: Found) -> list[Picture]:
        return [Picture("figure", partial(drawing.draw, name, found))] if found.runs else []

    return Scenario(
        settings=Settings,
        needs=(),
        check_host=check_host,
        cells=partial(_cells, trials),
        runs=lambda chosen, *_: chosen.repetitions or (short_repetitions if chosen.short else repetitions),
        shared_bed=lambda trial: name,
        shuffled=not is_ordered,
        bed=bed,
        measure=lambda downloads, turn: downloads.download(turn.cell),
        tables=(TABLE,),
        verdicts=partial(verdicts, name),
        pictures=pictures,
    )


FIG2 = _figure("fig2", ETHERNET_ALONE, WIFI_ALONE)
FIG3 = _figure("fig3", *BASELINES, Trial("mptcp", "Multipath TCP through the proxy", 120 * MB))
BUFFERS = (
    Trial("small", "(a) receive buffer 0.18 MB", 100 * MB, receive_buffer=180_000),
    Trial("large", "(b) receive buffer 0.72 MB", 100 * MB, receive_buffer=LARGE_BUFFER),
    Trial("ample", "buffer 1.44 MB", 45 * MB, receive_buffer=AMPLE_BUFFER, kind="other"),
)
FIG4 = replace(_figure("fig4", *BUFFERS), cells=_cells_of_figure_4)
FIG5 = _figure(
    "fig5",
    Trial("mtu-1500", "MTU 1500", 100 * MB, receive_buffer=LARGE_BUFFER, mtu=1500),
    Trial("mtu-1000", "MTU 1000", 100 * MB, receive_buffer=LARGE_BUFFER, mtu=1000),
)
FIG6 = _figure(
    "fig6",
    replace(BASELINES[1], size=5 * MB),
    Trial("free", "not throttled", 5 * MB),
    Trial("first", "(a) throttled, first transfer", 5 * MB, throttled=True, fresh_throttler=True),
    Trial("repeated", "(b) throttled, repeated transfer", 5 * MB, throttled=True),
    repetitions=10,
    short_repetitions=4,
    is_ordered=True,
    interval=0.01,
)
FIG7 = _figure(
    "fig7",
    BASELINES[1],
    Trial("free", "Multipath TCP, not throttled", 100 * MB),
    Trial("throttled", "Multipath TCP, Ethernet throttled", 200 * MB, throttled=True),
    repetitions=3,
)
