"""Limits that are lifted from sockets, until the sockets have taken it. Pure.

A socket with nothing in flight takes its limit back with its next data: it is sampled ever more seldom until it has.
One that was never seen with a limit takes back what it began with, which shows once more bytes are acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.shaping.model import NO_LIMIT, SocketLimit
from mptcp_throttler.shaping.send_buffers import SendBuffers

FIRST_RECHECK_SECONDS, MAX_RECHECK_SECONDS = 0.5, 64.0
"""Until a released socket is sampled again: twice as long each time."""


@dataclass(slots=True)
class Limits:
    """What is to be done to sockets, by cookie."""

    wanted: dict[int, SocketLimit]
    forgotten: list[int]
    """Sockets on which nothing is to be set any more."""
    planned: bool = False
    """The plan changed."""
    at_once: bool = False
    """Some of them are to be in force before the sockets send again, for these come to rest or have rested."""


@dataclass(slots=True)
class _Release:
    cookie: int
    """0 while unknown: it was not sampled before."""
    due: float
    pause: float = FIRST_RECHECK_SECONDS
    limited: bool = True
    """It was seen with a limit; else it takes back what it began with once more bytes are acknowledged."""
    acked: int | None = None
    """Bytes, at the first check."""


class Releases:
    """The sockets that have not taken their limits back. Times are monotonic seconds."""

    def __init__(self, buffers: SendBuffers) -> None:
        self._buffers = buffers
        self._released: dict[FourTuple, _Release] = {}
        self._waiting: list[tuple[float, FourTuple]] = []
        """A heap: when those that are not due become so. What came to an end or has another time is left in it."""
        self._due: dict[FourTuple, None] = {}
        """Those that are to be sampled, until they are."""
        self._hurried = False

    def __len__(self) -> int:
        return len(self._released)

    def __contains__(self, four_tuple: FourTuple) -> bool:
        return four_tuple in self._released

    def begin(self, four_tuple: FourTuple, cookie: int, limited: bool, now: float, result: Limits) -> None:
        """Lift what is set on a socket; *limited*: it was seen with a limit."""
        result.wanted[cookie] = replace(NO_LIMIT, send_buffer=self._buffers.uncapped(cookie))
        self._add(four_tuple, _Release(cookie, now + FIRST_RECHECK_SECONDS, limited=limited))

    def await_sample(self, four_tuple: FourTuple, now: float) -> None:
        """Lift what a socket began with, once it is sampled and its cookie known."""
        self._add(four_tuple, _Release(0, now, limited=False))

    def hurry(self, now: float, pause: float) -> None:
        """Nothing will be capped again: check all at once, then every *pause* seconds, twice as long each time."""
        self._hurried = True
        for release in self._released.values():
            release.due, release.pause = now, pause
        self._waiting, self._due = [], dict.fromkeys(self._released)

    def due(self, now: float) -> Collection[FourTuple]:
        """Return those to be sampled. To ask costs nothing where ten thousand idle sockets wait for their time."""
        while self._waiting and self._waiting[0][0] <= now:
            due, four_tuple = heappop(self._waiting)
            release = self._released.get(four_tuple)
            if release is not None and release.due == due:
                self._due[four_tuple] = None
        return list(self._due)

    def check(
        self, four_tuple: FourTuple, sample: KernelSubflow | None, now: float, result: Limits, *, capped: bool
    ) -> None:
        """Forget a socket that has taken its limit back, is gone, or is *capped* again."""
        release = self._released[four_tuple]
        if not release.cookie and sample is not None and sample.cookie:
            release.cookie = sample.cookie
            result.wanted[release.cookie] = NO_LIMIT
            result.at_once |= sample.tcp is not None and sample.tcp.max_pacing_rate == 0
        if release.acked is None and sample is not None:
            release.acked = sample.bytes_acked
        taken = release.limited or self._hurried or (sample is not None and sample.bytes_acked > (release.acked or 0))
        if sample is None or sample.tcp is None or sample.cookie != release.cookie:
            self._drop(four_tuple)
            self._buffers.gone(release.cookie)
            result.forgotten.append(release.cookie)
        elif capped:
            self._drop(four_tuple)
        elif (
            taken and sample.tcp.max_pacing_rate is None and (self._hurried or self._buffers.of(release.cookie) is None)
        ):
            self._drop(four_tuple)
            result.forgotten.append(release.cookie)
        elif release.due <= now:
            release.pause = min(MAX_RECHECK_SECONDS, 2 * release.pause)
            release.due = now + release.pause
            self._add(four_tuple, release)

    def _add(self, four_tuple: FourTuple, release: _Release) -> None:
        self._released[four_tuple] = release
        self._due.pop(four_tuple, None)
        heappush(self._waiting, (release.due, four_tuple))

    def _drop(self, four_tuple: FourTuple) -> None:
        del self._released[four_tuple]
        self._due.pop(four_tuple, None)
