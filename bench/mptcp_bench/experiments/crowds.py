# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a busy client can starve another: one client's requests while another client keeps Squid busy.

Squid runs with the shipped conf/squid.conf and one worker per processor. A client requests a small file repeatedly,
each time on a new Multipath TCP connection. An arm is the load at the same time: none, or one busy client with
Multipath TCP (``relay_load``). The busy client requests small files on nearly as many connections as the proxy accepts
from it; or downloads a large file; or opens a new connection for each small file, as fast as the proxy answers, without
or with the nftables limit (conf/nftables).

Latencies are compared within one round: the latency under load is divided by the latency without load, and by the busy
client's own latency. If n connections share a processor, each waits for n turns: latency rises, but the share is fair.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import nan

from mptcp_lab.testbed import Testbed, paths, services
from mptcp_lab.testbed.crowds import timed_requests, worker_descriptors
from mptcp_lab.testbed.features import missing
from mptcp_lab.testbed.services import PROXY_PORT, REPOSITORY, Origin, Proxy, wait_until
from mptcp_lab.testbed.topologies import with_second_client

from ..statistics import fmean, percentile
from .aims import Aim
from .columns import RUNS, Column, Results, Row, Table, Turn, by_round
from .parameters import choices, parameter, whole, yes_or_no
from .relay_load import requesting, user_memory
from .scenario import Scenario
from .tables import mean

ALONE, REQUESTS, DOWNLOADS, NEW, NEW_LIMITED = "alone", "requests", "downloads", "new", "new-limited"
CONNECTIONS = {REQUESTS: 720, DOWNLOADS: 200, NEW: 50, NEW_LIMITED: 50}
"""Number of a busy client's connections per worker. A hash distributes the connections unevenly, and each worker
accepts 800 connections from one address (too_many)."""
ARMS = (ALONE, *CONNECTIONS)
COMPARED = (REQUESTS, NEW)
"""Arms whose busy client requests the same file as the other client, one request after another on each connection."""
MAX_LATENCY_RATIO = 2.0
"""Maximum latency of the client, as a multiple of its latency without other load, and of the busy client's latency."""
REQUESTS_ALONE, REQUESTS_WITH_BUSY = 400, 40
"""Numbers of the client's requests without and with a busy client, with which a request takes up to a second, and
conf/nftables refuses more than 500 connections."""
NODE = "others"
"""Name of the second node."""
MAX_BUSY_CONNECTIONS = 4096
"""Maximum number of connections that native/relay_load.c can open."""
LARGE_BYTES = 200_000_000
"""Size in bytes of a file whose download takes longer than the client's requests."""
TABLE = REPOSITORY / "conf/nftables/limit-new-connections.nft"
LEAD_SECONDS = 1.0
"""Seconds that a busy client runs before the other client starts. The busy client's rate includes these seconds."""
SETTLE_TIMEOUT = 60.0
"""Seconds within which Squid must have closed all connections of clients that have ended."""
MAX_IDLE_DESCRIPTORS = 150
"""Maximum open descriptors of a worker without clients: logs, listeners, pipes, idle connections to the origin."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one arm in one round."""

    seconds: tuple[float, ...]
    """Latency in seconds of each answered request of the client."""
    failed: int
    """Number of the client's requests that were not answered."""
    multipath: int
    """Number of the client's connections that did not fall back to TCP."""
    open: int
    """Number of the busy client's connections that are open after the client's requests."""
    descriptors: float
    """Maximum of the open descriptors of a worker, as a share of its limit."""
    memory: int
    """Memory of Squid's processes in bytes."""
    answers: float = 0.0
    """Answers per second that the busy client receives."""
    octets: float = 0.0
    """Body bytes per second that the busy client receives."""

    @property
    def median(self) -> float:
        """The median of the client's latency; NaN if no request was answered."""
        return percentile(self.seconds, 50, default=nan)

    @property
    def tail(self) -> float:
        """The 95th percentile of the client's latency; NaN if no request was answered."""
        return percentile(self.seconds, 95, default=nan)

    @property
    def fairness(self) -> float:
        """The client's mean latency / the busy client's, which is its connections / its answers per second (Little)."""
        return fmean(self.seconds) * self.answers / self.open if self.seconds and self.open else nan


