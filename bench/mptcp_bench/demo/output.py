# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo's output: a table in the terminal, a picture, and files with numbers and samples."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from mptcp_lab.testbed.model import Node
from mptcp_lab.testbed.recorder import Sample

from .. import plot, provenance
from .judging import Outcome, Verdict
from .parts import ETHERNET, PATHS

PICTURE, NUMBERS, SAMPLES = "throughput.png", "demo.json", "samples.csv"


def forget(directory: Path, nodes: Sequence[Node]) -> None:
    """Remove an earlier demo's files from *directory*, and no others. Its logs begin with their node's name."""
    logs = (log for node in nodes for log in directory.glob(f"{node.name}-*.log"))
    for old in (*(directory / name for name in (PICTURE, NUMBERS, SAMPLES)), *logs):
        old.unlink(missing_ok=True)


def lines(outcome: Outcome) -> Iterator[str]:
    """Yield the lines about a finished download, in rich's markup."""
    measured, color = outcome.measured, "red" if outcome.failed else "yellow"
    sign = f"[{color}]✗[/]" if outcome.failed else f"[{color}]?[/]" if outcome.missed else "[green]✓[/]"
    found = measured.congestion_control
    by = f", congestion control of the proxy towards the client: {', '.join(found)}" if found else ""
    yield f"{sign} {measured.part.title}: {measured.goodput / 1e6:.1f} Mbit/s of payload{by}"
    for complaint in outcome.complaints:
        yield f"    [{color}]{complaint}[/]"
    if measured.guarded is not None:
        yield f"    [yellow]{measured.guarded}[/]"
    if outcome.busy:
        yield f"    [{color}]the machine was busy: {measured.processors}[/]"
    if outcome.repeated:
        yield f"    [{color}]it is measured once more[/]"


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return the demo's results as a table that fits into 80 columns."""
    result = Table(
        title="Mbit/s; each path in the steady state, measured / expected", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    result.add_column("download", no_wrap=True)
    result.add_column("payload", justify="right")
    for path in PATHS:
        result.add_column(path.label, justify="right", style=path.color, no_wrap=True)
    result.add_column("subflows", justify="right")
    result.add_column("MB", justify="right")
    result.add_column("SHA-256")
    for outcome in outcomes:
        part, measured = outcome.measured.part, outcome.measured
        cells = [part.name, f"{measured.goodput / 1e6:.1f}"]
        for path in PATHS:
            expected, rate = outcome.expected.get(path.device), measured.steady[path.device] / 1e6
            wanted = "idle" if expected is None else f"{expected / 1e6:.3g}"
            cells.append(f"{rate:.{2 if rate < 10 else 1}f} / {wanted}")
        cells.append(str(1 + measured.protocol.joins) if part.multipath else "TCP")
        compared = "cut off" if measured.broken_off is not None else "equal" if measured.digest_ok else "differs"
        cells += [f"{measured.octets / 1e6:.1f}", compared]
        result.add_row(*cells, style="bold red" if outcome.failed else "yellow" if outcome.busy else None)
    return result


def draw(directory: Path, samples: Sequence[Sample], verdict: Verdict, cap: int) -> Path:
    """Draw the picture into *directory* and return its path."""
    bands = [
        plot.Band(
            outcome.measured.start,
            outcome.measured.end,
            outcome.measured.part.title,
            outcome.measured.part.subtitle,
            f"{outcome.measured.goodput / 1e6:.0f} Mbit/s of payload",
        )
        for outcome in verdict.outcomes
    ]
    levels = [
        plot.Level(number, cap, f"cap on Ethernet: {cap / 1e6:g} Mbit/s", ETHERNET.color)
        for number, outcome in enumerate(verdict.outcomes)
        if outcome.measured.part.capped
    ]
    target = directory / PICTURE
    plot.throughput(
        target,
        samples,
        PATHS,
        bands=bands,
        levels=levels,
        title="Downloads over an Ethernet link of 100 Mbit/s and a Wi-Fi link of 30 Mbit/s",
        subtitle="wget from Apache; Multipath TCP ends at the proxy, which goes on by plain TCP. "
        "Shown are bytes on the wire at the client, mean over 0.3 s.",
    )
    return target


def save(directory: Path, samples: Sequence[Sample], verdict: Verdict) -> None:
    """Write the numbers and the samples into files in *directory*."""
    results: dict[str, Any] = {
        "failure": verdict.failure,
        "warning": verdict.warning,
        "downloads": [_numbers(outcome) for outcome in verdict.outcomes],
    }
    (directory / NUMBERS).write_text(provenance.to_json(provenance.collect(), results))
    with (directory / SAMPLES).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seconds", *(f"{path.device}_bytes" for path in PATHS)])
        for sample in samples:
            writer.writerow([f"{sample.time:.4f}", *(sample.octets[path.device] for path in PATHS)])


def _numbers(outcome: Outcome) -> dict[str, Any]:
    measured = outcome.measured
    return {
        "name": measured.part.key,
        "title": measured.part.title,
        "goodput": round(measured.goodput),
        "steady": {d: round(rate) for d, rate in measured.steady.items()},
        "expected": {d: round(rate) for d, rate in outcome.expected.items()},
        "wrong": list(outcome.wrong),
        "missed": list(outcome.missed),
        "busy": outcome.busy,
        "repeated": outcome.repeated,
        "processors": asdict(measured.processors),
        "congestion_control": list(measured.congestion_control),
        "start": measured.start,
        "end": measured.end,
        "octets": measured.octets,
        "digest_ok": measured.digest_ok,
        "broken_off": measured.broken_off,
        "closing": measured.closing,
        "guarded": measured.guarded,
        "protocol": asdict(measured.protocol),
    }
