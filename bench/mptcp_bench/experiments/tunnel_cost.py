# SPDX-License-Identifier: GPL-2.0-or-later
"""The cost of a packet in the tunnel, and the rate that two cores can carry: a part of the experiment ``tunnel``."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mptcp_lab.agent import processors
from mptcp_lab.agent.processes import descendants
from mptcp_lab.testbed import Testbed, TestbedError, hops
from mptcp_lab.testbed.services import wait_until
from mptcp_lab.testbed.tunnel import PORT, TunnelEnd, tunnel
from mptcp_tunnel.kernel.network import far_end

from .columns import figure
from .devices import DEVICES

FLOOD = Path(hops.__file__).parent / "native/flood.c"
PAYLOAD_BYTES = 1400
WARM_UP_SECONDS, MEASURED_SECONDS = 5.0, 2.0
"""Time until the daemons have learned the paths' rates, and length of each measurement."""
OFFERED_RATES = (200, 300, 400, 500, 600, 800, 1000)
"""Offered rates in Mbit/s. A packet's cost is measured at the first. The rates increase until the share of lost packets
exceeds ``MAX_LOSS``."""
MAX_LOSS = 0.01
BPF_STATS_RUN_TIME = 0
"""From linux/bpf.h."""


MAX_RESEQUENCER_US, MIN_MBITS = 5.0, 500.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs per packet: ns of both BPF programs, µs of the resequencer; and the rate in bits/s that was carried."""

    splitter: float = figure("splitter ns", by="median", digits=1)
    joiner: float = figure("joiner ns", by="median", digits=1)
    resequencer: float = figure(
        "resequencer µs", by="median", aim="resequencer, µs/packet", digits=1, most=MAX_RESEQUENCER_US
    )
    carried: float = figure(
        "carried Mbit/s", by="median", aim="carried with no more than 1 % lost, Mbit/s", scale=1e-6, digits=1,
        least=MIN_MBITS,
    )  # fmt: skip

    @property
    def kernel(self) -> float:
        return self.splitter + self.joiner


@contextmanager
def counting_run_times() -> Iterator[None]:
    """Let the kernel measure the run time of BPF programs during the scope. Raises TestbedError."""
    descriptor = ctypes.CDLL("libbpf.so.1", use_errno=True).bpf_enable_stats(BPF_STATS_RUN_TIME)
    if descriptor < 0:
        raise TestbedError(f"count the run time of BPF programs: {os.strerror(-descriptor)}")
    try:
        yield
    finally:
        os.close(descriptor)


def nanoseconds_per_run(end: TunnelEnd) -> float:
    """Return the nanoseconds per run of the BPF program of *end* that ran most often. Raises TestbedError if none ran.

    The kernel counts only runs during :func:`counting_run_times`.
    """
    programs = [(0, 0)]
    for file in Path(f"/proc/{end.process.pid}/fdinfo").iterdir():
        fields = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
        if "prog_id" in fields:
            programs.append((int(fields["run_cnt"]), int(fields["run_time_ns"])))
    runs, nanoseconds = max(programs)
    if not runs:
        raise TestbedError("no BPF program of the tunnel ran")
    return nanoseconds / runs


def resequencer_seconds(end: TunnelEnd) -> float:
    """Return the processor seconds of *end*'s resequencer. Raises TestbedError if none runs."""
    children = descendants(end.process.pid)
    if not children:
        raise TestbedError(f"[{end.node.name}] no resequencer runs{end.process.tail()}")
    return sum(map(processors.process_seconds, children))


def measure(testbed: Testbed) -> Cost:
    """Send packets at high rates to the client. Raises TestbedError."""
    client, proxy = testbed["client"], testbed["proxy"]
    flood = str(hops.build(testbed.directory, "flood", [FLOOD]))
    target = str(far_end(0, PORT, 4).address)

    def send(offered: int, seconds: float) -> tuple[int, int, float]:
        """Return the number of packets sent, of packets received, and the seconds in which they were received."""
        receiver = client.popen([flood, "receive", str(PORT)], name="receiver")
        wait_until(lambda: "ready" in receiver.output(), "the receiver is ready", process=receiver)
        per_second = offered * 1e6 / 8 / PAYLOAD_BYTES
        words = [str(PORT), target, str(PORT), str(PAYLOAD_BYTES), f"{per_second:.0f}", f"{seconds:g}"]
        sender = proxy.popen([flood, "send", *words], name="sender")
        sender.wait(seconds + 60)
        time.sleep(0.3)
        receiver.stop()
        outputs = [process.output().split()[1:] for process in (sender, receiver)]
        if [len(output) for output in outputs] != [2, 2]:
            raise TestbedError(f"flood: {sender.tail()}{receiver.tail()}")
        (sent, _), (received, nanoseconds) = outputs
        return int(sent), int(received), int(nanoseconds) / 1e9

    carried = 0.0
    with tunnel(client, proxy, dict(zip("ab", DEVICES, strict=True))) as both:
        send(OFFERED_RATES[0], WARM_UP_SECONDS)
        # The statistics take time themselves, so that the carried rate is measured without them.
        with counting_run_times():
            busy = resequencer_seconds(both.relay)
            _, measured, _ = send(OFFERED_RATES[0], MEASURED_SECONDS)
            busy = resequencer_seconds(both.relay) - busy
        splitter, joiner = map(nanoseconds_per_run, (both.proxy, both.relay))
        for offered in OFFERED_RATES:
            sent, received, seconds = send(offered, MEASURED_SECONDS)
            if received < (1 - MAX_LOSS) * sent:
                break
            # Use the received rate, because a sender with too little processor time sends fewer packets than requested.
            carried = max(carried, received * PAYLOAD_BYTES * 8 / seconds)
    return Cost(splitter, joiner, 1e6 * busy / max(1, measured), carried)
