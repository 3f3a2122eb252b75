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
from mptcp_lab.testbed.services import PROXY_PORT, REPOSITORY, wait_until
from mptcp_lab.testbed.topologies import with_second_client

from ..statistics import fmean, median
from .columns import RUNS, Column, Row, Table, Turn, by_round
from .parameters import choices, parameter, whole, yes_or_no
from .relay_load import requesting
from .scenario import Scenario
from .setup import ProxySite

ALONE, REQUESTS, DOWNLOADS, NEW, NEW_LIMITED = "alone", "requests", "downloads", "new", "new-limited"
CONNECTIONS = {REQUESTS: 720, DOWNLOADS: 200, NEW: 50, NEW_LIMITED: 50}
"""Number of a busy client's connections per worker. A hash distributes the connections unevenly, and each worker
accepts 800 connections from one address (too_many)."""
COMPARED = (REQUESTS, NEW)
"""Arms whose busy client requests the same file as the other client, one request after another on each connection."""
MAX_LATENCY_RATIO = 2.0
"""Maximum latency of the client, as a multiple of its latency without other load, and of the busy client's latency."""
REQUESTS_ALONE, REQUESTS_WITH_BUSY = 400, 40
"""Numbers of the client's requests without and with a busy client. With it, a request may take a second, and
conf/nftables limits the client's new connections."""
BUSY_NODE = "others"
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

    latencies: tuple[float, ...]
    """Latency in seconds of each answered request of the client."""
    failures: int
    """Number of the client's requests that were not answered."""
    multipath_connections: int
    """Number of the client's connections that did not fall back to TCP."""
    busy_connections: int = 0
    """Number of the busy client's connections that are open after the client's requests."""
    busy_answers: float = 0.0
    """Answers per second that the busy client receives."""
    busy_bytes: float = 0.0
    """Body bytes per second that the busy client receives."""

    @property
    def median(self) -> float:
        """The median of the client's latency; NaN if no request was answered."""
        return median(self.latencies, default=nan)

    @property
    def fairness(self) -> float:
        """The client's mean latency, divided by the busy client's: connections / answers per second (Little's law)."""
        if not self.latencies or not self.busy_connections:
            return nan
        return fmean(self.latencies) * self.busy_answers / self.busy_connections

    @property
    def multipath_share(self) -> float:
        return self.multipath_connections / (len(self.latencies) + self.failures)


@dataclass(frozen=True, slots=True)
class Settings:
    arm: tuple[str, ...] = choices("loads to measure, in addition to none", (ALONE, *CONNECTIONS))
    # One round would have no confidence interval.
    runs: int = parameter("number of rounds, at least 2", "10", whole(2), quick="3")
    turns: bool = parameter(
        "whether Squid serves clients in turns (no: mptcp-proxy run --turns kernel)", "yes", yes_or_no
    )


@contextmanager
def start_site(chosen: Settings, arms: Sequence[str], seed: int) -> Iterator[ProxySite]:
    with Testbed(with_second_client(paths((None, None), name="crowds"), BUSY_NODE), seed=seed) as testbed:
        origin = services.start_origin(testbed["origin"], {"file": 1000, "large": LARGE_BYTES})
        proxy = services.start_proxy(testbed["proxy"], arguments=() if chosen.turns else ("--turns", "kernel"))
        # Send some requests that are not measured: the first ones also need name lookups, memory and routes.
        timed_requests(testbed["client"], proxy, origin, REQUESTS_ALONE)
        yield ProxySite(testbed, proxy, origin)


def measure(site: ProxySite, turn: Turn[str]) -> Measured:
    """Measure the client's latencies in an arm."""

    def is_settled() -> bool:
        return all(each.open < MAX_IDLE_DESCRIPTORS for each in worker_descriptors(site.proxy))

    wait_until(is_settled, "the last connections are closed", timeout=SETTLE_TIMEOUT)
    return send_requests(site, REQUESTS_ALONE) if turn.cell == ALONE else measure_with_busy(site, turn.cell)


def measure_with_busy(site: ProxySite, arm: str) -> Measured:
    """Measure while a busy client uses many connections; in the ``new`` arms, one for each request."""
    count = min(CONNECTIONS[arm] * len(worker_descriptors(site.proxy)), MAX_BUSY_CONNECTIONS)
    is_new, file = arm in (NEW, NEW_LIMITED), "large" if arm == DOWNLOADS else "file"
    origin, proxy = site.origin.host.service_address(), site.proxy.host.service_address()
    close = "Connection: close\r\n" if is_new else ""
    request = f"GET http://{origin}/{file} HTTP/1.1\r\nHost: {origin}\r\n{close}\r\n"
    limit = ["nft", "-f", str(TABLE)], ["nft", "delete", "table", "inet", "mptcp_proxy_new_connections"]
    limited = site.testbed["proxy"].changed(*limit) if arm == NEW_LIMITED else nullcontext()
    busy = requesting(site.testbed[BUSY_NODE], "mptcp", proxy, PROXY_PORT, count, 1 if is_new else -1, request)
    with limited, busy as load:
        load.wait(
            lambda counters: counters.answered == count, f"{count} connections of the busy client have had an answer"
        )
        if arm == NEW_LIMITED:
            load.wait(lambda counters: counters.failures > 0, "the burst limit is exhausted")
        begin, before = time.monotonic(), load.read()
        time.sleep(LEAD_SECONDS)
        measured = send_requests(site, REQUESTS_WITH_BUSY)
        seconds, after = time.monotonic() - begin, load.read()
    return replace(
        measured, busy_connections=after.answered, busy_answers=(after.answers - before.answers) / seconds,
        busy_bytes=(after.octets - before.octets) / seconds,
    )  # fmt: skip


def send_requests(site: ProxySite, count: int) -> Measured:
    timed = timed_requests(site.testbed["client"], site.proxy, site.origin, count)
    return Measured(tuple(timed.seconds), timed.failed, timed.multipath)


def ratios(row: Row[str, Measured]) -> list[float]:
    """Return, for each round, the median latency divided by the median without load."""
    alone, loaded = by_round(row.results, ALONE), by_round(row.results, row.cell)
    rounds = [number for number in loaded if number in alone and row.cell != ALONE]
    return [loaded[number].median / (alone[number].median or nan) for number in rounds]


COLUMNS: tuple[Column[str, Measured], ...] = (
    RUNS,
    Column("connections", "busy_connections", by="most", digits=0),
    Column("answers/s", "busy_answers", digits=0),
    Column("Mbit/s", "busy_bytes", scale=8e-6),
    Column("median ms", "median", scale=1e3),
    Column("median × alone", ratios),
    Column("", ratios, "upper bound", "median of the latency, × alone, upper bound", most=MAX_LATENCY_RATIO),
    Column(
        "", lambda row: row.values("fairness") if row.cell in COMPARED else [], "upper bound",
        "mean latency, × that of the busy client's requests, upper bound", most=MAX_LATENCY_RATIO,
    ),
    Column("failed", "failures", "most", "requests that were refused or failed", digits=0, most=0),
    Column("", "multipath_share", "least", "share of requests over Multipath TCP", least=1),
)  # fmt: skip
SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "apache2", "squid", "gcc", "nftables", "mptcpize"),
    cells=lambda chosen: [ALONE, *(arm for arm in CONNECTIONS if arm in chosen.arm)],
    bed=start_site,
    measure=measure,
    tables=(Table("A client while another client is busy", COLUMNS, (("busy client", lambda row: row.cell),)),),
    shared_bed=lambda arm: "crowds",
    shuffled=True,
)
