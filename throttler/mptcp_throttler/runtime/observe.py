# SPDX-License-Identifier: GPL-2.0-or-later
"""The observers: packet capture on every interface, path-manager events, and sweeps of the sockets. All feed the
tracker.

A sweep of the existing sockets replaces lost events; other changes that no event reports are looked up
(``mptcp.lookups``). An observer that fails is reopened, with retries; the other observers continue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.capture import Capture, InterfaceDownError
from mptcp_throttler.kernel.mptcp_pm.family import PathManagerEvents
from mptcp_throttler.kernel.tc.link import Routes
from mptcp_throttler.mptcp.model import Event, FourTuple, KernelSubflow, Segment, unmap
from mptcp_throttler.mptcp.options import MpJoinAck
from mptcp_throttler.runtime.engine import Engine

log = logging.getLogger(__name__)

SUPERVISE_SECONDS = 1.0
RESYNC_INTERVALS = 3  # interval of periodic resyncs, as a multiple of ``verify_interval``; by default 30 s
_MAX_BATCH = 256  # Maximum number of frames read at once. Then the reconciler runs, so that no subflow waits long.

MAX_READING_SHARE: Final = 0.5  # long-term share of a processor that reading may take
MAX_READING_BURST_SECONDS: Final = 0.5  # processor time that reading may take at once, for about 15,000 segments


class ReadingShare:
    """Limits the share of a processor that reading captured segments takes. Any host can send such segments, and the
    event loop has priority over the proxy (``kernel.scheduling``). The kernel drops and counts segments that are not
    read in time. All times are arguments, in seconds."""

    def __init__(self, now: float) -> None:
        self._allowed_seconds, self._update_time = MAX_READING_BURST_SECONDS, now

    def pause(self, now: float, work_seconds: float) -> float:
        """Return how long to pause after reading that took *work_seconds* of processor time and ended at *now*."""
        allowed_seconds = self._allowed_seconds + MAX_READING_SHARE * (now - self._update_time)
        self._allowed_seconds = min(MAX_READING_BURST_SECONDS, allowed_seconds) - work_seconds
        self._update_time = now
        return max(0.0, -self._allowed_seconds / MAX_READING_SHARE)


@dataclass(slots=True)
class ObserverCounters:
    segments: int = 0
    segments_dropped: int = 0
    kernel_events: int = 0
    kernel_events_lost: int = 0  # overflows of the event socket's buffer; how many events were lost is unknown
    resyncs: int = 0
    questions: int = 0  # subflows that were looked up, because possibly no event reports their end
    reopened: int = 0


class Observers:
    """Opens and supervises the observers of one network namespace. Must be used inside a running event loop."""

    def __init__(self, engine: Engine, on_interface_return: Callable[[], Awaitable[object]]) -> None:
        self.counters = ObserverCounters()
        self._settings, self._kernel = engine.settings, engine.kernel
        self._engine, self._tracker = engine, engine.tracker
        self._on_interface_return = on_interface_return
        self._captures: dict[str, Capture] = {}
        self._reading_share = ReadingShare(time.monotonic())
        self._events: PathManagerEvents | None = None
        self._routes: Routes | None = None
        self._last_resync = time.monotonic()
        self._lookup_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        """Open every observer, then list the existing sockets. Raises KernelError for a capture that fails."""
        if (problem := self._kernel.mptcp_missing()) is not None:
            log.warning("%s", problem)
        self._routes = self._kernel.routes(self._settings)
        routes, tunnels = self._routes, self._engine.tunnels
        self._tracker.interface_of = lambda four_tuple: tunnels.interface(four_tuple) or routes.interface(four_tuple)
        for interface in self._settings.interfaces:
            try:
                self._open_capture(interface)
            except InterfaceDownError as error:
                log.warning("%s; capturing when the interface is up", error)
        if not self._open_events():
            log.warning("no path-manager events; the sockets are listed every second instead")
        await self.resync()

    def close(self) -> None:
        if self._lookup_timer is not None:
            self._lookup_timer.cancel()
        for interface in list(self._captures):
            self._close_capture(interface)
        if self._events is not None:
            self._close_events()
        if self._routes is not None:
            self._routes.close()

    def capture_states(self) -> dict[str, bool]:
        """Return for each interface whether its segments are captured."""
        return {interface: interface in self._captures for interface in self._settings.interfaces}

    async def supervise(self) -> None:
        """Check for lost events and for interfaces that return, forever."""
        while True:
            await asyncio.sleep(SUPERVISE_SECONDS)
            if self._read_losses() or self._events is None:
                self._tracker.request_resync()  # the request stays until a resync succeeds: a sweep may fail
            if self._events is None:
                self._open_events()
            self.schedule_lookups()
            returned = []
            for interface in [each for each in self._settings.interfaces if each not in self._captures]:
                try:
                    self._open_capture(interface)
                    returned.append(interface)
                except KernelError as error:
                    log.debug("%s", error)
            if returned:
                self.counters.reopened += len(returned)
                log.info("capturing again on %s", ", ".join(returned))
                await self._on_interface_return()
            is_due = time.monotonic() - self._last_resync > RESYNC_INTERVALS * self._settings.verify_interval
            if is_due or self._tracker.needs_resync:
                try:
                    await self.resync(with_pauses=True)
                except KernelError as error:  # the next resync may succeed
                    log.error("resync: %s", error)

    async def resync(self, with_pauses: bool = False) -> None:
        """Sweep the current sockets, and pass them to the tracker. Raises KernelError if the sweep fails."""
        self.counters.resyncs += 1
        self._last_resync = time.monotonic()
        resync = self._tracker.begin_resync(time.monotonic())

        def apply(batch: Sequence[KernelSubflow]) -> None:
            self._engine.handle_events(resync.add(batch, time.monotonic()))

        await self._engine.sampler.sweep(apply, with_pauses)
        for events in resync.finish():
            self._engine.handle_events(events)
            await asyncio.sleep(0)

    def _open_capture(self, interface: str) -> None:
        capture = self._kernel.capture(interface, self._settings)
        self._captures[interface] = capture
        self._loop.add_reader(capture.fileno(), self._read_capture, capture)

    def _close_capture(self, interface: str) -> None:
        capture = self._captures.pop(interface)
        self._loop.remove_reader(capture.fileno())
        capture.close()

    def _open_events(self) -> bool:
        try:
            self._events = self._kernel.events()
        except (KernelError, OSError) as error:
            log.debug("%s", error)
        else:
            self._loop.add_reader(self._events.fileno(), self._read_events)
        return self._events is not None

    def _close_events(self) -> None:
        assert self._events is not None
        self._loop.remove_reader(self._events.fileno())
        self._events.close()
        self._events = None

    def schedule_lookups(self) -> None:
        """Schedule the next look-up of sockets that the tracker requested."""
        if self._lookup_timer is not None:
            return
        if (pause := self._tracker.lookups.pause(time.monotonic())) is not None:
            self._lookup_timer = self._loop.call_later(pause, self._look_up)

    def _look_up(self) -> None:
        self._lookup_timer = None
        if requested := self._tracker.lookups.pop_due(time.monotonic()):
            self.counters.questions += len(requested)
            try:
                sockets = self._engine.sockets.look_up(requested)
                events = self._tracker.apply_lookup(requested, sockets, time.monotonic())
            except KernelError as error:
                log.debug("%s", error)
                for each in requested:
                    self._tracker.lookups.add(each, time.monotonic())
            else:
                self._engine.handle_events(events)
        self.schedule_lookups()

    def _read_capture(self, capture: Capture) -> None:
        start = time.thread_time()
        self._process_segments(capture)
        pause = self._reading_share.pause(time.monotonic(), time.thread_time() - start)
        # Pause only this capture, and still read the others: a flood on one interface must not delay the others.
        if pause and self._captures.get(capture.interface) is capture:
            self._loop.remove_reader(capture.fileno())
            self._loop.call_later(pause, self._resume_reading, capture)

    def _resume_reading(self, capture: Capture) -> None:
        if self._captures.get(capture.interface) is capture:
            self._loop.add_reader(capture.fileno(), self._read_capture, capture)

    def _process_segments(self, capture: Capture) -> None:
        events: list[Event] = []
        joins: list[Segment] = []
        try:
            for segment in capture.read(_MAX_BATCH):
                self.counters.segments += 1
                events += self._tracker.apply_segment(segment)
                if segment.options and type(segment.options[0]) is MpJoinAck:
                    joins.append(segment)
        except KernelError as error:
            log.warning("%s; capturing again when the interface is up", error)
            self._close_capture(capture.interface)
        self._engine.handle_events(events)
        for join in joins:
            endpoints = unmap(join.destination), join.destination_port, unmap(join.source), join.source_port
            self._engine.measure_join(FourTuple(*endpoints), join.time)
        self.schedule_lookups()

    def _read_events(self) -> None:
        assert self._events is not None
        events: list[Event] = []
        try:
            for event in self._events.read(_MAX_BATCH):
                self.counters.kernel_events += 1
                events += self._tracker.apply_event(event)
        except OSError as error:
            log.warning("path-manager events: %s; reopening the socket", error)
            self._close_events()
        self._engine.handle_events(events)

    def _read_losses(self) -> bool:
        """Count losses; return whether events were lost."""
        dropped = sum(capture.read_statistics() for capture in self._captures.values())
        if dropped:
            self.counters.segments_dropped += dropped
            log.warning("%d segments were dropped by the capture buffer", dropped)
        if self._events is None or not self._events.lost:
            return False
        self.counters.kernel_events_lost += self._events.lost
        self._events.lost = 0
        log.warning("path-manager events were lost")
        return True