@dataclass(frozen=True, slots=True)
class Settings:
    arm: tuple[str, ...] = choices("loads to measure, in addition to none", ARMS)
    # One round would have no confidence interval.
    runs: int = parameter("number of rounds, at least 2", "10", whole(2), quick="3")
    turns: bool = parameter(
        "whether Squid serves clients in turns (no: mptcp-proxy run --turns kernel)", "yes", yes_or_no
    )


@contextmanager
def start_site(chosen: Settings, arms: Sequence[str], seed: int) -> Iterator[Site]:
    with Testbed(with_second_client(paths((None, None), name="crowds"), NODE), seed=seed) as testbed:
        origin = services.start_origin(testbed["origin"], {"file": 1000, "large": LARGE_BYTES})
        proxy = services.start_proxy(testbed["proxy"], arguments=() if chosen.turns else ("--turns", "kernel"))
        # Send some requests that are not measured: the first ones also need name lookups, memory and routes.
        timed_requests(testbed["client"], proxy, origin, REQUESTS_ALONE)
        yield Site(testbed, proxy, origin)


@dataclass(frozen=True, slots=True)
class Site:
    """A testbed with its services."""

    testbed: Testbed
    proxy: Proxy
    origin: Origin

    def check_emulation(self) -> None:
        self.testbed.check_emulation()

    def measure(self, turn: Turn[str]) -> Measured:
        """Measure the client's latencies in an arm, and Squid's resources. Raises TestbedError if this fails."""
        wait_until(self._is_settled, "the last connections are closed", timeout=SETTLE_TIMEOUT)
        return self._requests(REQUESTS_ALONE) if turn.cell == ALONE else self._with_busy(turn.cell)

    def _with_busy(self, arm: str) -> Measured:
        """Measure while a busy client uses many connections; in the ``new`` arms, one for each request."""
        count = min(CONNECTIONS[arm] * len(worker_descriptors(self.proxy)), MAX_BUSY_CONNECTIONS)
        is_new, file = arm in (NEW, NEW_LIMITED), "large" if arm == DOWNLOADS else "file"
        origin, proxy = self.origin.host.service_address(), self.proxy.host.service_address()
        close = "Connection: close\r\n" if is_new else ""
        request = f"GET http://{origin}/{file} HTTP/1.1\r\nHost: {origin}\r\n{close}\r\n"
        limit = ["nft", "-f", str(TABLE)], ["nft", "delete", "table", "inet", "mptcp_proxy_new_connections"]
        limited = self.testbed["proxy"].changed(*limit) if arm == NEW_LIMITED else nullcontext()
        busy = requesting(self.testbed[NODE], "mptcp", proxy, PROXY_PORT, count, 1 if is_new else -1, request)
        with limited, busy as load:
            wait_until(lambda: load.read().answered == count, f"{count} {arm} are answered", process=load.process)
            if arm == NEW_LIMITED:
                exhausted = "the burst limit is exhausted"
                wait_until(lambda: load.read().failures > 0, exhausted, process=load.process)
            begin, before = time.monotonic(), load.read()
            time.sleep(LEAD_SECONDS)
            measured = self._requests(REQUESTS_WITH_BUSY)
            seconds, after = time.monotonic() - begin, load.read()
        return replace(
            measured, open=after.answered, answers=(after.answers - before.answers) / seconds,
            octets=(after.octets - before.octets) / seconds,
        )  # fmt: skip

    def _requests(self, count: int) -> Measured:
        timed = timed_requests(self.testbed["client"], self.proxy, self.origin, count)
        descriptors = max(each.open / each.limit for each in worker_descriptors(self.proxy))
        memory = user_memory(self.proxy.process.pid)
        return Measured(tuple(timed.seconds), timed.failed, timed.multipath, 0, descriptors, memory)

    def _is_settled(self) -> bool:
        return all(each.open < MAX_IDLE_DESCRIPTORS for each in worker_descriptors(self.proxy))


