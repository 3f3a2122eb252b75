# SPDX-License-Identifier: GPL-2.0-or-later
"""Run the demo: build the testbed, start services, download several times, judge."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from mptcp_lab.agent import processors
from mptcp_lab.testbed import TWO_PATHS, Host, Testbed, lab_of
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.recorder import Recorder
from mptcp_lab.testbed.services import (
    PROXY_PORT,
    Origin,
    Proxy,
    Throttler,
    start_origin,
    start_proxy,
    start_throttler,
    write_throttler_config,
)
from mptcp_lab.testbed.transfer import download, wget

from ..live import View
from ..shipped import POLICY, ethernet_cap
from . import output as files
from .judging import Measured, Outcome, perform
from .parts import PATHS, Part, parts
from .steady import steady

SYSCTL = Path("/proc/sys/net/ipv4")
NEEDED = (
    "root", "namespaces", "veth", "mptcp", "mptcp-pm", "tbf", "htb",
    "ethtool", "apache2", "squid", "wget", "mptcpize",
)  # fmt: skip
PAUSE = 0.8
"""Seconds between two downloads, in which the queues drain. The picture shows the gap."""


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
        controls: set[str] = set()

        def watch(elapsed: float) -> None:
            if through is not None and not controls:
                controls.update(congestion_control(through.host))
            self.view.refresh()

        self.view.begin(f"{part.title}: {part.subtitle}")
        before = processors.read(own=os.getpid())
        limit = 4 * part.seconds + 10
        seen = download(lab_of(self.testbed), argv, timeout=limit, watch=watch, may_time_out=True)
        used = processors.usage(before, processors.read(own=os.getpid()))
        ended = self.throttler.process.returncode if part.capped and self.throttler is not None else None
        start = seen.began - self.recorder.started
        found = steady(part, self.recorder.samples, start, seen.ended)
        return Measured(
            part,
            start,
            start + seen.ended,
            seen.octets,
            seen.sha256 == self.origin.digests[part.key],
            seen.protocol,
            found.rates,
            found.seconds,
            used,
            ended,
            tuple(sorted(controls)),
            found.closing,
            limit if seen.timed_out else None,
            self.guarded() if part.capped and ended is None else None,
        )

    def guarded(self) -> str | None:
        """Return a text about the data that the guard let pass; None if the guard did nothing."""
        assert self.throttler is not None
        counted = self.throttler.status()["counters"]["guard"]
        if not counted["relaxations"]:
            return None
        lacking, relaxed = (f"{counted[name] / 1e6:.1f} MB" for name in ("lacking_bytes", "relaxed_bytes"))
        return (
            f"the guard relaxed the cap {counted['relaxations']} times: Wi-Fi carried {lacking} less than before, "
            f"Ethernet {relaxed} meanwhile"
        )

    def said(self, outcome: Outcome) -> None:
        """Print the outcome of a download, then let the queues drain."""
        for line in files.lines(outcome):
            self.view.finish(line)
        self.view.rest(PAUSE)


def congestion_control(proxy: Host) -> frozenset[str]:
    """Return the congestion controls of the subflows between *proxy* and its client, by ss(8)."""
    shown = proxy.run(["ss", "-Htin", "state", "established", "sport", "=", f":{PROXY_PORT}"]).stdout
    known = (SYSCTL / "tcp_available_congestion_control").read_text().split()
    return frozenset(word for word in shown.split() if word in known)


def run(output: Path, console: Console) -> None:
    """Run the demo, and write its files into *output*.

    Raises DemoError if a result is wrong, TestbedError if this host lacks something that the demo needs. If a goal was
    missed and the machine was too busy to judge that, it prints a warning instead.
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
    with recorder, View(console, recorder, PATHS) as view:
        stage = Stage(testbed, origin, proxy, recorder, view)
        verdict = perform(planned, stage.measure, stage.said)
    picture = files.draw(output, recorder.samples, verdict, cap)
    files.save(output, recorder.samples, verdict)
    console.print()
    console.print(files.table(verdict.final))
    console.print(f"Picture: {picture}", highlight=False, soft_wrap=True)
    console.print(f"Numbers and logs: {output}", highlight=False, soft_wrap=True)
    if verdict.warning is not None:
        console.print(f"[yellow]Warning: {verdict.warning}[/]", highlight=False, soft_wrap=True)
    if verdict.failure is not None:
        raise DemoError(verdict.failure)
