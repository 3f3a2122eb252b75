# SPDX-License-Identifier: GPL-2.0-or-later
"""Limits on the sockets of this host: passes samples to ``shaping.onset.downloads``, and sets the limits it returns.

A killed daemon leaves its pacing limit and TCP_NOTSENT_LOWAT on the sockets, and no list of sockets shows the latter.
So a stop and ``cleanup`` lift all limits, and a start lifts those that no cap replaces. A socket with nothing in flight
applies the change when it sends its next data, or at once on kernels that support this (``limit_at_once``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from ipaddress import ip_network

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.bpf import SocketPacing
from mptcp_throttler.kernel.ports import KernelSockets
from mptcp_throttler.kernel.scheduling import in_slices
from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.policy.values import Network
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.shaping.initial_options import UNANTICIPATED
from mptcp_throttler.shaping.model import NO_LIMIT, InitialOptions
from mptcp_throttler.shaping.onset.downloads import STEP_SECONDS, DownloadOnsets, SocketChanges
from mptcp_throttler.shaping.onset.share import SHARE_SECONDS
from mptcp_throttler.shaping.plan import Planner
from mptcp_throttler.stages.stage import Consumer, Samples

log = logging.getLogger(__name__)

STOP_SECONDS = 1.5  # maximum time, several round trips, that a stop waits until the limits of sockets are lifted
BIRTHS_AT_ONCE = 128  # number of prefixes whose initial options are written without a pause: this takes a millisecond
WAKE_SECONDS, WAKE_PART = 0.02, 20  # pause after limits were set at once: seconds, multiple of the time that it took


class SocketLimiter(Component, Consumer):
    """Sets one planner's soft caps on sockets of this host. If the kernel cannot pace sockets, caps begin at once."""

    by_request = True
    interval, period = STEP_SECONDS, SHARE_SECONDS
    urgent_share = 0.5  # high, because a transition takes only a second or two

    def __init__(
        self,
        planner: Planner,
        open_pacing: Callable[[], SocketPacing | None],
        sockets: KernelSockets,
        planned: Callable[[], None],
    ) -> None:
        """*planned* is called after samples have changed the plan."""
        self.possible = self.can_rest = self.has_buffers = False
        """Whether sockets can be paced, can rest and wake, can have larger send buffers; set by :meth:`prepare`."""
        self._planner = planner
        self._onsets = DownloadOnsets(planner)
        self._open_pacing: Callable[[], SocketPacing | None] | None = open_pacing
        self._pacing: SocketPacing
        self._sockets = sockets
        self._planned = planned
        self._refused = False
        self._wakes = asyncio.Event()  # a resting socket must get its limit at once
        self._births: Mapping[Network, InitialOptions] = {}
        self._clients: set[Network] = set()  # addresses known to have a single path; they precede prefixes
        self._differing: deque[Network] = deque()  # prefixes whose initial options in the kernel may be out of date

    async def prepare(self, policy: Policy) -> None:
        """Open the pacing programs, at the first call only."""
        if self._open_pacing is None:
            return
        pacing, self._open_pacing = self._open_pacing(), None
        self.possible = self._planner.soft_caps = pacing is not None
        if pacing is not None:
            self._pacing = pacing
            self.can_rest, self.has_buffers = pacing.can_rest(), pacing.has_buffers

    def follow(self) -> None:
        """Set the socket limits for some of the planner's moves, and for the passing of time."""
        if self.possible:
            self._set(self._onsets.follow(time.monotonic()))

    async def adopt(self, subflows: Collection[KernelSubflow]) -> None:
        """Lift the limits that a killed daemon left on sockets without a soft cap; the first samples set the others.
        Raises KernelError."""
        sockets = [each for each in subflows if each.cookie and not each.is_of_tunnel]
        left = [each.cookie for each in sockets if self._planner.soft_cap(each.four_tuple) is None]
        if self.possible and left:
            self._pacing.limit(dict.fromkeys(left, NO_LIMIT))
            if await asyncio.to_thread(self._pacing.limit_at_once):
                self._pacing.forget(left)

    async def set_births(self, births: Mapping[Network, InitialOptions]) -> None:
        """Set the initial options of subflows accepted from now on, by the client's prefix.

        Only changes are written, because there may be ten thousand prefixes, and 65,536 single clients. The event loop
        runs in between, so other calls and :meth:`set_clients` may come, and subflows may begin with the settings of
        the previous policy: the BPF program reverts them after the first segments, and the first sample ends a rest.
        """
        if not self.possible or not self._pacing.sets_births:
            return
        before, self._births = self._births, births
        self._planner.joins_rest |= any(birth.rests for birth in births.values())
        # A subflow that begins during the change may be in a class of the previous or of the new policy.
        self._planner.initial_classes = {*self._planner.initial_classes, *_classes(births)}
        if bool(before) is not bool(births):
            # Before the first pause: a client that set_clients() removes during a pause would stay in the kernel.
            self._differing.extend(self._clients)
        async for network in in_slices(before):
            if before[network] != births.get(network):
                self._differing.append(network)
        async for network in in_slices(births):  # new prefixes last: deletions make room for them
            if network not in before:
                self._differing.append(network)
        await self._set_those_that_differ()
        self._planner.initial_classes = _classes(self._births)

    def set_clients(self, single: Mapping[bytes, bool]) -> None:
        """Update the client addresses known to have a single path (True), or no longer known to have one (False)."""
        changed = {ip_network(address): is_single for address, is_single in single.items()}
        self._clients.difference_update(changed)
        self._clients.update(network for network, is_single in changed.items() if is_single)
        for error in self._write_births(changed) if self._births else ():
            log.error("%s", error)

    async def _set_those_that_differ(self) -> None:
        refused, left = set[str](), len(self._differing)
        while left > 0:
            some = [self._differing.popleft() for _ in range(min(BIRTHS_AT_ONCE, left, len(self._differing)))]
            left -= BIRTHS_AT_ONCE
            refused |= self._write_births(some)  # :meth:`verify` retries refused changes
            await asyncio.sleep(0)
        for error in refused:
            log.error("%s", error)

    def _write_births(self, networks: Collection[Network]) -> set[str]:
        """Write the options of *networks*; return the error if they are refused."""
        try:
            self._pacing.set_births({each: self._birth(each) for each in networks})
        except KernelError as error:
            self._differing.extend(networks)
            return {str(error)}
        return set()

    def _birth(self, network: Network) -> InitialOptions | None:
        """Return the initial options that a prefix must have now. It may be a client's address that a policy names."""
        if self._births and network in self._clients:
            return UNANTICIPATED
        return self._births.get(network)

    def watches_any(self) -> bool:
        return self.possible and next(self._planner.shared_soft_caps(), None) is not None

    def watched(self) -> Collection[FourTuple]:
        """Return the subflows whose demand affects a shared cap."""
        return [four_tuple for cap in self._planner.shared_soft_caps() for four_tuple in cap.users]

    def urgent(self) -> Collection[FourTuple]:
        return self._onsets.urgent()

    def observe(self, samples: Samples) -> Iterator[None]:
        for limits in self._onsets.observe(samples.asked, samples.sockets, samples.time):
            self._do(limits)
            yield

    def failed(self, now: float) -> None:
        self._do(self._onsets.missed(now))

    async def verify(self) -> None:
        if self._differing:
            await self._set_those_that_differ()
        for problem in self._pacing.check() if self.possible else ():
            self.repairs += 1
            log.warning("%s; putting it right", problem)

    async def run(self) -> None:
        while True:
            await self._wakes.wait()
            began = time.monotonic()
            await self.wake_sockets()
            # With ten thousand sockets a run takes 10 ms, and joining clients may request one all the time.
            await asyncio.sleep(max(WAKE_SECONDS, WAKE_PART * (time.monotonic() - began)))

    async def wake_sockets(self) -> None:
        """Apply the limits that must be in force at once, if there are any."""
        if self._wakes.is_set():
            self._wakes.clear()
            await asyncio.to_thread(self._pacing.limit_at_once)

    async def close(self) -> None:
        """Lift all limits of the sockets, and wait a limited time until the sockets have applied this."""
        if not self.possible:
            return
        self.possible = self._planner.soft_caps = False
        try:
            _, kept = await lift_all(self._pacing, self._sockets, STOP_SECONDS)
            if kept:
                log.info("%d idle subflows keep their pacing limit until they close", len(kept))
        except KernelError as error:
            log.error("%s", error)
        self._pacing.close()

    def _do(self, changes: SocketChanges) -> None:
        if self._set(changes):
            self._planned()

    def _set(self, changes: SocketChanges) -> bool:
        """Set *changes* on the sockets; return whether the plan changed."""
        try:
            if changes.limits:
                self._pacing.limit(changes.limits)
            if changes.dropped:
                self._pacing.forget(changes.dropped)
            if changes.is_urgent:
                self._wakes.set()
            self._refused = False
        except KernelError as error:
            if not self._refused:
                log.error("%s; caps begin at once", error)
            self._refused = True
            self._onsets.refused()
            return True
        return changes.plan_changed


