# SPDX-License-Identifier: GPL-2.0-or-later
"""A page of small files under a cap: what the capped path carries, and how long the page takes.

Batches of parallel downloads use the real proxy, Apache and throttler, over Ethernet, which is capped, and Wi-Fi. The
variants alternate, each with the same number of batches: no policy; our throttler, freshly started, so that the client
is new to it, and then with this client known; no throttler, but one static HTB class for the client's address on the
proxy; a path that really has the capped rate. The time if both paths were full from the first byte is computed. A
client with only one path is measured in the same way.

*× cap* is the mean rate of the capped path during the batch, as a multiple of the cap; *worst* is the same of its worst
2 s; *ahead* is the most by which it was ahead of cap × time. *s* is the batch's duration in seconds, then as a multiple
of the static class's and of the computed ideal's. *p50* and *p95* are percentiles of a file's duration. *other* is the
other path's rate in Mbit/s, *joins* the number of connections with a second subflow, *plain* the number that became
plain TCP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.features import missing
from mptcp_lab.testbed.recorder import Sample, rates

from .. import style
from ..statistics import fmean
from .columns import RUNS, Column, Results, Row, Run, Table, Turn
from .devices import DEVICES
from .drawing import beside, both_paths
from .findings import Picture
from .pages_bed import Bed
from .pages_cells import Cell, Settings, cells_of
from .pages_judging import WINDOW, Batch, Octets, ideal
from .scenario import Scenario
from .two_paths import two_paths

NEW, OURS = "ours, new", "ours"
MEAN, WORST = 1.05, 1.25
"""Most rate of the capped path, as a multiple of the cap: over the batch, and over the worst window."""
STATIC = 1.02
"""Most duration of the batch, as a multiple of its duration with a static class."""
LONGER, NOT_LONGER = 0.25, 0.05
"""How much longer downloads of a client with one path may take: the first ones in seconds, the later ones as a share,
which allows for noise."""
STEP = 0.1
"""Seconds between two points of the picture's curves."""
TITLES = {"none": "No policy", OURS: "Ours", "static": "A static class", "link": "A path of that rate"}
Of = Row[Cell, Batch]


@dataclass(slots=True)
class Beds:
    """The testbeds without and with a throttler, and the one that was last used."""

    plain: Bed
    throttled: Bed
    used: Bed

    def check_emulation(self) -> None:
        self.used.testbed.check_emulation()


@contextmanager
def built(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[Beds]:
    topology = paths(two_paths(*cells[0].paths))
    sizes = sorted({size for cell in cells for size in cell.sizes})
    tls = any(cell.kind == "tls" for cell in cells)
    with Testbed(topology, seed=seed) as plain, Testbed(topology, seed=seed) as throttled:
        without, with_throttler = Bed.built(plain, sizes, tls), Bed.built(throttled, sizes, tls)
        yield Beds(without, with_throttler, without)


def lacking(cell: Cell) -> str | None:
    """Return why *cell* cannot be measured here, or None if it can."""
    needed = {"chromium": ("chromium", "mptcpize"), "tls": ("openssl",)}.get(cell.kind, ())
    return next((why for feature in needed if (why := missing(feature))), None)


def variants(chosen: Settings, cell: Cell) -> list[str]:
    """Return the variants of *cell*. Only a client that never had another path is compared without classes."""
    found = [each for each in chosen.variant if not (cell.lone and each in ("static", "link"))]
    if OURS in found:
        found.insert(found.index(OURS), NEW)
        if cell.client == "lost":
            # What the throttler knows of this client is outdated, so it is new each time.
            found.remove(OURS)
    return found


def measure(beds: Beds, turn: Turn[Cell]) -> Batch:
    """Download one batch. Raises TestbedError if a file is incomplete, or the client had other paths than intended."""
    cell, ours = turn.cell, turn.variant in (NEW, OURS)
    beds.used = bed = beds.throttled if ours else beds.plain
    if turn.variant == NEW:
        bed.start_throttler(cell)
    elif ours and not (bed.known and bed.policy_of == cell):
        bed.start_throttler(cell)
        _fetched(bed, cell, turn.variant)
    if cell.client == "lost" and ours:
        _fetched(bed, replace(cell, client="two", number=2 * cell.at_once), turn.variant)
    return _fetched(bed, cell, turn.variant)


def _fetched(bed: Bed, cell: Cell, variant: str) -> Batch:
    with bed.set_up(cell, variant):
        batch = bed.fetch(cell)
    check_joins(cell, batch)
    return batch


def check_joins(cell: Cell, batch: Batch) -> None:
    """Raise TestbedError if the client's paths were not the intended ones and no connection became plain TCP."""
    if cell.kind != "close" and not batch.plain and (batch.joins == 0) is not cell.lone:
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
    """Return how long downloads of a client that the throttler knows take, as a multiple of those without a policy."""
    without = row.beside("none")
    if not row.measured or not without:
        return []
    known = [_mean(row.measured, "later")] + ([_mean(row.measured, "first")] if row.variant == OURS else [])
    return [fmean(known) / fmean([_mean(without, "later"), _mean(without, "first")])]


def _kept(row: Of) -> bool:
    """Whether *row* is of our throttler and its connections share one cap."""
    return row.variant == OURS and row.cell.share != "connection"


def _new(row: Of) -> bool:
    return row.variant == NEW and row.cell.share != "connection"


def _whose(row: Of) -> str:
    return "capped path of a new client, × its cap" if _new(row) else "capped path, × its cap"


LABELS = (("downloads", lambda row: str(row.cell)), ("variant", lambda row: row.variant))
TWO_PATHS: Table[Cell, Batch] = Table(
    "Many downloads under a cap",
    (
        RUNS,
        Column("× cap", "mean", aim=_whose, most=MEAN, judged=lambda row: _kept(row) or _new(row)),
        Column("worst", "worst", by="most", aim=f"the same, worst {WINDOW:g} s", most=WORST, judged=_kept),
        Column("ahead kB", "ahead", by="median", scale=1e-3, digits=0),
        Column("s", "seconds", digits=1),
        Column("× static", _by_static, by="median", aim="time, × that with a static class", most=STATIC, judged=_kept),
        Column("× ideal", lambda row: [s / ideal(row.cell).seconds for s in row.values("seconds")], by="median"),
        Column("p50 s", "median", by="median"),
        Column("p95 s", "p95", by="median"),
        Column("other", "other", by="median", scale=1e-6, digits=1),
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
            "", _later, aim="later downloads of a lone client, × without a policy", most=1 + NOT_LONGER,
            judged=lambda row: row.variant in (NEW, OURS),
        ),
    ),
    LABELS,
    of=lambda row: row.cell.lone,
    wrapped=("downloads",),
)  # fmt: skip


