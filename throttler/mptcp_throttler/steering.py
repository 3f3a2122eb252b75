# SPDX-License-Identifier: GPL-2.0-or-later
"""The steering modes of 3GPP ATSSS (TS 23.501, 5.32.8), each by the simplest means that works. Pure.

*active-standby*: the subflows of the standby path are backup (RFC 8684, 3.3.8). The kernel's scheduler uses a backup
subflow when no other is usable. By itself it would return at the first packet from the active path, which must then
retransmit all its losses, so that no data would arrive for seconds. So this mode treats a path as lost when
outstanding data do not arrive for ``LOST_AFTER``. It makes the lost path backup and the next path regular, until no
data have been outstanding on the lost path for ``BACK_AFTER``.

*waterfall*: a path is used while all paths before it are full or absent. Lost paths are treated as above. A path opens
(its subflows become regular) when all paths before it had data waiting for ``FULL_AFTER``, of this connection or of its
client's crowd. It closes when the paths before it could have carried all data for ``CLOSE_AFTER``; the former rate of a
lost path does not count. The kernel's scheduler would assign most data to the path with the shortest queue, so the last
open path is capped to the overflow (:class:`Overflow`). A further path opens only if the last open path has no cap,
which means that this path itself cannot carry more.

*load-balancing*: bytes are shared by weight. The caps are shares of a measure. If data wait, the path that carries
least for its weight sets the measure and the others are capped. If nothing waits on an uncapped path, the measure is
the sum of what the paths carry, and every path is capped a little above its share. The kernel's scheduler gives idle
paths data in proportion to their pacing rates, which follow the caps. A small correction makes up for what the last
``KEPT_SECONDS`` lack. A path that gives next to nothing takes no part, because it would slow the others down. A lost
path drops out at once, and returns when the window of the measure no longer includes the loss.

Times are seconds of any one clock, rates bits/s, volumes bytes. Samples may be 0.1 s or several seconds apart: a rate
is taken over its window, or over the last interval if that is longer. ``stages.steering`` gives a mode samples and
applies its treatments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import ClassVar, Final, NamedTuple

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow

RATE_WINDOW, MIN_WINDOW, KEPT_SECONDS = 1.0, 0.5, 10.0  # seconds: usual window of a rate, shortest and longest
MIN_WAITING, MUCH_WAITING = 0.08, 0.5
"""Seconds that waiting data of a full path take to be sent, near its baseline rate and on a slower path."""
MORE_THAN_A_PIECE, SURELY_WAITING = 70_000, 200_000  # bytes: one 64 KB chunk proves nothing, three are a backlog
SURELY_FULL = 0.7  # a path is full if more than one chunk has waited at every sample for this many seconds
BUSY = 0.7  # fraction of the baseline from which on a path's rate is near its baseline
LOST_AFTER, LOST_ROUND_TRIPS = 0.55, 3
"""A path is lost if outstanding data do not arrive for these seconds, or these round trips if they take longer."""
BACK_AFTER = 0.5  # a lost path is back after this many seconds without outstanding data
MEMORY = 60.0  # seconds in which a baseline falls to 1/e
WAITING_SETTLES = 1.0  # seconds for which little or much data must have waited before this counts
MIN_CAP = 256_000  # minimum cap of a path in any mode, bits/s

FULL_AFTER, CLOSE_AFTER = 0.5, 1.0  # seconds
SPARE = 0.85  # fraction of its baseline that a path is trusted to carry
USED = 0.7  # a path that carries this fraction of its cap would carry more without it
STEP_SECONDS, FAST_STEP_SECONDS = 0.5, 0.25  # between two changes of a cap; of an overflow's until first too high
FIRST_OVERFLOW = 0.5  # cap of a newly opened path, as a fraction of what the paths before it give
FAST_GROWTH, GROWTH, ACCELERATION = 2.0, 1.06, 1.5
"""Growth factor until the cap was first too high; first factor after that; exponent for each further factor. Noise
changes the cap little, and lasting demand is met within seconds."""
FALL = 0.7  # lowest factor of the cap, or of the rate without one, per ``STEP_SECONDS``
DRAINS, FAST_DRAINS = 0.05, 0.3
"""The cap is enough if the backlog drains faster than this fraction of what the paths before give; in fast growth."""
LEFT = 0.97  # the last path gets what exceeds this fraction of what the paths before it give

WINDOW = 2.0  # seconds over which rates are computed: BBR's pause of 0.2 s every 10 s must not change the measure
FIRST_AFTER = 0.6  # seconds from the first sample to the first cap
HEADROOM = 1.03  # margin above a share, so that a path that could carry more shows it
ROOM = 1.35  # measure while nothing waits, as a multiple of what all paths carry
MAX_CORRECTION = 0.25  # fraction of a share
MIN_PART = 0.05  # a path below this fraction of its baseline takes no part
SETTLED = 0.02  # a cap stays if the new cap differs by at most this fraction


class Treatment(NamedTuple):
    """The treatment of one subflow."""

    backup: bool
    rate: int | None  # cap, bits/s; None for no cap
    reason: str


@dataclass(slots=True, weakref_slot=True, eq=False)
class Crowd:
    """The load of all steered connections of one client on one path."""

    waiting: int = 0
    rate: int = 0


class PathLoad:
    """All subflows of one connection on one path."""

    def __init__(self) -> None:
        self._carried = 0
        self._delivered: dict[FourTuple, int] = {}
        self._marks: list[tuple[float, int]] = []  # past times, each with the bytes carried until then
        self.baseline = 0.0  # rate that the path once had, bits/s
        self.waiting = 0
        self._crowd, self._told = Crowd(), (0, 0)  # ``_told``: this connection's part of it, waiting bytes and bits/s
        self.read = 0.0  # When the path was last read. In a sweep, another path may be read seconds earlier or later.
        self._alive = 0.0  # when data last arrived, or nothing was outstanding
        self._empty_since: float | None = None  # since when no data are outstanding; None while some are
        self._idled = self._waited = self._emptied = -inf
        """When little data waited last, when much data waited last, and when at most one chunk waited last."""
        self.silent = -inf  # when the path last carried nothing although data were outstanding
        self.lost = False

    def observe(self, now: float, there: Sequence[KernelSubflow]) -> None:
        read = self.read = max((each.read for each in there), default=now)
        before, self._delivered = self._delivered, {each.four_tuple: each.delivered for each in there}
        moved = sum(max(0, octets - before.get(each, octets)) for each, octets in self._delivered.items())
        self._carried += moved
        self.waiting = sum(each.tcp.not_sent for each in there)
        outstanding = any(each.tcp.unacked for each in there)
        if not outstanding or moved:
            self._alive = read
        if outstanding or not there:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = read
        passed = read - self._marks[-1][0] if self._marks else 0.0
        self._marks.append((read, self._carried))
        while len(self._marks) > 2 and self._marks[1][0] <= read - KEPT_SECONDS:
            del self._marks[0]
        rate = self.rate(RATE_WINDOW)
        self.baseline = max(rate, self.baseline * exp(-passed / MEMORY))
        # Outstanding data do not arrive on a path that used to work.
        lost_after = max(LOST_AFTER, LOST_ROUND_TRIPS * max((each.tcp.rtt / 1e6 for each in there), default=0.0))
        if there and self.baseline > MIN_CAP and read - self._alive >= lost_after:
            self.silent = now
        if self.waiting >= max(MORE_THAN_A_PIECE, min(MIN_WAITING * rate / 8, SURELY_WAITING)):
            self._waited = read
        else:
            self._idled = read
        if self.waiting < MORE_THAN_A_PIECE:
            self._emptied = read

    def tell(self, crowd: Crowd | None) -> None:
        """Update this connection's part of *crowd*, or of the present crowd."""
        self._crowd.waiting -= self._told[0]
        self._crowd.rate -= self._told[1]
        self._crowd = crowd or self._crowd
        flows = self.present and self._empty_since is None
        self._told = (self.waiting, round(self.rate(RATE_WINDOW))) if flows else (0, 0)
        self._crowd.waiting += self._told[0]
        self._crowd.rate += self._told[1]

    def leave(self) -> None:
        self._delivered = {}
        self.tell(None)

    @property
    def present(self) -> bool:
        return bool(self._delivered)

    @property
    def idles(self) -> bool:
        """Whether only little data have waited for some time."""
        return self.read - self._waited >= WAITING_SETTLES

    @property
    def is_waited_for(self) -> bool:
        """Whether much data have waited for some time."""
        return self.read - self._idled >= WAITING_SETTLES

    @property
    def well_again(self) -> bool:
        """Whether all outstanding data arrived, or the subflows ended."""
        return not self.present or (self._empty_since is not None and self.read - self._empty_since >= BACK_AFTER)

    def carried(self, window: float) -> float:
        """Return the bytes of the last *window* seconds, or since the first sample; interpolate linearly."""
        after = self._marks[-1]
        begin = after[0] - window
        for mark in reversed(self._marks):
            if mark[0] <= begin:
                part = (begin - mark[0]) / (after[0] - mark[0])
                return self._carried - mark[1] - part * (after[1] - mark[1])
            after = mark
        return self._carried - after[1]

    def rate(self, window: float) -> float:
        """Return the bits/s of the last *window* seconds."""
        return 8 * self.carried(window) / max(min(window, self._marks[-1][0] - self._marks[0][0]), MIN_WINDOW)

    @property
    def full(self) -> bool:
        """Whether data wait on the path and its rate is near the baseline, or much data wait. The client's crowd also
        counts, because each of many small downloads has only little data waiting."""
        if not self.present:
            return False
        all_waiting = self._crowd.waiting
        crowded = all_waiting > self.waiting and all_waiting >= max(SURELY_WAITING, MIN_WAITING * self._crowd.rate / 8)
        # If the round trip is short, the kernel never holds more than one chunk.
        if crowded or self.read - self._emptied >= SURELY_FULL:
            return True
        rate = max(self.rate(RATE_WINDOW), MIN_CAP)
        seconds = MIN_WAITING if rate >= BUSY * self.baseline else MUCH_WAITING
        return 8 * self.waiting >= seconds * rate


