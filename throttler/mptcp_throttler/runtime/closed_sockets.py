"""The component of closed sockets: reports what each socket carried in its life to the parts that count bytes.

Without it, what a subflow carries after its last sample is unknown, or everything if it lives shorter than a sampling
interval. It always runs, because totals of paths and caps need it as budgets do. It costs a call or two per connection
in the kernel and, once a second, some microseconds here for each closed one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.bpf import SocketMeter
from mptcp_throttler.mptcp.model import End
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.runtime.component import Component

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
_AT_ONCE = 256
"""Closed sockets counted before yielding to the event loop: about a millisecond."""

Listener = Callable[[int, End, int, int], None]
"""Takes the fields of a ``ClosedSocket``."""


class ClosedSockets(Component):
    """One daemon's closed sockets. *listeners* get each socket once; *told* follows each round, even an empty one."""

    repairs = 0

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
        """Whether this kernel supports counting."""
        return self._meter is not None

    async def prepare(self, policy: Policy) -> None:
        """Meter sockets that are accepted from now on, whatever *policy* says."""
        del policy
        if self._meter is None:
            self._meter = self._open_meter()

    async def verify(self) -> None:
        for problem in self._meter.check() if self._meter is not None else ():
            self.repairs += 1
            log.warning("%s; putting it right", problem)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.tell()

    async def tell(self) -> None:
        """Report the sockets that have closed since the last time."""
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
        if self._meter is not None:
            await self.tell()
            self._meter.close()
            self._meter = None
