# SPDX-License-Identifier: GPL-2.0-or-later
"""Goodput over both paths through the proxy. Rates without a policy are medians; a cap's rate is the worst round's.

- Without a policy (HTTP GET and CONNECT, IPv4 and IPv6), goodput is at least 95 % of what both links can carry.
- With conf/policy.yaml, the capped path is within 5 % of its rate, and the other carries at least 95 % of its link.
- With that policy, these are not slowed down: a connection with one subflow, and a client that speaks plain TCP.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console

from mptcp_lab.testbed import TWO_PATHS, Testbed, TestbedError, lab_of
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.recorder import mean_rate
from mptcp_lab.testbed.services import (
    Origin,
    Proxy,
    mptcp_command,
    start_origin,
    start_proxy,
    start_throttler,
    write_throttler_config,
)
from mptcp_lab.testbed.transfer import download

from ..shipped import POLICY, ethernet_cap
from .aims import aims_table
from .findings import Findings
from .goodput_judging import CELLS, Cell, Measurement, judge, void
from .two_paths import one_subflow

SETTLE = 5.0
"""Seconds from the start of a capped download to its steady state."""
FILES = {"both": 120_000_000, "capped": 60_000_000, "ethernet": 75_000_000}
"""Bytes of each file. A download takes 6 to 15 seconds."""


def run(console: Console, seed: int, quick: bool) -> Findings:
    """Measure every kind of download, in an order drawn for each round."""
    need("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "curl", "mptcpize")
    rounds = 1 if quick else 3
    cap = ethernet_cap()
    draw = random.Random(seed)
    measured: list[Measurement] = []
    with Testbed(TWO_PATHS) as testbed:
        origin = start_origin(testbed["origin"], FILES)
        proxy = start_proxy(testbed["proxy"])
        for number in range(rounds):
            cells = draw.sample(CELLS, len(CELLS))
            # Start the throttler once per round. Alternate whether downloads with or without it come first.
            for policy in (number % 2 == 1, number % 2 == 0):
                with throttled(testbed) if policy else ExitStack():
                    for cell in cells:
                        if cell.policy is policy:
                            measured.append(measure(testbed, origin, proxy, cell))
                            show(console, number + 1, measured[-1])
    aims = judge(measured, rounds, cap)
    data: dict[str, Any] = {
        "rounds": rounds,
        "measurements": [asdict(m) for m in measured],
    }
    return Findings((aims_table(f"Goodput, {rounds} rounds", aims),), data, aims=tuple(aims))


@contextmanager
def throttled(testbed: Testbed) -> Iterator[None]:
    """Run the throttler with conf/policy.yaml until the end of the scope."""
    throttler = start_throttler(testbed["proxy"], write_throttler_config(testbed["proxy"], POLICY))
    try:
        yield
    finally:
        throttler.process.stop()


def measure(testbed: Testbed, origin: Origin, proxy: Proxy, cell: Cell) -> Measurement:
    """Run one download and return its rates."""
    url = origin.url(cell.file, family=cell.family, port=443 if cell.connect else 80)
    argv = ["curl", "-sSf", "-x", proxy.url(cell.family), *(["--proxytunnel"] if cell.connect else []), url]
    if cell.multipath:
        argv = mptcp_command(argv)
    with ExitStack() as stack:
        if cell.subflows == 1:
            stack.enter_context(one_subflow(testbed))
        lab = lab_of(testbed)
        seen = download(lab, argv, timeout=120)
    if why := void(cell, seen.protocol):
        raise TestbedError(why)
    start = SETTLE if cell.policy else 1.0
    steady = {path.device: mean_rate(seen.samples, path.name, start, seen.ended - 0.3) for path in lab.paths}
    return Measurement(cell, seen.goodput, steady, seen.sha256 == origin.digests[cell.file], seen.protocol)


def show(console: Console, number: int, m: Measurement) -> None:
    rates = ", ".join(f"{device} {rate / 1e6:.2f}" for device, rate in m.steady.items())
    console.print(f"round {number}: {m.cell.name}: {m.goodput / 1e6:.1f} Mbit/s ({rates})", highlight=False)
