# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether one client can starve others: a client's requests while others have thousands of connections or are busy.

Squid runs with the shipped conf/squid.conf and one worker per processor. A client requests a small file repeatedly,
each time on a new Multipath TCP connection. An arm is the other load at the same time. The first arm has no other
load. In the next arm a second node with many addresses, none of which exceeds its share, holds idle connections:
2,000 that never finish their request, 5,000 kept alive after one answer, and 500 tunnels without data.

In the last arms the second node is one busy client with Multipath TCP (``relay_load``). It requests small files on
nearly as many connections as the proxy accepts from it; or downloads a large file; or opens a new connection for each
small file, as fast as the proxy answers; or opens connections in the same way while the nftables limit is loaded
(conf/nftables).

The seed determines the order of the arms in each round. ``--set turns=no`` shows the latency if clients do not take
turns. Latencies are compared within one round: the latency under the other load is divided by the latency without it.
With a busy client, the latency is also compared with the busy client's own latency. If n connections share a processor,
each waits for n turns. Latency rises, but the share is fair.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import nan

from mptcp_lab.testbed import Testbed, paths, services
from mptcp_lab.testbed.crowds import Timed, add_addresses, crowd, timed_requests, worker_descriptors
from mptcp_lab.testbed.features import missing
from mptcp_lab.testbed.services import PROXY_PORT, REPOSITORY, Origin, Proxy, wait_until
from mptcp_lab.testbed.topologies import with_second_client

from ..statistics import fmean, percentile
from .aims import Aim
from .columns import RUNS, Column, Results, Row, Table, Turn, by_round
from .parameters import parameter, whole, words, yes_or_no
from .relay_load import Load, asking, user_memory
from .scenario import Scenario
from .tables import mean

