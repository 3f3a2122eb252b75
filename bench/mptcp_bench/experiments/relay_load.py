# SPDX-License-Identifier: GPL-2.0-or-later
"""Clients that send requests continuously (``native/relay_load.c``), their counters, and the memory of a proxy."""

from __future__ import annotations

import mmap
import re
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from mptcp_lab.agent.processes import descendants
from mptcp_lab.testbed import LiveNode, Process, TestbedError
from mptcp_lab.testbed.commands import run
from mptcp_lab.testbed.services import wait_until

NATIVE = Path(__file__).parent / "native"
STEPS = 32
"""Buckets of the histogram of latencies for each power of two."""
BUCKETS = 60 * STEPS
TIMEOUT = 60.0
"""Maximum seconds until a killed proxy has ended, or all connections and their second subflows are established."""
_COUNTERS = struct.Struct(f"={5 + BUCKETS}Q")


def build(name: str, host: LiveNode) -> Path:
    """Compile ``native/NAME.c`` into the directory of *host*, if this was not done before. Return the program."""
    program = host.directory / name
    if not program.exists():
        flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra"]
        run(["gcc", *flags, "-o", str(program), str(NATIVE / f"{name}.c")], attempt=f"build {name}")
    return program


def latencies(counts: Sequence[int], percents: Sequence[float]) -> tuple[float, ...]:
    """Return percentiles, in seconds, of a histogram of latencies; infinity if the histogram is empty.

    A percentile is the middle of the first bucket at which the cumulative share is reached. The width of a bucket is at
    most 1/32 of its values.
    """
    sums = np.cumsum(counts)
    if not sums[-1]:
        return (inf,) * len(percents)
    buckets = np.searchsorted(sums, np.maximum(1, sums[-1] * np.array(percents) / 100))
    shifts = np.maximum(0, buckets // STEPS - 1)
    return tuple((buckets - shifts * STEPS + 0.5) * 2.0**shifts / 1e9)


class Counters(NamedTuple):
    """The counters of native/relay_load.c (its ``struct counters``)."""

    octets: int
    answers: int
    failures: int
    opened: int
    answered: int
    """Number of open connections that have had an answer."""
    latency: tuple[int, ...]
    """Number of answers in each bucket of the histogram."""

    @classmethod
    def parse(cls, data: mmap.mmap | bytes) -> Self:
        """Read the counters from the memory that the program shares."""
        octets, answers, failures, opened, answered, *latency = _COUNTERS.unpack_from(data)
        return cls(octets, answers, failures, opened, answered, tuple(latency))


class Load:
    """The running program with the clients."""

    def __init__(self, process: Process, data: mmap.mmap | bytes) -> None:
        self.process = process
        self._data = data

    def read(self) -> Counters:
        if not self.process.running:
            raise TestbedError(f"the clients ended with {self.process.returncode}{self.process.tail()}")
        return Counters.parse(self._data)

    def wait(self, condition: Callable[[Counters], bool], what: str) -> None:
        """Wait until *condition* is true. Raises TestbedError with the program's errors if this takes too long."""
        wait_until(lambda: condition(self.read()), what, timeout=TIMEOUT, process=self.process)


@contextmanager
def requesting(
    client: LiveNode, protocol: str, address: str, port: int, count: int, requests: int, request: str,
    preamble: str = "",
) -> Iterator[Load]:  # fmt: skip
    """Start *count* connections from *client* that send *request*, *requests* times each (-1: no limit).

    *protocol* is ``tcp`` or ``mptcp``. Each connection first sends *preamble*.
    """
    program = str(build("relay_load", client))
    with tempfile.NamedTemporaryFile(dir=client.directory, prefix="load-") as file:
        file.truncate(_COUNTERS.size)
        argv = [program, file.name, protocol, address, str(port), str(count), str(requests), preamble, request]
        with mmap.mmap(file.fileno(), _COUNTERS.size) as data, client.running(argv, name="load") as process:
            yield Load(process, data)


_BUFFERS = re.compile(r"skmem:\(r(\d+),rb\d+,t\d+,tb\d+,f(\d+),w(\d+),")


def octets(text: str, name: str) -> int:
    """Return the bytes of *name* in the text of smaps_rollup, proc(5). Raises ValueError if it is absent."""
    line = re.search(rf"^{name}: +(\d+) kB", text, re.MULTILINE)
    if not line:
        raise ValueError(f"no field {name} in the memory statistics")
    return int(line[1]) * 1024


def buffers(text: str) -> int:
    """Return the bytes of all socket buffers in the output of ``ss -m``: received, forward-allocated and unsent."""
    # Forward-allocated memory may briefly be negative. The kernel prints it as an unsigned number of 32 bits.
    return sum((int(number) + 2**31) % 2**32 - 2**31 for each in _BUFFERS.findall(text) for number in each)


def user_memory(pid: int, kind: str = "Pss") -> int:
    """Return the bytes of process *pid* and its descendants. ``Pss`` counts shared bytes only once, unlike ``Rss``."""
    total = 0
    for each in (pid, *descendants(pid)):
        with suppress(OSError, ValueError):
            total += octets(Path(f"/proc/{each}/smaps_rollup").read_text(), kind)
    return total
