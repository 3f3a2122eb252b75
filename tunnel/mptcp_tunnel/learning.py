# SPDX-License-Identifier: GPL-2.0-or-later
"""Estimates of one direction of a path: its rate, its delay, its life. Pure; times are nanoseconds.

Each message from the other end is a sample: how long a message took (by clocks that differ), how many bytes the joiner
there had counted by then, and how many the splitter here had sent. No acknowledgements are needed.

- **Delay**: the least message time of the last :data:`DELAY_SECONDS`. The clock offset is the same on all paths and
  cancels out in the difference between two paths, which is all that counts.
- **Queue**: a message's time beyond that minimum.
- **Rate**: while a queue stands on the path and most of it is ours, the path's capacity is what it delivers. While none
  stands although the assumed rate is used up, the path can carry more: the rate rises by :data:`RISE` a sample.
- **Loss**: the share of the bytes of the last :data:`LOSS_SECONDS` that were dispatched and not delivered.
- **Life**: a path is silent after :data:`DEAD_SECONDS` without a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

SECOND: Final = 1_000_000_000
DELAY_SECONDS: Final = 30.0
_DELAY_WINDOW: Final = round(DELAY_SECONDS * SECOND)
DEAD_SECONDS: Final = 0.3
"""With probes twenty times a second."""
_DEAD: Final = round(DEAD_SECONDS * SECOND)
QUEUE: Final = 5_000_000
"""A message that took this much longer than the fastest one found a queue."""
SPAN: Final = 200_000_000
"""Delivered bytes are averaged over this time."""
DRAIN: Final = 0.97
"""Share of the delivered rate that is sent, so that the queue drains."""
OURS: Final = 0.7
"""If we carry more than this share of the assumed rate, the queue counts as ours."""
RISE: Final = 1.05
FIRST_RISE: Final = 1.25
"""Until the path was full once."""
GENTLE_RISE: Final = 1.01
NEAR: Final = 1.1
"""Up to this multiple of a full path's last rate, the rate rises gently: too high a rate makes a queue."""
BUSY: Final = 0.9
"""Above this share of the assumed rate, the splitter limits the path."""
FIRST_RATE: Final = 10e6
"""Bits/s, assumed of an unknown path."""
LEAST_RATE: Final = 64e3
MOST_RATE: Final = 10e9
LONGEST: Final = 10 * SECOND
"""A longer delay or queue is not a path's: the other end can report anything."""


LOSS_SECONDS: Final = 10.0
LEAST_LOSS_BYTES: Final = 50_000
"""Below this, no loss is reported: it would be one or two packets."""
LEAST_LOSS: Final = 0.005
"""A sender that fills the path's queue causes less."""
LOSS_COST: Final = SECOND
"""Delay added per unit of loss: a path that loses 1 % counts as 10 ms longer."""


class Sample(NamedTuple):
    """What one message says about the direction from here to the other end."""

    time: int
    """When it came here, by the clock here."""
    sent: int
    """When the message that it repeats was sent from here."""
    arrived: int
    """When that message arrived there, by the clock there."""
    counted: int
    """When the joiner's bytes were read there, by the clock there."""
    delivered: int
    """The joiner's bytes."""
    dispatched: int
    """Bytes that the splitter here had counted when the message was sent."""


class DelayEstimator:
    """The least message time of the last :data:`DELAY_SECONDS`, by clocks that differ."""

    def __init__(self) -> None:
        self._rising: deque[tuple[int, int]] = deque()
        """Candidates for the minimum: when heard, and time taken."""

    def add(self, time: int, took: int) -> int:
        """Add a message that *took* this long; return its excess over the minimum."""
        rising = self._rising
        while rising and rising[-1][1] >= took:
            rising.pop()
        rising.append((time, took))
        while rising[0][0] < time - _DELAY_WINDOW:
            rising.popleft()
        return took - rising[0][1]

    def least(self, now: int) -> int | None:
        """Return the minimum, None if nothing was heard in that time."""
        rising = self._rising
        while rising and rising[0][0] < now - _DELAY_WINDOW:
            rising.popleft()
        return rising[0][1] if rising else None


