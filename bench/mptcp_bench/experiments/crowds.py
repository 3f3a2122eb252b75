# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether one client can starve others: a client's requests beside thousands of idle connections or a busy client.

Squid runs with the shipped conf/squid.conf and one worker per processor. A client requests a small file again and
again, each time on a new Multipath TCP connection. An arm is what runs beside this client. In the first arm it is
alone. In the next arms a second node with many addresses, none of which exceeds its share, holds idle connections:
2,000 that never finish their request, 5,000 kept alive after one answer, 500 tunnels without data, or all of these. In
one arm a single address opens more than its share.

In the last arms the second node is one busy client with Multipath TCP (``relay_load``). It requests small files on
nearly as many connections as the proxy accepts from it; or downloads a large file; or opens a new connection for each
small file, as fast as the proxy answers; or does the last with the table of conf/nftables loaded.

The seed draws the order of the arms in each round. ``--set limits=no`` removes the limits per address, and must miss an
aim. ``--set turns=no`` shows the latency if clients do not take turns.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial

from rich.console import Console
from rich.table import Table

from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.crowds import Timed, add_addresses, crowd, timed_requests, worker_descriptors
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.services import (
    PROXY_PORT,
    REPOSITORY,
    SQUID_CONFIG,
    Origin,
    Proxy,
    start_origin,
    start_proxy,
    wait_until,
)
from mptcp_lab.testbed.topologies import with_second_client

from .aims import aims_table
from .attempts import Attempts
from .crowds_judging import (
    ALL,
    ALONE,
    ARMS,
    BUSY,
    COMPARED,
    DOWNLOADS,
    NEW,
    NEW_LIMITED,
    ONE_ADDRESS,
    PERCENTILES,
    REQUESTS,
    SHARE,
    Measured,
    aims,
    ratios,
)
from .findings import Findings
from .options import choice, count, yes
from .relay_load import Load, asking
from .relay_memory import user_memory
from .tables import mean, new_table

