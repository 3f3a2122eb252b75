# SPDX-License-Identifier: GPL-2.0-or-later
"""Thousands of idle connections to a proxy, a client that sends requests, and the proxy's descriptors."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

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
    got: dict[str, int]
    """Number of connections by the status of their answer; ``refused`` is the number of refused connections."""

    def standing(self) -> int:
        """Return how many connections the proxy has not closed. Raises TestbedError if the crowd does not answer."""
        before = len(_lines(self.process))
        self.process.signal(signal.SIGUSR1)
        wait_until(lambda: len(_lines(self.process)) > before, "the crowd was counted", process=self.process)
        standing: int = _lines(self.process)[-1]["standing"]
        return standing

    def settled(self, pause: float = 1.0) -> int:
        """Return this number when it has not changed for *pause* seconds. Raises TestbedError if it keeps changing."""
        found = [self.standing()]

        def unchanged() -> bool:
            time.sleep(pause)
            found.append(self.standing())
            return found[-1] == found[-2]

        wait_until(unchanged, "the proxy has closed those that it does not take", timeout=OPENING)
        return found[-1]


@contextmanager
def crowd(host: Host, proxy: Proxy, origin: Origin, kind: str, count: int, addresses: Sequence[str]) -> Iterator[Crowd]:
    """Keep *count* connections of *kind* from *addresses* open (``agent.waiting_connections``). Raises TestbedError."""
    argv = host.agent("waiting_connections", kind, str(count), *_where(proxy, origin), *addresses)
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
    said = host.run(host.agent("timed_requests", str(count), *_where(proxy, origin)), timeout=OPENING)
    return Timed(**json.loads(said.stdout))


def _where(proxy: Proxy, origin: Origin) -> tuple[str, str, str]:
    return proxy.host.service_address(), str(PROXY_PORT), origin.host.service_address()


def add_addresses(host: LiveNode, device: str, numbers: Iterable[int]) -> list[str]:
    """Add IPv4 addresses that end with the bytes *numbers* to *device*, and return them."""
    network = host.address(device).rpartition(".")[0]
    addresses = [f"{network}.{number}" for number in numbers]
    for each in addresses:
        host.run(["ip", "address", "add", f"{each}/24", "dev", device])
    return addresses


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Number of open descriptors of one process, and its limit."""

    open: int
    limit: int


def worker_descriptors(proxy: Proxy) -> list[Descriptors]:
    """Return the descriptors of each Squid worker on this machine, without the coordinator, which has no clients."""
    found = []
    for pid in descendants(proxy.process.pid):
        place = Path(f"/proc/{pid}")
        with suppress(OSError):
            title = (place / "cmdline").read_bytes().partition(b"\0")[0]
            if title.startswith(b"(squid-") and b"coord" not in title:
                found.append(Descriptors(len(list((place / "fd").iterdir())), limit((place / "limits").read_text())))
    return found


def limit(text: str) -> int:
    """Return the soft limit of descriptors in ``/proc/PID/limits``. prlimit(2) would need CAP_SYS_RESOURCE."""
    (line,) = (line for line in text.splitlines() if line.startswith("Max open files"))
    return int(line.split()[3])
