# SPDX-License-Identifier: GPL-2.0-or-later
"""The downloads of Figures 2 to 7, and the numbers that are computed from an observed download. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mptcp_lab.agent.processors import Usage
from mptcp_lab.testbed.recorder import Sample, TooFewSamples, greatest_rate, mean_rate
from mptcp_lab.testbed.transfer import Observation

from ..experiments.columns import Column, Results, columns_of, figure, for_pictures

MB = 1_000_000
SETTLE_SECONDS = 1.0
"""Seconds at the start of a download that steady rates exclude; at most a quarter of the download."""
THROTTLED_SETTLE_SECONDS = 5.0
"""The same for a cap that begins during the transfer; at most half of the transfer."""
WINDOW_SECONDS = 0.1
"""Seconds over which a rate must be below a cap for the cap to count as in force."""
TOLERANCE_FACTOR = 1.5
"""Factor on the cap for this comparison, because a window of this length has few packets."""
CONFIRMED_SECONDS = 0.2
"""Seconds that a transfer must stay below its cap to count as capped. A transfer that ends earlier does not count."""
MIN_CARRIED_SHARE = 0.2
"""A path that carries less than this share of its cap does not show whether the cap is in force."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One kind of download. The client always requests MPTCP; the origin itself answers with plain TCP."""

    key: str
    title: str
    size: int
    """Size of the file in bytes."""
    path: str | None = None
    """The only path of a download directly from the origin; None for a download through the proxy over all paths."""
    receive_buffer: int | None = None
    """The client's maximum receive buffer in bytes (``tcp_rmem``); None for the kernel's default."""
    mtu: int | None = None
    """MTU of the client's interfaces; None to leave it unchanged."""
    throttled: bool = False
    """Whether the throttler enforces the cap on Ethernet."""
    fresh_throttler: bool = False
    """Whether the throttler is restarted before this download."""
    kind: Literal["panel", "baseline", "other"] = "panel"
    """``panel``: it has its own plot over time; ``baseline``: a line in other trials' plots; ``other``: not drawn."""
    cap: int = 0
    """The cap on Ethernet in bits per second. This value and the next two come from the settings."""
    link: int | None = None
    """Rate of :attr:`path` in bits per second; None if it is not known."""
    rtt: int | None = None
    """RTT of :attr:`path` without queues in microseconds; None if it is not known."""

    def __str__(self) -> str:
        return self.title


@dataclass(frozen=True, slots=True)
class Download:
    """One download: numbers in SI units. A number is None if it was not measured."""

    fell_back: bool
    """Whether the connection fell back to plain TCP. A direct download without a fallback has no other values."""
    goodput: float | None = figure("goodput, Mbit/s", None, scale=1e-6)
    duration: float | None = figure("completion time, s", None, digits=3)
    share_ethernet: float | None = figure("share of Ethernet, %", None, scale=100, digits=1)
    share_wifi: float | None = figure("share of Wi-Fi, %", None, scale=100, digits=1)
    """Share of all received bytes that came over a path."""
    rate_ethernet: float | None = figure("Ethernet on the wire, steady, Mbit/s", None, scale=1e-6)
    rate_wifi: float | None = figure("Wi-Fi on the wire, steady, Mbit/s", None, scale=1e-6)
    joined: float | None = figure("second subflow joined after, ms", None, scale=1e3, digits=1)
    capped: float | None = figure("transfers in which the cap came into force, %", None, scale=100, digits=1)
    """1 if the cap came into force before the transfer ended, otherwise 0."""
    time_to_throttle: float | None = figure("time to throttle, ms", None, scale=1e3, digits=1)
    before_cap: float | None = figure(
        "Ethernet on the wire, greatest before the cap was in force, Mbit/s", None, scale=1e-6
    )
    retransmission_share: float | None = figure("retransmitted / sent segments, %", None, scale=100, digits=3)
    least_idle: float | None = figure("time that the busiest processor was idle, %", None, scale=100, digits=1)
    samples: Sequence[Sample] = for_pictures()

    @property
    def until_cap(self) -> float | None:
        """Seconds from the join until the cap was in force, or until the end of a transfer that was not capped."""
        if self.time_to_throttle is not None or self.capped is None or self.duration is None:
            return self.time_to_throttle
        return self.duration - (self.joined or 0.0)

    @property
    def rate_both(self) -> float | None:
        """Steady rate of both paths together."""
        if self.rate_ethernet is None or self.rate_wifi is None:
            return None
        return self.rate_ethernet + self.rate_wifi


