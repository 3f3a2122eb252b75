"""How long caps take to be in full effect, from the decision on: transitions included, in each direction.

A cap on a download is in full effect once its subflow's entry is in the kernel, which comes at the end of a transition;
one on an upload, which has its entry from the first step of a ramp on, once its class no longer falls to it; a cap with
another rate once its class has that. Where a ramp ends and its class stays as it is, it counts at the next call of
:meth:`Effect.look`. What ends or loses its cap before that counts nowhere, nor does what balances loads. Nothing is
decided in a dry run: what the first decision after it caps begins with that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

from mptcp_throttler.mptcp.model import Connection, FourTuple
from mptcp_throttler.policy.model import Direction, Throttle, Verdict
from mptcp_throttler.shaping.plan import UNCAPPED, Planner
from mptcp_throttler.telemetry.histogram import Histogram

BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Upper ends of the buckets, seconds: entries take milliseconds, downloads in flight a second, uploads up to 15."""
MAX_WAITING: Final = 16_384
"""Subflows without an entry that are waited for in each direction; the latest."""
MAX_LANDING: Final = 256
"""Those that have one, of which each change of a class has all looked through."""
MAX_SECONDS: Final = 60.0
"""What is seen later came into effect for another reason than the decision, a repair for one."""


def is_in_effect(planner: Planner, four_tuple: FourTuple) -> bool:
    """Tell whether all that the planner wants of a subflow's cap is in the kernel, and it wants the cap itself."""
    entry = planner.entries.desired.get(four_tuple)
    if entry is None or entry == UNCAPPED or four_tuple in planner.entries.upserts or planner.is_pending(four_tuple):
        return False
    cap = planner.soft_cap(four_tuple)
    falls = cap is not None and (four_tuple in cap.interim or cap.throttle != cap.wanted)
    return not falls and entry.minor not in planner.classes.upserts


class Effect:
    """Of one daemon."""

    def __init__(self, clock: Callable[[], float], planners: Sequence[Planner], is_dry: Callable[[], bool]) -> None:
        """*clock*: monotonic seconds. *is_dry*: nothing that is decided is to come into effect."""
        self._clock = clock
        self._is_dry = is_dry
        self._ways = {planner.direction: _Way(planner) for planner in planners}
        self._dry: set[int] = set()
        """Tokens of connections with caps that were last decided in a dry run."""
        for planner in planners:
            planner.classes.told = partial(self._classes, planner.direction)

    def decided(
        self,
        token: int,
        connection: Connection | None,
        before: tuple[Verdict, ...],
        after: tuple[Verdict, ...],
        now: float,
    ) -> None:
        """Take what was decided for a connection; the planners have yet to hear of it."""
        del connection, now
        if token in self._dry:
            self._dry.discard(token)
            before = ()
        if not any(each.scope for each in after) and not any(each.scope for each in before):
            return
        if self._is_dry():
            if after:
                self._dry.add(token)
            for way in self._ways.values():
                way.forget_all()
            return
        old = {(each.four_tuple, each.direction): (each.scope, _rates(each.throttle)) for each in before}
        clock = self._clock()
        for verdict in after:
            four_tuple, way = verdict.four_tuple, self._ways[verdict.direction]
            scope, throttle = old.pop((four_tuple, verdict.direction), (None, None))
            if verdict.scope is None or isinstance(verdict.scope.member, tuple):
                way.forget(four_tuple)
            elif scope != verdict.scope:
                way.begin(four_tuple, clock)
            elif throttle != _rates(verdict.throttle):
                way.change(four_tuple, clock)
        for four_tuple, direction in old:
            self._ways[direction].forget(four_tuple)

    def entries(self, direction: Direction, four_tuples: Collection[FourTuple]) -> None:
        """Their entries are in the kernel."""
        self._ways[direction].entries(four_tuples, self._clock())

    def look(self) -> None:
        """Take those whose ramps ended without a change of their classes, at most :data:`MAX_LANDING` in each
        direction: to be called about once a second, which is how late they may count."""
        clock = self._clock()
        for way in self._ways.values():
            way.look(clock)

    def _classes(self, direction: Direction, minors: Collection[int], there: bool) -> None:
        if there and minors:
            self._ways[direction].look(self._clock())

    def as_json(self) -> dict[str, Any]:
        """Return the histogram of each direction."""
        return {direction.value: way.histogram.as_json() for direction, way in self._ways.items()}


class _Way:
    """One direction."""

    def __init__(self, planner: Planner) -> None:
        self.histogram = Histogram(BOUNDS)
        self._planner = planner
        self._waiting: dict[FourTuple, float] = {}
        """Subflows without an entry, and when it was decided about them; the oldest first."""
        self._landing: dict[FourTuple, float] = {}
        """Those that have one, and whose cap is not in full effect."""

    def begin(self, four_tuple: FourTuple, clock: float) -> None:
        """It is to have a cap, or another one."""
        self._landing.pop(four_tuple, None)
        _put(self._waiting, four_tuple, clock, MAX_WAITING)

    def change(self, four_tuple: FourTuple, clock: float) -> None:
        """Its cap is to have another rate."""
        if four_tuple not in self._waiting:
            _put(self._landing, four_tuple, clock, MAX_LANDING)

    def forget(self, four_tuple: FourTuple) -> None:
        self._waiting.pop(four_tuple, None)
        self._landing.pop(four_tuple, None)

    def forget_all(self) -> None:
        self._waiting.clear()
        self._landing.clear()

    def entries(self, four_tuples: Collection[FourTuple], clock: float) -> None:
        for four_tuple in four_tuples:
            landing = self._landing.pop(four_tuple, None)
            since = self._waiting.pop(four_tuple, landing)
            if since is None:
                continue
            if is_in_effect(self._planner, four_tuple):
                self._count(clock - since)
            else:
                _put(self._landing, four_tuple, since, MAX_LANDING)

    def look(self, clock: float) -> None:
        """Take those whose class is what it is to be."""
        for four_tuple in [each for each in self._landing if is_in_effect(self._planner, each)]:
            self._count(clock - self._landing.pop(four_tuple))

    def _count(self, seconds: float) -> None:
        if seconds <= MAX_SECONDS:
            self.histogram.count(seconds)


def _rates(throttle: Throttle | None) -> tuple[int, int, int | None] | None:
    """Return what the kernel has of it: another onset alone changes no cap."""
    return None if throttle is None else (throttle.rate, throttle.ceil, throttle.burst)


def _put(table: dict[FourTuple, float], four_tuple: FourTuple, clock: float, most: int) -> None:
    table.pop(four_tuple, None)
    if len(table) >= most:
        del table[next(iter(table))]
    table[four_tuple] = clock