ALONE, ALL = "alone", "all"
REQUESTS, DOWNLOADS, NEW, NEW_LIMITED = "requests", "downloads", "new", "new-limited"
BUSY = (REQUESTS, DOWNLOADS, NEW, NEW_LIMITED)
ARMS = (ALONE, ALL, *BUSY)
COMPARED = (REQUESTS, NEW)
"""Arms whose busy client requests the same file as the first client, one request after another on each connection."""
LONGER = 2.0
"""Maximum latency of the client, as a multiple of its latency without other load."""
DUE = 2.0
"""Maximum mean latency of the client, as a multiple of the busy client's mean time per request."""
BUSY_RATE = 10e3
"""Minimum bytes per second that a busy client receives. At the 50 connections per second that conf/nftables allows, it
receives 50 kB per second."""
DESCRIPTORS = 0.8
"""Maximum open descriptors of the worker with the most, as a share of its limit."""
MEMORY, EACH = 500e6, 60e3
"""Maximum memory of all Squid processes, and maximum growth of this memory per connection, in bytes."""
GROWTH = 1.25
"""Maximum memory in the last round, as a multiple of the memory in the first round."""
ASKED_BESIDE_BUSY = 40
"""Maximum number of the client's requests with a busy client: each takes up to a second, and conf/nftables refuses more
than 500 connections."""
IDLE_CONNECTIONS = {"keep-alives": (5000, 10), "tunnels": (500, 1), "slow-headers": (2000, 3)}
"""Number of idle connections and of their addresses, by kind, in the order in which they are opened. slow-headers come
last, because Squid closes these connections after a minute (request_timeout)."""
NODE = "others"
"""Name of the second node."""
FIRST_ADDRESS = 10
"""Last byte of the second node's first address."""
CONNECTIONS = {REQUESTS: 720, DOWNLOADS: 200, NEW: 50, NEW_LIMITED: 50}
"""Number of a busy client's connections per worker. A hash distributes the connections unevenly, and each worker
accepts 800 connections from one address (too_many)."""
MOST_CONNECTIONS = 4096
"""Maximum number of connections that native/relay_load.c can open."""
LARGE = 200_000_000
"""Size of the downloaded file in bytes. Its download takes longer than the client's requests."""
TABLE = REPOSITORY / "conf/nftables/limit-new-connections.nft"
UNDER_WAY = 1.0
"""Seconds that a busy client runs before the other client starts. The busy client's rate includes these seconds."""
SETTLED = 60.0
"""Seconds within which Squid must have closed all connections of clients that have ended."""
IDLE = 150
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
    opened: int
    """Number of connections that the second node tried to open."""
    standing: int
    """Number of these connections that are still open after the client's requests."""
    descriptors: float
    """Open descriptors of the worker with the most, as a share of its limit."""
    memory: int
    """Memory of Squid's processes in bytes."""
    before: int
    """Memory of Squid's processes in bytes, without any connection."""
    answers: float = 0.0
    """Answers per second that a busy client receives."""
    octets: float = 0.0
    """Body bytes per second that a busy client receives."""

    @property
    def middle(self) -> float:
        """The median of the client's latency; NaN if no request was answered."""
        return percentile(self.seconds, 50, default=nan)

    @property
    def tail(self) -> float:
        """The 95th percentile of the client's latency; NaN if no request was answered."""
        return percentile(self.seconds, 95, default=nan)

    @property
    def kept(self) -> float:
        """Connections of the second node that are still open, as a share of those that it tried to open."""
        return _share(self.standing, self.opened)

    @property
    def due(self) -> float:
        """The client's mean latency / the busy client's, which is its connections / its answers per second (Little)."""
        if not self.seconds or not self.standing:
            return nan
        return fmean(self.seconds) * self.answers / self.standing


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``--set`` chooses."""

    arm: tuple[str, ...] = parameter(
        "what runs beside the client; it is always measured alone", ",".join(ARMS), words(*ARMS)
    )
    # At least two rounds, because one has no confidence interval.
    runs: int = parameter("rounds, 2 or more", "10", whole(2), quick="3")
    requests: int = parameter(
        f"of the client in an arm; beside a busy one at most {ASKED_BESIDE_BUSY}", "1000", whole(), quick="200"
    )
    smaller: int = parameter("divides the numbers of connections", "1", whole(), quick="10")
    turns: bool = parameter("no: clients do not take turns (mptcp-proxy run --turns kernel)", "yes", yes_or_no)


@contextmanager
def built(chosen: Settings, arms: Sequence[str], seed: int) -> Iterator[Site]:
    with Testbed(with_second_client(paths((None, None), name="crowds"), NODE), seed=seed) as testbed:
        yield Site.built(testbed, chosen)


@dataclass(frozen=True, slots=True)
class Site:
    """A testbed with its services, and the second node's addresses by kind of connection."""

    testbed: Testbed
    chosen: Settings
    proxy: Proxy
    origin: Origin
    addresses: Mapping[str, Sequence[str]]
    before: int
    """Memory of Squid's processes in bytes, without any connection."""

    @classmethod
    def built(cls, testbed: Testbed, chosen: Settings) -> Site:
        """Start the services. Raises TestbedError if one fails to start."""
        origin = services.start_origin(testbed["origin"], {"file": 1000, "large": LARGE})
        host = testbed["proxy"]
        proxy = services.start_proxy(host, arguments=() if chosen.turns else ("--turns", "kernel"))
        numbers = range(FIRST_ADDRESS, FIRST_ADDRESS + sum(many for _, many in IDLE_CONNECTIONS.values()))
        left = iter(add_addresses(testbed[NODE], "eth0", numbers))
        addresses = {kind: [next(left) for _ in range(many)] for kind, (_, many) in IDLE_CONNECTIONS.items()}
        # Send some requests that are not measured: the first ones also need name lookups, memory and routes.
        timed_requests(testbed["client"], proxy, origin, chosen.requests)
        return cls(testbed, chosen, proxy, origin, addresses, user_memory(proxy.process.pid))

    def check_emulation(self) -> None:
        self.testbed.check_emulation()

    def measure(self, turn: Turn[str]) -> Measured:
        """Measure the client's latencies in an arm, and Squid's resources. Raises TestbedError if this fails."""
        arm = turn.cell
        wait_until(self._is_settled, "the last connections are closed", timeout=SETTLED)
        if arm in BUSY:
            return self._beside_busy(arm)
        counts = {kind: many // self.chosen.smaller for kind, (many, _) in IDLE_CONNECTIONS.items() if arm == ALL}
        with ExitStack() as stack:
            crowds = [
                stack.enter_context(
                    crowd(self.testbed[NODE], self.proxy, self.origin, kind, many, self.addresses[kind])
                )
                for kind, many in counts.items()
            ]
            timed = timed_requests(self.testbed["client"], self.proxy, self.origin, self.chosen.requests)
            return self._measured(timed, sum(counts.values()), sum(each.standing() for each in crowds))

    def _beside_busy(self, arm: str) -> Measured:
        many = min(CONNECTIONS[arm] * len(worker_descriptors(self.proxy)) // self.chosen.smaller, MOST_CONNECTIONS)
        asked = min(self.chosen.requests, ASKED_BESIDE_BUSY)
        with self._limited() if arm == NEW_LIMITED else nullcontext(), self._busy(arm, many) as load:
            wait_until(lambda: load.read().standing == many, f"{many} {arm} are answered", process=load.process)
            if arm == NEW_LIMITED:
                used_up = "what it may open at once is used up"
                wait_until(lambda: load.read().failures > 0, used_up, process=load.process)
            begin, before = time.monotonic(), load.read()
            time.sleep(UNDER_WAY)
            timed = timed_requests(self.testbed["client"], self.proxy, self.origin, asked)
            seconds, after = time.monotonic() - begin, load.read()
            found = self._measured(timed, many, after.standing)
        answers, octets = after.answers - before.answers, after.octets - before.octets
        return replace(found, answers=answers / seconds, octets=octets / seconds)

    def _busy(self, arm: str, many: int) -> AbstractContextManager[Load]:
        """Keep a client busy on *many* connections. In the ``new`` arms it opens a connection for each request."""
        origin, file = self.origin.host.service_address(), "large" if arm == DOWNLOADS else "file"
        is_new = arm in (NEW, NEW_LIMITED)
        close = "Connection: close\r\n" if is_new else ""
        request = f"GET http://{origin}/{file} HTTP/1.1\r\nHost: {origin}\r\n{close}\r\n"
        proxy = self.proxy.host.service_address()
        return asking(self.testbed[NODE], "mptcp", proxy, PROXY_PORT, many, 1 if is_new else -1, request)

    def _limited(self) -> AbstractContextManager[None]:
        """Limit a client's new connections per second, as conf/nftables does."""
        undo = ["nft", "delete", "table", "inet", "mptcp_proxy_new_connections"]
        return self.testbed["proxy"].changed(["nft", "-f", str(TABLE)], undo)

    def _measured(self, timed: Timed, opened: int, standing: int) -> Measured:
        workers = worker_descriptors(self.proxy)
        return Measured(
            seconds=tuple(timed.seconds),
            failed=timed.failed,
            multipath=timed.multipath,
            opened=opened,
            standing=standing,
            descriptors=max(each.open / each.limit for each in workers),
            memory=user_memory(self.proxy.process.pid),
            before=self.before,
        )

    def _is_settled(self) -> bool:
        return all(each.open < IDLE for each in worker_descriptors(self.proxy))


Arm = Row[str, Measured]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else nan


def times_alone(row: Arm, percent: str) -> list[float]:
    """Return, for each round with both, the latency percentile in the arm / the percentile without other load."""
    alone, beside = by_round(row.results, ALONE), by_round(row.results, row.cell)
    both = [number for number in beside if number in alone and row.cell != ALONE]
    return [getattr(beside[number], percent) / (getattr(alone[number], percent) or nan) for number in both]


def _latency(heading: str, percent: str, what: str) -> tuple[Column[str, Measured], Column[str, Measured]]:
    """Return the columns of a latency percentile in milliseconds, and as a multiple of the one without other load."""

    def values(row: Arm) -> list[float]:
        return times_alone(row, percent)

    def text(row: Arm) -> str:
        return mean(values(row)) if values(row) else ""

    aim = f"{what} of the latency, × alone, upper bound"
    return (
        Column(f"{heading} ms", percent, scale=1e3),
        Column(f"{heading} × alone", values, by="upper bound", aim=aim, most=LONGER, text=text),
    )


def _multipath(row: Arm) -> list[float]:
    """Return the share of all requests that used Multipath TCP."""
    requests = sum(len(each.seconds) + each.failed for each in row.measured)
    return [_share(sum(each.multipath for each in row.measured), requests)] if row.measured else []


def _stand(row: Arm) -> str:
    there = row.measured
    return f"{min(each.standing for each in there):,} of {max(each.opened for each in there):,}"


def _among(*arms: str) -> Callable[[Arm], bool]:
    """Return a function that returns whether a row belongs to one of *arms*."""
    return lambda row: row.cell in arms


(MEDIAN, MEDIAN_ALONE), (TAIL, TAIL_ALONE) = (
    _latency("median", "middle", "median"),
    _latency("95 %", "tail", "95th percentile"),
)
FAILED: Column[str, Measured] = Column(
    "failed", "failed", by="sum", digits=0, aim="requests that were refused or failed", most=0
)
DESCRIPTORS_USED: Column[str, Measured] = Column(
    "most descriptors, × limit", "descriptors", by="most", digits=3,
    aim="descriptors of the fullest worker, × its limit", most=DESCRIPTORS,
)  # fmt: skip
MULTIPATH: Column[str, Measured] = Column("", _multipath, aim="requests by Multipath TCP, share", least=1)
BESIDE = (("beside", lambda row: row.cell),)
TABLES: tuple[Table[str, Measured], ...] = (
    Table(
        "A client beside connections that ask for nothing",
        (
            RUNS, MEDIAN, TAIL, MEDIAN_ALONE, TAIL_ALONE, FAILED,
            Column("stand", "standing", filled=lambda row: row.cell != ALONE, text=_stand),
            DESCRIPTORS_USED,
            Column("most memory, MB", "memory", by="most", scale=1e-6, digits=0),
            MULTIPATH,
            Column("", "kept", by="least", aim="connections that stand, share", least=1, judged=_among(ALL)),
        ),
        BESIDE,
        of=_among(ALONE, ALL),
    ),
    Table(
        "A client beside one that is busy",
        (
            RUNS,
            Column("connections", "standing", by="most", digits=0),
            # A download is longer than the measurement, so its answers per second mean nothing.
            Column("answers/s", "answers", digits=0, filled=lambda row: row.cell != DOWNLOADS),
            Column("Mbit/s", "octets", scale=8e-6),
            MEDIAN, TAIL, MEDIAN_ALONE, TAIL_ALONE,
            Column("mean × the busy client's", "due", filled=_among(*COMPARED)),
            FAILED,
            MULTIPATH,
            replace(DESCRIPTORS_USED, heading=""),
            Column("", "octets", by="least", scale=1e-3, aim="the busy client gets", unit=" kB/s",
                   least=BUSY_RATE / 1e3),
            Column("", "due", by="upper bound", aim="mean latency, × that of the busy client's requests, upper bound",
                   most=DUE, judged=_among(*COMPARED)),
        ),
        BESIDE,
        of=_among(*BUSY),
    ),
)  # fmt: skip


def memory(results: Results[str, Measured]) -> Iterator[Aim]:
    """Yield the aims for the memory of Squid's processes over all arms, because Squid keeps memory that it frees."""
    rounds: dict[int, list[int]] = {}
    for run in results.runs:
        rounds.setdefault(run.turn.number, []).append(run.measured.memory)
    if not any(run.measured.standing for run in results.runs):
        return
    yield Aim("memory of Squid's processes", max(map(max, rounds.values())) / 1e6, " MB", most=MEMORY / 1e6)
    growth = max(rounds[max(rounds)]) / max(rounds[min(rounds)])
    yield Aim("their memory, last round / first", growth, most=GROWTH)
    # Exclude the arms with busy clients: their few connections have larger buffers.
    idle = [run.measured for run in results.runs if run.turn.cell not in BUSY]
    if most := max((each.standing for each in idle), default=0):
        grown = max(each.memory - each.before for each in idle)
        what = "their memory for each connection of the most that stood"
        yield Aim(what, grown / most / 1e3, " kB", most=EACH / 1e3)


def lacking(arm: str) -> str | None:
    """Return what this host lacks for *arm* in particular; None if nothing is missing."""
    needed = ("gcc", "nftables") if arm == NEW_LIMITED else ("gcc",) if arm in BUSY else ()
    return next(filter(None, map(missing, needed)), None)


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "apache2", "squid"),
    cells=lambda chosen: [arm for arm in ARMS if arm == ALONE or arm in chosen.arm],
    bed=built,
    measure=Site.measure,
    tables=TABLES,
    together=lambda arm: "crowds",
    drawn=True,
    lacking=lacking,
    counted=lambda row: "rounds",
    verdicts=memory,
)
