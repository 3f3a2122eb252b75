# SPDX-License-Identifier: GPL-2.0-or-later
"""Parts of the experiment ``tunnel``: a silent path, a path that changes, and a call during a download."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import NamedTuple

from mptcp_lab.testbed import LiveNode, Process, TestbedError
from mptcp_lab.testbed.recorder import Recorder, mean_rate
from mptcp_lab.testbed.services import wait_until
from mptcp_lab.testbed.tunnel import TunnelEnd

from ..statistics import fmean, median, percentile
from .columns import figure
from .two_paths import dropping, hop_shaper
from .vpn_bed import FILE_NAME, Bed, running_vpn
from .vpn_cells import Vpn

CALLS = ONE_PATH_IDLE, ONE_PATH_BUSY, OURS_BUSY = (
    "one path, idle", "one path, beside a download", "ours, beside a download",
)  # fmt: skip
CHANGES = FALL, JITTER, STEPS = ("rate falls to a third", "jitter ± 10 ms", "rate changes each 0.1 s")
INNER_MTU = 1400
INNER_SHARE = INNER_MTU / (INNER_MTU + 8 + 28 + 14)
"""Bytes counted at the VPN's device / bytes counted at the link, which adds OpenVPN's header (8), IPv4 and UDP (28) and
Ethernet (14)."""
STREAM_PORT = 5004
STREAM_RATE, STREAM_BYTES = 125, 1000
"""Packets per second of the stream, and bytes per packet; together 1 Mbit/s."""
BEFORE_SECONDS, SILENT_SECONDS, AFTER_SECONDS = 4.0, 3.0, 3.0
"""Seconds of the stream before, during and after the path's silence."""
POLL_SECONDS = 0.02
FALL_STEP, BEGIN_STEP, END_STEP = 40, 70, 120
"""Steps after which the rate falls, and between which the rate of the download is measured."""
MIN_RATE, MAX_RATE, STEP_SECONDS = 2.0, 10.0, 0.1
"""Minimum and maximum rate in Mbit/s of the path that changes, and seconds between two changes."""
CALL_RATE, CALL_BYTES = 50, 200
"""Packets per second of a call, and bytes per packet."""
CALL_SECONDS, BEFORE_CALL_SECONDS, DOWNLOAD_SECONDS = 6.0, 2.0, 12.0
"""Length of the call, time from the start of the download to the call, and maximum length of the download."""


MAX_LEAVE_SECONDS, MAX_LOST_SECONDS, MAX_BACK_SECONDS = 0.4, 0.5, 1.0
_of_silence = partial(figure, by="median", digits=3)


@dataclass(frozen=True, slots=True)
class Silence:
    """Reaction to a path that was silent for some time. The time of an event that did not happen is infinity."""

    relay: float = _of_silence("relay leaves s", aim="the relay leaves it after s", most=MAX_LEAVE_SECONDS)
    """Seconds from the start of the silence until the relay's BPF programs stopped using the path."""
    proxy: float = _of_silence("proxy leaves s", aim="the proxy leaves it after s", most=MAX_LEAVE_SECONDS)
    back: float = _of_silence("back s", aim="back at both ends after s", most=MAX_BACK_SECONDS)
    """Seconds from the path's return until both ends used it again."""
    lost: float = _of_silence("lost s", aim="stream of 1 Mbit/s: s lost", most=MAX_LOST_SECONDS)
    """Lost packets, expressed as seconds of the stream."""


@dataclass(frozen=True, slots=True)
class AfterChange:
    """A download's rate over paths that changed, and the rate that was available, in bits/s."""

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
    """Whether the BPF programs of each end use the path at one moment; None if the daemon does not answer."""

    time: float
    relay: bool | None
    proxy: bool | None


@contextmanager
def receiving(node: LiveNode, address: str, result: Path) -> Iterator[None]:
    """Receive a stream on *node* during the scope. Afterwards the file *result* contains the received packets."""
    process = node.popen(node.agent("stream", "receive", address, str(STREAM_PORT), str(result)), name="receiver")
    wait_until(lambda: "ready" in process.output(), "the receiver is ready", process=process)
    try:
        yield
    finally:
        process.stop()


