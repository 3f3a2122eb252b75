# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the estimates of a path: its rate from reports of delivered bytes, its delay, loss and silence."""

from __future__ import annotations

import random

import pytest

from mptcp_tunnel.learning import MIN_QUEUE, SECOND, DelayEstimator, PathEstimator, Sample, excess_delays

STEP = SECOND // 20
MS = SECOND // 1000


class Link:
    """A simulated path with a queue of 50 ms. The splitter fills it at the estimated rate."""

    def __init__(self, rate: float, delay: int = 10 * MS, jitter: int = 0) -> None:
        self.rate, self.delay = rate, delay
        self.estimator = PathEstimator()
        self.now, self.queued, self.delivered, self.sent_bytes = SECOND, 0.0, 0.0, 0.0
        self.loss = 0.0
        """Share of the sent bytes that are lost before they reach the queue."""
        self.other_load = 0.0
        """Load of other senders on the path, bits/s."""
        self.jitter = jitter
        """Maximum additional delay of a message, nanoseconds. The path keeps the order of its packets."""
        self._draw = random.Random(1)
        self.run(0.5, load=0.0)  # the path is idle at the first probes

    def run(self, seconds: float, load: float = 1.0) -> float:
        """Send *load* times the estimated rate for *seconds*. Return the mean estimate of the second half."""
        rates = []
        for _ in range(round(seconds * SECOND / STEP)):
            self.now += STEP
            self.sent_bytes += load * self.estimator.rate * STEP / SECOND / 8
            accepted = (1 - self.loss) * load * self.estimator.rate
            self.queued += (accepted + self.other_load) * STEP / SECOND
            carried = min(self.queued, self.rate * STEP / SECOND)
            self.queued = min(self.queued - carried, 0.05 * self.rate)
            self.delivered += carried / 8 * (1 - self.other_load / (self.other_load + load * self.estimator.rate + 1))
            arrived = self.now + self.delay + round(self.queued / self.rate * SECOND + self._jitter(load))
            sample = Sample(
                arrived + self.delay, self.now, arrived, arrived, round(self.delivered), round(self.sent_bytes)
            )
            self.estimator.observe(sample)
            rates.append(self.estimator.rate)
        half = rates[len(rates) // 2 :]
        return sum(half) / len(half)

    def _jitter(self, load: float) -> float:
        """Draw a message's additional delay. A packet cannot overtake the packets sent shortly before it."""
        packets = max(1, round(load * min(self.estimator.rate, self.rate) / 12_000 * self.jitter / SECOND))
        return max(self._draw.uniform(0, self.jitter) - number * self.jitter / packets for number in range(packets))


@pytest.mark.parametrize("rate", [1e6, 5e6, 10e6, 30e6, 100e6])
def test_estimator_finds_the_rate_of_a_path(rate: float) -> None:
    assert Link(rate).run(10) == pytest.approx(rate, rel=0.1)


def test_estimator_finds_a_high_rate_within_two_seconds() -> None:
    """Defect: the search took several seconds, as long as loading a web page."""
    link = Link(100e6)
    assert not link.estimator.full_rate
    assert link.run(2) > 80e6
    assert link.estimator.full_rate


@pytest.mark.parametrize("rate", [1e6, 10e6, 100e6])
def test_jitter_does_not_lower_the_rate(rate: float) -> None:
    """Defect: jitter of ± 10 ms counted as a queue, and the rate fell to a tenth in a few seconds."""
    link = Link(rate, jitter=20 * MS)
    link.run(10)
    assert link.run(10) == pytest.approx(rate, rel=0.1)
    assert link.queued / rate <= 0.045, "the queue is full"


def test_jitter_that_begins_in_a_download_does_not_lower_the_rate_for_long() -> None:
    link = Link(10e6)
    link.run(5)
    link.jitter = 20 * MS
    link.run(20)
    assert link.run(10) == pytest.approx(10e6, rel=0.15)


def test_rate_does_not_rise_while_the_path_has_a_queue() -> None:
    link = Link(10e6)
    link.run(5)
    queues = []
    for _ in range(100):
        before = link.estimator.rate
        link.run(0.05)
        if link.estimator.rate > before:
            queues.append(link.estimator.queue)
    assert queues
    assert max(queues) <= MIN_QUEUE


def test_estimator_follows_a_changing_rate() -> None:
    link = Link(10e6)
    link.run(5)
    link.rate = 3e6
    assert link.run(3) == pytest.approx(3e6, rel=0.15)
    link.rate = 10e6
    assert link.run(6) == pytest.approx(10e6, rel=0.15)


def test_lightly_used_path_keeps_its_rate() -> None:
    link = Link(10e6)
    link.run(5)
    before = link.estimator.rate
    link.run(20, load=0.1)
    assert link.estimator.rate == pytest.approx(before, rel=0.1)


def test_queue_of_other_traffic_does_not_lower_an_unused_rate() -> None:
    """Defect: the queue remained for a moment after the end of a download, and the rate fell to the minimum."""
    link = Link(10e6)
    link.run(5)
    link.other_load = 9.9e6
    link.run(20, load=0.02)
    assert link.estimator.rate > 5e6


def test_estimator_reports_the_share_of_lost_bytes() -> None:
    link = Link(10e6)
    assert link.estimator.loss is None, "a loss was reported before anything was sent"
    link.run(12, load=0.5)
    assert link.estimator.loss == pytest.approx(0, abs=0.005)
    link.loss = 0.1
    link.run(12, load=0.5)
    assert link.estimator.loss == pytest.approx(0.1, abs=0.01)
    link.run(12, load=0)
    assert link.estimator.loss is None


def test_path_counts_as_silent_after_300_ms_or_longer_if_probes_are_rare() -> None:
    link = Link(10e6)
    assert not PathEstimator().is_alive(link.now, STEP)
    assert link.estimator.last_message_at is not None
    assert link.estimator.is_alive(link.estimator.last_message_at + 299 * MS, STEP)
    assert not link.estimator.is_alive(link.estimator.last_message_at + 301 * MS, STEP)
    assert link.estimator.is_alive(link.estimator.last_message_at + 2 * SECOND, SECOND)


def test_repeated_report_of_an_old_message_does_not_keep_a_path_alive() -> None:
    """Defect: a path that was dead in the direction to the other end counted as alive, because messages from
    that end still arrived."""
    estimator = PathEstimator()
    for time in range(1, 40):
        estimator.observe(Sample(time * STEP, STEP // 2, STEP, time * STEP, 0, 0))
    assert not estimator.is_alive(39 * STEP, STEP)


def test_estimator_continues_after_a_restart_of_the_other_end() -> None:
    link = Link(10e6)
    link.run(5)
    link.delivered = 0.0
    assert link.run(5) == pytest.approx(10e6, rel=0.1)


def test_delay_is_the_minimum_of_the_last_30_seconds() -> None:
    delays = DelayEstimator()
    # Each delay is given with its time in seconds. The result is how much it exceeds the minimum.
    assert [delays.add(SECOND * time, duration) for time, duration in ((1, 30), (2, 20), (3, 25), (31, 40))] == [
        0,
        0,
        5,
        20,
    ]
    assert delays.add(33 * SECOND, 50) == 25, "the delay of 20, which is 31 s old, counted"
    other = DelayEstimator()
    assert excess_delays([delays, other], 33 * SECOND) == [0, 0]
    other.add(4 * SECOND, 125)
    assert excess_delays([delays, other], 33 * SECOND) == [0, 100]
    assert excess_delays([delays, other], 35 * SECOND) == [0, 0], "the other path's delay, which is 31 s old, counted"


def test_full_path_keeps_a_short_queue() -> None:
    """Defect: rates above the capacity of a path caused queues of 30 ms, which delayed calls."""
    link = Link(10e6)
    link.run(5)
    queues = []
    for _ in range(200):
        link.run(0.05)
        queues.append(link.estimator.queue)
    assert max(queues) <= 2 * MIN_QUEUE


def test_loss_adds_a_delay_cost_to_a_path() -> None:
    link = Link(10e6)
    link.run(5)
    assert link.estimator.loss_cost == 0
    link.loss = 0.02
    link.run(15)
    assert link.estimator.loss_cost == pytest.approx(20_000_000, rel=0.3)
