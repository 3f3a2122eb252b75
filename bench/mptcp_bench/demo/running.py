# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo as a scenario: its testbed, its downloads with their rates on the terminal, and its picture."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mptcp_lab.agent import processors
from mptcp_lab.testbed import TWO_PATHS, Testbed, TestbedError, lab_of
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate, rates
from mptcp_lab.testbed.services import (
    Origin,
    Proxy,
    Throttler,
    start_origin,
    start_proxy,
    start_throttler,
    write_throttler_config,
)
from mptcp_lab.testbed.transfer import download, wget

from .. import style
from ..experiments.columns import Results, Run, Turn
from ..experiments.findings import Picture
from ..experiments.parameters import number, parameter
from ..experiments.scenario import Scenario
from ..experiments.setup import POLICY, ethernet_cap
from .judging import LINKS, MIN_STEADY_SECONDS, TABLE, DemoResults, Download, Trial, trials, words_for_picture

DEVICES = {"ethernet": "eth0", "wifi": "wlan0"}
EXCLUDED_END_SECONDS = 0.3
"""Seconds at the end that are excluded from the steady state, because one path may finish before the other."""
PAUSE_SECONDS = 0.8
"""Time between two downloads, in which the queues drain. The picture shows half of it before and after a download."""
BAR_WIDTH = 24
"""Characters of the bar of a full path."""
LINE_INTERVAL = 1.0
"""Seconds between two lines with the current rates."""
TITLE = "Downloads over an Ethernet link of 100 Mbit/s and a Wi-Fi link of 30 Mbit/s"
SUBTITLE = (
    "wget from Apache; Multipath TCP ends at the proxy, which uses plain TCP towards the origin. "
    "Shown are bytes on the wire at the client, mean over 0.3 s."
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The setting of ``--quick``. The download with a cap stays long, so that a cap that is set too late is visible."""

    scale: float = parameter("factor on the durations of the downloads without a cap", "1", number(), quick="0.5")


@dataclass
class Bed:
    """The testbed with its services, and the downloads that were measured."""

    testbed: Testbed
    origin: Origin
    proxy: Proxy
    recorder: Recorder
    console: Console = field(default_factory=Console)
    throttler: Throttler | None = None
    runs: list[Run[Trial, Download]] = field(default_factory=list)
    next_line_at: float = 0.0
    """Seconds after the download's start at which the next line with rates is due."""

    def download(self, trial: Trial) -> Download:
        """Measure a download. Raises TestbedError if the product failed."""
        if trial.is_capped and self.throttler is None:
            node = self.testbed["proxy"]
            self.throttler = start_throttler(node, write_throttler_config(node, POLICY))
        relaxations = self.relaxations()
        path = "ethernet" if trial.ethernet else "wifi"
        source = None if trial.is_multipath else self.testbed["client"].address(DEVICES[path])
        through = self.proxy if trial.is_multipath else None
        argv = wget(self.origin.url(trial.key), proxy=through, source=source, multipath=trial.is_multipath)
        self.console.print(f"{trial.title}: {trial.subtitle}", highlight=False, soft_wrap=True)
        self.next_line_at = LINE_INTERVAL
        before, limit = processors.read(own=os.getpid()), 4 * trial.seconds + 10
        seen = download(lab_of(self.testbed), argv, timeout=limit, watch=self.print_rates, may_time_out=True)
        usage = processors.usage(before, processors.read(own=os.getpid()))
        time.sleep(PAUSE_SECONDS)
        if not seen.timed_out and seen.sha256 != self.origin.digests[trial.key]:
            raise TestbedError("the received data differ from the origin's (SHA-256)")
        if fault := seen.protocol.complaint(multipath=trial.is_multipath):
            raise TestbedError(fault)
        start = seen.began - self.recorder.started
        end, margin = start + seen.ended, PAUSE_SECONDS / 2
        samples = [each for each in self.recorder.samples if start - margin <= each.time <= end + margin]
        steady, seconds = steady_rates(trial, samples, start, seen.ended)
        return Download(
            start, end, seen.octets, not seen.timed_out, 1 + seen.protocol.joins, **steady, steady_seconds=seconds,
            processors=usage, relaxations=self.relaxations() - relaxations, samples=samples,
        )  # fmt: skip

    def relaxations(self) -> int:
        """Return how often the guard has relaxed the cap. Raises TestbedError if the throttler has ended."""
        return int(self.throttler.status()["counters"]["guard"]["relaxations"]) if self.throttler else 0

    def print_rates(self, elapsed: float) -> None:
        """Print the rate of each path over the last second, *elapsed* seconds after the download's start."""
        if elapsed < self.next_line_at:
            return
        self.next_line_at = elapsed + LINE_INTERVAL
        last_second = self.recorder.samples[-11:]
        [current] = rates((last_second[0], last_second[-1]))
        line = Text(f"{elapsed:6.0f} s")
        for path, device in DEVICES.items():
            path_style, rate = style.PATHS[path], current.bits[device]
            bar = "█" * round(BAR_WIDTH * min(1.0, rate / max(LINKS.values())))
            line.append(f"  {path_style.label} {rate / 1e6:6.1f} Mbit/s {bar:{BAR_WIDTH}}", style=path_style.color)
        self.console.print(line, highlight=False, soft_wrap=True)


def steady_rates(
    trial: Trial, samples: Sequence[Sample], start: float, duration: float
) -> tuple[dict[str, float], float]:
    """Return each path's rate in the steady state, and the length of this state in seconds.

    If the steady state is too short, the rates are those of the whole download. The download began at *start* on the
    samples' clock, and took *duration* seconds.
    """
    end = duration - EXCLUDED_END_SECONDS
    seconds = end - trial.settle_seconds
    begin, until = (trial.settle_seconds, end) if seconds >= MIN_STEADY_SECONDS else (0.0, duration)
    steady = {path: mean_rate(samples, device, start + begin, start + until) for path, device in DEVICES.items()}
    return steady, seconds


def measure(bed: Bed, turn: Turn[Trial]) -> Download:
    """Measure a download; measure it again if it fails or misses an aim. Raises TestbedError.

    The first attempt is judged as if the machine were idle: the measured load is a mean, which hides short bursts.
    """
    try:
        found = bed.download(turn.cell)
        strict = replace(found, processors=processors.Usage(0.0, 1.0, None))
        results = Results([*(run.turn for run in bed.runs), turn], [*bed.runs, Run(turn, strict)])
        missed = [str(aim) for aim in SCENARIO.aims(results) if not aim.met and aim.what.startswith(f"{turn}: ")]
    except TestbedError as error:
        missed = [str(error)]
    if missed:
        bed.console.print(f"repeating the download, because of: {'; '.join(missed)}", highlight=False, soft_wrap=True)
        found = bed.download(turn.cell)
    bed.runs.append(Run(turn, found))
    return found


def draw(results: DemoResults, target: Path) -> None:
    """Draw each path's throughput over time into *target*, with a band for each download."""
    downloads = [(run.turn.cell, run.measured) for run in results.runs]
    words = {row.cell: words_for_picture(row) for row in results.rows()}
    begin, end = downloads[0][1].start, downloads[-1][1].end
    # A repeated download makes the axis longer. The texts above the short downloads must not overlap then.
    figure = style.new_figure(max(13.0, 0.22 * (end - begin)), 6.5)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.06, right=0.985, top=0.735, bottom=0.1)
    top = max(LINKS.values()) / 1e6 * 1.12
    for index, (trial, found) in enumerate(downloads):
        series = rates(found.samples)
        for path, device in DEVICES.items():
            path_style = style.PATHS[path]
            values = style.smooth([rate.bits[device] / 1e6 for rate in series])
            label = path_style.label if index == 0 else "_"
            style.draw_path(axes, [rate.time for rate in series], values, style.PathStyle(label, path_style.color))
        axes.axvspan(found.start, found.end, color=style.BAND, zorder=0, linewidth=0)
        payload = style.INK if words[trial] else style.GOOD
        for text, height, size, weight, ink in (
            (trial.title, 1.145, 10, "bold", style.INK),
            (trial.subtitle, 1.085, 9, "normal", style.MUTED),
            (f"{found.goodput / 1e6:.0f} Mbit/s of payload", 1.02, 9.5, "bold", payload),
        ):
            middle = (found.start + found.end) / 2
            axes.text(middle, top * height, text, ha="center", va="bottom", fontsize=size, weight=weight, color=ink)
        if trial.is_capped:
            level, color = (trial.ethernet or 0) / 1e6, style.ETHERNET.color
            axes.hlines(level, found.start, found.end, colors=color, linestyles=style.DASHED, linewidth=1, zorder=4)
            axes.annotate(
                f"cap on Ethernet: {level:g} Mbit/s\n{words[trial]}".rstrip(), (found.end, level), xytext=(-4, 6),
                textcoords="offset points", ha="right", va="bottom", color=color, fontsize=9.5, weight="bold", zorder=5,
            )  # fmt: skip
    axes.set_xlim(begin - 0.4, end + 0.4)
    axes.set_ylim(0, top)
    style.label_axes(axes, "time in seconds", "received by the client, Mbit/s")
    style.heading(figure, TITLE, SUBTITLE, left=0.06)
    axes.legend(loc="upper center", frameon=False, fontsize=11, borderpad=0)
    style.save(figure, target)


@contextmanager
def demo_bed(chosen: Settings, cells: Sequence[Trial], seed: int) -> Iterator[Bed]:
    """Build the testbed, and start Apache and the proxy."""
    with Testbed(TWO_PATHS, seed=seed) as testbed:
        origin = start_origin(testbed["origin"], {trial.key: trial.size for trial in cells})
        proxy = start_proxy(testbed["proxy"])
        with Recorder(testbed["client"], list(DEVICES.values())) as recorder:
            yield Bed(testbed, origin, proxy, recorder)


SCENARIO: Scenario[Settings, Trial, Bed, Download] = Scenario(
    settings=Settings,
    needs=(
        "root", "namespaces", "veth", "mptcp", "mptcp-pm", "tbf", "htb", "ethtool", "apache2", "squid", "wget",
        "mptcpize",
    ),
    cells=lambda chosen: trials(ethernet_cap(), chosen.scale),
    runs=lambda *_: 1,
    shared_bed=lambda trial: "demo",
    attempts=1,
    bed=demo_bed,
    measure=measure,
    tables=(TABLE,),
    pictures=lambda results: [Picture("throughput", partial(draw, results))] if results.runs else [],
)  # fmt: skip
