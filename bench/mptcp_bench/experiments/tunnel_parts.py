# SPDX-License-Identifier: GPL-2.0-or-later
"""Parts of the experiment ``tunnel``: a silent path, a path that changes, a call, and the cost of a packet."""

from __future__ import annotations

import ctypes
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import NamedTuple

from mptcp_lab.agent import processors
from mptcp_lab.agent.processes import descendants
from mptcp_lab.testbed import LiveNode, Process, Testbed, TestbedError, hops
from mptcp_lab.testbed.recorder import Recorder, mean_rate
from mptcp_lab.testbed.services import wait_until
from mptcp_lab.testbed.tunnel import PORT, TunnelEnd, tunnel
from mptcp_tunnel.kernel.network import far_end

from ..statistics import fmean, median, percentile
from .columns import figure
from .devices import DEVICES
from .two_paths import dropping, hop_shaper
from .vpn_bed import FILE_NAME, Bed, running_vpn
from .vpn_cells import Vpn

CALLS = ONE_PATH_IDLE, ONE_PATH_BUSY, OURS_BUSY = (
    "one path, idle", "one path, beside a download", "ours, beside a download",
)  # fmt: skip
CHANGES = FALL, JITTER, STEPS = ("rate falls to a third", "jitter ± 10 ms", "rate changes each 0.1 s")
INNER_MTU = 1400
INNER_SHARE = INNER_MTU / (INNER_MTU + 8 + 28 + 14)
"""Bytes at the VPN's device, as a share of those at the link, with the headers of OpenVPN (8), IPv4 and UDP (28) and
Ethernet (14)."""
STREAM_PORT = 5004
STREAM_RATE, STREAM_BYTES = 125, 1000
"""Packets per second of the stream, and bytes per packet; together 1 Mbit/s."""
BEFORE_SECONDS, SILENT_SECONDS, AFTER_SECONDS = 4.0, 3.0, 3.0
"""Seconds of the stream before, during and after the path's silence."""
POLL_SECONDS = 0.02
"""Pause between two polls of the daemons."""
FALL_STEP, BEGIN_STEP, END_STEP = 40, 70, 120
"""Steps after which the rate falls, and between which the rate of the download is measured."""
MIN_RATE, MAX_RATE, STEP_SECONDS = 2.0, 10.0, 0.1
"""Minimum and maximum rate in Mbit/s of the path that changes, and seconds between two changes."""
CALL_RATE, CALL_BYTES = 50, 200
"""Packets per second of a call, and bytes per packet."""
CALL_SECONDS, BEFORE_CALL_SECONDS, DOWNLOAD_SECONDS = 6.0, 2.0, 12.0
"""Length of the call, time from the start of the download to the call, and maximum length of the download."""
FLOOD = Path(hops.__file__).parent / "native/flood.c"
FLOOD_BYTES = 1400
"""Payload of a packet whose cost is measured, in bytes."""
COST_WARM_UP_SECONDS, COST_SECONDS = 5.0, 2.0
"""Time until the daemons have learned the paths' rates, and length of each measurement of the cost."""
OFFERED_RATES = (200, 300, 400, 500, 600, 800, 1000)
"""Offered rates in Mbit/s. A packet's cost is measured at the first. The rates increase until the share of lost packets
exceeds ``MAX_LOSS``."""
MAX_LOSS = 0.01
BPF_STATS_RUN_TIME = 0
"""From linux/bpf.h."""
MAX_RESEQUENCER_US, MIN_MBITS = 5.0, 500.0
MAX_LEAVE_SECONDS, MAX_LOST_SECONDS, MAX_BACK_SECONDS = 0.4, 0.5, 1.0
_median_seconds = partial(figure, by="median", digits=3)


@dataclass(frozen=True, slots=True)
class Silence:
    """The reaction to a path that was silent for some seconds. The time of an event that did not happen is infinity."""

    relay: float = _median_seconds("relay leaves s", aim="the relay leaves it after s", most=MAX_LEAVE_SECONDS)
    """Seconds from the start of the silence until the relay's BPF programs no longer used the path."""
    proxy: float = _median_seconds("proxy leaves s", aim="the proxy leaves it after s", most=MAX_LEAVE_SECONDS)
    back: float = _median_seconds("back s", aim="back at both ends after s", most=MAX_BACK_SECONDS)
    """Seconds from the end of the silence until both ends used the path again."""
    lost: float = _median_seconds("lost s", aim="stream of 1 Mbit/s: s lost", most=MAX_LOST_SECONDS)
    """Seconds that the stream needs for as many packets as were lost."""


@dataclass(frozen=True, slots=True)
class AfterChange:
    """A download's rate over paths that changed, and the available rate, in bits/s."""

    rate: float = figure("Mbit/s", by="median", scale=1e-6, digits=1)
    available: float = figure("available", by="median", scale=1e-6, digits=1)

    @property
    def share(self) -> float:
        return self.rate / self.available


