# SPDX-License-Identifier: GPL-2.0-or-later
"""A page of small files under a cap: what the capped path carries, and how long the page takes.

Batches of parallel downloads use the real proxy, Apache and throttler, over Ethernet, which is capped, and Wi-Fi. The
variants alternate: no policy; our throttler; no throttler, but one static HTB class for the client's address on the
proxy; a path that really has the capped rate; and, computed, the time if both paths were full from the first byte. A
client with only one path is measured in the same way. The first batch of a client that the throttler has never seen is
judged apart.

*× cap* is the mean rate of the capped path during the batch, as a multiple of the cap; *worst* is the same of its worst
2 s; *ahead* is the most by which it was ahead of cap × time. *s* is the batch's duration in seconds, then as a multiple
of the static class's and of the computed ideal's. *p50* and *p95* are percentiles of a file's duration. *other* is the
other path's rate in Mbit/s, *joins* the number of connections with a second subflow, *plain* the number that became
plain TCP. *new* marks a client's first batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby

from rich.console import Console

from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.features import missing, need

from .attempts import Attempts
from .devices import DEVICES
from .findings import Findings, Picture
from .options import count
from .pages_bed import Batch, Bed
from .pages_cells import OPTIONS, Cell, cells, variants_of
from .pages_judging import judge, lead
from .pages_results import Batches, Measured, draw, drawn_cell, tables
from .two_paths import two_paths

__all__ = ["OPTIONS", "run"]

RUNS, QUICK_RUNS = 3, 2
CAPPED, OTHER = DEVICES


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Run the cells that *options* choose."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "ss")
    chosen, variants = cells(options, quick), variants_of(options)
    plan = Plan(variants, count(options, "runs", QUICK_RUNS if quick else RUNS))
    left_out = [f"{cell}: {why}" for cell in chosen if (why := _lacking(cell))]
    for line in left_out:
        console.print(f"left out: {line}", style="dim", highlight=False)
    measured: list[Measured] = []
    attempts = Attempts(console)
    for _, group in groupby([cell for cell in chosen if not _lacking(cell)], lambda cell: cell.paths):
        together = list(group)
        topology = paths(two_paths(*together[0].paths))
        sizes = sorted({size for cell in together for size in cell.sizes})
        with Testbed(topology, seed=seed) as plain, Testbed(topology, seed=seed) as throttled:
            tls = any(cell.kind == "tls" for cell in together)
            work = Work(Bed.built(plain, sizes, tls), Bed.built(throttled, sizes, tls), console, plan, attempts)
            for cell in together:
                console.print(str(cell), style="dim", highlight=False)
                measured += work.measure(cell)
    batches = Batches(measured)
    aims = batches.judged()
    data = {
        "cells": [{"cell": str(cell), **asdict(cell)} for cell in batches.cells],
        "batches": [
            {
                "cell": str(m.cell),
                "variant": m.variant,
                "fresh": m.fresh,
                "joins": m.joins,
                "plain": m.plain,
                "lead": m.lead._asdict(),
            }
            | asdict(m.outcome)
            for m in measured
        ],
        "left_out": left_out,
    }
    shown = drawn_cell(batches)
    pictures = () if shown is None else (Picture("pages", lambda target: draw(target, batches, shown)),)
    named = tuple(replace(aim, what=f"{cell}: {aim.what}") for cell, aim in aims)
    return attempts.judged(Findings(tuple(tables(batches)), data, pictures=pictures, aims=named))


def _lacking(cell: Cell) -> str | None:
    """Return why *cell* cannot be measured here, or None if it can."""
    needed = {"chromium": ("chromium", "mptcpize"), "tls": ("openssl",)}.get(cell.kind, ())
    return next((why for feature in needed if (why := missing(feature))), None)


@dataclass(frozen=True, slots=True)
class Plan:
    """The batches of each cell: *runs* with our throttler, one of each other variant."""

    variants: Sequence[str]
    runs: int

    def batches(self, cell: Cell) -> Iterator[tuple[str, bool]]:
        """Yield the variant of each batch, and whether it needs a throttler that has never seen the client."""
        skipped = ("ideal", "static", "link") if cell.lone else ("ideal",)
        for number in range(self.runs):
            for variant in self.variants:
                if variant not in skipped and (variant == "ours" or number == 0):
                    yield variant, variant == "ours" and number == 0


@dataclass(frozen=True, slots=True)
class Work:
    """The testbeds without and with a throttler, for cells with the same paths."""

    plain: Bed
    throttled: Bed
    console: Console
    plan: Plan
    attempts: Attempts

    def measure(self, cell: Cell) -> Iterator[Measured]:
        """Yield the measured batches of *cell*. A batch that failed each time is left out."""
        for variant, fresh in self.plan.batches(cell):
            bed = self.throttled if variant == "ours" else self.plain
            once = partial(self._batch, bed, cell, variant, fresh)
            batch = self.attempts.of(once, f"{cell}, {variant}", check=bed.testbed.check_emulation)
            if batch is not None:
                yield batch

    def _batch(self, bed: Bed, cell: Cell, variant: str, fresh: bool) -> Measured:
        if fresh:
            bed.start_throttler(cell)
        if cell.client == "lost" and variant == "ours":
            before = replace(cell, client="two", number=2 * cell.at_once)
            with bed.set_up(before, variant):
                check_joins(before, bed.fetch(before))
        # A client that lost a path counts as new, because what the throttler knows about it is outdated.
        unknown = variant == "ours" and (not bed.known or cell.client == "lost")
        with bed.set_up(cell, variant):
            batch = bed.fetch(cell)
        check_joins(cell, batch)
        outcome = judge(batch.samples, CAPPED, OTHER, round(cell.cap * 1_000_000), batch.downloads)
        state = ", new client" if unknown else ""
        state += f", {batch.plain} connections were plain TCP" if batch.plain else ""
        shown = f"{outcome.mean:.2f} × the cap, worst {outcome.worst:.2f}, {outcome.seconds:.1f} s"
        self._say(f"  {variant}{state}: {shown}")
        return Measured(
            cell, variant, unknown, outcome, lead(batch.downloads, cell.at_once), batch.joins, batch.plain,
            batch.samples, min(d.began for d in batch.downloads),
        )  # fmt: skip

    def _say(self, what: str) -> None:
        self.console.print(what, style="dim", highlight=False)


def check_joins(cell: Cell, batch: Batch) -> None:
    """Raise TestbedError if the client's paths were not the intended ones and no connection became plain TCP."""
    if cell.kind != "close" and not batch.plain and (batch.joins == 0) is not cell.lone:
        raise TestbedError(f"{batch.joins} second subflows of a client of the kind {cell.client}: the batch is void")
