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
from . import output as files
from .judging import SHORT, Measured, Outcome, perform
from .live import View
from .parts import PATHS, Part, parts

NEEDED = (
    "root", "namespaces", "veth", "mptcp", "mptcp-pm", "tbf", "htb",
    "ethtool", "apache2", "squid", "wget", "mptcpize",
)  # fmt: skip
ENDING = 0.3
"""Seconds at the end that are excluded from the steady state, because one path may finish before the other."""
PAUSE = 0.8
"""Seconds between two downloads, in which the queues drain. The picture shows the pause."""


class DemoError(Exception):
    """The demo did not show what it should; the text says why."""


@dataclass
class Stage:
    """The state that all downloads share."""

    testbed: Testbed
    origin: Origin
    proxy: Proxy
    recorder: Recorder
    view: View
    throttler: Throttler | None = None

    def measure(self, part: Part) -> Measured:
        """Run the download *part* and return its measurements."""
        if part.capped and self.throttler is None:
            node = self.testbed["proxy"]
            self.throttler = start_throttler(node, write_throttler_config(node, POLICY))
        through = self.proxy if part.multipath else None
        source = self.testbed["client"].address(part.source) if part.source else None
        argv = wget(self.origin.url(part.key), proxy=through, source=source, multipath=part.multipath)
        self.view.begin(f"{part.title}: {part.subtitle}")
        before = processors.read(own=os.getpid())
        limit = 4 * part.seconds + 10
        seen = download(
            lab_of(self.testbed), argv, timeout=limit, watch=lambda _: self.view.refresh(), may_time_out=True
        )
        used = processors.usage(before, processors.read(own=os.getpid()))
        start = seen.began - self.recorder.started
        ended = self.throttler.process.returncode if part.capped and self.throttler is not None else None
        return Measured(
            part,
            start,
            start + seen.ended,
            seen.octets,
            seen.sha256 == self.origin.digests[part.key],
            seen.protocol,
            processors=used,
            throttler=ended,
            broken_off=limit if seen.timed_out else None,
            **steady(part, self.recorder.samples, start, seen.ended),
        )

    def said(self, outcome: Outcome) -> None:
        """Print the outcome of a download, then let the queues drain."""
        for line in files.lines(outcome):
            self.view.say(line)
        time.sleep(PAUSE)


def steady(part: Part, samples: Sequence[Sample], start: float, duration: float) -> dict[str, Any]:
    """Compute the ``steady`` fields of :class:`Measured` from the *samples* of a download of *part*.

    The download began at *start* on the samples' clock and took *duration*. If the steady state is too short, the rates
    are those of the whole download.
    """
    end = duration - ENDING
    seconds = end - part.settle
    begin, until = (part.settle, end) if seconds >= SHORT else (0.0, duration)
    rates = {path.device: mean_rate(samples, path.device, start + begin, start + until) for path in PATHS}
    return {"steady": rates, "steady_seconds": seconds}


def run(output: Path, console: Console) -> None:
    """Run the demo, and write its files into *output*.

    Raises DemoError if a result is wrong, TestbedError if this host lacks something that the demo needs. If a goal was
    missed and the machine was too busy to judge the run, it prints a warning instead.
    """
    need(*NEEDED)
    output.mkdir(parents=True, exist_ok=True)
    files.forget(output, TWO_PATHS.nodes)
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
    with recorder:
        stage = Stage(testbed, origin, proxy, recorder, View(console, recorder, PATHS))
        verdict = perform(planned, stage.measure, stage.said)
    picture = output / files.PICTURE
    files.draw(picture, recorder.samples, verdict.outcomes, cap)
    files.save(output, recorder.samples, verdict)
    console.print()
    console.print(files.table(verdict.final))
    console.print(f"Picture: {picture}", highlight=False, soft_wrap=True)
    console.print(f"Numbers and logs: {output}", highlight=False, soft_wrap=True)
    if verdict.warning is not None:
        console.print(f"[yellow]Warning: {verdict.warning}[/]", highlight=False, soft_wrap=True)
    if verdict.failure is not None:
        raise DemoError(verdict.failure)