def _classes(births: Mapping[Network, InitialOptions]) -> set[int]:
    return {birth.class_id for birth in births.values() if birth.class_id is not None}


async def lift_all(
    pacing: SocketPacing, sockets: KernelSockets, seconds: float
) -> tuple[int, Collection[KernelSubflow]]:
    """Lift all limits of all sockets; return how many had a pacing limit, and the sockets that keep it. Busy sockets
    may take the change only a round trip later: wait for them at most *seconds*. Raises KernelError."""
    found: list[KernelSubflow] = []
    for piece in sockets.batches():
        found += (each for each in piece if each.cookie)
        await asyncio.sleep(0)
    waiting = {each.four_tuple: each for each in found if each.tcp.max_pacing_rate is not None}
    limited = len(waiting)
    pacing.limit({each.cookie: NO_LIMIT for each in found})
    await asyncio.to_thread(pacing.limit_at_once)
    deadline = time.monotonic() + seconds
    while True:
        now = sockets.look_up(list(waiting))
        same = {each: now[each] for each in now if now[each].cookie == waiting[each].cookie}
        waiting = {each: known for each, known in same.items() if known.tcp.max_pacing_rate is not None}
        if not waiting or time.monotonic() > deadline:
            return limited, waiting.values()
        await asyncio.sleep(STEP_SECONDS)
