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
from contextlib import contextmanager

from mptcp_lab.testbed import Testbed, TestbedError, paths

from ..statistics import fmean
from .columns import RUNS, Column, Row, Table, Turn
from .pages_bed import Bed
from .pages_cells import RATES, Cell, Settings, cells
from .pages_judging import WINDOW, Batch
from .scenario import Scenario
from .two_paths import two_paths

NEW, OURS = "ours, new", "ours"
MEAN, WORST = 1.05, 1.25
"""Maximum rate of the capped path, as a multiple of the cap: over the batch, and over the worst window."""
STATIC = 1.02
"""Maximum duration of the batch, as a multiple of its duration with a static class."""
LONGER, NOT_LONGER = 0.25, 0.05
"""Maximum increase in duration for a client with one path: of the first downloads in seconds, of the later downloads
as a share, which allows for noise."""
Of = Row[Cell, Batch]


@contextmanager
def built(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[Bed]:
    with Testbed(paths(two_paths(RATES, cells[0].rtt)), seed=seed) as testbed:
        yield Bed.built(testbed, sorted({size for cell in cells for size in cell.sizes}))


def variants(chosen: Settings, cell: Cell) -> list[str]:
    """Return the variants of *cell*. Only a client that never had another path is compared without a class."""
    found = [each for each in chosen.variant if not (cell.lone and each == "static")]
    return [one for each in found for one in ((NEW, OURS) if each == OURS else (each,))]


def measure(bed: Bed, turn: Turn[Cell]) -> Batch:
    """Download one batch. Raises TestbedError if a file is incomplete, or the client had other paths than intended."""
    cell = turn.cell
    if turn.variant not in (NEW, OURS):
        bed.stop_throttler()
    elif turn.variant == NEW or bed.known != cell.rule:
        bed.start_throttler(cell.rule)
        if turn.variant == OURS:
            _fetched(bed, cell, OURS)
    return _fetched(bed, cell, turn.variant)


def _fetched(bed: Bed, cell: Cell, variant: str) -> Batch:
    with bed.set_up(cell, variant):
        batch = bed.fetch(cell)
    check_joins(cell, batch)
    return batch


def check_joins(cell: Cell, batch: Batch) -> None:
    """Raise TestbedError if the client's paths were not the intended ones and no connection became plain TCP."""
    if not batch.plain and (batch.joins == 0) is not cell.lone:
        raise TestbedError(f"{batch.joins} second subflows of a client of the kind {cell.client}: the batch is void")


def _mean(batches: Sequence[Batch], name: str) -> float:
    return fmean(float(getattr(batch, name)) for batch in batches)


def _by_static(row: Of) -> list[float]:
    static = row.beside("static")
    return [seconds / _mean(static, "seconds") for seconds in row.values("seconds")] if static else []


def _longer(name: str, fold: Callable[[list[float]], float], what: str) -> Column[Cell, Batch]:
    """Return the aim that the first downloads of a client with one path take little longer than without a policy."""

    def values(row: Of) -> list[float]:
        without = [float(getattr(batch, name)) for batch in row.beside("none")]
        return [fold(row.values(name)) - fold(without)] if row.measured and without else []

    aim = f"first downloads of a lone client longer, {what}"
    return Column("", values, aim=aim, unit=" s", most=LONGER, judged=lambda row: row.variant == NEW)


def _later(row: Of) -> list[float]:
    """Return the durations for a client that the throttler knows, as a multiple of the durations without a policy."""
    without = row.beside("none")
    if not row.measured or not without:
        return []
    known = [_mean(row.measured, "later")] + ([_mean(row.measured, "first")] if row.variant == OURS else [])
    return [fmean(known) / fmean([_mean(without, "later"), _mean(without, "first")])]


def _known(row: Of) -> bool:
    return row.variant == OURS


def _ours(row: Of) -> bool:
    return row.variant in (NEW, OURS)


def _whose(row: Of) -> str:
    return "capped path, × its cap" if _known(row) else "capped path of a new client, × its cap"


LABELS = (("downloads", lambda row: str(row.cell)), ("variant", lambda row: row.variant))
TWO_PATHS: Table[Cell, Batch] = Table(
    "Many downloads under a cap",
    (
        RUNS,
        Column("× cap", "mean", aim=_whose, most=MEAN, judged=_ours),
        Column("worst", "worst", by="most", aim=f"the same, worst {WINDOW:g} s", most=WORST, judged=_known),
        Column("s", "seconds", digits=1),
        Column("× static", _by_static, by="median", aim="time, × that with a static class", most=STATIC, judged=_known),
        Column("p50 s", "median", by="median"),
        Column("p95 s", "p95", by="median"),
        Column("joins", "joins", by="median", digits=0),
        Column("plain", "plain", by="median", digits=0),
    ),
    LABELS,
    of=lambda row: not row.cell.lone,
    wrapped=("downloads",),
)
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
            "", _later, aim="later downloads of a lone client, × without a policy", most=1 + NOT_LONGER, judged=_ours
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
