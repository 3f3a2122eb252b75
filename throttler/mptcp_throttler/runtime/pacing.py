"""Runs the rate transitions of downloads: gives samples to ``shaping.transitions`` and its limits to the sockets.

What is set on a socket is lifted when its subflow leaves the cap or the daemon stops; a socket with nothing in flight
takes that with its next data, so that one which is idle when the daemon stops keeps its limit until it closes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from mptcp_throttler.kernel.ports import KernelError, SocketPacing
from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.shaping.plan import Planner
from mptcp_throttler.shaping.transitions import SHARE_SECONDS, STEP_SECONDS, Limits, Transitions

log = logging.getLogger(__name__)

STOP_SECONDS = 1.5
"""How long a stop waits for the sockets to take their limits back; several round trips."""


class PacedCaps:
    """One planner's soft caps on the sockets of this host. A consumer of samples."""

    by_request = True
    interval, period = STEP_SECONDS, SHARE_SECONDS
    urgent_share = 0.5
    """Transitions take a second or two."""

    def __init__(self, planner: Planner, pacing: SocketPacing, planned: Callable[[], None]) -> None:
        """*planned* is called when the plan has changed."""
        self._planner = planner
        self._transitions = Transitions(planner)
        self._pacing = pacing
        self._planned = planned
        self._refused = False

    def follow(self) -> None:
        """Take what the planner moved: at once, so that the next sample finds it; many, in turns with the loop."""
        self._do(self._transitions.follow(time.monotonic()))
        if self._planner.has_moved:
            asyncio.get_running_loop().call_soon(self.follow)

    def adopt(self, subflows: Collection[KernelSubflow]) -> None:
        """Take over the limits that a killed daemon left on sockets."""
        self._do(self._transitions.adopt(subflows, time.monotonic()))

    def new_policy(self) -> None:
        """A policy came into force."""
        self._transitions.forget_levels()

    def watches_any(self) -> bool:
        return self._transitions.watches_any()

    def watched(self) -> Collection[FourTuple]:
        return self._transitions.watched()

    def urgent(self) -> Collection[FourTuple]:
        return self._transitions.urgent()

    def observe(
        self, asked: Collection[FourTuple], sockets: Mapping[FourTuple, KernelSubflow], now: float, complete: bool
    ) -> Iterator[None]:
        for limits in self._transitions.observe(asked, sockets, now):
            self._do(limits)
            yield

    def failed(self, now: float) -> None:
        self._do(self._transitions.missed(now))

    async def run(self) -> None:
        """Ask again, forever, for released sockets whose time has come."""
        while True:
            await asyncio.sleep(SHARE_SECONDS)
            self.follow()

    async def close(self, look_up: Callable[[Sequence[FourTuple]], Mapping[FourTuple, KernelSubflow]]) -> None:
        """Lift all limits and wait a moment until the sockets have taken that; *look_up* samples them."""
        self._do(self._transitions.release_all(time.monotonic()))
        deadline = time.monotonic() + STOP_SECONDS
        try:
            while self._transitions.releasing and time.monotonic() < deadline:
                await asyncio.sleep(STEP_SECONDS)
                self._do(self._transitions.follow(time.monotonic()))
                asked = list(self._transitions.urgent())
                for limits in self._transitions.observe(asked, look_up(asked), time.monotonic()):
                    self._do(limits)
        except KernelError as error:
            log.error("%s", error)
        if self._transitions.releasing:
            log.info("%d idle subflows keep their pacing limit until they close", self._transitions.releasing)
        self._pacing.close()

    def _do(self, limits: Limits) -> None:
        try:
            if limits.wanted:
                self._pacing.limit(limits.wanted)
            if limits.forgotten:
                self._pacing.forget(limits.forgotten)
            self._refused = False
        except KernelError as error:
            if not self._refused:
                log.error("%s; caps begin at once", error)
            self._refused = True
            self._transitions.refused()
            self._planned()
        if limits.planned:
            self._planned()