def computed(results: Results[Cell, Batch]) -> Iterator[Run[Cell, Batch]]:
    for cell in results.cells:
        if not cell.lone:
            yield Run(Turn(cell, "ideal", 1), ideal(cell))


def pictures(results: Results[Cell, Batch]) -> list[Picture]:
    """Return the picture of the first cell that has more than one variant to compare."""
    cell = next((c for c in results.cells if not c.lone and len(_drawn(results, c)) > 1), None)
    return [] if cell is None else [Picture("pages", lambda target: draw(target, results, cell))]


def _drawn(results: Results[Cell, Batch], cell: Cell) -> dict[str, Batch]:
    return {title: found[-1] for variant, title in TITLES.items() if (found := results.of(cell, variant))}


def draw(target: Path, results: Results[Cell, Batch], cell: Cell) -> None:
    """Draw the last batch of each variant of *cell* from its first SYN on, with common axes."""
    shown = _drawn(results, cell)
    figure, panels = beside(len(shown))
    longest = max(batch.seconds for batch in shown.values())
    for axes, (title, batch) in zip(panels, shown.items(), strict=True):
        both_paths(axes, rates(resampled(batch)))
        axes.axhline(cell.cap, color=style.INK, linestyle=style.DASHED, linewidth=1, zorder=4)
        said = f"{title}\n{batch.mean:.2f} × the cap, {batch.seconds:.1f} s"
        axes.set_title(said, loc="left", fontsize=10.5, color=style.INK)
        axes.set_xlim(0, longest * 1.03)
        axes.set_ylim(0, max(cell.rates) * 1.08)
        style.dress(axes, "seconds since the first SYN", "received, Mbit/s" if axes is panels[0] else "")
    panels[-1].legend(loc="upper right", frameon=False)
    style.heading(figure, "Many downloads under a cap", f"{cell}; dashed: the cap of Ethernet", left=0.065)
    style.save(figure, target)


def resampled(batch: Batch) -> tuple[Sample, ...]:
    """Return a sample for every ``STEP`` of *batch*, and a bit beyond, with times since its begin."""
    counters = {device: Octets(batch.samples, device) for device in DEVICES}
    times = [STEP * number for number in range(int(batch.seconds / STEP) + 3)]
    return tuple(Sample(t, {d: round(count(batch.began + t)) for d, count in counters.items()}) for t in times)


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "ss"),
    cells=cells_of,
    together=lambda cell: cell.paths,
    lacking=lacking,
    variants=variants,
    bed=built,
    measure=measure,
    tables=(TWO_PATHS, ONE_PATH),
    counted=lambda row: "batches measured",
    computed=computed,
    pictures=pictures,
)
