# SPDX-License-Identifier: GPL-2.0-or-later
"""Send numbered packets over an emulated path, and observe their arrival, independently of the emulator."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from itertools import count as numbers

from .build import Testbed
from .node import LiveNode
from .services import wait_until

PER_SECOND, BYTES = 15_000, 64
"""Numbered packets per second, and bytes of their payload."""
ARRIVAL_SECONDS = 1.0
"""Seconds to wait for packets that have left the emulator."""
_ports = numbers(20_000)


def ends(testbed: Testbed, direction: str, device: str) -> tuple[LiveNode, str, LiveNode, str]:
    """Return sender, its address, receiver, its address. *device* is the client's device; *direction* is up or down."""
    client, core = testbed["client"], testbed["core"]
    client_end, core_end = (client, client.address(device)), (core, core.address(f"to-{device}"))
    return (*client_end, *core_end) if direction == "up" else (*core_end, *client_end)


def packet_delays(
    testbed: Testbed, direction: str, count: int, device: str = "eth0", per_second: int = PER_SECOND
) -> dict[int, float]:
    """Send *count* numbered packets. Return the delay of each in milliseconds, by number, in order of arrival."""
    sender, source, receiver, target = ends(testbed, direction, device)
    port = str(next(_ports))
    result = receiver.directory / f"delays-{port}.json"
    process = receiver.popen(receiver.agent("stream", "receive", target, port, str(result)), name="receive")
    wait_until(lambda: "ready" in process.output(), "the receiver is ready", process=process)
    words = (source, target, port, str(per_second), str(BYTES), str(count / per_second))
    sender.run(sender.agent("stream", "send", *words), timeout=60 + count / per_second)
    counts = testbed.emulation.counts
    wait_until(
        lambda: all(count.seen == count.lost + count.passed for path in counts().values() for count in path.values()),
        "all packets have left the emulator",
    )
    time.sleep(ARRIVAL_SECONDS)
    process.stop()
    return {number: (arrival - sent) / 1e6 for number, sent, arrival in json.loads(result.read_text())}


def missing_numbers(arrived: Collection[int], count: int) -> list[int]:
    """Return those of *count* numbers that have not *arrived*."""
    return sorted(set(range(count)).difference(arrived))
