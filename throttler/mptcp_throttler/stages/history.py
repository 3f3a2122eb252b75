"""The latest samples of one subflow: its rate, and whether it had more to send all the time. Pure.

Rates are taken over the span that samples really have (``stages.baseline.first_in_window``).
"""

from __future__ import annotations

from typing import NamedTuple

from mptcp_throttler.mptcp.model import KernelSubflow
from mptcp_throttler.stages.baseline import first_in_window

PRESENT_SPAN = 0.3
"""Seconds over which the present rate is taken."""
MAX_WINDOW_LIMITED = 0.1
"""Part of the time beyond which the client, not the path, is slow."""
MIN_WAITING = 0.05
"""Seconds that what waits takes to send; below it the application may be slow."""
MAX_GAP = 10.0
"""Seconds between two samples, beyond which nothing is concluded from both."""


class Sample(NamedTuple):
    """One subflow at one moment."""

    time: float
    delivered: int
    """Bytes that arrived, in order or not, since its beginning."""
    not_sent: int
    """Bytes."""
    unacked: int
    """Segments."""
    window_limited: int
    """Microseconds, since its beginning, in which only the receiver's window kept it from sending."""


class History:
    """The latest samples of one subflow."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: list[Sample] = []

    def add(self, sample: Sample) -> None:
        samples = self._samples
        if samples and sample.time - samples[-1].time > MAX_GAP:
            samples.clear()
        samples.append(sample)
        first = first_in_window(samples, sample.time)
        if first:
            del samples[:first]

    @property
    def last(self) -> float:
        """When it was sampled last."""
        return self._samples[-1].time

    @property
    def span(self) -> float:
        """Seconds."""
        return self._samples[-1].time - self._samples[0].time

    @property
    def rate(self) -> float:
        """Bits/s over the span."""
        return self._rate_since(self._samples[0])

    @property
    def backlogged(self) -> bool:
        """It had more to send all the time."""
        last, first = self._samples[-1], self._samples[0]
        recent = next((each for each in reversed(self._samples) if last.time - each.time >= PRESENT_SPAN - 0.01), first)
        if last.window_limited - first.window_limited > MAX_WINDOW_LIMITED * 1e6 * self.span:
            return False
        rate = min(self._rate_since(first), self._rate_since(recent))
        if not rate:
            return all(each.unacked or each.not_sent for each in self._samples)
        return all(8 * each.not_sent >= MIN_WAITING * rate for each in self._samples)

    def _rate_since(self, before: Sample) -> float:
        last = self._samples[-1]
        span = last.time - before.time
        return 8 * max(0, last.delivered - before.delivered) / span if span else 0.0


def sample_of(there: KernelSubflow) -> Sample:
    """Return a sample of a socket that has TCP information."""
    tcp = there.tcp
    assert tcp is not None
    return Sample(there.read, there.delivered, tcp.not_sent, tcp.unacked, tcp.receive_window_limited)
