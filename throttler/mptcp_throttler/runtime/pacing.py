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

STOP_TIMEOUT = 1.5  # maximum wait of a stop until sockets have lifted their limits: several round trips
OPTIONS_BATCH = 128  # number of prefixes whose initial options are written without a pause: this takes a millisecond
MIN_WAKE_PAUSE, WAKE_PAUSE_RATIO = 0.02, 20  # pause after setting limits at once: minimum, seconds; pause / work time


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
        on_plan_change: Callable[[], None],
    ) -> None:
        """*on_plan_change* is called after samples have changed the plan."""
        self.can_pace = self.can_rest = self.has_buffers = False
        """Whether sockets can be paced, can rest and wake, can have larger send buffers; set by :meth:`prepare`."""
        self._planner = planner
        self._onsets = DownloadOnsets(planner)
        self._open_pacing: Callable[[], SocketPacing | None] | None = open_pacing
        self._pacing: SocketPacing
        self._sockets = sockets
        self._on_plan_change = on_plan_change
        self._was_refused = False
        self._wake = asyncio.Event()  # set if limits must apply at once, because sockets begin or end a rest
        self._initial_options: Mapping[Network, InitialOptions] = {}
        self._clients: set[Network] = set()  # addresses known to have a single path; they take precedence over prefixes
        self._outdated: deque[Network] = deque()  # prefixes whose initial options in the kernel may be out of date

    async def prepare(self, policy: Policy) -> None:
        """Open the pacing programs, at the first call only."""
        if self._open_pacing is None:
            return
        pacing, self._open_pacing = self._open_pacing(), None
        self.can_pace = self._planner.soft_caps = pacing is not None
        if pacing is not None:
            self._pacing = pacing
            self.can_rest, self.has_buffers = pacing.can_rest(), pacing.has_buffers

    def apply_plan_changes(self) -> None:
        """Set the socket limits for the planner's recent changes, and those that depend on the time."""
        if self.can_pace:
            self._set_limits(self._onsets.process_plan_changes(time.monotonic()))

    async def adopt(self, subflows: Collection[KernelSubflow]) -> None:
        """Lift the limits that a killed daemon left on sockets without a soft cap. The first samples set the limits of
        the other sockets. Raises KernelError."""
        sockets = [each for each in subflows if each.cookie and not each.is_tunnel_path]
        uncapped = [each.cookie for each in sockets if self._planner.soft_cap(each.four_tuple) is None]
        if self.can_pace and uncapped:
            self._pacing.limit(dict.fromkeys(uncapped, NO_LIMIT))
            if await asyncio.to_thread(self._pacing.limit_at_once):
                self._pacing.forget(uncapped)

    async def set_initial_options(self, options: Mapping[Network, InitialOptions]) -> None:
        """Set the initial options of subflows accepted from now on, by the client's prefix.

        Only changes are written, because there may be ten thousand prefixes, and 65,536 single clients. The event loop
        runs in between, so other calls may run, also of :meth:`set_clients`. Subflows may begin with settings of the
        previous policy: the BPF program reverts them after the first segments, and the first sample ends a rest.
        """
        if not self.can_pace or not self._pacing.sets_initial_options:
            return
        before, self._initial_options = self._initial_options, options
        self._planner.joins_rest |= any(each.rests for each in options.values())
        # A subflow that begins during the change may be in a class of the previous or of the new policy.
        self._planner.initial_classes = {*self._planner.initial_classes, *_classes(options)}
        if bool(before) is not bool(options):
            # Before the first pause: a client that set_clients() removes during a pause would stay in the kernel.
            self._outdated.extend(self._clients)
        async for network in in_slices(before):
            if before[network] != options.get(network):
                self._outdated.append(network)
        async for network in in_slices(options):  # new prefixes last: deletions make room for them
            if network not in before:
                self._outdated.append(network)
        await self._write_outdated()
        self._planner.initial_classes = _classes(self._initial_options)

    def set_clients(self, has_single_path: Mapping[bytes, bool]) -> None:
        """Update the client addresses known to have a single path (True), or no longer known to have one (False)."""
        networks = {ip_network(address): is_single for address, is_single in has_single_path.items()}
        self._clients.difference_update(networks)
        self._clients.update(network for network, is_single in networks.items() if is_single)
        for error in self._write_options(networks) if self._initial_options else ():
            log.error("%s", error)

    async def _write_outdated(self) -> None:
        refused, remaining = set[str](), len(self._outdated)
        while remaining > 0:
            batch = [self._outdated.popleft() for _ in range(min(OPTIONS_BATCH, remaining, len(self._outdated)))]
            remaining -= OPTIONS_BATCH
            refused |= self._write_options(batch)  # :meth:`verify` retries refused changes
            await asyncio.sleep(0)
        for error in refused:
            log.error("%s", error)

    def _write_options(self, networks: Collection[Network]) -> set[str]:
        """Write the options of *networks*; return the error if they are refused."""
        try:
            self._pacing.set_initial_options({each: self._options_of(each) for each in networks})
        except KernelError as error:
            self._outdated.extend(networks)
            return {str(error)}
        return set()

    def _options_of(self, network: Network) -> InitialOptions | None:
        """Return the initial options that a prefix must have now. A client's address may be a prefix of the policy."""
        if self._initial_options and network in self._clients:
            return UNANTICIPATED
        return self._initial_options.get(network)

    def watches_any(self) -> bool:
        return self.can_pace and next(self._planner.shared_soft_caps(), None) is not None

    def watched(self) -> Collection[FourTuple]:
        """Return the subflows whose demand affects a shared cap."""
        return [four_tuple for cap in self._planner.shared_soft_caps() for four_tuple in cap.users]

    def urgent(self) -> Collection[FourTuple]:
        return self._onsets.urgent()

    def observe(self, samples: Samples) -> Iterator[None]:
        for limits in self._onsets.observe(samples.requested, samples.sockets, samples.time):
            self._apply(limits)
            yield

    def sampling_failed(self, now: float) -> None:
        self._apply(self._onsets.handle_failed_sampling(now))

    async def verify(self) -> None:
        if self._outdated:
            await self._write_outdated()
        for problem in self._pacing.check() if self.can_pace else ():
            self.repairs += 1
            log.warning("%s; repairing it", problem)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            start = time.monotonic()
            await self.wake_sockets()
            # With ten thousand sockets a run takes 10 ms, and clients that join may request runs continually.
            await asyncio.sleep(max(MIN_WAKE_PAUSE, WAKE_PAUSE_RATIO * (time.monotonic() - start)))

    async def wake_sockets(self) -> None:
        """Apply the limits that must be in force at once, if there are any."""
        if self._wake.is_set():
            self._wake.clear()
            await asyncio.to_thread(self._pacing.limit_at_once)

    async def close(self) -> None:
        """Lift all limits of the sockets, and wait a limited time until the sockets have applied this."""
        if not self.can_pace:
            return
        self.can_pace = self._planner.soft_caps = False
        try:
            _, limited = await lift_all(self._pacing, self._sockets, STOP_TIMEOUT)
            if limited:
                log.info("%d idle subflows keep their pacing limit until they close", len(limited))
        except KernelError as error:
            log.error("%s", error)
        self._pacing.close()

    def _apply(self, changes: SocketChanges) -> None:
        if self._set_limits(changes):
            self._on_plan_change()

    def _set_limits(self, changes: SocketChanges) -> bool:
        """Set *changes* on the sockets; return whether the plan changed."""
        try:
            if changes.limits:
                self._pacing.limit(changes.limits)
            if changes.dropped:
                self._pacing.forget(changes.dropped)
            if changes.is_urgent:
                self._wake.set()
            self._was_refused = False
        except KernelError as error:
            if not self._was_refused:
                log.error("%s; caps apply at once, without a transition", error)
            self._was_refused = True
            self._onsets.handle_refusal()
            return True
        return changes.plan_changed


