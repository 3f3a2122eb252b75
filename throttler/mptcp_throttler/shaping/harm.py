"""Do no harm: whose caps are to be relaxed, because what the policy leaves them has become too little. Pure.

The promise is the paper's: no less than a single-path TCP session would have. A capped connection lives on the paths
that are left uncapped, so the yardstick is what the best of those gave when it was well. A connection is harmed while

- it wants more: each of its uncapped subflows has data waiting that takes a while to send at its present rate, or makes
  no progress with what it sent. One that is idle, or whose application is the slow part, has nothing waiting; one whose
  client is, waits for the client's window;
- the path of those subflows has degraded: all connections of that client together get less over it than ``DEGRADED`` of
  what they once did. Where another connection merely takes its share, they do not;
- all its subflows together get less than ``HARMED`` of that.

Senders need a while to take what has become free: where a subflow came to the path or left it, or the connection began
to want more, the path has to be seen well again before it can be said to have degraded, or ``GRACE`` seconds pass.

Once it held for ``Guard.after`` seconds the caps are relaxed. They come back when the path is well again, which shows
while they are relaxed, or to try it out after ``Guard.retry`` seconds unless it is plain that the path is as it was.
Each time the pause doubles. What a path once gave is forgotten with time (``MEMORY``), so that one that stays worse
sets a new yardstick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp

from ..mptcp.model import FourTuple
from ..policy.model import Guard

WINDOW = 0.8
"""Seconds over which rates are taken: BBR stops for 0.2 s every ten seconds (PROBE_RTT), which is no degradation."""
LEAST_WINDOW = 0.35
DEGRADED, HEALED = 0.5, 0.8
HARMED = 0.8
PRESENT_LOOKS = 4
WINDOW_LIMITED = 0.1
"""Share of the time beyond which the client, not the path, is what is slow."""
WAITING = 0.05
"""Seconds that what waits takes to send; below it the application may be what is slow."""
MEMORY = 120.0
"""Seconds in which the memory of what a path gave falls to 1/e."""
LEAST_RATE = 500_000
"""Bits/s. A path that never gave more is no yardstick."""
GRACE = 2.5
"""Seconds."""
TRIAL = 5.0
"""Seconds. Harm so soon after a cap came back doubles the next pause."""


@dataclass(frozen=True, slots=True)
class Look:
    """One usable subflow at one moment."""

    four_tuple: FourTuple
    capped: bool
    """Caps that the policy sees on it, relaxed or not."""
    delivered: int
    """Bytes that arrived, in order or not, since its beginning."""
    not_sent: int
    unacked: int
    """Segments."""
    window_limited: int = 0
    """Microseconds, since its beginning, in which only the receiver's window kept it from sending."""

    @property
    def path(self) -> bytes:
        """What stands for the path: the client's address on it."""
        return self.four_tuple.remote


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The caps of one connection are relaxed."""

    until: float
    """When they are tried again at the latest."""
    path: bytes
    """The client's address on the path that has degraded."""
    rate: int
    """What the connection got, bits/s."""
    yardstick: int
    """What that path alone once gave, bits/s."""


@dataclass(slots=True)
class _Path:
    capability: float = 0.0
    rate: float = 0.0
    learnt: float = 0.0
    """When the capability was last brought up to date."""
    well: float = 0.0
    """When the path last gave what it can."""
    subflows: frozenset[FourTuple] = frozenset()
    disturbed: float = 0.0
    """When these last changed."""

    def learn(self, rate: float, settled: bool, now: float) -> None:
        """Take the *rate* of now; unless it is *settled*, taken over long enough, it may be a burst."""
        self.capability = max(rate if settled else 0.0, self.capability * exp((self.learnt - now) / MEMORY))
        self.rate, self.learnt = rate, now
        if rate >= HEALED * self.capability:
            self.well = now

    @property
    def degraded(self) -> bool:
        return self.rate <= DEGRADED * self.capability


@dataclass(slots=True)
class _Connection:
    samples: deque[tuple[float, dict[FourTuple, Look]]] = field(default_factory=deque)
    wanting_since: float | None = None
    harmed_since: float | None = None
    relaxation: Relaxation | None = None
    healthy_since: float | None = None
    pause: float = 0.0
    resumed: float = float("-inf")


