# SPDX-License-Identifier: GPL-2.0-or-later
"""The cost of a packet in the tunnel, and the rate that two cores can carry: a part of the experiment ``tunnel``."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import sub
from pathlib import Path
from typing import NamedTuple

from mptcp_lab.agent import processors
from mptcp_lab.agent.processes import descendants
from mptcp_lab.testbed import EmulationError, Testbed, TestbedError, hops
from mptcp_lab.testbed.services import wait_until
from mptcp_lab.testbed.tunnel import PORT, TunnelEnd, tunnel
from mptcp_tunnel.kernel.network import far_end

from .devices import DEVICES

FLOOD = Path(hops.__file__).parent / "native/flood.c"
OCTETS = 1400
"""Bytes of a packet's payload."""
WARM, MEASURED = 5.0, 2.0
"""Seconds until the daemons have learned the paths' rates, and seconds of each measurement."""
COST_AT = 200
"""Rate in Mbit/s at which a packet's cost is measured."""
OFFERED = (300, 400, 500, 600, 800, 1000)
"""Offered rates in Mbit/s. They increase until the share of lost packets exceeds ``MOST_LOST``."""
MOST_LOST = 0.01
_RUN_TIME = 0
"""BPF_STATS_RUN_TIME, linux/bpf.h."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs per packet: nanoseconds of both BPF programs, µs of the resequencer; and the rate that was carried."""

    splitter: float
    joiner: float
    resequencer: float
    carried: float

    @property
    def kernel(self) -> float:
        return self.splitter + self.joiner


class RunTime(NamedTuple):
    """Run time in nanoseconds and number of runs of a BPF program since it was loaded."""

    nanoseconds: int
    times: int


@contextmanager
def run_times() -> Iterator[None]:
    """Let the kernel measure the run time of BPF programs until the end of the scope. Raises TestbedError."""
    descriptor = ctypes.CDLL("libbpf.so.1", use_errno=True).bpf_enable_stats(_RUN_TIME)
    if descriptor < 0:
        raise TestbedError(f"have BPF programs' time counted: {os.strerror(-descriptor)}")
    try:
        yield
    finally:
        os.close(descriptor)


def programs_of(pid: int) -> dict[int, RunTime]:
    """Return the run time of each BPF program of process *pid*, by the program's ID."""
    found = {}
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        fields = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
        if "prog_id" in fields:
            found[int(fields["prog_id"])] = RunTime(int(fields["run_time_ns"]), int(fields["run_cnt"]))
    return found


def busiest(before: dict[int, RunTime], after: dict[int, RunTime]) -> float:
    """Return nanoseconds per run of the program that ran most often. Raises ValueError if none ran."""
    never = RunTime(0, 0)
    ran = [RunTime(*map(sub, now, before.get(number, never))) for number, now in after.items()]
    most = max(ran, key=lambda run: run.times, default=never)
    if not most.times:
        raise ValueError("no BPF program of the tunnel ran")
    return most.nanoseconds / most.times


def processor_seconds(end: TunnelEnd) -> float:
    """Return the processor seconds of *end*'s resequencer. Raises TestbedError if none runs."""
    children = descendants(end.process.pid)
    if not children:
        raise TestbedError(f"[{end.node.name}] no resequencer runs{end.process.tail()}")
    return sum(map(processors.process_seconds, children))


def measure(testbed: Testbed) -> Cost:
    """Send packets at high rates to the client. Raises TestbedError, ValueError; EmulationError on a busy machine."""
    since = processors.read(os.getpid())
    client, proxy = testbed["client"], testbed["proxy"]
    flood = str(hops.build(testbed.directory, "flood", [FLOOD]))
    to = str(far_end(0, PORT, 4).address)

    def carried(offered: int, seconds: float) -> tuple[int, int, float]:
        """Return the number of packets sent, of packets received, and the seconds in which they were received."""
        receiver = client.popen([flood, "receive", str(PORT)], name="receiver")
        wait_until(lambda: "ready" in receiver.output(), "the receiver is ready", process=receiver)
        rate = offered * 1e6 / 8 / OCTETS
        words = [str(PORT), to, str(PORT), str(OCTETS), f"{rate:.0f}", f"{seconds:g}"]
        sender = proxy.popen([flood, "send", *words], name="sender")
        sender.wait(seconds + 60)
        time.sleep(0.3)
        receiver.stop()
        said = [process.output().split()[1:] for process in (sender, receiver)]
        if [len(words) for words in said] != [2, 2]:
            raise TestbedError(f"flood: {sender.tail()}{receiver.tail()}")
        (sent, _), (came, took) = said
        return int(sent), int(came), int(took) / 1e9

    with tunnel(client, proxy, dict(zip("ab", DEVICES, strict=True))) as both:
        carried(COST_AT, WARM)
        pids = both.proxy.process.pid, both.relay.process.pid
        with run_times():
            before, busy = [programs_of(pid) for pid in pids], processor_seconds(both.relay)
            _, came, _ = carried(COST_AT, MEASURED)
            after, busy = [programs_of(pid) for pid in pids], processor_seconds(both.relay) - busy
        if not came:
            raise TestbedError(f"nothing came through the tunnel{both.relay.process.tail()}")
        best = 0.0
        # Measure this without the run-time statistics, because these take time themselves.
        for offered in OFFERED:
            sent, arrived, took = carried(offered, MEASURED)
            if arrived < (1 - MOST_LOST) * sent:
                break
            # Use the received rate, because a sender with too little processor time sends fewer packets than requested.
            best = max(best, arrived * OCTETS * 8 / took)
    used = processors.usage(since, processors.read(os.getpid()))
    if used.busy:
        raise EmulationError(f"the machine was not ours alone: {used}")
    splitter, joiner = (busiest(was, now) for was, now in zip(before, after, strict=True))
    return Cost(splitter, joiner, 1e6 * busy / came, best)
