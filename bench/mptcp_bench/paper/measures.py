# SPDX-License-Identifier: GPL-2.0-or-later
"""Compute the numbers of a run from its observation: rates, shares, retransmissions, time to throttle. Pure."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

from mptcp_lab.testbed.recorder import TooFewSamples, greatest_rate, mean_rate, rates
from mptcp_lab.testbed.transfer import Observation

from .results import (
    BEFORE_CAP,
    CAPPED,
    DURATION,
    GOODPUT,
    JOINED,
    OUT_OF_ORDER,
    OUT_OF_ORDER_SEGMENTS,
    RECEIVER_DROPS,
    RETRANSMISSION_SHARE,
    RETRANSMISSIONS,
    TIME_TO_THROTTLE,
    Series,
    rate,
    share,
)
from .scenarios import Trial

DROPS = (
    "TcpExtTCPRcvQDrop",
    "TcpExtRcvPruned",
    "TcpExtOfoPruned",
    "TcpExtTCPBacklogDrop",
    "MPTcpExtRcvPruned",
)
"""Kernel counters of data that a receiver dropped because it had no room."""
SETTLE = 1.0
"""Seconds at the start of a download that rates do not include; at most a quarter of the download."""
THROTTLED_SETTLE = 5.0
"""The same for a cap that begins during the transfer; at most half of the transfer."""
WINDOW = 0.1
"""Seconds over which a rate must be below a cap for the cap to count as in force."""
TOLERANCE = 1.5
"""Factor on the cap for this comparison, because a window of this length has few packets."""
CONFIRMED = 0.2
"""Seconds that a transfer must stay below its cap to count as capped. A transfer that ends earlier does not count."""
CARRIED = 0.2
"""Minimum rate of a capped path, as a share of its cap, because an idle path shows nothing about the cap."""


def series(seen: Observation) -> Series:
    """Return the rates by path, and the receive memory if it was sampled."""
    found = rates(seen.samples)
    names = list(seen.samples[0].octets) if seen.samples else []
    # Memory is sampled after each reading of the counters, but the last sample may be missing. A rate ends at a
    # reading.
    memory = [octets for _, octets in seen.memory[1 : len(seen.samples)]]
    return Series(
        times=tuple(r.time for r in found),
        paths={name: tuple(r.bits[name] for r in found) for name in names},
        extra={OUT_OF_ORDER: tuple(map(float, memory))} if found and len(memory) == len(found) else {},
    )


def time_to_throttle(seen: Observation, path: str, cap: int) -> float | None:
    """Return the seconds from the second subflow's join until the cap on *path* is in force and remains in force.

    The end is that of the last window of WINDOW seconds that carried more than the cap allows. The resolution is one
    sample. The result is None if the cap never came into force: no second subflow joined, the transfer ended before,
    or *path* carried nothing that could be capped.
    """
    if seen.joined is None:
        return None
    last = seen.joined
    samples = [s for s in seen.samples if s.time <= seen.ended]
    for number, first in enumerate(samples):
        window = next((s for s in samples[number + 1 :] if s.time - first.time >= WINDOW - 1e-3), None)
        if window is None:
            break
        bits = 8 * (window.octets[path] - first.octets[path])
        if bits > TOLERANCE * cap * (window.time - first.time):
            # The excess may be anywhere in this window. Take the end of its last sample with a rate above the cap.
            above = [
                b.time
                for a, b in pairwise(s for s in samples if first.time <= s.time <= window.time)
                if 8 * (b.octets[path] - a.octets[path]) > TOLERANCE * cap * (b.time - a.time)
            ]
            last = max(last, *above) if above else last
    carried = [s for s in samples if s.time >= last]
    if seen.ended - last < CONFIRMED or len(carried) < 2:
        return None
    bits = 8 * (carried[-1].octets[path] - carried[0].octets[path])
    if bits < CARRIED * cap * (carried[-1].time - carried[0].time):
        return None
    return last - seen.joined


def values(seen: Observation, trial: Trial, cap: int) -> dict[str, float]:
    """Return the numbers of a run by metric, in SI units. *cap* is in bits per second."""
    result = {GOODPUT: seen.goodput, DURATION: seen.ended}
    first, last = seen.samples[0].octets, seen.samples[-1].octets
    received = {path: last[path] - first[path] for path in first}
    total = sum(received.values())
    settle = min(THROTTLED_SETTLE, seen.ended / 2) if trial.throttled else min(SETTLE, seen.ended / 4)
    for path, octets in received.items():
        result[share(path)] = octets / total if total else 0.0
        result[rate(path)] = mean_rate(seen.samples, path, settle, seen.ended)
    sender = seen.origin_counters if trial.alone else seen.proxy_counters
    result[RETRANSMISSIONS] = float(sender.get("TcpRetransSegs", 0))
    if segments := sender.get("TcpOutSegs", 0):
        result[RETRANSMISSION_SHARE] = result[RETRANSMISSIONS] / segments
    result[RECEIVER_DROPS] = float(sum(seen.counters.get(name, 0) for name in DROPS))
    if seen.memory:
        result[OUT_OF_ORDER] = float(max(octets for _, octets in seen.memory))
        result[OUT_OF_ORDER_SEGMENTS] = float(seen.counters.get("MPTcpExtOFOQueue", 0))
    if seen.joined is not None:
        result[JOINED] = seen.joined
    if trial.throttled:
        taken = time_to_throttle(seen, "ethernet", cap)
        result[CAPPED] = float(taken is not None)
        if taken is not None:
            result[TIME_TO_THROTTLE] = taken
            assert seen.joined is not None
            # If the cap came at once, or within such a window, no rate before the cap can be measured.
            with suppress(TooFewSamples):
                until = seen.joined + taken
                result[BEFORE_CAP] = greatest_rate(seen.samples, "ethernet", WINDOW, seen.joined, until)
    return result