class Mode(ABC):
    """A steering mode, and how it steers one connection."""

    names: ClassVar[tuple[str, ...]]  # names in the policy, 3GPP's first
    meaning: ClassVar[str]  # for the description of the key ``mode``
    keys: ClassVar[tuple[str, ...]] = ()  # its keys under ``steer``
    spreads: ClassVar[bool] = True
    """False if the kernel's scheduler does everything, from a connection's first subflow on: no object is created."""
    sets_backup: ClassVar[bool] = False  # whether it uses the backup flag (RFC 8684, 3.3.8)

    def __init__(self, weights: Mapping[str, int]) -> None:
        """Steer among the paths of *weights*, the most preferred first."""
        self._paths = {name: PathLoad() for name in weights}

    def observe(
        self, now: float, samples: Sequence[tuple[str, KernelSubflow]], crowds: Mapping[str, Crowd]
    ) -> dict[FourTuple, Treatment]:
        """Take samples of all active subflows on the steered paths; return their treatments. *crowds*: by path."""
        for name, path in self._paths.items():
            path.observe(now, [each for on, each in samples if on == name])
            path.tell(crowds.get(name))
        self.decide(now)
        return {each.four_tuple: self.treatment(path) for path, each in samples}

    def leave(self) -> None:
        for path in self._paths.values():
            path.leave()

    @abstractmethod
    def decide(self, now: float) -> None:
        """Decide the state of each path."""

    @abstractmethod
    def treatment(self, path: str) -> Treatment:
        """Return the treatment of subflows on *path*."""