class HarmWatch:
    """Watches connections that are capped. Times are on any one clock, in seconds."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._connections: dict[int, _Connection] = {}
        self._paths: dict[bytes, _Path] = {}

    def relaxation(self, token: int) -> Relaxation | None:
        """Return why the caps of connection *token* are relaxed; None while they are not."""
        found = self._connections.get(token)
        return None if found is None else found.relaxation

    def see(self, now: float, looks: Mapping[int, Sequence[Look]]) -> set[int]:
        """Take one look at all connections that have guarded caps; return those whose relaxation changed.

        What is no longer looked at is forgotten.
        """
        changed = {token for token, c in self._connections.items() if c.relaxation and token not in looks}
        self._connections = {token: self._connections.get(token, _Connection()) for token in looks}
        for token, connection in self._connections.items():
            connection.samples.append((now, {look.four_tuple: look for look in looks[token]}))
            while connection.samples[0][0] < now - WINDOW - 0.01:
                connection.samples.popleft()
        self._learn(now)
        for token, connection in self._connections.items():
            before = connection.relaxation
            self._judge(connection, now)
            if (connection.relaxation is None) != (before is None):
                changed.add(token)
        return changed

    def _learn(self, now: float) -> None:
        rates: dict[bytes, float] = {}
        subflows: dict[bytes, set[FourTuple]] = {}
        unsettled: set[bytes] = set()
        for connection in self._connections.values():
            for look in _latest(connection):
                if not look.capped:
                    rates[look.path] = rates.get(look.path, 0.0) + _rate(connection, look)
                    subflows.setdefault(look.path, set()).add(look.four_tuple)
                    if _span(connection, look) < LEAST_WINDOW:
                        unsettled.add(look.path)
        for path, rate in rates.items():
            known = self._paths.setdefault(path, _Path(learnt=now))
            if known.subflows != subflows[path]:
                known.subflows, known.disturbed = frozenset(subflows[path]), now
            known.learn(rate, path not in unsettled, now)
        for path in [path for path, known in self._paths.items() if now - known.learnt > 3 * MEMORY]:
            del self._paths[path]

    def _judge(self, connection: _Connection, now: float) -> None:
        if connection.relaxation is not None:
            self._judge_relaxed(connection, connection.relaxation, now)
            return
        if now - connection.resumed > TRIAL:
            connection.pause = 0.0
        harm = self._harm(connection, now)
        if harm is None:
            connection.harmed_since = None
            return
        if connection.harmed_since is None:
            connection.harmed_since = now
        if now - connection.harmed_since < self.guard.after:
            return
        connection.pause = self._longer(connection.pause)
        path, rate = harm
        yardstick = round(self._paths[path].capability)
        connection.relaxation = Relaxation(now + connection.pause, path, round(rate), yardstick)
        connection.healthy_since = None

    def _longer(self, pause: float) -> float:
        return min(self.guard.longest_retry, 2 * pause) if pause else self.guard.retry

    def _judge_relaxed(self, connection: _Connection, relaxation: Relaxation, now: float) -> None:
        path = self._paths.get(relaxation.path)
        looked_at = path is not None and path.learnt == now
        if not (looked_at and path is not None and path.rate >= HEALED * relaxation.yardstick):
            connection.healthy_since = None
        elif connection.healthy_since is None:
            connection.healthy_since = now
        seen_well = connection.healthy_since is not None and now - connection.healthy_since >= self.guard.after
        if not seen_well and now < relaxation.until:
            return
        if not seen_well and looked_at and path is not None and path.degraded and self._wants_more(connection):
            connection.pause = self._longer(connection.pause)
            connection.relaxation = replace(relaxation, until=now + connection.pause)
            return
        connection.relaxation = connection.harmed_since = None
        connection.resumed = now
        if seen_well:
            connection.pause = 0.0

    def _harm(self, connection: _Connection, now: float) -> tuple[bytes, float] | None:
        """Return the path of the yardstick and what the connection gets, where that is too little."""
        latest = _latest(connection)
        uncapped = [look for look in latest if not look.capped]
        if not self._wants_more(connection) or len(uncapped) == len(latest):
            connection.wanting_since = None
            return None
        if connection.wanting_since is None:
            connection.wanting_since = now
        best = max((look.path for look in uncapped), key=lambda path: self._paths[path].capability)
        known = self._paths[best]
        disturbed = max(known.disturbed, connection.wanting_since)
        if known.well < disturbed and now - disturbed < GRACE:
            return None
        total = sum(_rate(connection, look) for look in latest)
        if known.capability < LEAST_RATE or not known.degraded or total >= HARMED * known.capability:
            return None
        return best, total

    @staticmethod
    def _wants_more(connection: _Connection) -> bool:
        uncapped = [look for look in _latest(connection) if not look.capped]
        if not uncapped or connection.samples[-1][0] - connection.samples[0][0] < LEAST_WINDOW:
            return False
        return all(_wants_more(connection, look) for look in uncapped)


def _latest(connection: _Connection) -> list[Look]:
    return list(connection.samples[-1][1].values()) if connection.samples else []


def _first(connection: _Connection, look: Look) -> tuple[float, Look]:
    """Return when within the window the subflow was first seen, and how it was."""
    return next((then, looks[look.four_tuple]) for then, looks in connection.samples if look.four_tuple in looks)


def _span(connection: _Connection, look: Look) -> float:
    """Return the seconds for which the subflow has been seen, within the window."""
    return connection.samples[-1][0] - _first(connection, look)[0]


def _rate(connection: _Connection, look: Look) -> float:
    """Return the bits/s of a subflow over the window, or since it was first seen in it."""
    span = _span(connection, look)
    return 8 * max(0, look.delivered - _first(connection, look)[1].delivered) / span if span else 0.0


def _present_rate(connection: _Connection, look: Look) -> float:
    """Return the bits/s of a subflow over the last few looks."""
    recent = [(then, looks[look.four_tuple]) for then, looks in connection.samples if look.four_tuple in looks]
    (then, before), (now, _) = recent[-min(len(recent), PRESENT_LOOKS)], recent[-1]
    return 8 * max(0, look.delivered - before.delivered) / (now - then) if now > then else 0.0


def _wants_more(connection: _Connection, look: Look) -> bool:
    """Tell whether the subflow had more to send all the time."""
    rate, span = min(_rate(connection, look), _present_rate(connection, look)), _span(connection, look)
    if look.window_limited - _first(connection, look)[1].window_limited > WINDOW_LIMITED * 1e6 * span:
        return False
    seen = [looks[look.four_tuple] for _, looks in connection.samples if look.four_tuple in looks]
    if not rate:
        return all(each.unacked or each.not_sent for each in seen)
    return all(8 * each.not_sent >= WAITING * rate for each in seen)
