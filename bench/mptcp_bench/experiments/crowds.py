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

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace

from mptcp_lab.testbed import Testbed, paths, services
from mptcp_lab.testbed.crowds import Timed, add_addresses, crowd, timed_requests, worker_descriptors
from mptcp_lab.testbed.features import missing
from mptcp_lab.testbed.services import PROXY_PORT, REPOSITORY, SQUID_CONFIG, Origin, Proxy, wait_until
from mptcp_lab.testbed.topologies import with_second_client

from . import crowds_judging as judging
from .columns import Turn
from .crowds_judging import ALL, ALONE, ARMS, BUSY, DOWNLOADS, NEW, NEW_LIMITED, ONE_ADDRESS, REQUESTS, Measured
from .parameters import parameter, whole, words, yes_or_no
from .relay_load import Load, asking, user_memory
from .scenario import Scenario

ASKED_BESIDE_BUSY = 40
"""Most requests beside a busy client: each takes up to a second, and conf/nftables refuses more than 500
connections."""
COUNTS = {"slow-headers": 2000, "keep-alives": 5000, "tunnels": 500}
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
    smaller: int = parameter(
        "divides the numbers of connections, except that of the single address", "1", whole(), quick="10"
    )
    limits: bool = parameter(
        "no: without those of squid.conf for one address, which must miss an aim", "yes", yes_or_no
    )
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
    """Bytes of Squid's processes without any connection."""

    @classmethod
    def built(cls, testbed: Testbed, chosen: Settings) -> Site:
        """Start the services. Raises TestbedError if one fails to start."""
        origin = services.start_origin(testbed["origin"], {"file": 1000, "large": LARGE})
        host = testbed["proxy"]
        unlimited = SQUID_CONFIG.read_text().replace(REFUSED, "") + NO_LIMITS
        config = SQUID_CONFIG if chosen.limits else host.write("proxy-no-limits.conf", unlimited)
        proxy = services.start_proxy(host, config, arguments=() if chosen.turns else ("--turns", "kernel"))
        numbers = range(FIRST_ADDRESS, FIRST_ADDRESS + sum(ADDRESSES.values()))
        left = iter(add_addresses(testbed[NODE], "eth0", numbers))
        addresses = {kind: [next(left) for _ in range(many)] for kind, many in ADDRESSES.items()}
        # Send some requests that are not measured: the first ones pay for name lookups, memory and routes.
        timed_requests(testbed["client"], proxy, origin, chosen.requests)
        return cls(testbed, chosen, proxy, origin, addresses, user_memory(proxy.process.pid))

    def check_emulation(self) -> None:
        self.testbed.check_emulation()

    def measure(self, turn: Turn[str]) -> Measured:
        """Return the client's latencies beside an arm, and Squid's resources. Raises TestbedError if that fails."""
        arm = turn.cell
        wait_until(self._is_settled, "the last connections are closed", timeout=SETTLED)
        warned = self._warnings()
        if arm in BUSY:
            return self._beside_busy(arm, warned)
        with ExitStack() as stack:
            crowds = [
                stack.enter_context(crowd(self.testbed[NODE], self.proxy, self.origin, kind, many, addresses))
                for kind, many, addresses in self._parts(arm)
            ]
            if arm == ONE_ADDRESS:
                # Squid accepts the connections beyond the share and then closes them. Wait until it has.
                crowds[0].settled()
            timed = timed_requests(self.testbed["client"], self.proxy, self.origin, self.chosen.requests)
            opened, standing = sum(many for _, many, _ in self._parts(arm)), sum(each.standing() for each in crowds)
            return self._measured(timed, opened, standing, warned)

    def _beside_busy(self, arm: str, warned: int) -> Measured:
        each = CONNECTIONS if self.chosen.limits else CONNECTIONS | {REQUESTS: round(EXCESS * judging.SHARE)}
        many = min(each[arm] * len(worker_descriptors(self.proxy)) // self.chosen.smaller, MOST_CONNECTIONS)
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
            found = self._measured(timed, many, after.standing, warned)
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

    def _limited(self) -> AbstractContextManager[None]:
        """Limit a client's new connections per second, as conf/nftables does."""
        undo = ["nft", "delete", "table", "inet", "mptcp_proxy_new_connections"]
        return self.testbed["proxy"].changed(["nft", "-f", str(TABLE)], undo)

    def _measured(self, timed: Timed, opened: int, standing: int, warned: int) -> Measured:
        workers = worker_descriptors(self.proxy)
        return Measured(
            seconds=tuple(timed.seconds),
            failed=timed.failed,
            multipath=timed.multipath,
            opened=opened,
            standing=standing,
            workers=len(workers),
            descriptors=max(each.open / each.limit for each in workers),
            memory=user_memory(self.proxy.process.pid),
            before=self.before,
            warnings=self._warnings() - warned,
        )

    def _parts(self, arm: str) -> list[tuple[str, int, Sequence[str]]]:
        """Return kind, number and addresses of the connections that *arm* opens beside the client, in opening order."""
        if arm == ONE_ADDRESS:
            many = round(EXCESS * judging.SHARE * len(worker_descriptors(self.proxy)))
            return [("slow-headers", many, self.addresses["slow-headers"][:1])]
        kinds = IN_ORDER if arm == ALL else [kind for kind in IN_ORDER if kind == arm]
        return [(kind, COUNTS[kind] // self.chosen.smaller, self.addresses[kind]) for kind in kinds]

    def _is_settled(self) -> bool:
        return all(each.open < IDLE for each in worker_descriptors(self.proxy))

    def _warnings(self) -> int:
        return (self.proxy.logs / "cache.log").read_text(errors="replace").count(WARNING)


def lacking(arm: str) -> str | None:
    """Return what this host lacks for *arm* alone."""
    needed = ("gcc", "nftables") if arm == NEW_LIMITED else ("gcc",) if arm in BUSY else ()
    return next(filter(None, map(missing, needed)), None)


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "apache2", "squid"),
    cells=lambda chosen: [arm for arm in ARMS if arm == ALONE or arm in chosen.arm],
    bed=built,
    measure=Site.measure,
    tables=judging.TABLES,
    together=lambda arm: "crowds",
    drawn=True,
    lacking=lacking,
    counted=lambda row: "rounds",
    verdicts=judging.memory,
)
