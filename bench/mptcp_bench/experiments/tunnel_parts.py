# SPDX-License-Identifier: GPL-2.0-or-later
"""Parts of the experiment ``tunnel``: paths that fall silent or change during a transfer, a call beside a download."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path

from mptcp_lab.agent.pacing import Paced
from mptcp_lab.testbed import LiveNode, TestbedError
from mptcp_lab.testbed.recorder import Sample, mean_rate
from mptcp_lab.testbed.services import wait_until

from ..statistics import median, percentile
from .tunnel_bed import Beds, running
from .tunnel_cells import CHANGES, IDLE, OURS, PAYLOAD
from .two_paths import dropping, hop_shaper

STREAM_PORT = 5004
STREAM_RATE, STREAM_BYTES = 125, 1000
"""Packets per second of the stream, and bytes per packet; together 1 Mbit/s."""
LEAD, SILENT, AFTER = 4.0, 3.0, 3.0
"""Seconds of the stream before, during and after the path's silence."""
POLL = 0.02
FALLS_AT, WAITED, LENGTH = 4.0, 3.0, 5.0
"""Seconds until the rate falls, seconds from then to the measurement, and seconds of the measurement."""
LEAST_RATE, MOST_RATE, STEP = 2.0, 10.0, 0.1
"""Least and most rate in Mbit/s of the path that changes, and seconds between two changes."""
SAMPLES = 0.05
CALL_RATE, CALL_BYTES = 50, 200
"""Packets per second of a call, and bytes per packet."""
CALL, BEFORE_CALL, AFTER_CALL = 6.0, 2.0, 4.0
"""Seconds of the call, and seconds that the download runs before the call and at most after it."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Reaction to a path that was silent for a while. The time of an event that never happened is infinite."""

    relay: float
    """Seconds from the silence's begin until the relay's BPF programs stopped using the path; :attr:`proxy`
    likewise."""
    proxy: float
    back: float
    """Seconds from the path's return until both ends used it again."""
    lost: float
    """Seconds of the stream whose packets never came."""


@dataclass(frozen=True, slots=True)
class AfterChange:
    """A download's rate over paths that changed, and the rate that was available, in bits/s."""

    rate: float
    there: float

    @property
    def share(self) -> float:
        return self.rate / self.there


@dataclass(frozen=True, slots=True)
class Call:
    """The delays of a call's packets in seconds, and the share of lost packets."""

    median: float
    p99: float
    loss: float


@dataclass(frozen=True, slots=True)
class Poll:
    """Which paths the BPF programs of each end use at one moment."""

    time: float
    relay: Sequence[bool]
    proxy: Sequence[bool]


@contextmanager
def receiving(node: LiveNode, address: str, result: Path) -> Iterator[None]:
    """Receive a stream on *node* during the scope. Afterwards the file *result* has the received packets."""
    process = node.popen(node.agent("stream", "receive", address, str(STREAM_PORT), str(result)), name="receiver")
    wait_until(lambda: "ready" in process.output(), "the receiver is ready", process=process)
    try:
        yield
    finally:
        process.stop()


def received(result: Path) -> list[tuple[int, int, int]]:
    """Return number, send time and arrival time of each packet in *result*, times in nanoseconds."""
    return [(number, sent, came) for number, sent, came in json.loads(result.read_text())]


@contextmanager
def sending(node: LiveNode, address: str, per_second: int, octets: int, seconds: float) -> Iterator[None]:
    """Send a stream from *node*. The scope ends when the stream has ended and arrived. Raises TestbedError."""
    words = ["0.0.0.0", address, str(STREAM_PORT), str(per_second), str(octets), str(seconds)]
    sender = node.popen(node.agent("stream", "send", *words), name="sender")
    yield
    if sender.wait(seconds + 60) != 0:
        raise TestbedError(f"the stream ended with {sender.returncode}{sender.tail()}")
    time.sleep(0.5)


def fall_silent(beds: Beds) -> Silence:
    """Silence the path that carries more of a stream to the client. Raises TestbedError."""
    [bed] = beds.each
    pair, result, seconds = bed.pairs["tunnel"], bed.client.directory / "stream.json", LEAD + SILENT + AFTER
    polls: list[Poll] = []
    with running(beds.each, "ours") as [tunnel], receiving(bed.client, pair.client_address, result):
        relay, proxy = tunnel.ends
        paced = Paced(lambda: polls.append(Poll(time.monotonic(), relay.lives(), proxy.lives())), POLL)
        before = [path["packets_sent"] for path in proxy.paths()]
        with sending(bed.proxy, pair.client_address, STREAM_RATE, STREAM_BYTES, seconds):
            paced.start()
            try:
                time.sleep(LEAD)
                sent = [path["packets_sent"] - old for path, old in zip(proxy.paths(), before, strict=True)]
                path = sent.index(max(sent))
                began = time.monotonic()
                with dropping(bed.testbed[f"hop{path + 1}"]):
                    time.sleep(SILENT)
                    ended = time.monotonic()
                time.sleep(AFTER)
            finally:
                paced.stop()
    came = {number for number, _, _ in received(result)}
    return silence(polls, path, began, ended, seconds - len(came) / STREAM_RATE)


