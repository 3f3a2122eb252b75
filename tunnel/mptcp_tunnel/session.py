"""One tunnel, at either end: what is sent on its paths and when, and what is believed of what comes. Pure.

Whose address a path has is known from a message that repeats the time which was sent to that address, and to nobody
else: who takes a message from the wire and sends it on in his name, or sends one in another's name, never gets there.
Times are nanoseconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from mptcp_tunnel.learning import SECOND, DelayEstimator, PathEstimator, Sample, differences
from mptcp_tunnel.message import Kind, Message
from mptcp_tunnel.model import End, PathCounters

PROBE: Final = SECOND // 20
"""Between two probes of a path while the tunnel carries something."""
IDLE_PROBE: Final = SECOND
IDLE: Final = 5 * SECOND
"""After the last packet."""
PATIENCE: Final = SECOND // 100
"""Beyond the difference of the delays."""
CHALLENGES: Final = 64
"""Times that were sent to an address, of which a message may repeat one: of 3 s, of a minute in an idle tunnel."""
NO_COUNTERS: Final = PathCounters(0, 0, 0, 0)


@dataclass(slots=True)
class Path:
    """One path of a tunnel."""

    estimator: PathEstimator = field(default_factory=PathEstimator)
    """Of the direction from here."""
    incoming: DelayEstimator = field(default_factory=DelayEstimator)
    """Of the direction to here."""
    remote: End | None = None
    """The other end's address on this path, once that is proven."""
    number: int = 0
    """Of the newest message that was believed."""
    heard: int = 0
    """Its ``sent``."""
    heard_at: int = 0
    challenged: dict[End, dict[int, int]] = field(default_factory=dict)
    """Times that were sent lately, by address: that of the path, and one that may become it. With each, the bytes that
    the splitter had counted."""
    due: int = 0
    """When to probe next."""
    counters: PathCounters = NO_COUNTERS


class Session:
    """The paths of one tunnel; those of a relay are probed, those of a proxy answer."""

    def __init__(self, kind: Kind, remotes: Sequence[End | None], first_number: int) -> None:
        """*kind* is what this end sends; *remotes* the addresses that it sends to, None where these are learned.
        *first_number* must be above all that were sent before: the time since the epoch."""
        self.kind = kind
        self.paths = [Path(remote=each) for each in remotes]
        self._number = first_number
        self._moved = 0
        """When the tunnel carried something last."""
        self._woken = 0
        """When it did after it had been idle."""

    def count(self, counters: Sequence[PathCounters], now: int) -> None:
        """Take what the programs counted of each path."""
        idle = self.interval(now) == IDLE_PROBE
        for path, counted in zip(self.paths, counters, strict=False):
            if counted != path.counters:
                self._moved = now
                path.counters = counted
        if idle and self._moved == now:
            self._woken = now
            for path in self.paths:
                path.due = min(path.due, now + PROBE)

    def due(self, now: int) -> Iterator[tuple[int, Message, End]]:
        """Yield the probes that are due: path, message, and where it goes."""
        for index, path in enumerate(self.paths):
            if path.remote is not None and path.due <= now:
                path.due = now + self.interval(now)
                yield index, self._message(index, path.remote, now), path.remote

    def receive(self, message: Message, source: End, now: int) -> tuple[Message | None, bool]:
        """Take a message whose HMAC is right; return the answer to it, and whether the path has another address now."""
        if message.kind is self.kind or message.path >= len(self.paths):
            return None, False
        path = self.paths[message.path]
        if message.number <= path.number:
            return None, False  # sent before, or twice
        answers = self.kind is Kind.ANSWER
        dispatched = path.challenged.get(source, {}).get(message.heard)
        if dispatched is None:
            # It may be in anybody's name: an answer goes there, and nothing is believed.
            return (self._message(message.path, source, now, message.sent) if answers else None), False
        path.number = message.number
        path.heard, path.heard_at = message.sent, now
        path.incoming.add(now, now - message.sent)
        moved = path.remote != source
        if moved:
            path.remote = source
            path.estimator.restart()
        arrived, counted, delivered = message.heard_at, message.sent, message.received_bytes
        path.estimator.observe(Sample(now, message.heard, arrived, counted, delivered, dispatched))
        return (self._message(message.path, source, now, message.sent) if answers else None), moved

    def alive(self, now: int) -> list[bool]:
        """Tell of each path whether it lives."""
        # The other end may not know yet that probes are to come often.
        interval = IDLE_PROBE if now - self._woken < 2 * IDLE_PROBE else self.interval(now)
        return [path.remote is not None and path.estimator.lives(now, interval) for path in self.paths]

    def interval(self, now: int) -> int:
        """Return after how long a path is probed again."""
        return PROBE if now - self._moved < IDLE else IDLE_PROBE

    def delays(self) -> list[int]:
        """Return by how much each path's delay from here is above the least."""
        return differences([path.estimator.delays for path in self.paths])

    def patience(self) -> int:
        """Return for how long a packet that came may wait for one by another path."""
        return max(differences([path.incoming for path in self.paths])) + PATIENCE

    def _message(self, index: int, to: End, now: int, heard: int | None = None) -> Message:
        """Return a message; an answer has *heard* just now what it answers."""
        path = self.paths[index]
        self._number += 1
        if to not in path.challenged and len(path.challenged) > 1:
            path.challenged = {end: times for end, times in path.challenged.items() if end == path.remote}
        counted = path.counters
        times = path.challenged.setdefault(to, {})
        times[now] = counted.sent_bytes
        if len(times) > CHALLENGES:
            del times[next(iter(times))]
        return Message(
            self.kind,
            index,
            self._number,
            now,
            path.heard if heard is None else heard,
            path.heard_at if heard is None else now,
            counted.received_bytes,
        )
