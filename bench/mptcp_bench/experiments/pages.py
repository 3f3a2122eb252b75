# SPDX-License-Identifier: GPL-2.0-or-later
"""A page of small files under a cap: what the capped path carries, and how long the page takes.

Batches of parallel downloads use the real proxy, Apache and throttler, over Ethernet, which is capped, and Wi-Fi. The
variants alternate, each with the same number of batches: no policy; our throttler, freshly started, so that the client
is new to it, and then with this client known; no throttler, but one static HTB class for the client's address on the
proxy. A client with only one path is measured in the same way.

*× cap* is the mean rate of the capped path during the batch, as a multiple of the cap; *worst* is the same for its
worst 2 s. *s* is the batch's duration in seconds, then as a multiple of the duration with the static class. *p50* and
*p95* are percentiles of a file's duration. *joins* is the number of connections with a second subflow, *plain* those of
plain TCP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from mptcp_lab.testbed import Testbed, TestbedError, paths

from ..statistics import fmean
from .columns import RUNS, Column, Row, Table, Turn
from .pages_bed import Bed
from .pages_judging import RATES, WINDOW, Batch, Cell, Settings, cells
from .scenario import Scenario
from .two_paths import one_subflow, two_paths

NEW, OURS = "ours, new", "ours"
MAX_MEAN, MAX_WORST = 1.05, 1.25
"""Maximum rate of the capped path, as a multiple of the cap: over the batch, and over the worst window."""
MAX_STATIC_RATIO = 1.02
"""Maximum duration of the batch, as a multiple of its duration with a static class."""
MAX_FIRST_DELAY, MAX_LATER_RATIO = 0.25, 1.05
"""For a client with one path: maximum increase in the duration of the first downloads in seconds, and maximum duration
of the later downloads, as a multiple of their duration without a policy, which allows for noise."""
PageRow = Row[Cell, Batch]


@contextmanager
def built(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[Bed]:
    with Testbed(paths(two_paths(RATES, cells[0].rtt)), seed=seed) as testbed:
        yield Bed.built(testbed, sorted({size for cell in cells for size in cell.sizes}))


def variants(chosen: Settings, cell: Cell) -> list[str]:
    """Return the variants of *cell*. A client with one path is not compared with a static class."""
    by_option = {"none": ["none"], "ours": [NEW, OURS], "static": [] if cell.lone else ["static"]}
    return [variant for option in chosen.variant for variant in by_option[option]]


def measure(bed: Bed, turn: Turn[Cell]) -> Batch:
    """Download one batch. Raises TestbedError if a file is incomplete, or the client had other paths than intended."""
    cell = turn.cell
    if turn.variant not in (NEW, OURS):
        bed.stop_throttler()
    elif turn.variant == NEW or bed.known != cell.rule:
        bed.start_throttler(cell.rule)
        if turn.variant == OURS:
            _batch(bed, cell, OURS)
    return _batch(bed, cell, turn.variant)


def _batch(bed: Bed, cell: Cell, variant: str) -> Batch:
    with (
        one_subflow(bed.testbed) if cell.lone else nullcontext(),
        bed.static_class(cell.cap, cell.at_once) if variant == "static" else nullcontext(),
    ):
        batch = bed.fetch(cell)
    if not batch.plain and (batch.joins == 0) is not cell.lone:
        raise TestbedError(f"{batch.joins} second subflows of a client of the kind {cell.client}")
    return batch


def _without_policy(row: PageRow, name: str) -> list[float]:
    return [float(getattr(batch, name)) for batch in row.beside("none")]


def _by_static(row: PageRow) -> list[float]:
    static = row.beside("static")
    return [seconds / fmean(each.seconds for each in static) for seconds in row.values("seconds")] if static else []


def _longer(name: str, statistic: Callable[[list[float]], float], text: str) -> Column[Cell, Batch]:
    """Return the aim that the first downloads of a client with one path take little longer than without a policy."""

    def values(row: PageRow) -> list[float]:
        without = _without_policy(row, name)
        return [statistic(row.values(name)) - statistic(without)] if row.measured and without else []

    aim = f"first downloads of a lone client longer, {text}"
    return Column("", values, aim=aim, unit=" s", most=MAX_FIRST_DELAY, judged=lambda row: row.variant == NEW)


def _later(row: PageRow) -> list[float]:
    """Return the durations for a client that the throttler knows, as a multiple of the durations without a policy."""
    without = [fmean(values) for name in ("later", "first") if (values := _without_policy(row, name))]
    if not row.measured or not without:
        return []
    known = [fmean(row.values(name)) for name in ("later", *["first"] * (row.variant == OURS))]
    return [fmean(known) / fmean(without)]


def _known(row: PageRow) -> bool:
    return row.variant == OURS


def _ours(row: PageRow) -> bool:
    return row.variant in (NEW, OURS)


LABELS = (("downloads", lambda row: str(row.cell)), ("variant", lambda row: row.variant))
TWO_PATHS: Table[Cell, Batch] = Table(
    "Many downloads under a cap",
    (
        RUNS,
        Column(
            "× cap", "mean", most=MAX_MEAN, judged=_ours,
            aim=lambda row: "capped path, × its cap" if _known(row) else "capped path of a new client, × its cap",
        ),
        Column("worst", "worst", by="most", aim=f"the same, worst {WINDOW:g} s", most=MAX_WORST, judged=_known),
        Column("s", "seconds", digits=1),
        Column(
            "× static", _by_static, by="median", aim="time, × that with a static class", most=MAX_STATIC_RATIO,
            judged=_known,
        ),
        Column("p50 s", "median", by="median"),
        Column("p95 s", "p95", by="median"),
        Column("joins", "joins", by="median", digits=0),
        Column("plain", "plain", by="median", digits=0),
    ),
    LABELS,
    of=lambda row: not row.cell.lone,
    wrapped=("downloads",),
)  # fmt: skip
ONE_PATH: Table[Cell, Batch] = Table(
    "Many downloads of a client with one path",
    (
        RUNS,
        Column("first ones s", "first", digits=3),
        Column("longest s", "first_longest", by="most", digits=3),
        Column("later ones s", "later", digits=3),
        _longer("first", fmean, "mean"),
        _longer("first_longest", max, "the longest"),
        Column(
            "", _later, aim="later downloads of a lone client, × without a policy", most=MAX_LATER_RATIO, judged=_ours
        ),
    ),
    LABELS,
    of=lambda row: row.cell.lone,
    wrapped=("downloads",),
)
SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "ss"),
    cells=cells,
    together=lambda cell: cell.rtt,
    variants=variants,
    bed=built,
    measure=measure,
    tables=(TWO_PATHS, ONE_PATH),
    counted=lambda row: "batches measured",
)
