"""What a steering mode is, and what one connection has on one path. Pure.

Times are on any one clock, in seconds, rates in bits/s. Samples may be 0.1 s or some seconds apart: a rate is taken
over its window, or over the last interval where that is longer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import exp
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from mptcp_throttler.mptcp.model import FourTuple

RATE_WINDOW, MIN_WINDOW = 1.0, 0.5
"""Seconds."""
KEPT_SECONDS = 10.0
"""The longest window of a rate."""
MIN_WAITING, MUCH_WAITING = 0.08, 0.5
"""Seconds that what waits takes to send; below it a path is not full."""
MORE_THAN_A_PIECE, SURELY_WAITING = 70_000, 200_000
"""Bytes. The scheduler hands out pieces of 64 KB: one says nothing, three say all."""
SURELY_FULL = 0.7
"""Seconds for which more than a piece waits at every sample."""
BUSY = 0.7
"""Part of the baseline."""
LOST_AFTER, LOST_ROUND_TRIPS = 0.55, 3
"""Seconds, and round trips, for which data are outstanding on a path and none arrives."""
BACK_AFTER = 0.5
"""Seconds with nothing outstanding on a path that was lost."""
MEMORY = 60.0
"""Seconds in which a baseline falls to 1/e."""
WAITING_SETTLES = 1.0
"""Seconds."""
MIN_CAP = 256_000
"""Bits/s: no mode caps a path to less."""


class SubflowSample(NamedTuple):
    """One active subflow at one moment."""

    four_tuple: FourTuple
    path: str
    read: float
    """When it was so, monotonic seconds."""
    delivered: int
    """Bytes that arrived, since its beginning."""
    not_sent: int
    """Bytes assigned and not sent."""
    unacked: int = 0
    """Segments sent and not acknowledged."""
    rtt: float = 0.0
    """Seconds."""


class Action(NamedTuple):
    """What is to become of one subflow."""

    backup: bool
    rate: int | None
    """Cap, bits/s; None without."""
    reason: str


class Crowd:
    """What all steered connections of one client have on one path, together."""

    __slots__ = ("__weakref__", "rate", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        """Bytes."""
        self.rate = 0
        """Bits/s."""


class PathLoad:
    """All subflows of one connection on one path."""

    def __init__(self) -> None:
        self._carried = 0
        self._delivered: dict[FourTuple, int] = {}
        self._marks: list[tuple[float, int]] = []
        """When, and what the path had carried then."""
        self.baseline = 0.0
        """What it once gave, bits/s."""
        self.waiting = 0
        """Bytes."""
        self._crowd, self._told = Crowd(), (0, 0)
        """And this connection's part of it: bytes that wait, bits/s."""
        self._rtt = 0.0
        """Seconds."""
        self.read = 0.0
        """When its subflows were read last: in a sweep seconds before or after another path's."""
        self._alive = 0.0
        """When something arrived last, or nothing was outstanding."""
        self._empty_since: float | None = None
        """Since when nothing has been outstanding."""
        self._idled = self._waited = self._emptied = float("-inf")
        """When next to nothing waited last, when more than is sent at once, and when no more than a piece."""
        self.silent = float("-inf")
        """When it was last that what is outstanding did not arrive."""
        self.lost = False

    def observe(self, now: float, samples: Iterable[SubflowSample]) -> None:
        there = list(samples)
        read = self.read = max((each.read for each in there), default=now)
        carried = self._carried
        for each in there:
            self._carried += max(0, each.delivered - self._delivered.get(each.four_tuple, each.delivered))
        self._delivered = {each.four_tuple: each.delivered for each in there}
        self.waiting = sum(each.not_sent for each in there)
        outstanding = any(each.unacked for each in there)
        self._rtt = max((each.rtt for each in there), default=0.0)
        if not outstanding or self._carried > carried:
            self._alive = read
        if outstanding or not there:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = read
        before = self._marks[-1][0] if self._marks else read
        self._marks.append((read, self._carried))
        while len(self._marks) > 2 and self._marks[1][0] <= read - KEPT_SECONDS:
            del self._marks[0]
        rate = self.rate(RATE_WINDOW)
        self.baseline = max(rate, self.baseline * exp((before - read) / MEMORY))
        if self.gives_nothing:
            self.silent = now
        if self.waiting >= max(MORE_THAN_A_PIECE, min(MIN_WAITING * rate / 8, SURELY_WAITING)):
            self._waited = read
        else:
            self._idled = read
        if self.waiting < MORE_THAN_A_PIECE:
            self._emptied = read

    def tell(self, crowd: Crowd | None) -> None:
        """Have *crowd*, or the one so far, know what this connection has now."""
        waiting, rate = self._told
        self._crowd.waiting -= waiting
        self._crowd.rate -= rate
        self._crowd = crowd or self._crowd
        flows = self.present and self._empty_since is None
        waiting, rate = self._told = (self.waiting, round(self.rate(RATE_WINDOW))) if flows else (0, 0)
        self._crowd.waiting += waiting
        self._crowd.rate += rate

    def leave(self) -> None:
        self._delivered = {}
        self.tell(None)

    @property
    def present(self) -> bool:
        return bool(self._delivered)

    @property
    def idles(self) -> bool:
        """Next to nothing has waited for a while."""
        return self.read - self._waited >= WAITING_SETTLES

    @property
    def is_waited_for(self) -> bool:
        """Data have waited for a while."""
        return self.read - self._idled >= WAITING_SETTLES

    @property
    def gives_nothing(self) -> bool:
        """What is outstanding does not arrive, though it did before."""
        silent = self.read - self._alive
        return self.present and self.baseline > MIN_CAP and silent >= max(LOST_AFTER, LOST_ROUND_TRIPS * self._rtt)

    @property
    def well_again(self) -> bool:
        """All arrived that was outstanding, or its subflow went."""
        return not self.present or (self._empty_since is not None and self.read - self._empty_since >= BACK_AFTER)

    def _over(self, window: float) -> tuple[float, float]:
        """Return the seconds and the bytes of the last *window* seconds, or since the first sample.

        If the window begins between two samples, what was carried between them is taken as spread evenly.
        """
        after = self._marks[-1]
        now, begin = after[0], after[0] - window
        for mark in reversed(self._marks):
            if mark[0] <= begin:
                part = (begin - mark[0]) / (after[0] - mark[0])
                return window, self._carried - mark[1] - part * (after[1] - mark[1])
            after = mark
        return now - after[0], self._carried - after[1]

    def carried(self, window: float) -> float:
        """Return the bytes of the last *window* seconds."""
        return self._over(window)[1]

    def rate(self, window: float) -> float:
        """Return the bits/s of the last *window* seconds."""
        seconds, octets = self._over(window)
        return 8 * octets / max(seconds, MIN_WINDOW)

    @property
    def full(self) -> bool:
        """More waits than is sent at once, on a path that gives about what it can, or much more on any; of this
        connection, or of all that the client has there: each of many small downloads has little waiting."""
        if not self.present:
            return False
        crowd = self._crowd
        if crowd.waiting > self.waiting and crowd.waiting >= max(SURELY_WAITING, MIN_WAITING * crowd.rate / 8):
            return True
        # With a short round trip the kernel has no room for more.
        if self.read - self._emptied >= SURELY_FULL:
            return True
        rate = max(self.rate(RATE_WINDOW), MIN_CAP)
        seconds = MIN_WAITING if rate >= BUSY * self.baseline else MUCH_WAITING
        return 8 * self.waiting >= seconds * rate


