# SPDX-License-Identifier: GPL-2.0-or-later
"""The onset of a cap: what the other path loses when the cap falls at once, and when it lands softly.

The transfers use the real proxy and throttler. In the middle of a download over both paths, a policy that caps Ethernet
is loaded (SIGHUP), alternately with ``landing: at-once`` and ``landing: soft``; between runs the cap is removed. The
same time windows are also measured without any cap, because congestion control itself makes the rate dip.
docs/soft-start.md has the results.

Each 0.1 s sample counts the bytes that arrived at the client's interfaces, or, for an upload, at the proxy's sockets.
BBR slows every path down for 0.2 s once in ten seconds (PROBE_RTT). A download begins so long before the onset that BBR
first does this after the last window. An upload is watched for 20 s, until the client's backlog has drained, which
includes two such dips.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.congestion import lacking_here, select
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.recorder import Recorder, Sample, rates
from mptcp_lab.testbed.services import PROXY_PORT, wait_until

from .. import style
from ..statistics import of_median
from . import onset_cells
from .aims import Aim, coloured
from .attempts import Attempts
from .devices import DEVICE, DEVICES, POLICY_PATHS
from .drawing import beside, both_paths, mark
from .findings import Findings, Picture
from .onset_cells import NETWORKS, OTHER_RATE, VARIANTS, Cell, cells, variants_of
from .onset_judging import Outcome, aims, judge
from .options import OptionError, count
from .payload import payload_share
from .setup import Setup
from .tables import mean, new_table
from .two_paths import two_paths
from .upload_recorder import UploadRecorder, on_the_wire

OPTIONS = onset_cells.OPTIONS
WARM = 3.5
"""Seconds from the start of a transfer to the onset of the cap."""
AFTER = 0.1
"""Seconds that are recorded after the last window."""
RUNS, QUICK_RUNS, CONTROL_RUNS = 10, 3, 3
CAPPED_COLUMNS = {"in force s": "in_force", "off": "off", "steady": "steady"}
"""Columns that only a run with a cap fills, each with its measure."""
TITLES = {"at-once": "The cap falls at once", "soft": "The cap lands softly"}
MEANS = tuple(field.name for field in fields(Outcome) if field.name != "stalls")
_POLICY = f"{POLICY_PATHS}rules: "


@dataclass(frozen=True, slots=True)
class Measured:
    """One run, with its samples for the picture."""

    cell: Cell
    variant: str
    outcome: Outcome
    onset: float
    samples: tuple[Sample, ...]


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Run the cells that *options* choose."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "bpf-pacing", "apache2", "squid", "curl", "mptcpize")
    chosen, variants = cells(options, quick), variants_of(options)
    runs = count(options, "runs", QUICK_RUNS if quick else RUNS)
    for control in dict.fromkeys(cell.control for cell in chosen):
        if (why := lacking_here(control)) is not None:
            raise OptionError(f"--set cc={control}: {why}")
    measured: list[Measured] = []
    attempts = Attempts(console)
    for number, cell in enumerate(chosen, 1):
        console.print(f"{number} of {len(chosen)}: {cell}", style="dim", highlight=False)
        once = partial(measure, cell, runs, seed, variants)
        measured += attempts.of_several(once, str(cell), most=2) or []
    table, asked = judged(chosen, measured, runs if "soft" in variants else 0)
    named = tuple(replace(aim, what=f"{what}: {aim.what}") for what, aim in asked)
    data = {
        "cells": [asdict(cell) for cell in chosen],
        "runs": [{"cell": str(m.cell), "variant": m.variant, **asdict(m.outcome)} for m in measured],
    }
    return attempts.judged(Findings((table,), data, pictures=pictures(measured), aims=named))


def measure(cell: Cell, runs: int, seed: int, variants: Sequence[str], attempts: Attempts) -> list[Measured]:
    """Measure *runs* runs of each variant, alternating, in one testbed. Leave out a run that failed each time."""
    half = two_paths(cell.rates, (cell.ethernet_rtt, cell.wifi_rtt))
    found: list[Measured] = []
    with Testbed(paths(half), seed=seed) as testbed:
        if cell.direction == "up" and not select(cell.control, [testbed["client"].namespace]):
            raise TestbedError(f"the client cannot have {cell.control} here")
        down = cell.direction == "down"
        setup = Setup.built(testbed, _POLICY + "[]\n", down=down, up=not down, control=cell.control)
        for number in range(runs):
            for variant in variants:
                if variant == "no cap" and number >= CONTROL_RUNS:
                    continue
                once = partial(transfer, setup, cell, variant)
                one = attempts.of(once, f"{cell}, {variant}", check=testbed.check_emulation)
                found += [one] if one else []
    return found


def transfer(setup: Setup, cell: Cell, variant: str) -> Measured:
    """Transfer, load the cap, and judge. Raises TestbedError without both subflows, EmulationError for wrong paths."""
    windows, down = cell.windows, cell.direction == "down"
    setup.load(f"{_POLICY}[]\n")
    wait_until(lambda: not sockets(setup, cell), "the last transfer's subflows are gone", timeout=30)
    with (
        setup.client.running(setup.download if down else setup.upload),
        Recorder(setup.client, DEVICES) if down else UploadRecorder(setup.proxy, setup.client) as recorder,
    ):
        time.sleep(max(0.0, WARM - recorder.now))
        if len(sockets(setup, cell)) != 2:
            raise TestbedError("the transfer has not two subflows")
        onset = recorder.now
        if variant != "no cap":
            throttle = f"{{rate: {cell.cap} Mbit/s, landing: {variant}}}"
            rule = f"name: cap, paths: [{cell.path}], direction: {cell.direction}, throttle: {throttle}"
            setup.load(f"{_POLICY}[{{{rule}}}]\n")
        time.sleep(max(0.0, onset + windows.end - 0.5 - recorder.now))
        rtt = sockets(setup, cell).get(NETWORKS[cell.path], 0.0)
        time.sleep(max(0.0, onset + windows.end + AFTER - recorder.now))
        samples = recorder.samples
    # The check covers the time since the last check, so that each transfer is charged only with its own late packets.
    setup.testbed.check_emulation()
    if not down:
        samples = on_the_wire(samples, payload_share(4, multipath=True))
    capped, other = DEVICE[cell.path], DEVICE[cell.other]
    cap, link = cell.cap * 1_000_000, OTHER_RATE[cell.path] * 1_000_000
    outcome = judge(samples, capped, other, onset, cap, link, rtt, windows)
    return Measured(cell, variant, outcome, onset, samples)


def sockets(setup: Setup, cell: Cell) -> dict[str, float]:
    """Return the sender's smoothed RTT in seconds of each established subflow, by the client's network."""
    sender, port = (setup.proxy, "sport") if cell.direction == "down" else (setup.client, "dport")
    listing = sender.run(["ss", "-tinH", "state", "established", port, "=", f":{PROXY_PORT}"]).stdout
    found = {}
    for line in listing.replace("\n\t", " ").splitlines():
        rtt = re.search(r"\brtt:([\d.]+)", line)
        address = re.search(rf"10\.77\.[12]\.(?=\d+(?:%\w+)?\]?:(?!{PROXY_PORT}))", line)
        if rtt and address:
            found[address[0]] = float(rtt[1]) / 1e3
    return found


def judged(chosen: Iterable[Cell], measured: Sequence[Measured], runs: int) -> tuple[Table, list[tuple[str, Aim]]]:
    """Return the table of all cells and variants, and the aims of the soft landing, each with its cell.

    *runs* of each variant were planned. If it is 0, a cell without a soft landing misses no aim.
    """
    columns = ("cell", "cap", "runs", "kept", "worst", "stalled s", "when", *CAPPED_COLUMNS, "RTT ms")
    table = new_table("A cap falls: what the other path keeps", columns, left=("cell", "cap"))
    found: list[tuple[str, Aim]] = []
    for cell in chosen:
        label = str(cell)
        for variant in VARIANTS:
            outcomes = [m.outcome for m in measured if m.cell == cell and m.variant == variant]
            asked = {}
            if variant == "soft" and runs:
                asked = aims(outcomes, runs, cell.windows, cell.control, cell.rtt)
                found += [(f"{cell}, soft", aim) for aim in asked.values()]
            if not outcomes:
                continue
            shown = {name: _shown(outcomes, name, asked.get(name)) for name in MEANS}
            table.add_row(
                label, variant, str(len(outcomes)), shown["kept"], shown["worst"], shown["stalled"], _when(outcomes),
                *(shown[name] if variant != "no cap" else "" for name in CAPPED_COLUMNS.values()), shown["rtt"],
            )  # fmt: skip
            label = ""
    return table, found


def _when(outcomes: Sequence[Outcome]) -> str:
    """Return the first and last moment at which the other path stalled in any run, in seconds after the onset."""
    stalls = [stall for outcome in outcomes for stall in outcome.stalls]
    return f"{min(begin for begin, _ in stalls):.1f}-{max(end for _, end in stalls):.1f}" if stalls else ""


def _shown(outcomes: Sequence[Outcome], name: str, aim: Aim | None) -> str:
    scale, digits = {"rtt": (1e3, 0), "off": (1.0, 3), "steady": (1.0, 3)}.get(name, (1.0, 2))
    return coloured(mean([getattr(each, name) for each in outcomes], scale, digits), aim)


def pictures(measured: Sequence[Measured]) -> tuple[Picture, ...]:
    """Return the picture of the first cell that has both landings; empty if no cell has."""
    landed = {(one.cell, one.variant) for one in measured}
    cell = next((one.cell for one in measured if {(one.cell, each) for each in TITLES} <= landed), None)
    return () if cell is None else (Picture("onset", lambda target: draw(target, measured, cell)),)


def draw(target: Path, measured: Sequence[Measured], cell: Cell) -> None:
    """Draw one run of each landing of *cell*: the run in which the other path kept the median share."""
    figure, panels = beside(2)
    names = {"ethernet": "Ethernet", "wifi": "Wi-Fi"}
    for axes, (variant, title) in zip(panels, TITLES.items(), strict=True):
        runs = [m for m in measured if m.cell == cell and m.variant == variant]
        shown = of_median(runs, lambda m: m.outcome.kept)
        both_paths(axes, [rate for rate in rates(shown.samples) if -2 <= rate.time - shown.onset <= 5], shown.onset)
        mark(axes, 0)
        axes.set_title(
            f"{title}: {names[cell.other]} keeps {shown.outcome.kept:.0%}", loc="left", fontsize=11, color=style.INK
        )
        axes.set_xlim(-2, 5)
        axes.set_ylim(0, max(cell.rates) * 1.08)
        style.dress(axes, "seconds since the cap", "received, Mbit/s" if variant == "at-once" else "")
    panels[0].legend(loc="upper right", frameon=False)
    style.heading(figure, "The onset of a cap", f"{cell}; one transfer through the proxy", left=0.065)
    style.save(figure, target)
