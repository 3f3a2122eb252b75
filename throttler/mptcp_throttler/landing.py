"""Lands caps softly and keeps the sockets of capped subflows paced: the I/O around ``shaping.landing`` and ``share``.

Follows the planner (``moved``, ``landing``): looks at the sockets concerned, sets limits on them, and tells the planner
who has landed. Many landings go on side by side, each with a state of its own. What is set on a socket is taken back
when its subflow leaves the cap or the daemon stops; a socket with nothing in flight takes that with its next data,
so that one which is idle when the daemon stops keeps its limit until it closes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from .kernel.ports import KernelError, SocketPacing
from .mptcp.model import FourTuple, KernelSubflow
from .shaping.landing import Landing, Phase, needs_landing
from .shaping.model import NO_LIMIT, SocketLimit
from .shaping.plan import Planner
from .shaping.share import level

log = logging.getLogger(__name__)

STEP_SECONDS = 0.02
"""Between two looks at a landing subflow."""
SHARE_SECONDS = 0.5
"""Between two looks at those that share a cap."""
IGNORED_SECONDS = 0.25
"""A socket that shows no limit so long after one was set, with data on the way, cannot be limited."""
STOP_SECONDS = 1.5
"""How long a stop waits for the sockets to take their limits back; several round trips."""
SETTLED = 0.05
"""A new level that differs by less is not set."""


@dataclass(slots=True)
class _Socket:
    cookie: int
    limit: SocketLimit = NO_LIMIT
    landing: Landing | None = None
    acked: int = 0
    looked: float = 0.0
    """When ``acked`` was read."""


class Lander:
    """One planner's caps on the sockets of this host."""

    def __init__(
        self,
        planner: Planner,
        pacing: SocketPacing,
        look: Callable[[FourTuple], KernelSubflow | None],
        landed: Callable[[], None],
    ) -> None:
        """Take over *planner*'s caps. *look* finds a subflow's socket; *landed* hears of changes of the plan."""
        self._planner = planner
        self._pacing = pacing
        self._look = look
        self._landed = landed
        self._sockets: dict[FourTuple, _Socket] = {}
        self._released: dict[FourTuple, int] = {}
        """Cookies of sockets whose limit is being taken back."""
        self._wake = asyncio.Event()
        planner.soft = True

    def wake(self) -> None:
        """Say that the plan may have changed."""
        if self._planner.moved:
            self._wake.set()

    async def run(self) -> None:
        """Follow the plan, forever."""
        shared = 0.0
        while True:
            self.step(time.monotonic())
            if time.monotonic() - shared >= SHARE_SECONDS:
                shared = time.monotonic()
                self._share(shared)
                self._finish_releases()
            pause = STEP_SECONDS if any(s.landing for s in self._sockets.values()) else SHARE_SECONDS
            try:
                await asyncio.wait_for(self._wake.wait(), pause)
            except TimeoutError:
                continue
            self._wake.clear()

    def adopt(self, subflows: Iterable[KernelSubflow]) -> None:
        """Take over limits that a killed daemon left on sockets: those that no cap explains are taken back."""
        for subflow in subflows:
            if subflow.tcp is not None and subflow.tcp.max_pacing_rate is not None:
                self._sockets[subflow.four_tuple] = _Socket(subflow.cookie)
                self._planner.moved.add(subflow.four_tuple)

    async def close(self) -> None:
        """Take all limits back and wait a moment for it."""
        self._planner.soft = False
        for four_tuple in list(self._sockets):
            self._release(four_tuple)
        deadline = time.monotonic() + STOP_SECONDS
        while self._released and time.monotonic() < deadline:
            await asyncio.sleep(STEP_SECONDS)
            self._finish_releases()
        if self._released:
            log.info("%d idle subflows keep their pacing limit until they close", len(self._released))
        self._pacing.close()

    def step(self, now: float) -> None:
        """Follow what moved and go on with what is landing; *now* is on the monotonic clock.

        A cap that needs no landing is in the plan afterwards.
        """
        moved, self._planner.moved = self._planner.moved, set()
        try:
            for four_tuple in moved:
                self._follow(four_tuple, now)
            for four_tuple, found in list(self._sockets.items()):
                if found.landing is not None:
                    self._go_on(four_tuple, found, found.landing, now)
        except KernelError as error:
            log.error("%s; caps land at once", error)
            for four_tuple in list(self._planner.landing):
                self._planner.landed(four_tuple)
            self._landed()

    def _follow(self, four_tuple: FourTuple, now: float) -> None:
        """Bring the socket in line with what the plan has come to say of its subflow."""
        ceil = self._planner.ceil_of(four_tuple)
        if ceil is None:
            self._release(four_tuple)
            return
        socket = self._look(four_tuple)
        if socket is None or socket.tcp is None:
            self._done(four_tuple)
            return
        self._released.pop(four_tuple, None)
        ours = self._sockets.setdefault(four_tuple, _Socket(socket.cookie))
        ours.cookie = socket.cookie
        target = self._level(self._planner.sharers(four_tuple), ceil, now)
        if four_tuple in self._planner.landing and needs_landing(socket.tcp, target):
            ours.landing = Landing.of(socket.tcp, target, now)
            return
        ours.landing = None
        self._limit(ours, SocketLimit(target))
        self._done(four_tuple)

    def _go_on(self, four_tuple: FourTuple, ours: _Socket, landing: Landing, now: float) -> None:
        socket = self._look(four_tuple)
        if socket is None or socket.tcp is None:
            self._sockets.pop(four_tuple)
            self._done(four_tuple)
            return
        self._limit(ours, landing.look(now, socket.tcp.not_sent))
        ignored = (
            landing.phase is Phase.RAMP
            and socket.tcp.max_pacing_rate is None
            and now - landing.ramp_began > IGNORED_SECONDS + 2e-6 * socket.tcp.rtt
        )
        if ignored:
            log.debug("%s: its socket takes no limit; its cap falls at once", four_tuple)
            # If it was only slow to take one, this is the one that it shall have.
            self._limit(ours, SocketLimit(landing.target))
        if ignored or landing.phase is Phase.LANDED:
            ours.landing = None
        if ignored or landing.capped:
            self._done(four_tuple)

    def _done(self, four_tuple: FourTuple) -> None:
        if four_tuple in self._planner.landing:
            self._planner.landed(four_tuple)
            self._landed()

    def _limit(self, ours: _Socket, limit: SocketLimit) -> None:
        if ours.limit != limit:
            ours.limit = limit
            self._pacing.limit({ours.cookie: limit})

    def _share(self, now: float) -> None:
        """Set the level of every cap that several subflows share."""
        for users in self._planner.shared_caps():
            known = [four_tuple for four_tuple in users if four_tuple in self._sockets]
            ceil = self._planner.ceil_of(known[0]) if known else None
            if ceil is None:
                continue
            target = self._level(users, ceil, now)
            for four_tuple in known:
                ours = self._sockets[four_tuple]
                before = ours.limit.rate
                if ours.landing is None and (before is None or abs(target - before) > SETTLED * before):
                    self._limit(ours, SocketLimit(target))

    def _level(self, users: Collection[FourTuple], ceil: int, now: float) -> int:
        return ceil if len(users) < 2 else level(ceil, [self._appetite(each, now) for each in users])

    def _appetite(self, four_tuple: FourTuple, now: float) -> int | None:
        """Return the bits/s that a subflow takes while nothing waits for it; None where something does."""
        socket = self._look(four_tuple)
        if socket is None or socket.tcp is None:
            return 0
        ours = self._sockets.get(four_tuple)
        if socket.tcp.not_sent or ours is None:
            return None if socket.tcp.not_sent else 0
        rate = 0
        if ours.looked and now > ours.looked:
            rate = round(8 * max(0, socket.bytes_sent - ours.acked) / (now - ours.looked))
        if not ours.looked or now - ours.looked >= SHARE_SECONDS / 2:
            ours.acked, ours.looked = socket.bytes_sent, now
        return rate

    def _release(self, four_tuple: FourTuple) -> None:
        ours = self._sockets.pop(four_tuple, None)
        if ours is not None:
            self._limit(ours, NO_LIMIT)
            self._pacing.limit({ours.cookie: NO_LIMIT})
            self._released[four_tuple] = ours.cookie

    def _finish_releases(self) -> None:
        """Forget the sockets that have taken their limit back, or are gone."""
        for four_tuple, cookie in list(self._released.items()):
            socket = self._look(four_tuple)
            if socket is None or socket.cookie != cookie or socket.tcp is None or socket.tcp.max_pacing_rate is None:
                self._pacing.forget([cookie])
                del self._released[four_tuple]