class PathEstimator:
    """One path, from here to the other end."""

    def __init__(self, rate: float = FIRST_RATE) -> None:
        self.rate = rate
        """Assumed capacity, bits/s."""
        self.full = 0.0
        """Bits/s that the path carried when it was full last; 0 if it never was."""
        self.delays = DelayEstimator()
        self.queue = 0
        """Excess time of the last message."""
        self.heard: int | None = None
        """When the other end last reported a newer message."""
        self._latest = 0
        """When that message was sent."""
        self._counts: deque[tuple[Sample, int]] = deque()
        """Samples of the last :data:`SPAN`, each with the queue that its message found."""
        self._marks: deque[Sample] = deque()
        """One sample per second of the last :data:`LOSS_SECONDS`."""

    def observe(self, sample: Sample) -> None:
        """Learn from *sample*, which must be newer than the previous ones."""
        if sample.sent > self._latest:  # a message that repeats an older one says nothing about the path now
            self._latest, self.heard = sample.sent, sample.time
        self.queue = min(self.delays.add(sample.time, sample.arrived - sample.sent), LONGEST)
        counts = self._counts
        if counts:
            last = counts[-1][0]
            if (
                sample.delivered < last.delivered
                or sample.counted <= last.counted
                or sample.dispatched < last.dispatched
            ):
                counts.clear()  # one of the ends restarted
                self._marks.clear()
        counts.append((sample, self.queue))
        if not self._marks or sample.time - self._marks[-1].time >= SECOND:
            self._marks.append(sample)
            while self._marks[0].time < sample.time - LOSS_SECONDS * SECOND:
                self._marks.popleft()
        while len(counts) > 2 and counts[1][0].counted <= sample.counted - SPAN:
            counts.popleft()
        first = counts[0][0]
        span = sample.counted - first.counted
        if span < SPAN // 2:
            return
        carried = 8 * (sample.delivered - first.delivered) * SECOND / span
        dispatched = 8 * (sample.dispatched - first.dispatched) * SECOND / max(1, sample.sent - first.sent)
        if min(queue for _, queue in counts) > QUEUE:
            # Others' queue does not show how much of our traffic the path would carry.
            if carried > OURS * self.rate or dispatched > carried / DRAIN:
                self.rate, self.full = DRAIN * carried, carried
        elif self.queue > QUEUE and self.full and self.rate > max(self.full, carried) > OURS * self.rate:
            self.rate = DRAIN * max(self.full, carried)  # it had been raised too far
        elif carried > BUSY * self.rate and self.queue <= QUEUE:
            near = self.full <= self.rate < NEAR * self.full
            self.rate *= GENTLE_RISE if near else RISE if self.full else FIRST_RISE
        self.rate = min(max(self.rate, LEAST_RATE), MOST_RATE)

    def lives(self, now: int, interval: int) -> bool:
        """Tell whether the path was heard lately; messages are expected each *interval*."""
        return self.heard is not None and now < self.silent_at(interval)

    def silent_at(self, interval: int) -> int:
        """Return when the path becomes silent if nothing more comes; 0 if nothing ever came."""
        return 0 if self.heard is None else self.heard + max(_DEAD, 3 * interval) + 1

    def restart_clock(self) -> None:
        """Forget what was measured by the other end's clock, which restarted."""
        self.delays = DelayEstimator()
        self.restart()

    def restart(self) -> None:
        """Forget what was delivered: the path was dead meanwhile, or has another address."""
        self._counts.clear()
        self._marks.clear()
        self.queue = 0

    @property
    def standing(self) -> int:
        """Return how long a packet waits on the path, nanoseconds; 0 if that may be noise."""
        return self.queue if self.queue > QUEUE else 0

    @property
    def loss_cost(self) -> int:
        """Return the delay that counts for the path's loss, nanoseconds."""
        loss = self.loss or 0.0
        return round(loss * LOSS_COST) if loss >= LEAST_LOSS else 0

    @property
    def loss(self) -> float | None:
        """Return the share of recently sent bytes that did not arrive; None if too few were sent."""
        if not self._counts:
            return None
        first, last = self._marks[0], self._counts[-1][0]
        dispatched = last.dispatched - first.dispatched
        if dispatched < LEAST_LOSS_BYTES:
            return None
        return max(0.0, 1 - (last.delivered - first.delivered) / dispatched)


def differences(estimators: Sequence[DelayEstimator], now: int) -> list[int]:
    """Return each path's delay beyond the least one; 0 if unknown."""
    delays = [each.least(now) for each in estimators]
    least = min((each for each in delays if each is not None), default=0)
    return [0 if each is None else min(each - least, LONGEST) for each in delays]
