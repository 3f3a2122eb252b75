"""Wiring of one daemon, and its life from start to stop.

    observers ──▶ tracker ──▶ decisions (policy, then stages) ──▶ planners ──▶ reconcilers ──▶ kernel
                                   ▲                                 ▲
    sampler ──▶ stages ────────────┘            transitions ─────────┘

What has something in the kernel is a component (``component``): all are prepared for a policy, then committed. What
needs to know how subflows are doing is a consumer of the sampler. All run on one event loop; nothing blocks it long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from mptcp_common.units import counted
from mptcp_throttler.config.settings import Settings
from mptcp_throttler.kernel.access import REAL, KernelAccess
from mptcp_throttler.kernel.ports import KernelError, Sockets
from mptcp_throttler.kernel.scheduling import prefer_worker
from mptcp_throttler.kernel.state_lock import locked
from mptcp_throttler.mptcp import clock_step
from mptcp_throttler.mptcp.model import Event, EventKind, FourTuple
from mptcp_throttler.mptcp.tracker import Tracker, TrackerLimits
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.policy.schedule import next_change, open_rules
from mptcp_throttler.runtime import garbage, respite
from mptcp_throttler.runtime.budgets import Budgets
from mptcp_throttler.runtime.closed_sockets import ClosedSockets
from mptcp_throttler.runtime.comparison import Comparison
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.runtime.decisions import Decisions, StageSampling
from mptcp_throttler.runtime.directions import Downloads, Uploads
from mptcp_throttler.runtime.effects import Effects
from mptcp_throttler.runtime.excess import Excess
from mptcp_throttler.runtime.fault_log import faults_told
from mptcp_throttler.runtime.logs import about
from mptcp_throttler.runtime.loop_gauge import LoopGauge
from mptcp_throttler.runtime.observe import Observers
from mptcp_throttler.runtime.pacing import PacedCaps
from mptcp_throttler.runtime.path_manager import UserspacePathManager
from mptcp_throttler.runtime.queries import Parts, Queries
from mptcp_throttler.runtime.reloads import Reloads
from mptcp_throttler.runtime.sampler import Consumer, Sampler
from mptcp_throttler.runtime.service_status import ServiceStatus
from mptcp_throttler.runtime.status import StatusServer
from mptcp_throttler.runtime.stop_signals import STOP_SIGNALS, ignore_further_stops
from mptcp_throttler.runtime.telemetry import Telemetry
from mptcp_throttler.runtime.waiting import wait_at_most
from mptcp_throttler.shaping.birth import births
from mptcp_throttler.shaping.class_numbers import PlanError
from mptcp_throttler.stages.budget import BudgetStage
from mptcp_throttler.stages.guard import GuardStage
from mptcp_throttler.stages.resting import RATIO, RATIO_WITHOUT_BUFFERS, RestStage
from mptcp_throttler.stages.steering import SteeringStage
from mptcp_throttler.telemetry.minute import Minute

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
MAX_SLEEP_SECONDS = 1.0
"""The wall clock may be set while we wait for a window of the policy: nobody tells us."""
MOST_LINES = 20
"""In a minute, of joins that were refused, and of disagreements: anybody can cause them."""


class Daemon:
    """One throttler on one network namespace."""

    def __init__(
        self, settings: Settings, policy: Policy, read_policy: Callable[[], Policy], kernel: KernelAccess = REAL
    ) -> None:
        """Must be made inside a running event loop. Raises KernelError."""
        self._settings = settings
        self._kernel = kernel
        self._started, self._pid = time.time(), os.getpid()
        self._ahead = time.time() - time.monotonic()
        """By how much the wall clock was ahead of the monotonic one when both were last read."""
        self._stop = asyncio.Event()
        self._reload_wanted = asyncio.Event()
        self._clock_changed = asyncio.Event()
        self._open_rules: tuple[bool, ...] = ()
        """Which rules' windows were open when the policy was last enforced."""
        self._told = {kind: Minute(MOST_LINES) for kind in (EventKind.JOIN_REFUSED, EventKind.DISAGREEMENT)}
        self._gauge = LoopGauge()
        self._tracker = Tracker(settings.ownership.listen_ports, TrackerLimits(settings.max_connections))
        self._downloads = Downloads(settings, kernel)
        self._uploads = Uploads(settings, kernel, self._tracker.connections)
        self._budget_stage, self._guard, self._steering = BudgetStage(), GuardStage(policy), SteeringStage(policy)
        # The order of the stages: each sees what the one before made of the verdicts.
        self._rest = RestStage()
        stages = (self._budget_stage, self._guard, self._steering, self._rest)
        planners = (self._downloads.planner, self._uploads.planner)
        self._telemetry = Telemetry(
            self._tracker.connections,
            *planners,
            lambda: self._sampler.sweep_seconds,
            lambda: self._decisions.policy.dry_run,
        )
        self._decisions = Decisions(
            policy,
            self._tracker.connections,
            stages,
            planners,
            self._plan_changed,
            self._telemetry.listeners,
            settings.ownership.listen_ports,
        )
        self._budgets = Budgets(
            settings.ledger,
            self._budget_stage,
            self._decisions.decide,
            lambda since: self._sampler.cookies(since),  # noqa: PLW0108 - the sampler is made later
        )
        traffic = self._telemetry.traffic
        counting = self._budgets.socket_closed, traffic.socket_closed
        self._closed_sockets = ClosedSockets(partial(kernel.meter, settings), counting, traffic.closed_told)
        self._path_manager = UserspacePathManager(settings.state_directory)
        self._effects = Effects(
            self._path_manager, self._steering, self._telemetry.chronicle, self._tracker.connections
        )
        self._excess = Excess(
            self._path_manager,
            self._tracker.connections,
            self._close_sockets,
            lambda: self._decisions.policy.dry_run,
        )
        # The order in which they are prepared; they are closed in the reverse order. A start that the ledger refuses is
        # to change nothing in the kernel: who has taken over there what a killed daemon left removes it when closed.
        self._components: tuple[Component, ...] = (
            self._budgets,
            self._downloads,
            self._uploads,
            self._path_manager,
            self._closed_sockets,
        )
        self._reloads = Reloads(self._components, self._decisions, read_policy, self._take_new_policy, self._reloaded)
        self._status = StatusServer(settings.status_socket, self._answer, settings.status_group)
        self._service_status = ServiceStatus(self._summary)
        self._stage_sampling = [StageSampling(stage, self._decisions, self._effects.carry_out) for stage in stages]
        self._planners = planners
        self._paced: PacedCaps | None = None
        """None where sockets cannot be paced: caps then begin at once."""
        self._comparison = Comparison(
            lambda: (*self._components, *self._paced_if_any(), self._status),
            {
                "ipset, iptables or the note of what to put back": self._downloads.looks_changed,
                "a sysctl or the note of them": self._path_manager.looks_changed,
                "a BPF program or map": lambda: (
                    self._closed_sockets.looks_changed() or any(each.looks_changed() for each in self._paced_if_any())
                ),
                "the status socket": self._status.looks_changed,
            },
            settings.verify_interval,
        )
        self._sockets: Sockets
        self._sampler: Sampler
        self._observers: Observers

    def stop(self) -> None:
        """Have :meth:`serve` end."""
        self._stop.set()

    def reload(self) -> None:
        """Have the policy read anew."""
        self._reload_wanted.set()

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, then leave the kernel as it was.

        Raises :class:`KernelError` when the start fails, ``AlreadyRunning`` when another daemon is there.
        """
        loop = asyncio.get_running_loop()
        with locked(self._settings.state_directory):
            # From the first change to the last: a signal in between must not end us half-way.
            for number in STOP_SIGNALS:
                loop.add_signal_handler(number, self.stop)
            loop.add_signal_handler(signal.SIGHUP, self.reload)
            try:
                await self.serve()
            finally:
                ignore_further_stops(loop)

    async def serve(self) -> None:
        """Run until :meth:`stop`, then leave the kernel as it was. Raises KernelError."""
        policy = self._decisions.policy
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(initializer=prefer_worker))
        async with AsyncExitStack() as stack:
            stack.enter_context(faults_told(self._telemetry.chronicle.fault))
            for component in self._components:
                stack.push_async_callback(component.close)
                await component.prepare(policy)
            self._decisions.set_policy(policy)
            sockets = self._sockets = self._kernel.sockets(self._settings)
            stack.callback(sockets.close)
            # Before the observers: a connection that is accepted earlier can never be paced.
            pacing = self._kernel.pacing(self._settings)
            if pacing is not None:
                self._paced = PacedCaps(self._downloads.planner, pacing, self._plan_changed)
                stack.push_async_callback(self._paced.close, sockets)
                self._rest.possible = pacing.can_rest()
                self._rest.ratio = RATIO if pacing.has_buffers else RATIO_WITHOUT_BUFFERS
                await self._paced.take_back(sockets)
            stack.callback(self._effects.release_flags)
            self._sampler = Sampler(sockets, self._consumers(), lambda: self._tracker.table_sizes["live"])
            self._observers = Observers(
                self._settings,
                self._kernel,
                self._tracker,
                self._sampler,
                sockets,
                self._changed,
                self._telemetry.joined,
                self._comparison.verify,
            )
            stack.callback(self._observers.close)
            await self._observers.open()
            await self._adopt()
            self._telemetry.traffic.begin(self._sampler.latest)
            for component in self._components:
                await component.commit(policy)
            await self._uploads.remove_what_was_left()
            await self._kernel.remove_other_backends(self._downloads.backend, self._settings)
            stack.push_async_callback(self._status.close)
            await self._status.open()
            stack.push_async_callback(self._sample_for_the_last_time)
            stack.callback(self._comparison.close)
            self._comparison.open(self._kernel.notices(self._settings))
            self._kernel.prefer_event_loop()
            garbage.set_aside()
            log.info("throttling on %s with %s", ", ".join(self._settings.interfaces), self._downloads.backend)
            self._service_status.ready()
            await self._until_stopped(
                *(component.run() for component in self._components),
                *(paced.run() for paced in self._paced_if_any()),
                self._decisions.run(),
                self._decisions.cap_log.run(),
                self._sampler.run(),
                self._observers.supervise(),
                self._gauge.run(),
                respite.run(),
                self._service_status.run(),
                garbage.run(),
                self._every(TICK_SECONDS, self._tick),
                self._comparison.run(self._observers.resync_quietly),
                self._follow_the_clock(),
                self._reload_when_wanted(),
            )

    def _consumers(self) -> list[Consumer]:
        return [*self._paced_if_any(), self._uploads, *self._stage_sampling, self._telemetry.traffic]

    def _paced_if_any(self) -> tuple[PacedCaps, ...]:
        return () if self._paced is None else (self._paced,)

    async def _adopt(self) -> None:
        """Take over what a killed daemon left, and bring the kernel in line with the policy."""
        found = list(self._sampler.latest.values())
        self._effects.adopt(found)
        await self._enforce()
        if self._paced is not None:
            await self._paced.adopt(found)
            # What is capped already stays capped, and what sends little is capped from the start.
            await self._sampler.sweep()
        await self._downloads.reconciler.apply()

    async def _until_stopped(self, *duties: Coroutine[Any, Any, None]) -> None:
        """Run *duties*, none of which ends by itself, until told to stop; the first that fails ends the daemon."""
        tasks = [asyncio.create_task(duty) for duty in duties]
        stop = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in [stop, *tasks]:
                task.cancel()
            await asyncio.gather(stop, *tasks, return_exceptions=True)

    async def _sample_for_the_last_time(self) -> None:
        """Have budgets count what was carried until now."""
        if self._budget_stage.watched():
            try:
                await self._sampler.sweep()
            except KernelError as error:
                log.error("%s; what budgets counted last is lost", error)

    def _changed(self, events: Collection[Event]) -> None:
        """Decide anew about every connection that *events* name."""
        self._telemetry.chronicle.tracked(events)
        self._excess.close(events)
        tokens = set()
        for event in events:
            tokens.add(event.token)
            told = self._told.get(event.kind)
            level = logging.INFO if told is not None and told.has_room(event.time) else logging.DEBUG
            if log.isEnabledFor(level):
                fields = about(self._tracker.get(event.token), token=event.token, subflow=event.four_tuple)
                words = event.kind.value, event.token, event.four_tuple, event.detail
                log.log(level, "%s: token %08x, %s %s", *words, extra=fields)
        self._decisions.decide(tokens)

    def _close_sockets(self, four_tuples: Sequence[FourTuple]) -> Mapping[FourTuple, str]:
        return self._sockets.close_sockets(four_tuples)

    def _plan_changed(self) -> None:
        flips = self._decisions.anticipation.take_flips()
        if self._paced is not None:
            if self._downloads.planner.has_moved:
                self._paced.follow()
            if flips:
                self._paced.set_clients(flips)
        self._downloads.reconciler.wake()
        self._uploads.follow()
        # What is new to a cap or to steering is sampled at once, but after the kernel has its entries.
        self._sampler.wake()

    async def _enforce(self) -> None:
        """Bring the plan in line with the policy: at start, after a reload, when a window opens or closes."""
        now = time.time()
        self._open_rules = open_rules(self._decisions.policy, now)
        if self._paced is not None:
            self._paced.births_change()
        await self._decisions.decide_all()
        for planner in self._planners:
            planner.expire(now)
            try:
                planner.prepare_path_classes(now)
            except PlanError as error:
                log.error("%s", error)  # who needs such a class later is told of by itself
        if self._paced is not None:
            # The classes that sockets are to be accepted into are made first.
            self._downloads.reconciler.wake()
            # Another policy may have come into force meanwhile, and with it other rules that are open.
            policy = self._decisions.policy
            class_of, rests = self._downloads.planner.class_of, self._rest.possible
            await self._paced.set_births(births(policy, self._open_rules, class_of, rests=rests))
        self._plan_changed()

    async def _tick(self) -> None:
        now = time.time()
        # One that was set back the tracker sees by its stamps; for one that was set forward these are merely old.
        before, self._ahead = self._ahead, now - time.monotonic()
        if (step := self._ahead - before) > clock_step.LEAST:
            self._tracker.clock_set_forward(step)
        events = self._tracker.expire(now)
        if events:
            self._changed(events)
        self._decisions.anticipation.expire(now)
        for planner in self._planners:
            planner.expire(now)
        self._plan_changed()
        self._telemetry.effect.look()

    async def _follow_the_clock(self) -> None:
        while True:
            now = time.time()
            policy = self._decisions.policy
            if open_rules(policy, now) != self._open_rules:
                await self._enforce()
            change = next_change(policy, now)
            pause = MAX_SLEEP_SECONDS if change is None else min(MAX_SLEEP_SECONDS, max(0.05, change - now))
            await wait_at_most(self._clock_changed, pause)
            self._clock_changed.clear()

    async def _reload_when_wanted(self) -> None:
        while True:
            await self._reload_wanted.wait()
            self._reload_wanted.clear()
            await self._reload()

    async def _reload(self) -> None:
        await self._reloads.reload()
        self._clock_changed.set()

    def _reloaded(self, text: str) -> None:
        self._telemetry.chronicle.reload(time.time(), text)

    async def _take_new_policy(self) -> None:
        if self._paced is not None:
            self._paced.new_policy()
        await self._enforce()

    def _summary(self) -> str:
        """Return in one line what the daemon does, for ``systemctl status``."""
        policy, refused = self._decisions.policy, self._reloads.last_refused
        text = (
            f"{counted(len(self._tracker.connections), 'connection')}, "
            f"{counted(self._telemetry.capped, 'capped subflow')} on "
            f"{', '.join(self._settings.interfaces)} ({self._downloads.backend}); "
            f"{counted(len(policy.rules), 'rule')}{', dry run' if policy.dry_run else ''}"
        )
        if self._downloads.left_out:
            text = f"{text}; NOT SHAPED: {', '.join(self._downloads.left_out)}"
        if self._budgets.trouble is not None:
            text = f"{text}; BUDGETS NOT WRITTEN: {self._budgets.trouble}"
        return text if refused is None else f"{text}; RELOAD REFUSED: {'; '.join(refused.errors)}"

    def _answer(self, line: bytes) -> Iterator[str]:
        """Yield the answer to a request in pieces, from what is stored; called in a child."""
        parts = Parts(
            self._settings,
            self._kernel,
            self._started,
            self._pid,
            self._paced is not None,
            self._closed_sockets.are_counted,
            self._tracker,
            self._decisions,
            self._downloads,
            self._uploads,
            self._budget_stage,
            self._budgets,
            self._guard,
            self._path_manager,
            self._reloads,
            self._comparison,
            self._gauge,
            self._sampler,
            self._observers,
            self._telemetry,
        )
        return Queries(parts).answer(line)

    @staticmethod
    async def _every(seconds: float, call: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await call()
