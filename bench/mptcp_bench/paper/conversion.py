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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mptcp_lab.testbed.commands import TestbedError
from mptcp_lab.testbed.host import Lab
from mptcp_lab.testbed.services import SQUID_CONFIG, start_origin, start_proxy

from ..experiments.columns import RUNS, Column, Row, Table, Turn
from ..experiments.scenario import Scenario
from ..statistics import percentiles
from ..wire.exchanges import Exchange
from ..wire.workload import ORIGIN_PORT, Workload, measure
from . import conversion_claims as claims
from .conversion_claims import Delays
from .settings import Settings, build_lab, check_host

SMALL = Workload(120, 1024)
SLOW_ORIGIN = Workload(5, 262_144, origin_rate=10_000_000)
BULKY = Workload(4, 1_048_576)
UPLOADS = Workload(20, 1024, up=65_536)
WORKLOADS = (SMALL, SLOW_ORIGIN, BULKY, UPLOADS)


class Converter:
    """Measures the proxy of a lab, between the lab's client and origin."""

    def __init__(self, hosts: Lab, settings: Settings, check_emulation: Callable[[], None]) -> None:
        """Start origin and proxy. Raises TestbedError."""
        self._lab, self.check_emulation = hosts, check_emulation
        # The link of a real origin cannot be shaped.
        self._workloads = [w for w in WORKLOADS if settings.inventory is None or w.origin_rate is None]
        files = {f"{w.down}.bin": w.down for w in self._workloads}
        self._origin = start_origin(hosts.origin, files, ports=(ORIGIN_PORT,))
        configuration = f"{SQUID_CONFIG.read_text()}\nserver_persistent_connections off\n"
        self._proxy = start_proxy(hosts.proxy, hosts.proxy.write("conversion-squid.conf", configuration))

    def measure(self, turn: Turn[str]) -> dict[str, Delays]:
        """Send the requests of all workloads. Raises TestbedError if the run is not a data point."""
        multipath = turn.cell == claims.MPTCP
        measured = {
            each: measure(self._lab, self._proxy.url(), self._origin, each, multipath=multipath)
            for each in self._workloads
        }
        found = {workload: exchanges for workload, (exchanges, _) in measured.items()}
        if multipath and all(exchange.subflows < 2 for exchanges in found.values() for exchange in exchanges):
            raise TestbedError("no second subflow was established")
        idle = measured[SMALL][1].least_idle
        return {kind: Delays(seconds, idle) for kind, seconds in delays(found).items() if seconds}


def delays(found: Mapping[Workload, Sequence[Exchange]]) -> dict[str, tuple[float, ...]]:
    """Return the delays in seconds by kind of segment."""
    small = found[SMALL]
    seconds: dict[str, Sequence[float]] = {
        claims.SYN: [e.syn for e in small],
        claims.SYN_AFTER_SYN: [e.syn_after_syn for e in small],
        claims.SYN_AFTER_REQUEST: [e.syn_after_request for e in small],
        claims.ANSWER: [e.answer for e in small],
        claims.REQUEST: [e.request for e in small],
        claims.RESPONSE: [value for e in small for value in e.down],
        claims.UPLOAD: [value for e in found[UPLOADS] for value in e.up],
        claims.DOWNLOAD: [value for e in found.get(SLOW_ORIGIN, ()) for value in e.down],
        claims.BULK: [value for e in found[BULKY] for value in e.down],
    }
    return {kind: tuple(round(value, 9) for value in values) for kind, values in seconds.items()}


def delays_of_all_runs(measured: Sequence[Delays]) -> list[float]:
    """Return the delays of all runs together, in milliseconds."""
    return [1e3 * seconds for each in measured for seconds in each.seconds]


def _percentile(heading: str, percent: float) -> Column[Any, Any]:
    return Column(heading, lambda row: percentiles(delays_of_all_runs(row.measured), (percent,)), digits=3)


def _delay_of_the_paper(row: Row[str, Delays]) -> Sequence[float]:
    return [claims.PAPER_MS[row.part]] if row.part in claims.PAPER_MS else []


@contextmanager
def _bed(chosen: Settings, cells: Sequence[str], seed: int) -> Iterator[Converter]:
    with build_lab(chosen, seed) as (hosts, check):
        yield Converter(hosts, chosen, check)


SCENARIO: Scenario[Settings, str, Converter, Delays] = Scenario(
    settings=Settings,
    needs=(),
    check_host=check_host,
    cells=lambda chosen: (claims.MPTCP, claims.TCP),
    runs=lambda chosen, *_: chosen.repetitions or (1 if chosen.short else 5),
    shared_bed=lambda cell: "table1",
    shuffled=True,
    bed=_bed,
    measure=lambda converter, turn: converter.measure(turn),
    parts=lambda cell: claims.KINDS,
    tables=(
        Table(
            "Delays: in ms, of all runs together and as the median of each run",
            (
                RUNS,
                Column("segments", lambda row: [len(delays_of_all_runs(row.measured))], digits=0),
                _percentile("median", 50),
                _percentile("p95", 95),
                _percentile("p99", 99),
                Column("median of a run", lambda row: [each.median for each in row.measured], digits=3),
                Column("paper", _delay_of_the_paper, digits=1),
                Column("idle, %", "least_idle", scale=100, digits=1),
            ),
            labels=(("client", lambda row: row.cell), ("segment", lambda row: row.part)),
            wrapped=("segment",),
        ),
    ),
    verdicts=claims.verdicts,
)