def silence(polls: Sequence[Poll], path: int, began: float, ended: float, lost: float) -> Silence:
    """Return the reactions to *path*, which was silent from *began* to *ended* on the polls' clock."""

    def first(end: str) -> float:
        return next(
            (p.time - began for p in polls if p.time >= began and getattr(p, end)[path : path + 1] == [False]), inf
        )

    # The path is back when both ends use it until the last poll.
    both = [p.time - ended for p in polls if p.time >= ended and not (_lives(p.relay, path) and _lives(p.proxy, path))]
    later = [p.time - ended for p in polls if p.time >= ended and (not both or p.time - ended > both[-1])]
    return Silence(first("relay"), first("proxy"), min(later, default=inf), lost)


def _lives(paths: Sequence[bool], path: int) -> bool:
    return list(paths[path : path + 1]) == [True]


def trace(seed: int, steps: int) -> list[float]:
    """Return the rates in Mbit/s of a path that changes: each differs by some 20 % from the one before."""
    draw, rate, found = random.Random(seed), (LEAST_RATE + MOST_RATE) / 2, []
    for _ in range(steps):
        rate = min(MOST_RATE, max(LEAST_RATE, rate * draw.lognormvariate(0, 0.2)))
        found.append(rate)
    return found


def changing(beds: Beds, change: str) -> dict[str, AfterChange]:
    """Download in all testbeds at the same time while path b changes. Raises TestbedError and ValueError."""
    found = beds.each
    begin = (FALLS_AT if change == CHANGES[0] else 0.0) + WAITED
    end = begin + LENGTH
    rates = {CHANGES[0]: [MOST_RATE / 3] * 2, CHANGES[1]: [MOST_RATE]}.get(
        change, trace(beds.seed, round((end + 1) / STEP))
    )
    hops = [bed.testbed["hop2"] for bed in found]
    files = [bed.client.directory / "download" for bed in found]
    sizes: list[list[Sample]] = [[] for _ in found]
    changed: list[tuple[float, float]] = [(0.0, MOST_RATE)]
    with running(found, "ours"):
        for file in files:
            file.unlink(missing_ok=True)
        started = time.monotonic()
        downloads = [
            bed.download(bed.pairs["tunnel"], "sum", end + 1, file) for bed, file in zip(found, files, strict=True)
        ]
        left = iter(rates)

        def look() -> None:
            now = time.monotonic() - started
            for file, seen in zip(files, sizes, strict=True):
                seen.append(Sample(now, {"file": file.stat().st_size if file.exists() else 0}))

        def turn() -> None:
            rate = next(left, None)
            if rate is not None and change != CHANGES[1]:
                for hop in hops:
                    hop.run(hop_shaper(rate, "lan"))
                changed.append((time.monotonic() - started, rate))

        looking, turning = Paced(look, SAMPLES), Paced(turn, STEP)
        looking.start()
        turning.start(started + begin - WAITED)
        try:
            time.sleep(min(2.0, begin))
            for bed in found:
                bed.check_control(bed.pairs["tunnel"])
            for download in downloads:
                download.rate()
        finally:
            turning.stop()
            looking.stop()
            for hop in hops:
                hop.run(hop_shaper(MOST_RATE, "lan"))
            for file in files:
                file.unlink(missing_ok=True)
    if turning.error is not None:
        raise turning.error
    there = 1e6 * PAYLOAD * (MOST_RATE + mean_of_changes(changed, begin, end))
    pairs = zip(found, sizes, strict=True)
    return {bed.control: AfterChange(mean_rate(seen, "file", begin, end), there) for bed, seen in pairs}


def mean_of_changes(changed: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Return the mean rate from *begin* to *end*; *changed* has times, each with the rate from then on."""
    total = 0.0
    for (time_, rate), (until, _) in zip(changed, [*changed[1:], (end, 0.0)], strict=True):
        total += rate * max(0.0, min(until, end) - max(time_, begin))
    return total / (end - begin)


def call(beds: Beds, where: str) -> dict[str, Call]:
    """Call in all testbeds at the same time. A call over one path uses a, the shorter. Raises TestbedError."""
    variant, name, file = ("ours", "tunnel", "sum") if where == OURS else ("alone", "a", "a")
    results = [bed.client.directory / "call.json" for bed in beds.each]
    with running(beds.each, variant), ExitStack() as scope:
        downloads = []
        for bed, result in zip(beds.each, results, strict=True):
            scope.enter_context(receiving(bed.client, bed.pairs[name].client_address, result))
            if where != IDLE:
                downloads.append(bed.download(bed.pairs[name], file, BEFORE_CALL + CALL + AFTER_CALL))
                scope.callback(downloads[-1].process.kill)
        time.sleep(BEFORE_CALL)
        with ExitStack() as streams:
            for bed in beds.each:
                if where != IDLE:
                    bed.check_control(bed.pairs[name])
                address = bed.pairs[name].client_address
                streams.enter_context(sending(bed.proxy, address, CALL_RATE, CALL_BYTES, CALL))
        if not all(download.process.running for download in downloads):
            raise TestbedError("a download was over before the call")
    return {bed.control: called(received(result)) for bed, result in zip(beds.each, results, strict=True)}


def called(came: Sequence[tuple[int, int, int]]) -> Call:
    """Return what a call was like whose packets *came*: number, send time and arrival time in nanoseconds."""
    delays = list({number: (arrived - sent) / 1e9 for number, sent, arrived in reversed(came)}.values())
    lost = 1 - len(delays) / (CALL_RATE * CALL)
    return Call(median(delays, default=nan), percentile(delays, 99, default=nan), lost)
