# SPDX-License-Identifier: GPL-2.0-or-later
"""Table 1: how long the proxy takes to turn a segment of MPTCP into one of TCP, and back.

A client sends requests one after another, each on its own connection and with its own target. tcpdump on the proxy's
host records the time of each packet on both sides, from which ``wire`` computes intervals. Rules:

- The shipped configuration is used, but without persistent connections to the origin: a reused connection has no SYN.
- If MPTCP is wanted, every request uses it: a run with a fallback is not a data point. The same requests by plain TCP
  through the same proxy, right before or after, show what MPTCP adds.
- Waiting is distinguished from conversion. Only the bulk downloads are delayed by the paths: their bytes wait in the
  proxy for the client's window, as in any proxy between a fast and a slow link.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

from mptcp_lab.testbed.commands import TestbedError
from mptcp_lab.testbed.host import Lab
from mptcp_lab.testbed.services import start_origin, start_proxy

from ..statistics import percentile
from ..wire.workload import ORIGIN_PORT, Conversions, Workload, measure, squid_configuration
from .results import (
    BULK,
    DATA,
    DOWN,
    IDLE,
    LEAST_IDLE,
    MPTCP,
    PARTS,
    PROTOCOLS,
    STREAM,
    SYN,
    UP,
    WHOLE,
    Case,
    Run,
    metric_of_median,
)

ATTEMPTS = 3
"""How often a workload is tried before its repetition is left without a run."""
SMALL = Workload("small", 120, 1024)
PACED = Workload("paced", 5, 262_144, origin_rate=10_000_000)
FAST = Workload("bulk", 4, 1_048_576)
UPLOAD = Workload("upload", 20, 1024, up=65_536)
WORKLOADS = (SMALL, PACED, FAST, UPLOAD)
ROUNDS, QUICK_ROUNDS = 5, 1
CASES = tuple(Case(key, title, {"client": title}) for key, title in PROTOCOLS.items())


def workloads(*, emulated: bool) -> tuple[Workload, ...]:
    """Return the workloads that can be measured. On real hosts, the origin's link cannot be shaped."""
    return tuple(w for w in WORKLOADS if emulated or w.origin_rate is None)


def runs(
    lab: Lab,
    *,
    congestion_control: str,
    repetitions: int,
    seed: int,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Run]:
    """Start origin and proxy on *lab* and measure *repetitions* times, in an order drawn from *seed*.

    Each repetition yields a run per protocol, with all workloads. A failed attempt is yielded with its reason, and
    repeated a few times. *check* raises TestbedError if the emulation of the paths has failed since its last call.

    :raises TestbedError: origin or proxy does not start, or the proxy's kernel lacks the *congestion_control*
    """
    todo = workloads(emulated=lab.emulated)
    draw = random.Random(seed)
    origin = start_origin(lab.origin, {f"{w.down}.bin": w.down for w in todo}, ports=(ORIGIN_PORT,))
    proxy = start_proxy(lab.proxy, squid_configuration(lab.proxy), control=congestion_control)
    for number in range(1, repetitions + 1):
        measured: dict[str, dict[str, Conversions]] = {protocol: {} for protocol in PROTOCOLS}
        for workload in draw.sample(todo, len(todo)):
            for protocol in draw.sample(list(PROTOCOLS), len(PROTOCOLS)):
                for _ in range(ATTEMPTS):
                    try:
                        got = measure(lab, proxy.url(), origin, workload, multipath=protocol == MPTCP)
                        # Check at once, so that a failure is attributed to this workload of this protocol.
                        check()
                    except TestbedError as error:
                        yield Run(protocol, number, valid=False, reason=str(error))
                    else:
                        measured[protocol][workload.key] = got
                        break
        for protocol, parts in measured.items():
            if len(parts) == len(todo):
                yield run_of(protocol, number, parts)


def run_of(protocol: str, number: int, measured: Mapping[str, Conversions]) -> Run:
    """Return the run with all *measured* workloads. With MPTCP it is valid if some connection had two subflows."""
    parts = {key: conversions.exchanges for key, conversions in measured.items()}
    if protocol == MPTCP and all(e.subflows < 2 for exchanges in parts.values() for e in exchanges):
        return Run(protocol, number, valid=False, reason="no second subflow was established")
    small, paced = parts[SMALL.key], parts.get(PACED.key, ())
    seconds = {
        f"{SYN} {UP}": [e.syn for e in small],
        f"{WHOLE} {UP}": [e.syn_whole for e in small],
        f"{DATA} {UP}": [e.request for e in small],
        f"{DATA} {DOWN}": [value for e in small for value in e.down],
        f"{STREAM} {UP}": [value for e in parts[UPLOAD.key] for value in e.up],
        f"{STREAM} {DOWN}": [value for e in paced for value in e.down],
        f"{BULK} {DOWN}": [value for e in parts[FAST.key] for value in e.down],
    }
    delays = {name: tuple(round(value, 9) for value in values) for name, values in seconds.items() if values}
    values = {metric_of_median(name): percentile(values, 50) for name, values in delays.items()}
    values |= {part: percentile([getattr(e, part) for e in small], 50) for part in PARTS}
    used = measured[SMALL.key].processors
    values[IDLE] = used.idle
    if used.least_idle is not None:
        values[LEAST_IDLE] = used.least_idle
    return Run(protocol, number, valid=True, values=values, distributions=delays)