class Mode(ABC):
    """A steering mode: what the policy says of it, and how it steers one connection."""

    names: ClassVar[tuple[str, ...]]
    """What the policy calls it: 3GPP's name first."""
    meaning: ClassVar[str]
    """For the description of the key ``mode``."""
    keys: ClassVar[dict[str, Any]] = {}
    """What it needs under ``steer``, as pydantic has fields: type and ``Field``. Texts, list items and mapping keys are
    names of paths, in the order of their preference."""
    spreads: ClassVar[bool] = True
    """False: it leaves all to the kernel's scheduler, from a connection's first subflow on."""
    sets_backup: ClassVar[bool] = False
    """It works by the backup flag (RFC 8684, 3.3.8)."""

    def __init__(self, paths: Sequence[str], given: Mapping[str, Any]) -> None:
        """*paths* are those it steers among, *given* the values of its keys."""
        del given
        self._paths = {name: PathLoad() for name in paths}

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        """Raise ValueError, with a sentence for the operator, if the values of its keys make no sense together."""
        del given

    @classmethod
    def words(cls, given: Mapping[str, Any]) -> str:
        """Return for people what is *given*: ``wifi, then lte``."""
        del given
        return ""

    @classmethod
    def part(cls, given: Mapping[str, Any], path: str, there: Sequence[str]) -> str:
        """Return for people what a *path* is for, while subflows are on the paths *there*."""
        del given, path, there
        return ""

    @property
    def at_rest(self) -> bool:
        """Nothing changes while no data flow."""
        return True

    def observe(
        self, now: float, samples: Sequence[SubflowSample], crowds: Mapping[str, Crowd] = MappingProxyType({})
    ) -> dict[FourTuple, Action]:
        """Take samples of all active subflows on the paths steered among; return what is to become of each.

        *crowds*: of each path the one that this connection is part of.
        """
        for name, path in self._paths.items():
            path.observe(now, [each for each in samples if each.path == name])
            path.tell(crowds.get(name))
        self.decide(now)
        return {each.four_tuple: self.action(each.path) for each in samples}

    def leave(self) -> None:
        """The connection has ended, or is not steered any more."""
        for path in self._paths.values():
            path.leave()

    @abstractmethod
    def decide(self, now: float) -> None:
        """Work out what is to become of each path."""

    @abstractmethod
    def action(self, path: str) -> Action:
        """Return what is to become of the subflows on *path*."""
