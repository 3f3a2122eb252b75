# SPDX-License-Identifier: GPL-2.0-or-later
"""Estimates the rate, delay and loss of a path in one direction, and decides whether the path is alive. Pure; times are
nanoseconds.

Each message from the other end is a sample. It shows how long a message of this end took (measured between the clocks
of both ends, which differ). It also shows how many bytes the joiner of the other end had counted, and how many bytes
the splitter of this end had sent. No acknowledgements are needed.

- **Delay**: the minimum message time of the last :data:`DELAY_SECONDS`. The clock offset is the same on all paths and
  cancels out in the difference between two paths, and only this difference is used.
- **Queue**: how much longer than that minimum a message took.
- **Jitter**: the queue that messages find while the tunnel is idle, or that lasts for :data:`STANDING_TIME`. The tunnel
  does not cause it. So only a queue that exceeds it by :data:`MIN_QUEUE` shows that the path is full.
- **Rate**: while the path has a queue that consists mostly of the tunnel's packets, the delivered rate is the capacity
  of the path. If it has no queue although the assumed rate is used up, the path can carry more, and the assumed rate
  rises by :data:`RISE_FACTOR` per sample.
- **Loss**: the share of the bytes of the last :data:`LOSS_SECONDS` that the splitter sent and that were not delivered.
- **Alive or silent**: a path is silent after :data:`SILENT_SECONDS` without a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import fmean
from typing import Final, NamedTuple

SECOND: Final = 1_000_000_000
DELAY_SECONDS: Final = 30.0
_DELAY_WINDOW: Final = round(DELAY_SECONDS * SECOND)
SILENT_SECONDS: Final = 0.3
"""A path is silent after this time without a message. Probes come twenty times a second."""
_SILENT_TIME: Final = round(SILENT_SECONDS * SECOND)
MIN_QUEUE: Final = 5_000_000
"""A path had a queue if a message took longer than the fastest message by more than the jitter plus this many
nanoseconds."""
STANDING_TIME: Final = 4 * SECOND
"""The tunnel's own queue drains in this time, because the tunnel sends less than the path delivers. So a queue that
lasts longer is not the tunnel's own."""
MAX_JITTER: Final = 50_000_000
"""Upper limit of jitter, nanoseconds. If it were higher, a path's real queue would not be detected."""
IDLE_SHARE: Final = 0.02
"""Below this share of the assumed rate, the tunnel is idle and causes no queue."""
IDLE_SAMPLES, MIN_IDLE_SAMPLES = 40, 4
"""Maximum and minimum number of samples of an idle tunnel; the jitter is their 90th percentile."""
AVERAGING_TIME: Final = 200_000_000
"""Delivered bytes are averaged over this time, nanoseconds."""
DRAIN_SHARE: Final = 0.97
"""Share of the delivered rate that is sent, so that the queue drains."""
OWN_SHARE: Final = 0.7
"""If the tunnel sends more than this share of the assumed rate, the queue counts as caused by the tunnel."""
RISE_FACTOR: Final = 1.05
FIRST_RISE_FACTOR: Final = 1.25
"""Factor by which the assumed rate rises per sample until the path is full for the first time."""
GENTLE_RISE_FACTOR: Final = 1.01
NEAR_FULL_FACTOR: Final = 1.1
"""Up to this multiple of the rate at which the path was last full, the assumed rate rises gently, because too high a
rate causes a queue."""
BUSY_SHARE: Final = 0.9
"""If the carried rate is above this share of the assumed rate, the assumed rate limits the path."""
FIRST_RATE: Final = 10e6
"""Assumed rate of an unknown path, bits/s."""
MIN_RATE: Final = 64e3
MAX_RATE: Final = 10e9
MAX_DELAY: Final = 10 * SECOND
"""Upper limit of delays and queues, nanoseconds. Larger values are not plausible, and the other end may report any
value."""


LOSS_SECONDS: Final = 10.0
MIN_LOSS_BYTES: Final = 50_000
"""If fewer bytes were sent, no loss is reported, because one or two lost packets would be a large share."""
MIN_LOSS: Final = 0.005
"""Loss below which a path gets no extra cost. A sender that fills the path's queue causes less loss."""
LOSS_COST: Final = SECOND
"""Delay added per unit of loss: a path that loses 1 % counts as 10 ms longer."""


