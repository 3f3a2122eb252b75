"""One tunnel, at either end: what is sent on its paths and when, and what is believed of what comes. Pure.

Whose address a path has is known from a message that repeats the token which was sent to that address, and to nobody
else: who takes a message from the wire and sends it on in his name, or sends one in another's name, never gets there.
A token is made of the time and the address, by a secret of this end (as the cookies of RFC 6347, 4.2.1): nothing is
kept of an address that has not proven itself. Times are nanoseconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2s
from typing import Final

from mptcp_tunnel.learning import LONGEST, SECOND, DelayEstimator, PathEstimator, Sample, differences
from mptcp_tunnel.message import Kind, Message
from mptcp_tunnel.model import End, PathCounters
from mptcp_tunnel.sizes import SizeSearch

PROBE: Final = SECOND // 20
"""Between two probes of a path while the tunnel carries something."""
IDLE_PROBE: Final = SECOND
IDLE: Final = 5 * SECOND
"""After the last packet."""
PATIENCE: Final = SECOND // 100
"""Beyond the difference of the delays."""
DISPATCHES: Final = 64
"""Messages of which is known how much had been sent by then: of 3 s, of a minute in an idle tunnel."""
UNPROVEN: Final = 100
"""So many messages from addresses that are not proven are answered in the time between two probes."""
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
    repeated: int = 0
    """The ``sent`` of ours that the newest message repeated."""
    heard: int = 0
    """The ``sent`` of that message."""
    heard_token: int = 0
    heard_at: int = 0
    dispatched: dict[int, int] = field(default_factory=dict)
    """What the splitter had counted when a message was sent to ``remote``: bytes by ``sent``."""
    sizes: SizeSearch = field(default_factory=SizeSearch)
    due: int = 0
    """When to probe next."""
    counters: PathCounters = NO_COUNTERS


class Session:
    """The paths of one tunnel; those of a relay are probed, those of a proxy answer."""

    def __init__(self, kind: Kind, remotes: Sequence[End | None], secret: bytes) -> None:
        """*kind* is what this end sends; *remotes* the addresses that it sends to, None where these are learned;
        *secret* is random, 16 to 32 bytes."""
        self.kind = kind
        self.paths = [Path(remote=each) for each in remotes]
        self._secret = secret
        self._unproven, self._unproven_since = 0, 0
        self._moved = 0
        """When the tunnel carried something last."""
        self._woken = 0
        """When it did after it had been idle."""
        self._due_then = IDLE_PROBE
        """After how long a path was to be heard again when one was heard last."""

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

    def due(self, now: int) -> Iterator[tuple[int, Message]]:
        """Yield the probes that are due: path and message."""
        for index, path in enumerate(self.paths):
            if path.remote is not None and path.due <= now:
                path.due = now + self.interval(now)
                yield index, self._message(index, path.remote, now)

    def larger(self, now: int) -> Iterator[tuple[int, Message, int]]:
        """Yield the probes that find out how large a packet may be: path, message, and its bytes of payload.

        They go beside those that tell of a path's life, for they need not arrive.
        """
        for index, (path, lives) in enumerate(zip(self.paths, self.alive(now), strict=True)):
            sent = now + 1  # a probe may leave now
            if lives and path.remote is not None and (size := path.sizes.next(sent)) is not None:
                headers = 28 if path.remote.address.version == 4 else 48
                yield index, self._message(index, path.remote, sent), size - headers

    def restart(self, index: int) -> None:
        """Forget what was learned of the way of a path: it has another one."""
        path = self.paths[index]
        path.estimator.restart_clock()
        path.incoming, path.sizes = DelayEstimator(), SizeSearch()

    def receive(self, message: Message, source: End, now: int, came: int | None = None) -> tuple[Message | None, bool]:
        """Take a message whose code is right, which *came* a moment ago, None for now.

        Return the answer to it, and whether the path has another address now.
        """
        came = now if came is None else came
        if message.kind is self.kind or message.path >= len(self.paths):
            return None, False
        path = self.paths[message.path]
        answers = self.kind is Kind.ANSWER
        if message.heard_token != self._token(message.path, source, message.heard):
            # It may be in anybody's name: an answer goes there, and nothing is believed.
            answers = answers and self._may_answer(now)
            return (self._message(message.path, source, now, message, came) if answers else None), False
        # What repeats a later message of ours is newer; the clock of a host that began anew may be behind.
        if (message.heard, message.sent) <= (path.repeated, path.heard):
            return None, False  # sent before, or twice
        path.repeated = message.heard
        if path.sizes.answered(message.heard):
            return None, False  # it took longer for its size: neither end may take that for a queue
        path.heard, path.heard_token, path.heard_at = message.sent, message.token, came
        took = came - message.sent
        least = path.incoming.least(now)
        if least is not None and abs(took - least) > LONGEST:  # the clock of a host that began anew did so
            for each in self.paths:  # the difference of the clocks is that of all paths
                each.incoming = DelayEstimator()
                each.estimator.restart_clock()
        moved = path.remote != source
        if moved:
            self.restart(message.path)
        path.incoming.add(now, took)
        self._due_then = self._expected(now)
        dispatched = path.dispatched.get(message.heard)
        if moved:
            path.remote, dispatched = source, path.counters.sent_bytes
            path.dispatched.clear()
        if dispatched is not None:
            arrived, counted, delivered = message.heard_at, message.sent, message.received_bytes
            path.estimator.observe(Sample(now, message.heard, arrived, counted, delivered, dispatched))
        return (self._message(message.path, source, now, message, came) if answers else None), moved

    def alive(self, now: int) -> list[bool]:
        """Tell of each path whether it lives."""
        expected = self._expected(now)
        return [path.remote is not None and path.estimator.lives(now, expected) for path in self.paths]

    def used(self, now: int, there: Sequence[bool]) -> list[bool]:
        """Tell by which paths packets go: of those that are *there*, those that live.

        Where none does, those that did when something was heard last: the other end's daemon may be gone, and they as
        good as ever. Of a tunnel of which nothing was heard at all, every one.
        """
        alive = [each and exists for each, exists in zip(self.alive(now), there, strict=True)]
        if any(alive):
            return alive
        times = [path.estimator.heard for path, exists in zip(self.paths, there, strict=True) if exists]
        newest = max((each for each in times if each is not None), default=None)
        if newest is None:
            return [True] * len(alive)
        return [path.remote is not None and path.estimator.lives(newest, self._due_then) for path in self.paths]

    def next_silence(self, now: int) -> int | None:
        """Return when the first of the paths that live is silent if nothing is heard of it; None where none lives."""
        expected = self._expected(now)
        times = [path.estimator.silent_at(expected) for path in self.paths if path.remote is not None]
        least = min((each for each in times if each > now), default=None)
        woken = self._woken + 2 * IDLE_PROBE
        return least if least is None or woken <= now else min(least, woken)

    def interval(self, now: int) -> int:
        """Return after how long a path is probed again."""
        return PROBE if now - self._moved < IDLE else IDLE_PROBE

    def delays(self, now: int) -> list[int]:
        """Return by how much each path's delay from here is above the least."""
        return differences([path.estimator.delays for path in self.paths], now)

    def costs(self, now: int) -> list[int]:
        """Return by how much each path counts as longer than the shortest: its delay, and more if it loses packets."""
        return [delay + path.estimator.loss_cost for delay, path in zip(self.delays(now), self.paths, strict=True)]

    def patience(self, now: int) -> int:
        """Return for how long a packet that came may wait for one by another path."""
        return max(differences([path.incoming for path in self.paths], now)) + PATIENCE

    def _expected(self, now: int) -> int:
        """Return after how long a path is heard again: the other end may not know yet that probes are to come often."""
        return IDLE_PROBE if now - self._woken < 2 * IDLE_PROBE else self.interval(now)

    def _may_answer(self, now: int) -> bool:
        """Tell whether one more may be answered whose address is not proven."""
        if now - self._unproven_since >= PROBE:
            self._unproven, self._unproven_since = 0, now
        self._unproven += 1
        return self._unproven <= UNPROVEN

    def _token(self, index: int, to: End, sent: int) -> int:
        what = b"%d %d %d " % (index, to.port, sent) + to.address.packed
        return int.from_bytes(blake2s(what, key=self._secret, digest_size=8).digest(), "big")

    def _message(self, index: int, to: End, now: int, answered: Message | None = None, came: int = 0) -> Message:
        """Return a message to *to*; an answer has heard *answered*, which *came* a moment ago."""
        path = self.paths[index]
        counted = path.counters
        if to == path.remote:
            path.dispatched[now] = counted.sent_bytes
            if len(path.dispatched) > DISPATCHES:
                del path.dispatched[next(iter(path.dispatched))]
        heard = (
            (path.heard, path.heard_token, path.heard_at) if answered is None else (answered.sent, answered.token, came)
        )
        return Message(self.kind, index, now, self._token(index, to, now), *heard, counted.received_bytes)
