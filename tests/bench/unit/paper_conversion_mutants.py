# SPDX-License-Identifier: GPL-2.0-or-later
"""Simulated proxies for Table 1's claims: in some all claims hold, in mutants one mechanism is broken.

A proxy draws the exchanges of each workload from a seed; they go through the same run and claims as captured ones.
``BREAKS`` names the mutants under which a claim must no longer hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mutants import rehearsed
from paper_mutants import Verdicts, differ, fail, undecided

from mptcp_bench.experiments.columns import Turn
from mptcp_bench.paper.conversion import BULKY, SCENARIO, SLOW_ORIGIN, SMALL, UPLOADS, delays
from mptcp_bench.paper.conversion_claims import MPTCP, Delays, Found
from mptcp_bench.wire.exchanges import Exchange
from mptcp_bench.wire.workload import Conversions, check_protocol
from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed import TestbedError

EACH = 20
"""Number of exchanges of a workload."""


@dataclass(frozen=True)
class Proxy:
    """Median durations of a proxy's steps, in seconds."""

    answer: float = 0.0005
    """From a SYN to its SYN/ACK, which only the kernel handles."""
    wait: float = 0.001
    """From the client's third ACK to its request."""
    connect: float = 0.0075
    """From the request to the SYN towards the origin."""
    request: float = 0.02
    response: float = 0.0234
    stream: float = 0.015
    """Duration for a segment that passes through user space without waiting."""
    bulk: float = 0.05
    least_idle: float = 0.01
    """Idle share of the busiest processor."""
    spread: float = 0.05
    falls_back: bool = False
    """Whether the client's connections fall back to plain TCP."""
    subflows: int = 2

    def exchange(self, draw: random.Random, *, multipath: bool = True) -> Exchange:
        def about(seconds: float) -> float:
            return seconds * draw.lognormvariate(0, self.spread)

        connect, wait, answer = about(self.connect), about(self.wait), about(self.answer)
        multipath = multipath and not self.falls_back
        return Exchange(
            "/x", multipath, False, self.subflows if multipath else 1, answer, syn=wait + connect,
            syn_whole=answer + wait + connect, syn_own=connect, request=about(self.request), up=(),
            down=(about(self.response),),
        )  # fmt: skip

    def conversions(self, draw: random.Random, *, multipath: bool) -> dict[str, Conversions]:
        """Return what a capture would show of each workload. Raise TestbedError if the run is not a data point."""
        few = [self.exchange(draw, multipath=multipath) for _ in range(EACH)]
        check_protocol(few, multipath=multipath)
        stream = [replace(e, up=(self.stream,) * 3, down=(self.stream,) * 3) for e in few]
        bulk = [replace(e, down=(self.bulk,) * 9) for e in few]
        return {
            key: Conversions(tuple(exchanges), Usage(0.0, self.least_idle, None, least_idle=self.least_idle))
            for key, exchanges in (
                (SMALL.key, few),
                (SLOW_ORIGIN.key, stream),
                (UPLOADS.key, stream),
                (BULKY.key, bulk),
            )
        }


PAPER = Proxy()
"""The paper's setup: a guest of ESXi with little memory and processor time."""
TODAY = Proxy(
    answer=15e-6, wait=60e-6, connect=280e-6, request=310e-6, response=210e-6, stream=40e-6, bulk=0.022,
    least_idle=0.5,
)  # fmt: skip
"""Durations measured on a current machine."""

Change = Callable[[Proxy], Proxy]


def _with(**changes: Any) -> Change:
    return lambda proxy: replace(proxy, **changes)


MUTANTS: dict[str, Change] = {
    "ten times as fast": _with(
        answer=5e-5, wait=1e-4, connect=75e-5, request=2e-3, response=2.34e-3, stream=1.5e-3, bulk=5e-3
    ),
    "ten times as slow": _with(answer=5e-3, wait=1e-2, connect=75e-3, request=0.2, response=0.234, stream=0.15),
    "SYN sent at once": _with(connect=0.0001),
    "SYN waits for the application": _with(connect=0.05),
    "content spliced in the kernel": _with(request=0.0004, response=0.0004, stream=0.0004),
    "busy, differently each time": _with(spread=3.0),
    "fallback to TCP": _with(falls_back=True),
    "second path not joined": _with(subflows=1),
}
_NONE = undecided("fallback to TCP", "second path not joined")
_SPEED = fail("ten times as fast", "ten times as slow")
BREAKS: dict[str, Verdicts] = {
    "syn": _SPEED | fail("SYN sent at once") | undecided("busy, differently each time") | _NONE,
    "data": _SPEED | fail("content spliced in the kernel") | _NONE,
    "data-slower": differ("SYN waits for the application", "content spliced in the kernel") | _NONE,
    "user-space": fail("content spliced in the kernel") | _NONE,
}
"""The verdict that each mutant must produce, by claim."""
UNEXPLAINED: dict[str, Change] = {
    # Squid is single-threaded, so an idle second processor does not help it.
    "syn": _with(least_idle=0.01),
    "data": _with(least_idle=0.01),
    "data-slower": _with(connect=30e-6, wait=300e-6),
}
"""Changes of ``TODAY`` that remove the mechanism by which a claim differs; the claim must then no longer differ."""


def experiment(proxy: Proxy, *, repetitions: int = 4, seed: int = 1) -> Found:
    """Measure *proxy*. A run that is not a data point is left out."""
    draw = random.Random(seed)

    def measure(turn: Turn[str]) -> dict[str, Delays] | None:
        multipath = turn.cell == MPTCP
        try:
            return delays(proxy.conversions(draw, multipath=multipath), multipath=multipath)
        except TestbedError:
            return None

    return rehearsed(SCENARIO, {"repetitions": str(repetitions)}, measure)
