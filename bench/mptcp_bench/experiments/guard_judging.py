# SPDX-License-Identifier: GPL-2.0-or-later
"""Judge one transfer of the experiment ``guard`` from its samples. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mptcp_lab.testbed.recorder import Sample, mean_rate, windows

from .columns import for_pictures
from .devices import DEVICES

ETHERNET, WIFI, CAP = 100, 30, 5
"""Rates of Ethernet and Wi-Fi, and Ethernet's cap, in Mbit/s."""
FAULT = 8.0
"""Seconds of the fault."""
RECOVERED, LONGEST = 0.8, 2.0
"""The connection must regain this share of Wi-Fi's rate before the fault, within this number of seconds. A download's
seconds count from the fault. An upload may take this much longer than with the cap lifted by hand, because the client's
own scheduler also waits for Wi-Fi."""
CAP_SPAN, CAP_EXCESS = 1.0, 1.1
"""Seconds over which Ethernet's rate is compared with its cap. Above this multiple, the cap is not in force."""
SPAN = 0.5
"""Seconds over which a rate is measured."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One transfer with a fault. Times are in seconds; infinite if the event did not happen before the samples end."""

    before: float
    """Wi-Fi's rate before the fault, bits/s."""
    capped: float
    """Ethernet's rate before the fault, as a multiple of its cap."""
    during: float
    """Rate of the connection from ``LONGEST`` after the fault to the fault's end, as a share of :attr:`before`."""
    recovered: float
    """Seconds from the fault until the connection gets ``RECOVERED`` of :attr:`before`."""
    in_force: float
    """Seconds from the end of the fault until Ethernet stays at its cap."""
    relaxations: int
    beyond: float
    """Data that Ethernet carried above its cap until the cap was back, as a multiple of what Wi-Fi carried less."""
    fault_at: float = 0.0
    samples: tuple[Sample, ...] = for_pictures()


def judge(samples: Sequence[Sample], fault_at: float, relaxations: int, until: float | None = None) -> Outcome:
    """Judge a transfer. The fault began between *until* and *fault_at*; if *until* is None, exactly at *fault_at*.

    Raises ValueError if there are too few samples, or if Wi-Fi carried nothing before the fault.
    """
    until = fault_at if until is None else until
    before = mean_rate(samples, "wlan0", until - 2, until)
    if before <= 0:
        raise ValueError("nothing came over Wi-Fi before the fault")
    ended = fault_at + FAULT
    together = windows([sample for sample in samples if sample.time <= ended], DEVICES, SPAN, fault_at)
    recovered = next((begin + SPAN for begin, rate in together if rate >= RECOVERED * before), math.inf)
    capped_from = _capped_from(samples, ended)
    until_capped = min(capped_from, samples[-1].time)
    span = until_capped - fault_at
    above = max(0.0, mean_rate(samples, "eth0", fault_at, until_capped) - CAP * 1e6) * span
    lacking = max(1.0, before - mean_rate(samples, "wlan0", fault_at, until_capped)) * span
    return Outcome(
        before=before,
        capped=mean_rate(samples, "eth0", until - 2, until) / (CAP * 1e6),
        during=sum(mean_rate(samples, device, fault_at + LONGEST, ended) for device in DEVICES) / before,
        recovered=recovered - fault_at,
        in_force=capped_from - ended,
        relaxations=relaxations,
        beyond=above / lacking,
        fault_at=fault_at,
        samples=tuple(samples),
    )


def _capped_from(samples: Sequence[Sample], ended: float) -> float:
    """Return the end of the last second above the cap after *ended*; infinite if it is the last recorded second."""
    above = [(begin, rate > CAP * 1e6 * CAP_EXCESS) for begin, rate in windows(samples, ("eth0",), CAP_SPAN, ended)]
    if not above:
        raise ValueError("no second of samples after the fault")
    if above[-1][1]:
        return math.inf
    return max((begin + CAP_SPAN for begin, is_above in above if is_above), default=ended)
