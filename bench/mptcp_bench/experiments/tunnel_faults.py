# SPDX-License-Identifier: GPL-2.0-or-later
"""Paths that fall silent, and paths that change, during a transfer: parts of the experiment ``tunnel``."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mptcp_lab.agent.pacing import Paced
from mptcp_lab.testbed import LiveNode, TestbedError
from mptcp_lab.testbed.services import wait_until
from mptcp_lab.testbed.tunnel import Tunnel

from .tunnel_bed import Bed, check, running
from .tunnel_cells import PAYLOAD, PathPair
from .tunnel_judging import CHANGES, AfterChange, Poll, Silence, rate_between, silence
from .two_paths import dropping, hop_shaper

STREAM_PORT = 5004
STREAM_RATE, STREAM_BYTES = 125, 1000
"""Packets per second of the stream, and bytes per packet; together 1 Mbit/s."""
LEAD, SILENT, AFTER = 4.0, 3.0, 3.0
"""Seconds of the stream before, during and after the path's silence."""
POLL = 0.02
PAIRS = {
    CHANGES[0]: PathPair((10, 10)),
    CHANGES[1]: PathPair((10, 10), (40, 40), jitter=10),
    CHANGES[2]: PathPair((10, 10)),
}
FALLS_AT, WAITED, LENGTH = 4.0, 3.0, 5.0
"""Seconds until the rate falls, seconds from then to the measurement, and seconds of the measurement."""
LEAST_RATE, MOST_RATE, STEP = 2.0, 10.0, 0.1
"""Least and most rate in Mbit/s of the path that changes, and seconds between two changes."""
SAMPLES = 0.05


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


def fall_silent(bed: Bed, running_tunnel: Tunnel) -> Silence:
    """Silence the path that carries more of a stream to the client. Raises TestbedError."""
    pair, result = bed.pairs["tunnel"], bed.client.directory / "stream.json"
    total = STREAM_RATE * (LEAD + SILENT + AFTER)
    polls: list[Poll] = []
    relay, proxy = running_tunnel.ends
    paced = Paced(lambda: polls.append(Poll(time.monotonic(), relay.lives(), proxy.lives())), POLL)
    send = ["send", pair.client_address, str(STREAM_PORT), str(STREAM_RATE), str(STREAM_BYTES)]
    with receiving(bed.client, pair.client_address, result):
        before = [path["packets_sent"] for path in proxy.paths()]
        sender = bed.proxy.popen(bed.proxy.agent("stream", *send, str(LEAD + SILENT + AFTER)), name="sender")
        paced.start()
        try:
            time.sleep(LEAD)
            sent = [path["packets_sent"] - old for path, old in zip(proxy.paths(), before, strict=True)]
            path = sent.index(max(sent))
            began = time.monotonic()
            with dropping(bed.testbed[f"hop{path + 1}"]):
                time.sleep(SILENT)
                ended = time.monotonic()
            sender.wait(60)
            time.sleep(0.5)
        finally:
            paced.stop()
    if sender.returncode != 0:
        raise TestbedError(f"the stream ended with {sender.returncode}{sender.tail()}")
    check([bed])
    came = {number for number, _, _ in received(result)}
    return silence(polls, path, began, ended, (total - len(came)) / STREAM_RATE)


def trace(seed: int, steps: int) -> list[float]:
    """Return the rates in Mbit/s of a path that changes: each differs by some 20 % from the one before."""
    draw, rate, found = random.Random(seed), (LEAST_RATE + MOST_RATE) / 2, []
    for _ in range(steps):
        rate = min(MOST_RATE, max(LEAST_RATE, rate * draw.lognormvariate(0, 0.2)))
        found.append(rate)
    return found


def changing(found: Sequence[Bed], change: str, seed: int) -> list[AfterChange]:
    """Download in all of *found* at the same time while path b changes. Raises TestbedError and ValueError."""
    begin = (FALLS_AT if change == CHANGES[0] else 0.0) + WAITED
    end = begin + LENGTH
    rates = {CHANGES[0]: [MOST_RATE / 3] * 2, CHANGES[1]: [MOST_RATE]}.get(change, trace(seed, round((end + 1) / STEP)))
    hops = [bed.testbed["hop2"] for bed in found]
    files = [bed.client.directory / "download" for bed in found]
    sizes: list[list[tuple[float, int]]] = [[] for _ in found]
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
                seen.append((now, file.stat().st_size if file.exists() else 0))

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
    check(found)
    there = 1e6 * PAYLOAD * (MOST_RATE + mean_rate(changed, begin, end))
    pairs = zip(found, sizes, strict=True)
    return [AfterChange(change, bed.control, rate_between(seen, begin, end), there) for bed, seen in pairs]


def mean_rate(changed: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Return the mean rate from *begin* to *end*; *changed* has times, each with the rate from then on."""
    total = 0.0
    for (time_, rate), (until, _) in zip(changed, [*changed[1:], (end, 0.0)], strict=True):
        total += rate * max(0.0, min(until, end) - max(time_, begin))
    return total / (end - begin)