class ActiveStandby(Mode):
    """Uses one path at a time."""

    names: ClassVar[tuple[str, ...]] = ("active-standby",)
    meaning = "active-standby: the standby path is used while the active one is unusable"
    keys: ClassVar[tuple[str, ...]] = ("active", "standby")
    sets_backup = True
    first, reserve = "active", "standby"  # names in reasons for the first path, and for paths that are not open

    def __init__(self, weights: Mapping[str, int]) -> None:
        super().__init__(weights)
        self._order = tuple(weights)
        self._open: tuple[str, ...] = ()  # paths with regular subflows, in order

    def decide(self, now: float) -> None:
        """Open the first path that is not lost, and open paths that the mode keeps (:meth:`follow`)."""
        present = [name for name, path in self._paths.items() if path.present]
        for name, path in self._paths.items():
            if path.lost:
                path.lost = not path.well_again
            elif path.silent == now:
                # Without another path there is nothing to decide.
                path.lost = any(not self._paths[other].lost for other in present if other != name)
        usable = [name for name in present if not self._paths[name].lost] or present
        before = self._open
        self._open = tuple([name for name in usable if name in before or name == usable[0]])
        self.follow(now, usable, before)

    def follow(self, now: float, usable: Sequence[str], before: tuple[str, ...]) -> None:
        """Open or close further *usable* paths; the paths *before* were open."""
        self._open = self._open[:1]

    def treatment(self, path: str) -> Treatment:
        if self._paths[path].lost:
            return Treatment(path not in self._open, None, "gives nothing")
        if path not in self._open:
            return Treatment(True, None, self.reserve)
        if path == self._order[0]:
            return Treatment(False, None, self.first)
        if any(each.lost or not each.present for each in self._before(path)):
            return Treatment(False, None, "stands in")
        return Treatment(False, self.cap(path), "the ones before are full")

    def cap(self, path: str) -> int | None:
        """Return the cap, bits/s, of an open *path* after others that all work."""
        return None

    def _before(self, name: str) -> list[PathLoad]:
        return [self._paths[each] for each in self._order[: self._order.index(name)]]