ASKED, QUICK_ASKED = 1000, 200
ASKED_BESIDE_BUSY = 40
"""Most requests beside a busy client: each takes up to a second, and conf/nftables refuses more than 500
connections."""
OPTIONS = {
    "arm": f"{', '.join(ARMS)}; default all",
    "runs": "rounds, 2 or more, default 10, with --quick 3",
    "requests": f"of the client in an arm, default 1000, --quick 200; beside a busy one at most {ASKED_BESIDE_BUSY}",
    "limits": "yes (default), or no: without those of squid.conf for one address, which must miss an aim",
    "turns": "yes (default), or no: clients do not take turns (mptcp-proxy run --turns kernel)",
}
RUNS, QUICK_RUNS = 10, 3
COUNTS = {"slow-headers": 2000, "keep-alives": 5000, "tunnels": 500}
SMALLER = 10
"""With --quick, the counts are divided by this number, except that of the single address."""
ADDRESSES = {"slow-headers": 3, "keep-alives": 10, "tunnels": 1}
EXCESS = 1.25
"""The single address opens this multiple of its share of connections."""
NODE = "others"
FIRST_ADDRESS = 10
"""Last byte of the second node's first address."""
CONNECTIONS = {REQUESTS: 720, DOWNLOADS: 200, NEW: 50, NEW_LIMITED: 50}
"""Connections of a busy client per worker. A hash distributes them unevenly, and each worker accepts 800 of one address
(too_many)."""
MOST_CONNECTIONS = 4096
"""Most connections that native/relay_load.c can open."""
LARGE = 200_000_000
"""Size of the downloaded file in bytes. Its download takes longer than the client's requests."""
TABLE = REPOSITORY / "conf/nftables/limit-new-connections.nft"
UNDER_WAY = 1.0
"""Seconds that a busy client runs before the other client starts. Its rate is measured from their beginning."""
IN_ORDER = sorted(COUNTS, key=lambda kind: kind == "slow-headers")
"""The order in which idle connections are opened. slow-headers come last, because Squid closes them after a minute
(request_timeout)."""
SETTLED = 60.0
"""Seconds within which Squid must have closed all connections of clients that have ended."""
IDLE = 150
"""Most open descriptors of a worker without clients: logs, listeners, pipes, idle connections to the origin."""
REFUSED = "http_access deny too_many\n"
NO_LIMITS = "client_ip_max_connections -1\nrequest_timeout 10 minutes\n"
WARNING = "filedescriptors"
"""Matches Squid's "WARNING! Your cache is running out of filedescriptors"."""


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Run the arms that *options* choose, and always the client alone."""
    arms = [arm for arm in ARMS if arm == ALONE or arm in choice(options, "arm", ARMS)]
    # At least two rounds, because one has no confidence interval.
    runs = count(options, "runs", QUICK_RUNS if quick else RUNS, least=2)
    requests = count(options, "requests", QUICK_ASKED if quick else ASKED)
    limits = yes(options, "limits", True)
    turns = yes(options, "turns", True)
    need(
        "root",
        "mptcp",
        "apache2",
        "squid",
        *("gcc",) * any(a in BUSY for a in arms),
        *("nftables",) * (NEW_LIMITED in arms),
    )
    draw = random.Random(seed)
    attempts = Attempts(console)
    measured: list[Measured] = []
    with Testbed(with_second_client(paths((None, None), name="crowds"), NODE), seed=seed) as testbed:
        site = Site.built(testbed, requests, SMALLER if quick else 1, limits, turns)
        before = site.memory()
        for number in range(runs):
            for arm in draw.sample(arms, len(arms)):
                what = f"round {number + 1}, {arm}"
                found = attempts.of(partial(site.measure, arm, number), what, check=testbed.check_emulation)
                if found is not None:
                    console.print(f"{what}: {1e3 * found.latency(50):.2f} ms", style="dim", highlight=False)
                    measured.append(found)
    asked = aims(measured, arms, runs, before)
    data = {"before": before, "measured": [asdict(each) for each in measured]}
    tables = [table_of(measured, arms), aims_table(f"Crowds, {runs} rounds", asked)]
    if any(each.arm in BUSY for each in measured):
        tables.insert(1, busy_table(measured, arms))
    return attempts.judged(Findings(tuple(tables), data, aims=tuple(asked)))


@dataclass(frozen=True, slots=True)
class Site:
    """A testbed with its services, and the second node's addresses by kind of connection."""

    testbed: Testbed
    proxy: Proxy
    origin: Origin
    requests: int
    counts: Mapping[str, int]
    connections: Mapping[str, int]
    """Number of connections of a busy client, by arm."""
    addresses: Mapping[str, Sequence[str]]

    @classmethod
    def built(cls, testbed: Testbed, requests: int, smaller: int = 1, limits: bool = True, turns: bool = True) -> Site:
        """Start the services. Raises TestbedError if one fails to start."""
        origin = start_origin(testbed["origin"], {"file": 1000, "large": LARGE})
        host = testbed["proxy"]
        unlimited = SQUID_CONFIG.read_text().replace(REFUSED, "") + NO_LIMITS
        config = SQUID_CONFIG if limits else host.write("proxy-no-limits.conf", unlimited)
        proxy = start_proxy(host, config, arguments=() if turns else ("--turns", "kernel"))
        numbers = range(FIRST_ADDRESS, FIRST_ADDRESS + sum(ADDRESSES.values()))
        left = iter(add_addresses(testbed[NODE], "eth0", numbers))
        addresses = {kind: [next(left) for _ in range(many)] for kind, many in ADDRESSES.items()}
        each = CONNECTIONS if limits else CONNECTIONS | {REQUESTS: round(EXCESS * SHARE)}
        workers = len(worker_descriptors(proxy))
        busy = {arm: min(n * workers // smaller, MOST_CONNECTIONS) for arm, n in each.items()}
        counts = {kind: n // smaller for kind, n in COUNTS.items()}
        site = cls(testbed, proxy, origin, requests, counts, busy, addresses)
        # Send some requests that are not measured: the first ones pay for name lookups, memory and routes.
        timed_requests(testbed["client"], proxy, origin, requests)
        return site

    def measure(self, arm: str, number: int) -> Measured:
        """Return the client's latencies beside *arm*, and Squid's resources. Raises TestbedError if that fails."""
        wait_until(self._is_settled, "the last connections are closed", timeout=SETTLED)
        warned = self._warnings()
        if arm in BUSY:
            return self._beside_busy(arm, number, warned)
        with ExitStack() as stack:
            crowds = [
                stack.enter_context(crowd(self.testbed[NODE], self.proxy, self.origin, kind, many, addresses))
                for kind, many, addresses in self._parts(arm)
            ]
            if arm == ONE_ADDRESS:
                # Squid accepts the connections beyond the share and then closes them. Wait until it has.
                crowds[0].settled()
            timed = timed_requests(self.testbed["client"], self.proxy, self.origin, self.requests)
            opened, standing = sum(many for _, many, _ in self._parts(arm)), sum(each.standing() for each in crowds)
            return self._measured(arm, number, timed, opened, standing, warned)

    def _beside_busy(self, arm: str, number: int, warned: int) -> Measured:
        asked, many = min(self.requests, ASKED_BESIDE_BUSY), self.connections[arm]
        with self._limited() if arm == NEW_LIMITED else nullcontext(), self._busy(arm, many) as load:
            wait_until(lambda: load.read().standing == many, f"{many} {arm} are answered", process=load.process)
            if arm == NEW_LIMITED:
                wait_until(
                    lambda: load.read().failures > 0, "what it may open at once is used up", process=load.process
                )
            begin, before = time.monotonic(), load.read()
            time.sleep(UNDER_WAY)
            timed = timed_requests(self.testbed["client"], self.proxy, self.origin, asked)
            seconds, after = time.monotonic() - begin, load.read()
            found = self._measured(arm, number, timed, many, after.standing, warned)
        answers, octets = after.answers - before.answers, after.octets - before.octets
        return replace(found, answers=answers / seconds, octets=octets / seconds)

    def _busy(self, arm: str, many: int) -> AbstractContextManager[Load]:
        """Keep a client busy on *many* connections. In the ``new`` arms it opens one for each request."""
        origin, file = self.origin.host.service_address(), "large" if arm == DOWNLOADS else "file"
        is_new = arm in (NEW, NEW_LIMITED)
        close = "Connection: close\r\n" if is_new else ""
        request = f"GET http://{origin}/{file} HTTP/1.1\r\nHost: {origin}\r\n{close}\r\n"
        proxy = self.proxy.host.service_address()
        return asking(self.testbed[NODE], "mptcp", proxy, PROXY_PORT, many, 1 if is_new else -1, request)

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Limit a client's new connections per second, as conf/nftables does."""
        self.testbed["proxy"].run(["nft", "-f", str(TABLE)])
        try:
            yield
        finally:
            self.testbed["proxy"].run(["nft", "delete", "table", "inet", "mptcp_proxy_new_connections"])

    def _measured(self, arm: str, number: int, timed: Timed, opened: int, standing: int, warned: int) -> Measured:
        workers = worker_descriptors(self.proxy)
        return Measured(
            arm=arm,
            round=number,
            seconds=tuple(timed.seconds),
            failed=timed.failed,
            multipath=timed.multipath,
            opened=opened,
            standing=standing,
            workers=len(workers),
            descriptors=max(each.open / each.limit for each in workers),
            memory=self.memory(),
            warnings=self._warnings() - warned,
        )

    def memory(self) -> int:
        """Return the memory of Squid's process tree in bytes (sum of proportional set sizes)."""
        return user_memory(self.proxy.process.pid)

    def _parts(self, arm: str) -> list[tuple[str, int, Sequence[str]]]:
        """Return kind, number and addresses of the connections that *arm* opens beside the client, in opening order."""
        if arm == ONE_ADDRESS:
            many = round(EXCESS * SHARE * len(worker_descriptors(self.proxy)))
            return [("slow-headers", many, self.addresses["slow-headers"][:1])]
        kinds = IN_ORDER if arm == ALL else [kind for kind in IN_ORDER if kind == arm]
        return [(kind, self.counts[kind], self.addresses[kind]) for kind in kinds]

    def _is_settled(self) -> bool:
        return all(each.open < IDLE for each in worker_descriptors(self.proxy))

    def _warnings(self) -> int:
        return (self.proxy.logs / "cache.log").read_text(errors="replace").count(WARNING)


def table_of(measured: Sequence[Measured], arms: Sequence[str]) -> Table:
    """Return the table of idle arms: means over the rounds; for memory and descriptors the maximum."""
    columns = (
        "beside", "rounds", "median ms", "95 % ms", "median × alone", "95 % × alone", "failed",
        "stand", "most descriptors, × limit", "most memory, MB",
    )  # fmt: skip
    table = new_table("A client beside connections that ask for nothing", columns, left=("beside",))
    for arm in arms:
        there = [each for each in measured if each.arm == arm]
        if not there or arm in BUSY:
            continue
        table.add_row(
            arm, str(len(there)), *_latencies(measured, arm),
            str(sum(each.failed for each in there)),
            "" if arm == ALONE else f"{min(e.standing for e in there):,} of {max(e.opened for e in there):,}",
            f"{max(each.descriptors for each in there):.3f}", f"{max(each.memory for each in there) / 1e6:.0f}",
        )  # fmt: skip
    return table


def busy_table(measured: Sequence[Measured], arms: Sequence[str]) -> Table:
    """Return the table of the arms with a busy client, with the busy client's own rates."""
    columns = (
        "beside", "rounds", "connections", "answers/s", "Mbit/s", "median ms", "95 % ms", "median × alone",
        "95 % × alone", "mean × the busy client's", "failed",
    )  # fmt: skip
    table = new_table("A client beside one that is busy", columns, left=("beside",))
    for arm in (each for each in arms if each in BUSY):
        there = [each for each in measured if each.arm == arm]
        if not there:
            continue
        table.add_row(
            arm, str(len(there)), f"{max(each.standing for each in there):,}",
            # A download is longer than the measurement, so its answers per second mean nothing.
            "" if arm == DOWNLOADS else mean([each.answers for each in there], digits=0),
            mean([8 * each.octets for each in there], 1e-6), *_latencies(measured, arm),
            mean([each.due for each in there]) if arm in COMPARED else "", str(sum(each.failed for each in there)),
        )  # fmt: skip
    return table


def _latencies(measured: Sequence[Measured], arm: str) -> list[str]:
    """Return the latency percentiles of *arm* in milliseconds, then as multiples of the client's latency alone."""
    there = [each for each in measured if each.arm == arm]
    relative = [ratios(measured, arm, percent) for percent in PERCENTILES]
    return [
        *(mean([each.latency(percent) for each in there], 1e3) for percent in PERCENTILES),
        *("" if arm == ALONE or not each else mean(each) for each in relative),
    ]
