# SPDX-License-Identifier: GPL-2.0-or-later
"""The base class of steering modes, and the load of one connection on one path. Pure.

Times are seconds of any one clock, rates bits/s, volumes bytes. Samples may be 0.1 s or several seconds apart: a rate
is taken over its window, or over the last interval if that is longer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import ClassVar, NamedTuple

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow

RATE_WINDOW, MIN_WINDOW, KEPT_SECONDS = 1.0, 0.5, 10.0  # seconds: usual window of a rate, shortest and longest
MIN_WAITING, MUCH_WAITING = 0.08, 0.5
"""Seconds that waiting data of a full path take to be sent, near its baseline rate and on a slower path."""
MORE_THAN_A_PIECE, SURELY_WAITING = 70_000, 200_000  # bytes: one piece of 64 KB proves nothing, three a backlog
SURELY_FULL = 0.7  # a path is full if more than one piece has waited at every sample for this many seconds
BUSY = 0.7  # fraction of the baseline from which on a path's rate is near its baseline
LOST_AFTER, LOST_ROUND_TRIPS = 0.55, 3
"""A path is lost if outstanding data do not arrive for these seconds, or these round trips if they take longer."""
BACK_AFTER = 0.5  # a lost path is back after this many seconds without outstanding data
MEMORY = 60.0  # seconds in which a baseline falls to 1/e
WAITING_SETTLES = 1.0  # seconds for which little or much data must have waited before this counts
MIN_CAP = 256_000  # bits/s; no mode caps a path to less


class Action(NamedTuple):
    """What to do with one subflow."""

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
        """When little data waited last, when much data waited last, and when at most one piece waited last."""
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
        """Update this connection's part of *crowd*, or of the present one."""
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
        """Whether all outstanding data arrived, or the subflows are gone."""
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
        # If the round trip is short, the kernel never holds more than one piece.
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
    """False if it leaves all to the kernel's scheduler, from a connection's first subflow on: none is ever made."""
    sets_backup: ClassVar[bool] = False  # whether it uses the backup flag (RFC 8684, 3.3.8)

    def __init__(self, weights: Mapping[str, int]) -> None:
        """Steer among the paths of *weights*, the most preferred first."""
        self._paths = {name: PathLoad() for name in weights}

    def observe(
        self, now: float, samples: Sequence[tuple[str, KernelSubflow]], crowds: Mapping[str, Crowd]
    ) -> dict[FourTuple, Action]:
        """Take samples of all active subflows on the steered paths; return their actions. *crowds*: by path."""
        for name, path in self._paths.items():
            path.observe(now, [each for on, each in samples if on == name])
            path.tell(crowds.get(name))
        self.decide(now)
        return {each.four_tuple: self.action(path) for path, each in samples}

    def leave(self) -> None:
        for path in self._paths.values():
            path.leave()

    @abstractmethod
    def decide(self, now: float) -> None:
        """Decide the state of each path."""

    @abstractmethod
    def action(self, path: str) -> Action:
        """Return the action for subflows on *path*."""