def _classes(options: Mapping[Network, InitialOptions]) -> set[int]:
    return {each.class_id for each in options.values() if each.class_id is not None}


async def lift_all(
    pacing: SocketPacing, sockets: KernelSockets, seconds: float
) -> tuple[int, Collection[KernelSubflow]]:
    """Lift all limits of all sockets; return how many had a pacing limit, and the sockets that keep it. Busy sockets
    may apply the change a round trip later: wait for them at most *seconds*. Raises KernelError."""
    all_sockets: list[KernelSubflow] = []
    for batch in sockets.batches():
        all_sockets += (each for each in batch if each.cookie)
        await asyncio.sleep(0)
    waiting = {each.four_tuple: each for each in all_sockets if each.tcp.max_pacing_rate is not None}
    limited_count = len(waiting)
    pacing.limit({each.cookie: NO_LIMIT for each in all_sockets})
    await asyncio.to_thread(pacing.limit_at_once)
    deadline = time.monotonic() + seconds
    while True:
        current = sockets.look_up(list(waiting))
        unchanged = {each: current[each] for each in current if current[each].cookie == waiting[each].cookie}
        waiting = {each: socket for each, socket in unchanged.items() if socket.tcp.max_pacing_rate is not None}
        if not waiting or time.monotonic() > deadline:
            return limited_count, waiting.values()
        await asyncio.sleep(STEP_SECONDS)
