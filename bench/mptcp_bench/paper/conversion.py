# SPDX-License-Identifier: GPL-2.0-or-later
"""Table 1: the time that the proxy takes to convert a segment of MPTCP to a segment of TCP, and back.

A client sends requests one after another, each on its own connection and with its own target. tcpdump on the proxy's
host records the time of each packet on both sides, from which ``wire`` computes intervals. Rules:

- The shipped configuration is used, but without persistent connections to the origin: a reused connection has no SYN.
- If MPTCP is wanted, every request uses MPTCP: a run with a fallback is not a data point. The same requests by plain
  TCP through the same proxy, right before or after, show the time that MPTCP adds.
- Waiting is distinguished from conversion. Only the bulk downloads are delayed by the paths: their bytes wait in the
  proxy for the client's window, as in any proxy between a fast and a slow link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mptcp_lab.testbed.host import Lab
from mptcp_lab.testbed.services import start_origin, start_proxy

from ..statistics import percentile
from ..wire.workload import ORIGIN_PORT, Conversions, Workload, measure, squid_configuration
from .results import (
    BULK,
    DATA,
    DOWN,
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


@dataclass(frozen=True, slots=True)
class Requests:
    """One workload by one protocol."""

    workload: Workload
    protocol: str

    def __str__(self) -> str:
        return f"{self.workload.key}, {PROTOCOLS[self.protocol]}"


class Converter:
    """Origin and proxy on a lab, whose proxy is measured."""

    def __init__(self, lab: Lab, todo: Sequence[Workload], control: str, check: Callable[[], None]) -> None:
        """Start both. *check* raises if the emulation failed. Raises TestbedError."""
        self._lab, self.check_emulation = lab, check
        self._origin = start_origin(lab.origin, {f"{w.down}.bin": w.down for w in todo}, ports=(ORIGIN_PORT,))
        self._proxy = start_proxy(lab.proxy, squid_configuration(lab.proxy), control=control)

    def measure(self, cell: Requests) -> Conversions:
        """Send the requests of *cell*. Raises TestbedError if they are not a data point."""
        url, multipath = self._proxy.url(), cell.protocol == MPTCP
        return measure(self._lab, url, self._origin, cell.workload, multipath=multipath)


def runs_of(measured: Iterable[tuple[Requests, int, Conversions]], todo: Sequence[Workload]) -> tuple[Run, ...]:
    """Return the runs: all workloads of one protocol in one repetition, by its number, without incomplete runs."""
    parts: dict[tuple[int, str], dict[str, Conversions]] = {}
    for cell, number, found in measured:
        parts.setdefault((number, cell.protocol), {})[cell.workload.key] = found
    whole = ((protocol, number, found) for (number, protocol), found in parts.items() if len(found) == len(todo))
    return tuple(run_of(*each) for each in whole)


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
    if used.least_idle is not None:
        values[LEAST_IDLE] = used.least_idle
    return Run(protocol, number, valid=True, values=values, distributions=delays)
