# SPDX-License-Identifier: GPL-2.0-or-later
"""Thousands of idle connections to a proxy, a client that sends requests, and the proxy's descriptors."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..agent.processes import descendants
from .host import Host, Program
from .node import LiveNode
from .services import PROXY_PORT, Origin, Proxy, wait_until

OPENING = 600.0
"""Maximum seconds for opening a crowd of connections."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Connections that are kept open."""

    process: Program
    statuses: dict[str, int]
    """Number of connections by the status of their answer; ``refused`` is the number of refused connections."""

    def standing(self) -> int:
        """Return how many connections the proxy has not closed. Raises TestbedError if the crowd does not answer."""
        before = len(_lines(self.process))
        self.process.signal(signal.SIGUSR1)
        wait_until(lambda: len(_lines(self.process)) > before, "the crowd was counted", process=self.process)
        standing: int = _lines(self.process)[-1]["standing"]
        return standing

    def settled(self, pause: float = 1.0) -> int:
        """Return the number of open connections when it no longer changes within *pause* s. Raises TestbedError."""
        numbers = [self.standing()]

        def unchanged() -> bool:
            time.sleep(pause)
            numbers.append(self.standing())
            return numbers[-1] == numbers[-2]

        wait_until(unchanged, "the proxy closes no more connections", timeout=OPENING)
        return numbers[-1]


@contextmanager
def crowd(host: Host, proxy: Proxy, origin: Origin, kind: str, count: int, addresses: Sequence[str]) -> Iterator[Crowd]:
    """Keep *count* connections of *kind* from *addresses* open (``agent.waiting_connections``). Raises TestbedError."""
    argv = host.agent("waiting_connections", kind, str(count), *_servers(proxy, origin), *addresses)
    process = host.popen(argv, name=kind)
    try:
        wait_until(lambda: bool(_lines(process)), f"{count} {kind} are open", process=process, timeout=OPENING)
        yield Crowd(process, _lines(process)[0])
    finally:
        process.kill()


def _lines(process: Program) -> list[dict[str, int]]:
    """Return the complete lines of the program's output, parsed."""
    return [json.loads(line) for line in process.output().splitlines(keepends=True) if line.endswith("}\n")]


@dataclass(frozen=True, slots=True)
class Timed:
    """Results of requests that were sent one after another, each on its own connection."""

    seconds: list[float]
    """Durations of the answered requests in seconds."""
    failed: int
    multipath: int
    """Number of connections that did not fall back to TCP."""


def timed_requests(host: Host, proxy: Proxy, origin: Origin, count: int) -> Timed:
    """Request ``/file`` from *host* *count* times by MPTCP. Raises TestbedError after ``OPENING`` seconds."""
    done = host.run(host.agent("timed_requests", str(count), *_servers(proxy, origin)), timeout=OPENING)
    return Timed(**json.loads(done.stdout))


def _servers(proxy: Proxy, origin: Origin) -> tuple[str, str, str]:
    return proxy.host.service_address(), str(PROXY_PORT), origin.host.service_address()


def add_addresses(host: LiveNode, device: str, numbers: Iterable[int]) -> list[str]:
    """Add IPv4 addresses that end with the bytes *numbers* to *device*, and return them."""
    network = host.address(device).rpartition(".")[0]
    addresses = [f"{network}.{number}" for number in numbers]
    for each in addresses:
        host.run(["ip", "address", "add", f"{each}/24", "dev", device])
    return addresses


class Descriptors(NamedTuple):
    """Number of open descriptors of one process, and its limit."""

    open: int
    limit: int


def worker_descriptors(proxy: Proxy) -> list[Descriptors]:
    """Return the descriptors of each Squid worker on this machine, without the coordinator, which has no clients."""
    workers = []
    for pid in descendants(proxy.process.pid):
        directory = Path(f"/proc/{pid}")
        with suppress(OSError):
            title = (directory / "cmdline").read_bytes().partition(b"\0")[0]
            if title.startswith(b"(squid-") and b"coord" not in title:
                # Do not use prlimit(2), which would need CAP_SYS_RESOURCE.
                limits = re.search(r"^Max open files +(\d+)", (directory / "limits").read_text(), re.MULTILINE)
                assert limits is not None
                workers.append(Descriptors(len(list((directory / "fd").iterdir())), int(limits[1])))
    return workers
