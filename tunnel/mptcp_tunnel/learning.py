"""What is learned of a path in one direction: its rate, its delay, its life. Pure; times are nanoseconds.

Samples come with each message of the other end: how long a message took (by clocks that differ), how many bytes the
joiner there had counted by then, how many the splitter here had sent. No acknowledgements are needed.

- **Delay**: a message's time, its least of the last :data:`DELAY_SECONDS`. The clocks' difference is the same on all
  paths and cancels in what counts, the difference between two paths.
- **Queue**: by how much a message took longer than that.
- **Rate**: while a queue stands on the path, and most of what stands there is ours, what is delivered is what the path
  can carry. While none stands although the rate that is assumed is used up, the path can carry more: the rate rises by
  :data:`RISE` a sample.
- **Loss**: the share of the bytes of the last :data:`LOSS_SECONDS` that were dispatched and not delivered.
- **Life**: nothing heard for :data:`DEAD_SECONDS`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

SECOND: Final = 1_000_000_000
DELAY_SECONDS: Final = 30.0
_DELAY_WINDOW: Final = round(DELAY_SECONDS * SECOND)
DEAD_SECONDS: Final = 0.3
"""While probes come twenty times a second."""
_DEAD: Final = round(DEAD_SECONDS * SECOND)
QUEUE: Final = 5_000_000
"""A message that took so much longer than the fastest found a queue."""
SPAN: Final = 200_000_000
"""Over which delivered bytes make a rate."""
DRAIN: Final = 0.97
"""Of what is delivered: so that the queue becomes shorter."""
OURS: Final = 0.7
"""Of the rate that is assumed: so much carried, the queue is taken to be ours."""
RISE: Final = 1.05
FIRST_RISE: Final = 1.25
"""Until the path was found to be full once."""
GENTLE_RISE: Final = 1.01
NEAR: Final = 1.1
"""Up to so many times what a full path carried, the rate rises gently: a rate that is too high makes a queue."""
BUSY: Final = 0.9
"""Of the rate that is assumed: a path that carries more of it is limited by the splitter."""
FIRST_RATE: Final = 10e6
"""Bits/s, of a path of which nothing is known."""
LEAST_RATE: Final = 64e3
MOST_RATE: Final = 10e9
LONGEST: Final = 10 * SECOND
"""A delay or a queue beyond that is no path's: the other end tells of it what it likes."""


LOSS_SECONDS: Final = 10.0
LEAST_LOSS_BYTES: Final = 50_000
"""Of fewer no loss is told: it would be of one or two packets."""
LEAST_LOSS: Final = 0.005
"""Less is what a sender causes that fills the path's queue."""
LOSS_COST: Final = SECOND
"""For each loss: a path that loses 1 % counts as 10 ms longer."""


class Sample(NamedTuple):
    """What one message tells of the direction from here to the other end."""

    time: int
    """When this was learned, by the clock here."""
    sent: int
    """When a message was sent from here."""
    arrived: int
    """When it came there, by the clock there."""
    counted: int
    """When the joiner's bytes were read there, by the clock there."""
    delivered: int
    """So many they were."""
    dispatched: int
    """Bytes that the splitter had counted here when the message was sent."""


class DelayEstimator:
    """The least time of a message in the last :data:`DELAY_SECONDS`, by clocks that differ."""

    def __init__(self) -> None:
        self._rising: deque[tuple[int, int]] = deque()
        """Those that may become the least, when they were heard first."""

    def add(self, time: int, took: int) -> int:
        """Take a message that *took* so long; return by how much that is above the least."""
        rising = self._rising
        while rising and rising[-1][1] >= took:
            rising.pop()
        rising.append((time, took))
        while rising[0][0] < time - _DELAY_WINDOW:
            rising.popleft()
        return took - rising[0][1]

    def least(self, now: int) -> int | None:
        """Return the least, None where nothing was heard in that time."""
        rising = self._rising
        while rising and rising[0][0] < now - _DELAY_WINDOW:
            rising.popleft()
        return rising[0][1] if rising else None


class PathEstimator:
    """One path, from here to the other end."""

    def __init__(self, rate: float = FIRST_RATE) -> None:
        self.rate = rate
        """Bits/s that the path is taken to carry."""
        self.full = 0.0
        """Bits/s that the path carried when it was full last; 0 if it never was."""
        self.delays = DelayEstimator()
        self.queue = 0
        """By how much the last one took longer."""
        self.heard: int | None = None
        """When the other end told last of a message that it had not told of before."""
        self._latest = 0
        """When that message was sent."""
        self._counts: deque[tuple[Sample, int]] = deque()
        """Samples of the last :data:`SPAN`, each with the queue that its message found."""
        self._marks: deque[Sample] = deque()
        """One of each second of the last :data:`LOSS_SECONDS`."""

    def observe(self, sample: Sample) -> None:
        """Learn from *sample*, which must be newer than those before."""
        if sample.sent > self._latest:  # a message that repeats an older one says nothing of the path now
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
                counts.clear()  # one of both ends began anew
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
            # The queue of others says nothing of what the path would carry of ours.
            if carried > OURS * self.rate or dispatched > carried / DRAIN:
                self.rate, self.full = DRAIN * carried, carried
        elif self.queue > QUEUE and self.full and self.rate > max(self.full, carried) > OURS * self.rate:
            self.rate = DRAIN * max(self.full, carried)  # it was raised too far
        elif carried > BUSY * self.rate and self.queue <= QUEUE:
            near = self.full <= self.rate < NEAR * self.full
            self.rate *= GENTLE_RISE if near else RISE if self.full else FIRST_RISE
        self.rate = min(max(self.rate, LEAST_RATE), MOST_RATE)

    def lives(self, now: int, interval: int) -> bool:
        """Tell whether something was heard lately, where that is to come each *interval*."""
        return self.heard is not None and now < self.silent_at(interval)

    def silent_at(self, interval: int) -> int:
        """Return from when on it is silent if nothing more is heard; 0 where nothing was."""
        return 0 if self.heard is None else self.heard + max(_DEAD, 3 * interval) + 1

    def restart_clock(self) -> None:
        """Forget what was measured by the other end's clock: that began anew."""
        self.delays = DelayEstimator()
        self.restart()

    def restart(self) -> None:
        """Forget what was delivered: the path was dead meanwhile, or has another address."""
        self._counts.clear()
        self._marks.clear()
        self.queue = 0

    @property
    def standing(self) -> int:
        """Return for how long a packet waits on the path, nanoseconds; 0 where that may be noise."""
        return self.queue if self.queue > QUEUE else 0

    @property
    def loss_cost(self) -> int:
        """Return by how much the path counts as longer because it loses packets, nanoseconds."""
        loss = self.loss or 0.0
        return round(loss * LOSS_COST) if loss >= LEAST_LOSS else 0

    @property
    def loss(self) -> float | None:
        """Return the share of what was sent lately that did not arrive; None where that was little."""
        if not self._counts:
            return None
        first, last = self._marks[0], self._counts[-1][0]
        dispatched = last.dispatched - first.dispatched
        if dispatched < LEAST_LOSS_BYTES:
            return None
        return max(0.0, 1 - (last.delivered - first.delivered) / dispatched)


def differences(estimators: Sequence[DelayEstimator], now: int) -> list[int]:
    """Return by how much each path's delay is above that of the one with the least; 0 where it is not known."""
    delays = [each.least(now) for each in estimators]
    least = min((each for each in delays if each is not None), default=0)
    return [0 if each is None else min(each - least, LONGEST) for each in delays]