@dataclass(frozen=True, slots=True)
class Call:
    """The delays of a call's packets in seconds, and the share of lost packets."""

    median: float = figure("delay ms, median", by="median", scale=1e3, digits=1)
    p99: float = figure("p99", by="median", scale=1e3, digits=1)
    loss: float = figure("lost %", by="median", scale=100, digits=1)


class Poll(NamedTuple):
    """Whether the BPF programs of each end use the path at one moment."""

    time: float
    relay: bool
    proxy: bool


@contextmanager
def receiving(node: LiveNode, address: str, result: Path) -> Iterator[None]:
    """Receive a stream on *node* during the scope. After that, the file *result* contains the received packets."""
    process = node.popen(node.agent("stream", "receive", address, str(STREAM_PORT), str(result)), name="receiver")
    wait_until(lambda: "ready" in process.output(), "the receiver is ready", process=process)
    try:
        yield
    finally:
        process.stop()


@contextmanager
def sending(node: LiveNode, address: str, per_second: int, octets: int, seconds: float) -> Iterator[None]:
    """Send a stream from *node* during the scope, which ends when the stream has arrived. Raises TestbedError."""
    arguments = ["0.0.0.0", address, str(STREAM_PORT), str(per_second), str(octets), str(seconds)]
    sender = node.popen(node.agent("stream", "send", *arguments), name="sender")
    yield
    if sender.wait(seconds + 60) != 0:
        raise TestbedError(f"the stream ended with {sender.returncode}{sender.tail()}")
    time.sleep(0.5)


def download(bed: Bed, seconds: float) -> AbstractContextManager[Process]:
    """Download through the VPN during the scope, for at most *seconds*."""
    argv = ["curl", "-sSN", "-m", f"{seconds:g}", "-o", "/dev/null", bed.origin.url(FILE_NAME)]
    return bed.client.running(argv, name="curl")


def fall_silent(bed: Bed) -> Silence:
    """Send a stream to the client, and silence the path that carries more of it. Raises TestbedError."""
    result, seconds = bed.client.directory / "stream.json", BEFORE_SECONDS + SILENT_SECONDS + AFTER_SECONDS
    polls: list[Poll] = []
    with running_vpn(bed, Vpn("tunnel")) as (ends, daemons), receiving(bed.client, ends.client_address, result):
        assert daemons is not None
        before = [path["packets_sent"] for path in daemons.proxy.paths()]
        with sending(bed.server, ends.client_address, STREAM_RATE, STREAM_BYTES, seconds):
            time.sleep(BEFORE_SECONDS)
            after = [path["packets_sent"] for path in daemons.proxy.paths()]
            number = max(range(len(after)), key=lambda path: after[path] - before[path])

            def poll(until: float) -> None:
                while time.monotonic() < until:
                    polls.append(Poll(time.monotonic(), *(end.paths()[number]["alive"] for end in daemons)))
                    time.sleep(POLL_SECONDS)

            start = time.monotonic()
            with dropping(bed.testbed[f"hop{number + 1}"]):
                poll(start + SILENT_SECONDS)
            end = time.monotonic()
            poll(end + AFTER_SECONDS)
    packets = {number for number, _, _ in json.loads(result.read_text())}
    return reactions(polls, start, end, seconds - len(packets) / STREAM_RATE)


def reactions(polls: Sequence[Poll], start: float, end: float, lost: float) -> Silence:
    """Return the reactions to a path that was silent from *start* to *end* on the polls' clock."""
    relay, proxy = (
        next((poll.time - start for poll in polls if poll.time >= start and not getattr(poll, name)), inf)
        for name in ("relay", "proxy")
    )
    # The path has returned when both ends use it from then on until the last poll.
    back = inf
    for poll in reversed(polls):
        if poll.time < end or not (poll.relay and poll.proxy):
            break
        back = poll.time - end
    return Silence(relay, proxy, back, lost)


def rates_of(change: str) -> list[float]:
    """Return the rate in Mbit/s of the path that changes, for each step of a download."""
    if change == JITTER:
        return [MAX_RATE] * END_STEP
    if change == FALL:
        return [MAX_RATE] * FALL_STEP + [MAX_RATE / 3] * (END_STEP - FALL_STEP)
    draw, rates = random.Random(1), [(MIN_RATE + MAX_RATE) / 2]
    while len(rates) < END_STEP:
        # Each rate differs from the previous one by some 20 %.
        rates.append(min(MAX_RATE, max(MIN_RATE, rates[-1] * draw.lognormvariate(0, 0.2))))
    return rates


def measure_change(bed: Bed, change: str) -> AfterChange:
    """Download while the second path changes. Raises TestbedError and ValueError."""
    rates, hop = rates_of(change), bed.testbed["hop2"]
    begin, end = BEGIN_STEP * STEP_SECONDS, END_STEP * STEP_SECONDS
    with (
        running_vpn(bed, Vpn("tunnel")) as (ends, _),
        hop.changed(hop_shaper(MAX_RATE, "lan"), hop_shaper(MAX_RATE, "lan")),
        Recorder(bed.client, (ends.device,)) as recorder,
        download(bed, 2 * end) as process,
    ):
        for number, (rate, previous) in enumerate(zip(rates, [MAX_RATE, *rates], strict=False)):
            recorder.wait(number * STEP_SECONDS)
            if rate != previous:
                hop.run(hop_shaper(rate, "lan"))
        recorder.wait(end)
        if not process.running:
            raise TestbedError(f"the download ended with {process.returncode}{process.tail()}")
    available = 1e6 * INNER_SHARE * (MAX_RATE + fmean(rates[BEGIN_STEP:]))
    return AfterChange(mean_rate(recorder.samples, ends.device, begin, end), available)


