# SPDX-License-Identifier: GPL-2.0-or-later
"""Parts of the experiment ``tunnel``: paths that fall silent or change during a transfer, a call during a download."""

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
from mptcp_lab.testbed import LiveNode, Process, TestbedError
from mptcp_lab.testbed.recorder import Sample, mean_rate
from mptcp_lab.testbed.services import wait_until

from ..statistics import median, percentile
from .two_paths import dropping, hop_shaper
from .vpn_bed import NAME, Bed, carried
from .vpn_cells import Vpn

IDLE, BESIDE, OURS = "one path, idle", "one path, beside a download", "ours, beside a download"
CHANGES = ("rate falls to a third", "jitter ± 10 ms", "rate changes each 0.1 s")
CALLS = (IDLE, BESIDE, OURS)
INNER_MTU = 1400
PAYLOAD = (INNER_MTU - 20 - 32) / (INNER_MTU + 8 + 28 + 14)
"""TCP payload (with timestamps) as a share of the bytes that a link counts, which include OpenVPN's 8 bytes, IPv4, UDP
and Ethernet."""
STREAM_PORT = 5004
STREAM_RATE, STREAM_BYTES = 125, 1000
"""Packets per second of the stream, and bytes per packet; together 1 Mbit/s."""
LEAD, SILENT, AFTER = 4.0, 3.0, 3.0
"""Seconds of the stream before, during and after the path's silence."""
POLL = 0.02
FALLS_AT, WAITED, LENGTH = 4.0, 3.0, 5.0
"""Seconds until the rate falls, seconds from the fall to the measurement, and length of the measurement in seconds."""
LEAST_RATE, MOST_RATE, STEP = 2.0, 10.0, 0.1
"""Minimum and maximum rate in Mbit/s of the path that changes, and seconds between two changes."""
SAMPLES = 0.05
CALL_RATE, CALL_BYTES = 50, 200
"""Packets per second of a call, and bytes per packet."""
CALL, BEFORE_CALL, AFTER_CALL = 6.0, 2.0, 4.0
"""Length of the call in seconds, seconds from the start of the download to the call, and maximum seconds from the end
of the call to the end of the download."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Reaction to a path that was silent for some time. The time of an event that did not happen is infinity."""

    relay: float
    """Seconds from the start of the silence until the relay's BPF programs stopped using the path; :attr:`proxy`: the
    same for the proxy."""
    proxy: float
    back: float
    """Seconds from the path's return until both ends used it again."""
    lost: float
    """Seconds of the stream whose packets did not arrive."""


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
    """Receive a stream on *node* during the scope. Afterwards the file *result* contains the received packets."""
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
    """Send a stream from *node*. The scope ends when the whole stream has arrived. Raises TestbedError."""
    words = ["0.0.0.0", address, str(STREAM_PORT), str(per_second), str(octets), str(seconds)]
    sender = node.popen(node.agent("stream", "send", *words), name="sender")
    yield
    if sender.wait(seconds + 60) != 0:
        raise TestbedError(f"the stream ended with {sender.returncode}{sender.tail()}")
    time.sleep(0.5)


def download(bed: Bed, seconds: float, into: Path | None = None) -> Process:
    """Start a download through the VPN into the file *into*, if any. It ends after *seconds* at the latest."""
    argv = ["curl", "-sSN", "-m", f"{seconds:g}", "-o", str(into or "/dev/null"), bed.origin.url(NAME)]
    return bed.client.popen(argv, name="curl")


def fall_silent(bed: Bed) -> Silence:
    """Silence the path that carries more of a stream to the client. Raises TestbedError."""
    result, seconds = bed.client.directory / "stream.json", LEAD + SILENT + AFTER
    polls: list[Poll] = []
    with carried(bed, Vpn("tunnel")) as (pair, ours), receiving(bed.client, pair.client_address, result):
        assert ours is not None
        relay, proxy = ours
        paced = Paced(lambda: polls.append(Poll(time.monotonic(), relay.lives(), proxy.lives())), POLL)
        before = [path["packets_sent"] for path in proxy.paths()]
        with sending(bed.server, pair.client_address, STREAM_RATE, STREAM_BYTES, seconds):
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


def changing(bed: Bed, change: str, seed: int) -> AfterChange:
    """Download while path b changes. Raises TestbedError and ValueError."""
    begin = (FALLS_AT if change == CHANGES[0] else 0.0) + WAITED
    end = begin + LENGTH
    rates = {CHANGES[0]: [MOST_RATE / 3] * 2, CHANGES[1]: []}.get(change, trace(seed, round((end + 1) / STEP)))
    hop, file, left = bed.testbed["hop2"], bed.client.directory / "download", iter(rates)
    sizes: list[Sample] = []
    changed: list[tuple[float, float]] = [(0.0, MOST_RATE)]
    file.unlink(missing_ok=True)
    with carried(bed, Vpn("tunnel")):
        started = time.monotonic()
        running = download(bed, end + 1, file)

        def look() -> None:
            now = time.monotonic() - started
            sizes.append(Sample(now, {"file": file.stat().st_size if file.exists() else 0}))

        def turn() -> None:
            rate = next(left, None)
            if rate is not None:
                hop.run(hop_shaper(rate, "lan"))
                changed.append((time.monotonic() - started, rate))

        looking, turning = Paced(look, SAMPLES), Paced(turn, STEP)
        looking.start()
        turning.start(started + begin - WAITED)
        try:
            # Exit code 28 of curl means that the time was over before the download was complete.
            if running.wait(end + 30) not in (0, 28):
                raise TestbedError(f"the download ended with {running.returncode}{running.tail()}")
        finally:
            turning.stop()
            looking.stop()
            hop.run(hop_shaper(MOST_RATE, "lan"))
            file.unlink(missing_ok=True)
    if turning.error is not None:
        raise turning.error
    there = 1e6 * PAYLOAD * (MOST_RATE + mean_of_changes(changed, begin, end))
    return AfterChange(mean_rate(sizes, "file", begin, end), there)


def mean_of_changes(changed: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Return the mean rate from *begin* to *end*; *changed* has the time of each change and the rate after it."""
    total = 0.0
    for (time_, rate), (until, _) in zip(changed, [*changed[1:], (end, 0.0)], strict=True):
        total += rate * max(0.0, min(until, end) - max(time_, begin))
    return total / (end - begin)


def call(bed: Bed, where: str) -> Call:
    """Make a call through our tunnel or over the shorter path a, with or without a download. Raises TestbedError."""
    result = bed.client.directory / "call.json"
    with (
        carried(bed, Vpn("tunnel" if where == OURS else "udp")) as (pair, _),
        receiving(bed.client, pair.client_address, result),
        ExitStack() as scope,
    ):
        beside = None
        if where != IDLE:
            beside = download(bed, BEFORE_CALL + CALL + AFTER_CALL)
            scope.callback(beside.kill)
        time.sleep(BEFORE_CALL)
        with sending(bed.server, pair.client_address, CALL_RATE, CALL_BYTES, CALL):
            pass
        if beside is not None and not beside.running:
            raise TestbedError(f"the download was over before the call{beside.tail()}")
    return called(received(result))


def called(came: Sequence[tuple[int, int, int]]) -> Call:
    """Return the delays and losses of a call. *came* has its packets: number, send time and arrival time in ns."""
    delays = list({number: (arrived - sent) / 1e9 for number, sent, arrived in reversed(came)}.values())
    lost = 1 - len(delays) / (CALL_RATE * CALL)
    return Call(median(delays, default=nan), percentile(delays, 99, default=nan), lost)