@contextmanager
def sending(node: LiveNode, address: str, per_second: int, octets: int, seconds: float) -> Iterator[None]:
    """Send a stream from *node*. The scope ends when the whole stream has arrived. Raises TestbedError."""
    words = ["0.0.0.0", address, str(STREAM_PORT), str(per_second), str(octets), str(seconds)]
    sender = node.popen(node.agent("stream", "send", *words), name="sender")
    yield
    if sender.wait(seconds + 60) != 0:
        raise TestbedError(f"the stream ended with {sender.returncode}{sender.tail()}")
    time.sleep(0.5)


def download(bed: Bed, seconds: float) -> AbstractContextManager[Process]:
    """Download through the VPN during the scope, for at most *seconds*."""
    argv = ["curl", "-sSN", "-m", f"{seconds:g}", "-o", "/dev/null", bed.origin.url(FILE_NAME)]
    return bed.client.running(argv, name="curl")


def fall_silent(bed: Bed) -> Silence:
    """Silence the path that carries more of a stream to the client. Raises TestbedError."""
    result, seconds = bed.client.directory / "stream.json", BEFORE_SECONDS + SILENT_SECONDS + AFTER_SECONDS
    polls: list[Poll] = []
    with running_vpn(bed, Vpn("tunnel")) as (ends, daemons), receiving(bed.client, ends.client_address, result):
        assert daemons is not None
        relay, proxy = daemons
        before = [path["packets_sent"] for path in proxy.paths()]
        with sending(bed.server, ends.client_address, STREAM_RATE, STREAM_BYTES, seconds):
            time.sleep(BEFORE_SECONDS)
            after = [path["packets_sent"] for path in proxy.paths()]
            number = max(range(len(after)), key=lambda path: after[path] - before[path])

            def poll(until: float) -> None:
                while time.monotonic() < until:
                    polls.append(Poll(time.monotonic(), is_used(relay, number), is_used(proxy, number)))
                    time.sleep(POLL_SECONDS)

            start = time.monotonic()
            with dropping(bed.testbed[f"hop{number + 1}"]):
                poll(start + SILENT_SECONDS)
            end = time.monotonic()
            poll(end + AFTER_SECONDS)
    packets = {number for number, _, _ in json.loads(result.read_text())}
    return reactions(polls, start, end, seconds - len(packets) / STREAM_RATE)


def is_used(end: TunnelEnd, path: int) -> bool | None:
    """Return whether the BPF programs of *end* use a path; None if the daemon does not answer."""
    paths = end.lives()
    return paths[path] if paths else None


def reactions(polls: Sequence[Poll], start: float, end: float, lost: float) -> Silence:
    """Return the reactions to a path that was silent from *start* to *end* on the polls' clock."""
    relay, proxy = (
        next((poll.time - start for poll in polls if poll.time >= start and getattr(poll, name) is False), inf)
        for name in ("relay", "proxy")
    )
    # The path is back when both ends use it until the last poll.
    back = inf
    for poll in reversed(polls):
        if poll.time < end or not (poll.relay and poll.proxy):
            break
        back = poll.time - end
    return Silence(relay, proxy, back, lost)


def rates_of(change: str) -> list[float]:
    """Return the rates in Mbit/s of the path that changes, in each step of a download."""
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
    """Make a call through our tunnel or over the first path, with or without a download. Raises TestbedError."""
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
    """Return the delays and losses of a call. *packets*: number, send time and arrival time in ns of each."""
    # A packet that arrived twice counts with its first arrival.
    delays = list({number: (arrived - sent) / 1e9 for number, sent, arrived in reversed(packets)}.values())
    loss = 1 - len(delays) / (CALL_RATE * CALL_SECONDS)
    return Call(median(delays, default=nan), percentile(delays, 99, default=nan), loss)