class Sample(NamedTuple):
    """The information of one message about the direction from this end to the other end."""

    time: int
    """When the message arrived at this end, by the clock of this end."""
    sent_at: int
    """When this end sent the message whose token the received message echoes."""
    arrived_at: int
    """When that message arrived at the other end, by the clock of the other end."""
    counted_at: int
    """When the joiner's counter was read at the other end, by the clock of the other end."""
    delivered_bytes: int
    """Bytes that the joiner at the other end had counted at ``counted_at``."""
    sent_bytes: int
    """Bytes that the splitter of this end had counted when the message was sent."""


class DelayEstimator:
    """The minimum message time of the last :data:`DELAY_SECONDS`, measured between two clocks that differ."""

    def __init__(self) -> None:
        self._candidates: deque[tuple[int, int]] = deque()
        """Candidates for the minimum: arrival time and duration of a message."""

    def add(self, time: int, duration: int) -> int:
        """Add a message with its *duration*; return how much longer it took than the minimum."""
        candidates = self._candidates
        while candidates and candidates[-1][1] >= duration:
            candidates.pop()
        candidates.append((time, duration))
        while candidates[0][0] < time - _DELAY_WINDOW:
            candidates.popleft()
        return duration - candidates[0][1]

    def minimum(self, now: int) -> int | None:
        """Return the minimum; None if no message arrived in that time."""
        candidates = self._candidates
        while candidates and candidates[0][0] < now - _DELAY_WINDOW:
            candidates.popleft()
        return candidates[0][1] if candidates else None


