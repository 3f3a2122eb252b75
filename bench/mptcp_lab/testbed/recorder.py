# SPDX-License-Identifier: GPL-2.0-or-later
"""Record the throughput of each path over time, from the byte counters of a node's interfaces.

A thread reads the counters at a fixed interval. A rate is the difference between two readings divided by the time
between them, so that a late reading causes no error.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from ..agent.counters import PeriodicCalls
from .commands import TestbedError
from .node import LiveNode


class TooFewSamples(TestbedError, ValueError):
    """The requested time contains too few samples."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Byte counters at one moment."""

    time: float
    """Seconds since the recorder started."""
    octets: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Rate:
    """Mean rate of each device in bits per second, over the interval that ends at *time*."""

    time: float
    bits: Mapping[str, float]


def rates(samples: Sequence[Sample]) -> tuple[Rate, ...]:
    """Return the rates between consecutive samples."""
    return tuple(
        Rate(
            after.time,
            {d: 8 * (after.octets[d] - before.octets[d]) / (after.time - before.time) for d in after.octets},
        )
        for before, after in pairwise(samples)
    )


def mean_rate(samples: Sequence[Sample], device: str, start: float, end: float) -> float:
    """Return *device*'s mean rate in bits/s from the first to the last sample between *start* and *end*."""
    inside = [sample for sample in samples if start <= sample.time < end]
    if len(inside) < 2:
        raise TooFewSamples(f"no two samples between {start:.2f} s and {end:.2f} s")
    return rates((inside[0], inside[-1]))[0].bits[device]


def greatest_rate(samples: Sequence[Sample], device: str, window: float, start: float, end: float) -> float:
    """Return *device*'s greatest mean rate in bits/s over any *window* seconds between *start* and *end*."""
    window_rates = windows([sample for sample in samples if start <= sample.time <= end], (device,), window)
    if not window_rates:
        raise TooFewSamples(f"no {window:g} s of samples between {start:.2f} s and {end:.2f} s")
    return max(rate for _, rate in window_rates)


def windows(
    samples: Sequence[Sample], devices: Iterable[str], window: float, start: float = 0.0
) -> list[tuple[float, float]]:
    """Return the start and the rate of each window of *window* seconds that starts at a sample from *start* on.

    The rate is the mean of all *devices* together in bits/s. A window may last longer than *window*, but never shorter.
    """
    times = [sample.time for sample in samples]
    names = tuple(devices)
    result = []
    for first in range(bisect_left(times, start), len(times)):
        last = bisect_left(times, times[first] + window - 1e-6)
        if last < len(times):
            octets = sum(samples[last].octets[name] - samples[first].octets[name] for name in names)
            result.append((times[first], 8 * octets / (times[last] - times[first])))
    return result


def longest_gap(samples: Sequence[Sample], devices: Iterable[str], floor: float, start: float, end: float) -> float:
    """Return the longest time in s with *devices* together below *floor* bits/s. Raises TooFewSamples."""
    names = tuple(devices)
    longest, previous = 0.0, start
    inside = rates([s for s in samples if start <= s.time <= end])
    if not inside:
        raise TooFewSamples(f"no two samples between {start:.2f} s and {end:.2f} s")
    for rate in inside:
        if sum(rate.bits[name] for name in names) >= floor:
            previous = rate.time
        longest = max(longest, rate.time - previous)
    return longest


class Recorder(AbstractContextManager["Recorder"]):
    """Records the counters of *devices* on *node* while the context is entered."""

    def __init__(
        self,
        node: LiveNode,
        devices: Sequence[str],
        *,
        interval: float = 0.1,
        read: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        """*read* returns the bytes of each of *devices* so far; by default these are the bytes that *node* received."""
        self.devices = tuple(devices)
        self._read = read or (lambda: {device: node.interface_bytes(device).received for device in self.devices})
        self._samples: list[Sample] = []
        self.started = time.monotonic()
        """Start of the samples' clock, as time.monotonic()."""
        self._sampler = PeriodicCalls(self._take, interval)

    def __enter__(self) -> Self:
        self.started = time.monotonic()
        self._sampler.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._sampler.stop()
        if self._sampler.error is not None and error is None:
            raise self._sampler.error

    @property
    def now(self) -> float:
        """Seconds since the start, on the samples' clock."""
        return time.monotonic() - self.started

    def wait(self, until: float) -> None:
        """Sleep until the time *until* on the samples' clock."""
        time.sleep(max(0.0, until - self.now))

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(self._samples)

    def _take(self) -> None:
        octets = self._read()
        self._samples.append(Sample(self.now, octets))