@dataclass(slots=True)
class Overflow:
    """The cap of the last open path. While the paths before it are full the cap grows: it doubles until it was first
    too high, then grows slowly at first, or at once by the growth of the backlog. It stays while the backlog drains. It
    falls to the rest that the other paths leave when they are not full and carry less than before. It ends when the
    path itself gives no more."""

    cap: int | None = None
    _growth: float = FAST_GROWTH
    _set_at: float = -inf
    _waiting: int = 0  # bytes waiting on the paths before it at ``_set_at``
    _unused: bool = False  # at ``_set_at`` the path gave less than its cap

    def begin(self, now: float, before: Sequence[PathLoad]) -> None:
        """Cap a newly opened path; the paths *before* it are full."""
        self.cap = max(MIN_CAP, round(FIRST_OVERFLOW * sum(each.baseline for each in before)))
        self._growth, self._set_at, self._unused = FAST_GROWTH, now, False
        self._waiting = sum(each.waiting for each in before)

    def adjust(self, now: float, path: PathLoad, before: Sequence[PathLoad]) -> None:
        """Set the cap of *path* by its load and that of the paths *before* it."""
        fast = self._growth == FAST_GROWTH
        seconds = now - self._set_at
        if seconds < (FAST_STEP_SECONDS if fast else STEP_SECONDS):
            return
        given, waiting = sum(each.baseline for each in before), sum(each.waiting for each in before)
        carried, rate = sum(each.rate(MIN_WINDOW) for each in before), path.rate(MIN_WINDOW)
        more_waits = 8 * (waiting - self._waiting) / seconds
        # The origin's rate is what all paths carry plus the growth of the backlog.
        needed = rate + carried + more_waits - LEFT * given
        unused_before, self._unused = self._unused, self.cap is not None and rate < USED * self.cap
        self._set_at, self._waiting = now, waiting
        if not all(each.full for each in before):
            if self.cap is None or carried < LEFT * given:
                former = rate if self.cap is None else self.cap
                left = max(MIN_CAP, round(max(needed, FALL ** (seconds / STEP_SECONDS) * former)))
                self.cap = left if self.cap is None else min(self.cap, left)
                self._growth = GROWTH
        elif self._unused:
            self.cap = None if unused_before else self.cap
        elif self.cap is not None and more_waits > -given * (FAST_DRAINS if fast else DRAINS):
            self.cap = round(max(self._growth * self.cap, min(needed, FAST_GROWTH * self.cap)))
            self._growth = min(FAST_GROWTH, self._growth**ACCELERATION)


