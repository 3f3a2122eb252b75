# SPDX-License-Identifier: GPL-2.0-or-later
"""Run the demo: build the testbed, start services, download several times, judge."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from mptcp_lab.agent import processors
from mptcp_lab.testbed import TWO_PATHS, Testbed, lab_of
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate
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

from ..shipped import POLICY, ethernet_cap
from . import output as results
from .judging import MIN_STEADY_SECONDS, Download, failure, last_of_each_part, perform, warning
from .parts import PATHS, Part, parts

REQUIREMENTS = (
    "root", "namespaces", "veth", "mptcp", "mptcp-pm", "tbf", "htb",
    "ethtool", "apache2", "squid", "wget", "mptcpize",
)  # fmt: skip
EXCLUDED_END_SECONDS = 0.3
"""Seconds at the end that are excluded from the steady state, because one path may finish before the other."""
PAUSE = 0.8
"""Seconds between two downloads, in which the queues drain. The picture shows the pause."""
BAR_WIDTH = 24
"""Width of the bar of a full path in columns."""
LINE_INTERVAL = 1.0
"""Seconds between two lines with the current rates."""


class DemoError(Exception):
    """The demo did not show what it should; the text says why."""


@dataclass
class DemoState:
    """The state that all downloads share."""

    testbed: Testbed
    origin: Origin
    proxy: Proxy
    recorder: Recorder
    console: Console
    throttler: Throttler | None = None
    start: float = 0.0
    next_line: float = 0.0

    def measure(self, part: Part) -> Download:
        """Run the download *part* and return its measurements."""
        if part.capped and self.throttler is None:
            node = self.testbed["proxy"]
            self.throttler = start_throttler(node, write_throttler_config(node, POLICY))
        through = self.proxy if part.multipath else None
        source = self.testbed["client"].address(part.source) if part.source else None
        argv = wget(self.origin.url(part.key), proxy=through, source=source, multipath=part.multipath)
        self.print(f"{part.title}: {part.subtitle}")
        self.start = time.monotonic()
        self.next_line = self.start + LINE_INTERVAL
        before, limit = processors.read(own=os.getpid()), 4 * part.seconds + 10
        transfer = download(
            lab_of(self.testbed), argv, timeout=limit, watch=lambda _: self.print_rates(), may_time_out=True
        )
        used = processors.usage(before, processors.read(own=os.getpid()))
        start = transfer.began - self.recorder.started
        return Download(
            part,
            start,
            start + transfer.ended,
            transfer.octets,
            transfer.sha256 == self.origin.digests[part.key],
            transfer.protocol,
            processors=used,
            throttler_exit_status=self.throttler.process.returncode if part.capped and self.throttler else None,
            aborted_after=limit if transfer.timed_out else None,
            **steady(part, self.recorder.samples, start, transfer.ended),
        )

    def print(self, line: str | Text) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)

    def print_rates(self) -> None:
        """Print the current rate of each path if the last line is old enough."""
        now = time.monotonic()
        if now < self.next_line:
            return
        self.next_line = now + LINE_INTERVAL
        current, full = self.recorder.current(LINE_INTERVAL), max(path.rate for path in PATHS)
        line = Text(f"{now - self.start:6.0f} s")
        for path in PATHS:
            rate = current[path.device]
            bar = "█" * round(BAR_WIDTH * min(1.0, rate / full))
            line.append(f"  {path.label} {rate / 1e6:6.1f} Mbit/s {bar:{BAR_WIDTH}}", style=path.color)
        self.print(line)

    def report(self, finished: Download) -> None:
        """Print the lines about a download, then let the queues drain."""
        for line in results.lines(finished):
            self.print(line)
        time.sleep(PAUSE)


def steady(part: Part, samples: Sequence[Sample], start: float, duration: float) -> dict[str, Any]:
    """Compute the ``steady`` fields of :class:`Download` from the *samples* of a download of *part*.

    The download began at *start* on the samples' clock and took *duration*. If the steady state is too short, the rates
    are those of the whole download.
    """
    end = duration - EXCLUDED_END_SECONDS
    seconds = end - part.settle
    begin, until = (part.settle, end) if seconds >= MIN_STEADY_SECONDS else (0.0, duration)
    rates = {path.device: mean_rate(samples, path.device, start + begin, start + until) for path in PATHS}
    return {"steady": rates, "steady_seconds": seconds}


def run(output: Path, console: Console) -> None:
    """Run the demo, and write its files into *output*.

    Raises DemoError if a result is wrong, TestbedError if this host lacks something that the demo needs. If a goal was
    missed and the machine was too busy to judge the run, it prints a warning instead.
    """
    need(*REQUIREMENTS)
    output.mkdir(parents=True, exist_ok=True)
    # After an early end, the picture and the numbers of an earlier demo must not look like results.
    for name in (results.PICTURE, results.NUMBERS):
        (output / name).unlink(missing_ok=True)
    with Testbed(TWO_PATHS) as testbed:
        try:
            _downloads(testbed, output, console)
        finally:
            for log in sorted(testbed.directory.glob("**/*.log")):
                shutil.copyfile(log, output / "-".join(log.relative_to(testbed.directory).parts))


def _downloads(testbed: Testbed, output: Path, console: Console) -> None:
    console.print("Building client, core, proxy and origin; starting Apache and the proxy …", style="dim")
    cap = ethernet_cap()
    planned = parts(cap)
    origin = start_origin(testbed["origin"], {part.key: part.size for part in planned})
    proxy = start_proxy(testbed["proxy"])
    recorder = Recorder(testbed["client"], [path.device for path in PATHS])
    state = DemoState(testbed, origin, proxy, recorder, console)
    with recorder:
        downloads = perform(planned, state.measure, state.report)
    conclude(downloads, recorder.samples, cap, output, console)


def conclude(
    downloads: Sequence[Download], samples: Sequence[Sample], cap: int, output: Path, console: Console
) -> None:
    """Write picture and numbers, and print the table. Raises DemoError if a part failed."""
    final = last_of_each_part(downloads)
    picture = output / results.PICTURE
    results.draw(picture, samples, downloads, cap)
    results.save(output, samples, downloads)
    console.print()
    console.print(results.table(final))
    lines = [f"Picture: {picture}", f"Numbers and logs: {output}"]
    if text := warning(final):
        lines.append(f"[yellow]Warning: {text}[/]")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    if text := failure(final):
        raise DemoError(text)