Found = Results[Trial, Download]


def values(downloads: Sequence[Download], name: str) -> tuple[float, ...]:
    """Return the attribute *name* of each download that has it."""
    return tuple(value for each in downloads if (value := getattr(each, name)) is not None)


COLUMNS: Mapping[str, Column[Any, Any]] = {str(column.of): column for column in columns_of(Download)}
"""The columns of the tables, by the attribute of :class:`Download` that they show."""


def time_to_throttle(seen: Observation, path: str, cap: int) -> float | None:
    """Return the seconds from the second subflow's join until the cap on *path* is in force and remains in force.

    The cap is in force after the last window of WINDOW_SECONDS that carried more than the cap allows. The result is
    None if no second subflow joined, the transfer ended before, or *path* carried nothing that could be capped.
    """
    if seen.joined is None:
        return None
    samples = [s for s in seen.samples if s.time <= seen.ended]
    times, bits = np.array([s.time for s in samples]), np.array([8 * s.octets[path] for s in samples])
    # For the window that begins at each sample: the index of the window's last sample.
    lasts = np.searchsorted(times, times + WINDOW_SECONDS - 1e-3)
    firsts = np.flatnonzero(lasts < len(times))
    lasts = lasts[firsts]
    exceeding = np.flatnonzero(bits[lasts] - bits[firsts] > TOLERANCE_FACTOR * cap * (times[lasts] - times[firsts]))
    start = seen.joined
    if exceeding.size:
        # The excess may be anywhere in the last such window. Take the end of its last sample with a rate above the cap.
        window = slice(firsts[exceeding[-1]], lasts[exceeding[-1]] + 1)
        above = np.flatnonzero(np.diff(bits[window]) > TOLERANCE_FACTOR * cap * np.diff(times[window]))
        start = max(start, float(times[window][above[-1] + 1]))
    carried = np.flatnonzero(times >= start)
    if seen.ended - start < CONFIRMED_SECONDS or carried.size < 2:
        return None
    seconds = times[-1] - times[carried[0]]
    return None if bits[-1] - bits[carried[0]] < MIN_CARRIED_SHARE * cap * seconds else start - seen.joined


def numbers_of(trial: Trial, seen: Observation, usages: Sequence[Usage]) -> Download:
    """Return the numbers of the observed download *seen*. Raises TooFewSamples if the download was too short.

    *usages* has the processor usage of each host.
    """
    if trial.path and not seen.protocol.fallbacks:
        return Download(fell_back=False)
    first, last = seen.samples[0].octets, seen.samples[-1].octets
    received = {path: last[path] - first[path] for path in first}
    total = sum(received.values())
    settle = min(THROTTLED_SETTLE_SECONDS, seen.ended / 2) if trial.throttled else min(SETTLE_SECONDS, seen.ended / 4)
    numbers: dict[str, Any] = {}
    for path, octets in received.items():
        numbers[f"share_{path}"] = octets / total if total else 0.0
        numbers[f"rate_{path}"] = mean_rate(seen.samples, path, settle, seen.ended)
    sender = seen.origin_counters if trial.path else seen.proxy_counters
    if segments := sender.get("TcpOutSegs", 0):
        numbers["retransmission_share"] = sender.get("TcpRetransSegs", 0) / segments
    if trial.throttled:
        taken = time_to_throttle(seen, "ethernet", trial.cap)
        numbers |= {"capped": float(taken is not None), "time_to_throttle": taken}
        if taken is not None and seen.joined is not None:
            # If the cap was in force at once, or within WINDOW_SECONDS, no rate before the cap can be measured.
            with suppress(TooFewSamples):
                until = seen.joined + taken
                numbers["before_cap"] = greatest_rate(seen.samples, "ethernet", WINDOW_SECONDS, seen.joined, until)
    return Download(
        fell_back=bool(seen.protocol.fallbacks),
        goodput=seen.goodput,
        duration=seen.ended,
        joined=seen.joined,
        least_idle=min((each.least_idle for each in usages if each.least_idle is not None), default=None),
        samples=seen.samples,
        **numbers,
    )