class PathEstimator:
    """Estimates for one path, in the direction to the other end."""

    def __init__(self, rate: float = FIRST_RATE) -> None:
        self.rate = rate
        """Assumed capacity, bits/s."""
        self.full_rate = 0.0
        """Rate that the path carried when it was last full, bits/s; 0 if it was never full."""
        self.delays = DelayEstimator()
        self.queue = 0
        """How much longer than the minimum the last message took, nanoseconds."""
        self.jitter = 0
        """Queue that messages find although the tunnel does not cause it, nanoseconds."""
        self._idle: deque[int] = deque(maxlen=IDLE_SAMPLES)
        """The last queues found while the tunnel was idle."""
        self._lasting_queues: list[int] = []
        """The last queue that was at most the jitter plus :data:`MIN_QUEUE`, and all longer queues since then."""
        self._lasting_since = 0
        self.last_message_at: int | None = None
        """When the last message arrived that echoed a newer token than all earlier messages; None if no message did."""
        self._latest = 0
        """When this end sent the newest message that the other end reported."""
        self._samples: deque[tuple[Sample, int]] = deque()
        """Samples of the last :data:`AVERAGING_TIME`, each with the queue in which its message waited."""
        self._loss_samples: deque[Sample] = deque()
        """One sample per second of the last :data:`LOSS_SECONDS`."""

    def observe(self, sample: Sample) -> None:
        """Learn from *sample*, which must be newer than the previous ones."""
        if sample.sent_at > self._latest:  # a message that echoes an older token does not show that the path is alive
            self._latest, self.last_message_at = sample.sent_at, sample.time
        self.queue = min(self.delays.add(sample.time, sample.arrived_at - sample.sent_at), MAX_DELAY)
        samples = self._samples
        if samples:
            last = samples[-1][0]
            if (
                sample.delivered_bytes < last.delivered_bytes
                or sample.counted_at <= last.counted_at
                or sample.sent_bytes < last.sent_bytes
            ):
                samples.clear()  # one of the ends restarted
                self._loss_samples.clear()
        samples.append((sample, self.queue))
        if not self._loss_samples or sample.time - self._loss_samples[-1].time >= SECOND:
            self._loss_samples.append(sample)
            while self._loss_samples[0].time < sample.time - LOSS_SECONDS * SECOND:
                self._loss_samples.popleft()
        while len(samples) > 2 and samples[1][0].counted_at <= sample.counted_at - AVERAGING_TIME:
            samples.popleft()
        first = samples[0][0]
        span = sample.counted_at - first.counted_at
        if span < AVERAGING_TIME // 2:
            return
        carried_rate = 8 * (sample.delivered_bytes - first.delivered_bytes) * SECOND / span
        sent_rate = 8 * (sample.sent_bytes - first.sent_bytes) * SECOND / max(1, sample.sent_at - first.sent_at)
        self._learn_jitter(sample.time, carried_rate)
        limit = self.jitter + MIN_QUEUE
        if min(queue for _, queue in samples) > limit:
            # A queue that other traffic causes does not show how much of the tunnel's traffic the path could carry.
            if carried_rate > OWN_SHARE * self.rate or sent_rate > carried_rate / DRAIN_SHARE:
                self.rate, self.full_rate = DRAIN_SHARE * carried_rate, carried_rate
        elif (
            self.queue > limit
            and self.full_rate
            and self.rate > max(self.full_rate, carried_rate) > OWN_SHARE * self.rate
        ):
            self.rate = DRAIN_SHARE * max(self.full_rate, carried_rate)  # the assumed rate had been raised too far
        elif carried_rate > BUSY_SHARE * self.rate and self.queue <= limit:
            is_nearly_full = self.full_rate <= self.rate < NEAR_FULL_FACTOR * self.full_rate
            self.rate *= GENTLE_RISE_FACTOR if is_nearly_full else RISE_FACTOR if self.full_rate else FIRST_RISE_FACTOR
        self.rate = min(max(self.rate, MIN_RATE), MAX_RATE)

    def _learn_jitter(self, now: int, carried_rate: float) -> None:
        if carried_rate < IDLE_SHARE * self.rate:
            self._idle.append(self.queue)
            if len(self._idle) >= MIN_IDLE_SAMPLES:
                self.jitter = min(sorted(self._idle)[len(self._idle) * 9 // 10], MAX_JITTER)
        if not self._lasting_queues or self.queue <= self.jitter + MIN_QUEUE:
            self._lasting_queues, self._lasting_since = [], now
        self._lasting_queues.append(self.queue)
        if now - self._lasting_since > STANDING_TIME:
            self.jitter, self._lasting_queues = min(round(fmean(self._lasting_queues)), MAX_JITTER), []

    def is_alive(self, now: int, interval: int) -> bool:
        """Return whether a message came recently on the path; one message is expected per *interval*."""
        return self.last_message_at is not None and now < self.silent_at(interval)

    def silent_at(self, interval: int) -> int:
        """Return when the path becomes silent if no further message comes; 0 if no message ever came."""
        return 0 if self.last_message_at is None else self.last_message_at + max(_SILENT_TIME, 3 * interval) + 1

    def forget_clock(self) -> None:
        """Forget all measurements with the other end's clock, because that clock or the route has changed."""
        self.delays = DelayEstimator()
        self.forget_samples()

    def forget_samples(self) -> None:
        """Forget the current queue and the samples of delivered bytes."""
        self._samples.clear()
        self._loss_samples.clear()
        self.queue = 0

    @property
    def excess_queue(self) -> int:
        """Return how long a packet waits on the path, nanoseconds; 0 if the measured wait may be noise."""
        queue = self.queue - self.jitter
        return queue if queue > MIN_QUEUE else 0

    @property
    def loss_cost(self) -> int:
        """Return the extra delay by which the path's loss is taken into account, nanoseconds."""
        loss = self.loss or 0.0
        return round(loss * LOSS_COST) if loss >= MIN_LOSS else 0

    @property
    def loss(self) -> float | None:
        """Return the share of recently sent bytes that did not arrive; None if too few were sent."""
        if not self._samples:
            return None
        first, last = self._loss_samples[0], self._samples[-1][0]
        sent_bytes = last.sent_bytes - first.sent_bytes
        if sent_bytes < MIN_LOSS_BYTES:
            return None
        return max(0.0, 1 - (last.delivered_bytes - first.delivered_bytes) / sent_bytes)


def excess_delays(estimators: Sequence[DelayEstimator], now: int) -> list[int]:
    """Return each path's delay in excess of the smallest delay of all paths; 0 if it is unknown."""
    delays = [each.minimum(now) for each in estimators]
    minimum = min((each for each in delays if each is not None), default=0)
    return [0 if each is None else min(each - minimum, MAX_DELAY) for each in delays]
