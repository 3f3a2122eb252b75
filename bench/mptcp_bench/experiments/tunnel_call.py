# SPDX-License-Identifier: GPL-2.0-or-later
"""A call beside a download through the same tunnel: a part of the experiment ``tunnel``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from mptcp_lab.testbed import TestbedError

from .tunnel_bed import Bed, check, running
from .tunnel_cells import PathPair
from .tunnel_faults import STREAM_PORT, received, receiving
from .tunnel_judging import IDLE, OURS, Call

PAIR = PathPair((10, 10), (20, 60))
RATE, OCTETS = 50, 200
"""Packets per second of the call, and bytes per packet."""
SECONDS, LEAD = 6.0, 2.0
"""Seconds of the call, and seconds that the download runs before the call begins."""


def call(found: Sequence[Bed], where: str) -> list[Call]:
    """Call in all of *found* at the same time. A call over one path uses a, the shorter. Raises TestbedError."""
    variant, name = ("ours", "tunnel") if where == OURS else ("alone", "a")
    with running(found, variant), ExitStack() as scope:
        results, senders, downloads = [], [], []
        for bed in found:
            pair, result = bed.pairs[name], bed.client.directory / "call.json"
            scope.enter_context(receiving(bed.client, pair.client_address, result))
            if where != IDLE:
                file = "sum" if where == OURS else "a"
                downloads.append(bed.download(pair, file, LEAD + SECONDS + 2))
                scope.callback(downloads[-1].process.kill)
            results.append(result)
        time.sleep(LEAD)
        for bed in found:
            pair = bed.pairs[name]
            if where != IDLE:
                bed.check_control(pair)
            words = ["send", pair.client_address, str(STREAM_PORT), str(RATE), str(OCTETS), str(SECONDS)]
            senders.append(bed.proxy.popen(bed.proxy.agent("stream", *words), name="sender"))
        for sender in senders:
            if sender.wait(60) != 0:
                raise TestbedError(f"the call ended with {sender.returncode}{sender.tail()}")
        if not all(download.process.running for download in downloads):
            raise TestbedError("a download was over before the call")
        time.sleep(0.5)
    check(found)
    return [_judged(bed.control, where, received(result)) for bed, result in zip(found, results, strict=True)]


def _judged(control: str, where: str, came: Sequence[tuple[int, int, int]]) -> Call:
    first = {number: (came_at - sent) / 1e9 for number, sent, came_at in reversed(came)}
    return Call(control, where, tuple(first.values()), 1 - len(first) / (RATE * SECONDS))