def call(bed: Bed, variant: str) -> Call:
    """Make a call: through our tunnel or over the first path, with or without a download. Raises TestbedError."""
    result, busy = bed.client.directory / "call.json", variant != ONE_PATH_IDLE
    with (
        running_vpn(bed, Vpn("tunnel" if variant == OURS_BUSY else "udp")) as (ends, _),
        receiving(bed.client, ends.client_address, result),
        download(bed, DOWNLOAD_SECONDS) if busy else nullcontext() as process,
    ):
        time.sleep(BEFORE_CALL_SECONDS)
        with sending(bed.server, ends.client_address, CALL_RATE, CALL_BYTES, CALL_SECONDS):
            pass
        if process is not None and not process.running:
            raise TestbedError(f"the download was over before the call{process.tail()}")
    return to_call(json.loads(result.read_text()))


def to_call(packets: Sequence[Sequence[int]]) -> Call:
    """Return the delays and losses of a call. *packets* has the number, send time and arrival time in ns of each."""
    # A packet that arrived twice counts with its first arrival.
    delays = list({number: (arrived - sent) / 1e9 for number, sent, arrived in reversed(packets)}.values())
    loss = 1 - len(delays) / (CALL_RATE * CALL_SECONDS)
    return Call(median(delays, default=nan), percentile(delays, 99, default=nan), loss)


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs per packet, in ns for both BPF programs and in µs for the resequencer; and the greatest rate in bits/s."""

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
    """Return the mean run time, during :func:`counting_run_times`, of the BPF program of *end* that ran most often."""
    programs = [(0, 0)]
    for file in Path(f"/proc/{end.process.pid}/fdinfo").iterdir():
        fields = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
        if "prog_id" in fields:
            programs.append((int(fields["run_cnt"]), int(fields["run_time_ns"])))
    runs, nanoseconds = max(programs)
    if not runs:
        raise TestbedError("no BPF program of the tunnel ran")
    return nanoseconds / runs


def measure_cost(testbed: Testbed) -> Cost:
    """Measure packets to the client at increasing rates. Raises TestbedError."""
    client, proxy = testbed["client"], testbed["proxy"]
    flood = str(hops.build(testbed.directory, "flood", [FLOOD]))
    target = str(far_end(0, PORT, 4).address)

    def send(offered: int, seconds: float) -> tuple[int, int, float]:
        """Return the number of packets sent, of packets received, and the seconds in which they were received."""
        receiver = client.popen([flood, "receive", str(PORT)], name="receiver")
        wait_until(lambda: "ready" in receiver.output(), "the receiver is ready", process=receiver)
        per_second = offered * 1e6 / 8 / FLOOD_BYTES
        arguments = [str(PORT), target, str(PORT), str(FLOOD_BYTES), f"{per_second:.0f}", f"{seconds:g}"]
        sender = proxy.popen([flood, "send", *arguments], name="sender")
        sender.wait(seconds + 60)
        time.sleep(0.3)
        receiver.stop()
        outputs = [process.output().split()[1:] for process in (sender, receiver)]
        if [len(output) for output in outputs] != [2, 2]:
            raise TestbedError(f"flood: {sender.tail()}{receiver.tail()}")
        (sent, _), (received, nanoseconds) = outputs
        return int(sent), int(received), int(nanoseconds) / 1e9

    carried = 0.0
    with tunnel(client, proxy, dict(zip("ab", DEVICES, strict=True))) as daemons:
        send(OFFERED_RATES[0], COST_WARM_UP_SECONDS)
        # The statistics take time themselves, so that the carried rate is measured without them.
        with counting_run_times():
            resequencers = descendants(daemons.relay.process.pid)
            spent = sum(map(processors.process_seconds, resequencers))
            _, measured, _ = send(OFFERED_RATES[0], COST_SECONDS)
            spent = sum(map(processors.process_seconds, resequencers)) - spent
        splitter, joiner = map(nanoseconds_per_run, (daemons.proxy, daemons.relay))
        for offered in OFFERED_RATES:
            sent, received, seconds = send(offered, COST_SECONDS)
            if received < (1 - MAX_LOSS) * sent:
                break
            # Use the received rate, because a sender with too little processor time sends fewer packets than requested.
            carried = max(carried, received * FLOOD_BYTES * 8 / seconds)
    # Without a resequencer, the cost is NaN, which misses the aim.
    return Cost(splitter, joiner, 1e6 * spent / max(1, measured) or nan, carried)