class Waterfall(ActiveStandby):
    """Opens a path when the paths before it are full."""

    names = ("priority-based", "waterfall")
    meaning = "waterfall, which 3GPP calls priority-based: a path is used while those before it are full or gone"
    keys = ("order",)
    first, reserve = "first", "in reserve"

    def __init__(self, weights: Mapping[str, int]) -> None:
        super().__init__(weights)
        self._since: float | None = None  # since when all open paths are full, or one less is enough
        self._overflow = Overflow()

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
        # During an upload the paths have no baseline, which would keep all of them open.
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

    def cap(self, path: str) -> int | None:
        return self._overflow.cap if path == self._open[-1] else None


class LoadBalancing(Mode):
    """Gives each path its share of the bytes."""

    names = ("load-balancing",)
    meaning = "load-balancing: bytes are shared by weight"
    keys = ("weights",)

    def __init__(self, weights: Mapping[str, int]) -> None:
        super().__init__(weights)
        self._weights = weights
        self._caps: dict[str, int] = {}
        self._set_at = -inf
        self._began = inf
        self._slack = False  # the paths carry all there is to send

    def treatment(self, path: str) -> Treatment:
        if self._paths[path].lost:
            return Treatment(False, None, "gave nothing: no share for now")
        share = 100 * self._weights[path] / sum(self._weights.values())
        return Treatment(False, self._caps.get(path), f"{share:.0f} % of the bytes")

    def decide(self, now: float) -> None:
        self._began = min(self._began, now)
        for path in self._paths.values():
            lost = now - path.silent < WINDOW
            if lost != path.lost:
                path.lost, self._set_at = lost, -inf
        if now - self._began < FIRST_AFTER or now - self._set_at < STEP_SECONDS:
            return
        self._set_at = now
        part = {
            name: path
            for name, path in self._paths.items()
            if path.present and not path.lost and path.rate(WINDOW) > MIN_PART * path.baseline
        }
        self._caps = self._balanced(part) if len(part) > 1 else {}

    def _balanced(self, part: Mapping[str, PathLoad]) -> dict[str, int]:
        weights = sum(self._weights[name] for name in part)
        share = {name: self._weights[name] / weights for name in part}
        least, measure = self._measure(part, share)
        carried = {name: path.carried(KEPT_SECONDS) for name, path in part.items()}
        all_carried = sum(carried.values()) or 1
        caps = {}
        for name in part:
            if name == least:
                continue
            lacks = (share[name] - carried[name] / all_carried) / share[name]
            correction = max(-MAX_CORRECTION, min(MAX_CORRECTION, lacks))
            rate = max(MIN_CAP, round(measure * share[name] * (1 + correction)))
            before = self._caps.get(name)
            caps[name] = before if before is not None and abs(rate - before) <= SETTLED * before else rate
        return caps

    def _measure(self, part: Mapping[str, PathLoad], share: Mapping[str, float]) -> tuple[str | None, float]:
        """Return the uncapped path that sets the measure, None if all are capped; and the measure, bits/s."""
        rate = {name: path.rate(WINDOW) for name, path in part.items()}
        # A path held back by its cap could give more, so it does not set the measure.
        free = [name for name in part if rate[name] < USED * self._caps.get(name, inf)]
        waited_for = any(part[name].is_waited_for for name in free)
        self._slack = not waited_for if self._slack else all(part[name].idles for name in free)
        if self._slack:
            # The shorter window follows growth; the longer one ignores pauses.
            present = sum(path.rate(MIN_WINDOW) for path in part.values())
            return None, ROOM * max(present, sum(rate.values()))
        least = min(free or part, key=lambda name: rate[name] / share[name])
        return least, HEADROOM * rate[least] / share[least]


class SmallestDelay(Mode):
    """Leaves all decisions to the kernel's scheduler."""

    names = ("smallest-delay",)
    meaning = "smallest-delay: the kernel's own scheduler, without interference"
    spreads = False


MODES: Final[tuple[type[Mode], ...]] = (ActiveStandby, Waterfall, LoadBalancing, SmallestDelay)
BY_NAME: Final = {mode.names[0]: mode for mode in MODES} | {name: mode for mode in MODES for name in mode.names[1:]}
"""The modes, by 3GPP's names first, then by other names."""