Arm = Row[str, Measured]


def _latency(heading: str, name: str, text: str) -> tuple[Column[str, Measured], Column[str, Measured]]:
    """Return the columns of a latency in milliseconds, and divided by the same round's latency without load."""

    def ratios(row: Arm) -> list[float]:
        alone, loaded = by_round(row.results, ALONE), by_round(row.results, row.cell)
        rounds = [number for number in loaded if number in alone and row.cell != ALONE]
        return [getattr(loaded[number], name) / (getattr(alone[number], name) or nan) for number in rounds]

    return (
        Column(f"{heading} ms", name, scale=1e3),
        Column(
            f"{heading} × alone", ratios, by="upper bound", aim=f"{text} of the latency, × alone, upper bound",
            most=MAX_LATENCY_RATIO, text=lambda row: mean(ratios(row)) if ratios(row) else "",
        ),
    )  # fmt: skip


def _multipath(row: Arm) -> list[float]:
    """Return the share of all requests that used Multipath TCP."""
    requests = sum(len(each.seconds) + each.failed for each in row.measured)
    return [sum(each.multipath for each in row.measured) / requests] if requests else []


def _is_busy(row: Arm) -> bool:
    return row.cell != ALONE


def _is_compared(row: Arm) -> bool:
    return row.cell in COMPARED


COLUMNS: tuple[Column[str, Measured], ...] = (
    RUNS,
    Column("connections", "open", by="most", digits=0, filled=_is_busy),
    # A download is longer than the measurement, so a rate of answers has no meaning.
    Column("answers/s", "answers", digits=0, filled=lambda row: _is_busy(row) and row.cell != DOWNLOADS),
    Column("Mbit/s", "octets", scale=8e-6, filled=_is_busy),
    *_latency("median", "median", "median"),
    *_latency("95 %", "tail", "95th percentile"),
    Column(
        "mean × busy's", "fairness", by="upper bound", filled=_is_compared, judged=_is_compared,
        aim="mean latency, × that of the busy client's requests, upper bound", most=MAX_LATENCY_RATIO,
        text=lambda row: mean(row.values("fairness")),
    ),
    Column("failed", "failed", by="sum", digits=0, aim="requests that were refused or failed", most=0),
    Column("", _multipath, aim="share of requests over Multipath TCP", least=1),
    Column("", "descriptors", by="most", aim="descriptors of the fullest worker, × its limit", most=0.8),
    # At the 50 connections per second that conf/nftables allows, a busy client receives 50 kB per second.
    Column(
        "", "octets", by="least", scale=1e-3, aim="rate of the busy client", unit=" kB/s", least=10, judged=_is_busy
    ),
)  # fmt: skip


def memory(results: Results[str, Measured]) -> Iterator[Aim]:
    """Yield the aims for the memory of Squid's processes over all arms, because Squid keeps memory that it frees."""
    rounds: dict[int, list[int]] = {}
    for run in results.runs:
        rounds.setdefault(run.turn.number, []).append(run.measured.memory)
    if any(run.measured.open for run in results.runs):
        yield Aim("memory of Squid's processes", max(map(max, rounds.values())) / 1e6, " MB", most=500)
        growth = max(rounds[max(rounds)]) / max(rounds[min(rounds)])
        yield Aim("memory of Squid's processes, last round / first", growth, most=1.25)


def lacking(arm: str) -> str | None:
    """Return what this host lacks for *arm*; None if nothing is missing."""
    needed = {ALONE: (), NEW_LIMITED: ("gcc", "nftables")}.get(arm, ("gcc",))
    return next(filter(None, map(missing, needed)), None)


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "apache2", "squid"),
    cells=lambda chosen: [arm for arm in ARMS if arm == ALONE or arm in chosen.arm],
    bed=start_site,
    measure=Site.measure,
    tables=(Table("A client while another client is busy", COLUMNS, (("busy client", lambda row: row.cell),)),),
    shared_bed=lambda arm: "crowds",
    shuffled=True,
    skip_reason=lacking,
    verdicts=memory,
)
