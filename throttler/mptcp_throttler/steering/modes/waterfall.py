"""*waterfall*, 3GPP's priority-based: a path is used while those before it are full or gone. Pure.

As with active-standby, a path that is lost is left. A path is opened (its subflows made regular) once those before it
are full: all have had data waiting for ``FULL_AFTER``, of this connection or of all of its client's (``Crowd``). It is
closed when for ``CLOSE_AFTER`` those before it could have carried all. What a lost path once gave does not count.

The kernel's scheduler would give most to the path with the shortest queue, so the last path that is open is capped to
the overflow (:class:`Overflow`). Only where it has no cap, for the path itself gives no more, a further one is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from mptcp_common.fields import Name
from mptcp_throttler.steering.mode import MIN_CAP, MIN_WINDOW, RATE_WINDOW, Action, PathLoad
from mptcp_throttler.steering.modes.active_standby import ActiveStandby

FULL_AFTER, CLOSE_AFTER = 0.5, 1.0
"""Seconds."""
SPARE = 0.85
"""Part of the baseline: what a path is trusted to carry."""
USED = 0.7
"""Part of its cap: what a path carries that would carry more without."""
STEP_SECONDS, FAST_STEP_SECONDS = 0.5, 0.25
"""Between two changes of the cap; the same while it never was too much."""
FIRST_OVERFLOW = 0.5
"""Cap of a path that is opened, as a part of what those before it give."""
FAST_GROWTH, GROWTH, ACCELERATION = 2.0, 1.06, 1.5
"""Of the cap: as long as it never was too much; the first step after it was; and the power to which each further step
is raised, so that noise changes it little and a demand that stays is met within seconds."""
FALL = 0.7
"""Part of its cap, or of its rate without one, to which the path falls at most within ``STEP_SECONDS``."""
DRAINS, FAST_DRAINS = 0.05, 0.3
"""Part of what the paths before it give: where what waits on them becomes less by more than that, the cap is enough;
and while it grows fast."""
LEFT = 0.97
"""Part of what the paths before it give: the last one has what exceeds it."""


class Overflow:
    """The cap of the last path that is open.

    While those before it are full it grows: twofold until it was too much once, afterwards slowly at first, or at once
    by what begins to wait. It stays while less and less waits. While they are not full, and carry less than they did,
    it falls to what they leave. It goes when the path itself gives no more.
    """

    __slots__ = ("_growth", "_set_at", "_unused", "_waiting", "cap")

    def __init__(self) -> None:
        self.cap: int | None = None
        """Bits/s."""
        self._growth = FAST_GROWTH
        self._set_at = float("-inf")
        self._waiting = 0
        """Bytes that waited on the paths before it then."""
        self._unused = False
        """The path gave less than its cap then."""

    def begin(self, now: float, before: Sequence[PathLoad]) -> None:
        """Cap a path that was just opened, for those *before* it are full."""
        self.cap = max(MIN_CAP, round(FIRST_OVERFLOW * sum(each.baseline for each in before)))
        self._growth, self._set_at, self._unused = FAST_GROWTH, now, False
        self._waiting = sum(each.waiting for each in before)

    def adjust(self, now: float, path: PathLoad, before: Sequence[PathLoad]) -> None:
        """Set the cap of *path* by how it and those *before* it do."""
        fast = self._growth == FAST_GROWTH
        seconds = now - self._set_at
        if seconds < (FAST_STEP_SECONDS if fast else STEP_SECONDS):
            return
        given, waiting = sum(each.baseline for each in before), sum(each.waiting for each in before)
        carried, rate = sum(each.rate(MIN_WINDOW) for each in before), path.rate(MIN_WINDOW)
        more_waits = 8 * (waiting - self._waiting) / seconds
        # What comes from the origin is what all carry, and by how much more waits than before.
        needed = rate + carried + more_waits - LEFT * given
        unused_before, self._unused = self._unused, self.cap is not None and rate < USED * self.cap
        self._set_at, self._waiting = now, waiting
        if not all(each.full for each in before):
            if self.cap is None or carried < LEFT * given:
                self._fall(needed, rate, seconds)
        elif self.cap is None:
            pass
        elif self._unused:
            if unused_before:
                self.cap = None
        elif more_waits > -given * (FAST_DRAINS if fast else DRAINS):
            self.cap = round(max(self._growth * self.cap, min(needed, FAST_GROWTH * self.cap)))
            self._growth = min(FAST_GROWTH, self._growth**ACCELERATION)

    def _fall(self, needed: float, rate: float, seconds: float) -> None:
        former = rate if self.cap is None else self.cap
        left = max(MIN_CAP, round(max(needed, FALL ** (seconds / STEP_SECONDS) * former)))
        self.cap = left if self.cap is None else min(self.cap, left)
        self._growth = GROWTH


class Waterfall(ActiveStandby):
    """A path is opened when those before it are full."""

    names = ("priority-based", "waterfall")
    meaning = "waterfall, which 3GPP calls priority-based: a path is used while those before it are full or gone"
    keys: ClassVar = {
        "order": (
            list[Name] | None,
            Field(
                None,
                min_length=2,
                description="With waterfall (priority-based): paths, the cheapest or most preferred first.",
                examples=[["wifi", "lte"]],
            ),
        ),
    }
    first, reserve = "first", "in reserve"

    def __init__(self, paths: Sequence[str], given: Mapping[str, Any]) -> None:
        super().__init__(paths, given)
        self._since: float | None = None
        """Since when all that are open have been full, or one less has been enough."""
        self._overflow = Overflow()
        """Of the last path that is open, while those before it work."""

    @classmethod
    def words(cls, given: Mapping[str, Any]) -> str:
        return ", then ".join(given["order"])

    @property
    def at_rest(self) -> bool:
        return super().at_rest and self._since is None and self._overflow.cap is None

    def follow(self, now: float, usable: Sequence[str], before: tuple[str, ...]) -> None:
        if self._open != before:
            self._since = None
        else:
            self._open_or_close(now, usable)
        last = self._open[-1] if self._open else self._order[0]
        earlier = self._before(last)
        works = bool(earlier) and all(path.present and not path.lost for path in earlier)
        if not works or before[-1:] != (last,):
            self._overflow.cap = None
        if works and last not in before:
            self._overflow.begin(now, earlier)
        elif works:
            self._overflow.adjust(now, self._paths[last], earlier)

    def _open_or_close(self, now: float, usable: Sequence[str]) -> None:
        opened = [self._paths[name] for name in self._open]
        fewer = opened[:-1]
        closed = [name for name in usable if name not in self._open]
        total = sum(path.rate(RATE_WINDOW) for path in opened)
        # What the paths before once carried, in an upload, is nothing: by that alone none would be closed.
        trusted = max(MIN_CAP, SPARE * sum(path.baseline for path in fewer))
        if closed and all(path.full for path in opened) and self._overflow.cap is None:
            wanted, after = {*self._open, closed[0]}, FULL_AFTER
        elif fewer and not any(path.full for path in fewer) and total < trusted:
            wanted, after = set(self._open[:-1]), CLOSE_AFTER
        else:
            self._since = None
            return
        if self._since is None:
            self._since = now
        elif now - self._since >= after:
            self._open, self._since = tuple([name for name in usable if name in wanted]), None

    def overflow(self, path: str) -> Action:
        return Action(False, self._overflow.cap if path == self._open[-1] else None, "the ones before are full")
