# SPDX-License-Identifier: GPL-2.0-or-later
"""Passes each change through the daemon, from an event to the kernel.

    events ──▶ decide ──▶ plan ──▶ socket limits ──▶ entries ──▶ sampler
       ▲                                                            │
       └──────────────── outcomes of the stages ◀───────────────────┘

The methods of :class:`Engine` are in this order, and each calls only those below it. Changes come from four sources:
the observers' events, the stages' outcomes, the clock, and a new policy.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable
from functools import partial

from mptcp_throttler.config.settings import Settings
from mptcp_throttler.kernel.access import KernelAccess
from mptcp_throttler.mptcp.limits import TrackerLimits
from mptcp_throttler.mptcp.model import Event, EventKind, FourTuple, KernelEvent
from mptcp_throttler.mptcp.tracker import Tracker
from mptcp_throttler.policy.model import Direction, Policy
from mptcp_throttler.runtime.actions import ActionRunner
from mptcp_throttler.runtime.decisions import Decisions
from mptcp_throttler.runtime.directions import Downloads, Uploads
from mptcp_throttler.runtime.event_loop import wait_at_most
from mptcp_throttler.runtime.logs import CapLog, log_fields
from mptcp_throttler.runtime.pacing import SocketLimiter
from mptcp_throttler.runtime.path_manager import UserspacePathManager
from mptcp_throttler.runtime.sampler import Sampler
from mptcp_throttler.runtime.tunnels import Tunnels
from mptcp_throttler.shaping.cap import PlanError
from mptcp_throttler.shaping.initial_options import add_exceptions, initial_options
from mptcp_throttler.stages.budget import BudgetStage
from mptcp_throttler.stages.grants import GrantStage
from mptcp_throttler.stages.guard import GuardStage
from mptcp_throttler.stages.resting import RestStage
from mptcp_throttler.stages.stage import Outcome
from mptcp_throttler.stages.steering import SteeringStage
from mptcp_throttler.telemetry.decision import Decision
from mptcp_throttler.telemetry.events import EventRecorder, RateLimiter
from mptcp_throttler.telemetry.latency import CAP_BOUNDS, MAX_CAP_SECONDS, JoinLatency, LatencyHistogram
from mptcp_throttler.telemetry.traffic import Traffic

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0  # interval of :meth:`Engine.tick`
MAX_SLEEP_SECONDS = 1.0  # maximum wait for the next change of a rule's hours: no event reports that the clock was set
CLOCK_SET_SECONDS = 0.01  # if the clocks diverge more, the wall clock was set: NTP slews both, clock_gettime(2)
MAX_LINES = 20  # maximum log lines per minute about refused joins, and on disagreements: any client can cause them


class Engine:
    """The engine of one daemon. The constructor creates its parts in the order in which a change passes them."""

    def __init__(self, settings: Settings, kernel: KernelAccess, policy: Policy) -> None:
        """Create all parts. The caller must then call :meth:`Decisions.set_policy` and :meth:`enforce`."""
        self.settings, self.kernel = settings, kernel
        self.started = self.policy_since = time.monotonic()
        ports = settings.ownership.ports
        self.tracker = Tracker(ports, TrackerLimits(settings.max_connections))
        connections = self.tracker.connections
        self.budget_stage, self.guard, self.steering = BudgetStage(), GuardStage(policy), SteeringStage()
        exclude = self.budget_stage.sockets.exclude_earlier_bytes
        self.tunnels = Tunnels(settings, kernel, self.handle_kernel_events, exclude)
        self.path_manager = UserspacePathManager(settings.state_directory, kernel)
        sockets = kernel.sockets(settings)
        self.sockets = self.tunnels.add_paths(sockets)
        self.downloads = Downloads(settings, kernel, self.tunnels)
        self.uploads = Uploads(settings, kernel, connections)
        self._planners = self.downloads.planner, self.uploads.planner
        # Wall clock minus monotonic clock, seconds. Stored times are monotonic. This offset changes only when the wall
        # clock is set, so that a stored time is always shown as the same wall time.
        self.clock_offset = time.time() - time.monotonic()
        self.traffic = Traffic(time.monotonic, lambda: self.sampler.sweep_seconds)
        self.events = EventRecorder(self.traffic, lambda: self.clock_offset)
        self.join_latency = JoinLatency()
        self.cap_latency = {each.direction: LatencyHistogram(CAP_BOUNDS, MAX_CAP_SECONDS) for each in self._planners}
        for planner in self._planners:
            planner.clock, planner.report_delay = time.monotonic, self.cap_latency[planner.direction].count
            planner.kernel_changed = partial(self._record_entries, planner.direction)
        self.rest = RestStage()
        # The stages, in order: each gets the verdicts of the previous stage.
        self.grants = GrantStage()
        stages = self.budget_stage, self.grants, self.guard, self.steering, self.rest
        self.cap_log = CapLog(self.traffic.count_capped)
        callbacks = self._record_decision, self.apply_plan
        self.decisions = Decisions(policy, connections, stages, self._planners, ports, *callbacks)
        self.action_runner = ActionRunner(self.path_manager, connections, self.sockets, self.steering, self.events)
        pacing = partial(kernel.pacing, settings)
        self.socket_limiter = SocketLimiter(self.downloads.planner, pacing, sockets, self.apply_plan)
        consumers = self.socket_limiter, self.uploads, *stages, self.traffic
        self.sampler = Sampler(self.sockets, consumers, lambda: self.tracker.table_sizes["subflows"], self.act_on)
        self._log_limiters = {kind: RateLimiter(MAX_LINES) for kind in (EventKind.JOIN_REFUSED, EventKind.DISAGREEMENT)}
        self._open_rules: tuple[bool, ...] = ()  # per rule, whether it was within its hours at the last :meth:`enforce`
        self._clock_changed = asyncio.Event()

    # Sources of changes

    async def set_policy(self, policy: Policy) -> None:
        self.decisions.set_policy(policy)
        await self.enforce()
        self._clock_changed.set()
        self.policy_since = time.monotonic()

    async def enforce_by_clock(self) -> None:
        """Enforce the policy when the hours of a rule begin or end, forever."""
        while True:
            now = time.time()
            policy = self.decisions.policy
            if policy.open_rules(now) != self._open_rules:
                await self.enforce()
            change = policy.next_change(now)
            pause = MAX_SLEEP_SECONDS if change is None else min(MAX_SLEEP_SECONDS, max(0.05, change - now))
            await wait_at_most(self._clock_changed, pause)
            self._clock_changed.clear()

    async def enforce(self) -> None:
        """Adapt the plan to the policy: at the start, after a reload, and when the hours of a rule begin or end."""
        now = time.monotonic()
        self._open_rules = self.decisions.policy.open_rules(time.time())
        await self.decisions.decide_all()
        for planner in self._planners:
            planner.expire(now)
            try:
                planner.prepare_path_classes(now)
            except PlanError as error:
                log.error("%s", error)  # later, each connection that lacks such a class is also logged
        # The classes must exist before the kernel accepts sockets into them.
        self.downloads.reconciler.wake()
        await self._set_initial_options()
        self.apply_plan()

    async def _set_initial_options(self) -> None:
        # Read the policy again: another policy may be in force now, and the hours of a rule may have begun or ended.
        policy, class_of = self.decisions.applied, self.downloads.planner.class_of
        options = initial_options(policy, policy.open_rules(time.time()), class_of, rests=self.rest.can_rest)
        options = add_exceptions(options, [each.network for each in self.grants.in_force])
        await self.socket_limiter.set_initial_options(options)

    async def apply_grants(self, tokens: Collection[int]) -> None:
        """Apply the grants in force to the connections of *tokens* and to the initial options of new connections."""
        await self._set_initial_options()
        self.decisions.decide(tokens)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick()

    def tick(self) -> None:
        """Expire ended connections, idle plan entries, and anticipated joins that did not arrive."""
        now = time.monotonic()
        if abs(time.time() - now - self.clock_offset) > CLOCK_SET_SECONDS:
            self.clock_offset = time.time() - now
        self.handle_events(self.tracker.expire(now))
        self.decisions.anticipation.expire(now)
        for planner in self._planners:
            planner.expire(now)
        self.apply_plan()

    def handle_kernel_events(self, kernel_events: Iterable[KernelEvent]) -> None:
        self.handle_events([each for event in kernel_events for each in self.tracker.apply_event(event)])

    def handle_events(self, events: Collection[Event]) -> None:
        """Decide again the verdicts of every connection that *events* name."""
        if not events:
            return
        self.events.record_tracker_events(events)
        self.action_runner.close_excess(events, is_dry_run=self.decisions.is_dry)
        for event in events:
            limiter = self._log_limiters.get(event.kind)
            level = logging.INFO if limiter is not None and limiter.allow(event.time) else logging.DEBUG
            if log.isEnabledFor(level):
                connection = self.tracker.connections.get(event.token)
                fields = log_fields(connection, token=event.token, subflow=event.four_tuple)
                words = event.kind.value, event.token, event.four_tuple, event.detail
                log.log(level, "%s: token %08x, %s %s", *words, extra=fields)
        self.decisions.decide({event.token for event in events})
        for event in events:
            if event.kind is EventKind.SUBFLOW_ACTIVE and event.four_tuple is not None:
                captured = self.join_latency.joins.pop(event.four_tuple)
                if captured is not None:
                    self.measure_join(event.four_tuple, captured)

    def act_on(self, outcome: Outcome) -> None:
        """Perform the actions of a stage's outcome, then decide again the connections that it changed."""
        self.action_runner.perform(outcome.actions)
        self.decisions.decide(outcome.changed)

    # To the kernel

    def apply_plan(self) -> None:
        """Pass the plan to the kernel: first limits on sockets, then entries and classes. Then wake the sampler."""
        loop, planner = asyncio.get_running_loop(), self.downloads.planner
        if self.socket_limiter.can_pace:
            # Handle the first changes at once, so that the next sample finds the new limits. If more changes remain,
            # let the event loop run before the next changes.
            self.socket_limiter.apply_plan_changes()
            if planner.changed_subflows:
                loop.call_soon(self.apply_plan)
        if clients := self.decisions.anticipation.take_changed_clients():
            self.socket_limiter.set_clients(clients)
        self.downloads.reconciler.wake()
        self.uploads.wake()
        # Subflows new to a cap or to steering are sampled at once, but after the kernel has their entries.
        self.sampler.wake()

    # Telemetry

    def measure_join(self, four_tuple: FourTuple, captured: float) -> None:
        """Start to measure the time until the kernel has the entries that a join requires. *captured*: when the last
        packet of the join's handshake was captured, monotonic seconds."""
        subflow = self.traffic.find(four_tuple, Direction.DOWN)
        connection = None if subflow is None else self.tracker.connections.get(subflow[0])
        if connection is None:
            self.join_latency.joins.put(four_tuple, captured, captured)
            return
        subflows = [each.four_tuple for each in connection.subflows]
        self.join_latency.record_join(captured, subflows, self.downloads.planner.entries.upserts)

    @property
    def capped_count(self) -> int:
        """Number of subflows with a cap. The kernel also has entries of ended and of some uncapped subflows."""
        return 0 if self.decisions.is_dry else self.traffic.capped_count

    def _record_decision(self, decision: Decision) -> None:
        self.traffic.record_decision(decision)
        if decision.gained or decision.changed or decision.lost or decision.ended:
            self.cap_log.record_decision(decision)
            self.events.record_decision(decision)

    def _record_entries(self, direction: Direction, four_tuples: Collection[FourTuple], added: bool) -> None:
        now = time.monotonic()
        if added and direction is Direction.DOWN:
            self.join_latency.record_entries(four_tuples, now)
        self.events.record_entries(direction, four_tuples, added, now)
