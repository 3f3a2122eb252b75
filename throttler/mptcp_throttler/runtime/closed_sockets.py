"""The component of closed sockets: what each carried in its life, told to who counts bytes.

Without it what a subflow carries after its last sample is unknown, and of one that is shorter than the time between two
samples all of it. It is always there, for the totals of paths and caps need it as budgets do: in the kernel it costs a
call or two for a connection, here some microseconds for each that closed, once a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.ports import SocketMeter
from mptcp_throttler.mptcp.model import End
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.runtime.component import Component

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
_AT_ONCE = 256
"""Closed sockets that are counted before the event loop has its turn: about a millisecond."""

Listener = Callable[[int, End, int, int], None]
"""Takes what a ``ClosedSocket`` has."""


class ClosedSockets(Component):
    """Of one daemon. *listeners* hear of each socket once; then *told* is called, of however many it was."""

    repairs = 0
    """How often the meter was put right."""

    def __init__(
        self,
        open_meter: Callable[[], SocketMeter | None],
        listeners: Sequence[Listener],
        told: Callable[[], None] = lambda: None,
    ) -> None:
        self._told = told
        self._open_meter = open_meter
        self._listeners = tuple(listeners)
        self._meter: SocketMeter | None = None

    @property
    def are_counted(self) -> bool:
        """This kernel has what it takes."""
        return self._meter is not None

    async def prepare(self, policy: Policy) -> None:
        """Have sockets metered that are accepted from here on, whatever *policy* says."""
        del policy
        if self._meter is None:
            self._meter = self._open_meter()

    async def verify(self) -> None:
        """Put right what somebody did to the meter. Raises KernelError."""
        for problem in self._meter.check() if self._meter is not None else ():
            self.repairs += 1
            log.warning("%s; putting it right", problem)

    async def run(self) -> None:
        """Tell of closed sockets, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.tell()

    async def tell(self) -> None:
        """Tell of those that have closed since the last time."""
        try:
            for number, each in enumerate(() if self._meter is None else self._meter.closed(), start=1):
                for listener in self._listeners:
                    listener(*each)
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        except KernelError as error:
            log.error("%s; what sockets carried last is counted later", error)
        self._told()

    async def close(self) -> None:
        """Tell for the last time."""
        if self._meter is not None:
            await self.tell()
            self._meter.close()
            self._meter = None
