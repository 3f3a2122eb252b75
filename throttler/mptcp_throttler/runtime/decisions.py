# SPDX-License-Identifier: GPL-2.0-or-later
"""Decides the verdicts of each connection and stores them: the policy first, then the stages in order.

Readers (status, plan, views) only use the stored verdicts. A few connections are decided at once; many, for
example after a reload, in slices between which the event loop runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from mptcp_throttler.mptcp.model import Connection, FourTuple
from mptcp_throttler.policy.anticipation import JoinPredictor
from mptcp_throttler.policy.evaluate import count_paths, evaluate
from mptcp_throttler.policy.model import Direction, Policy
from mptcp_throttler.policy.verdict import PREFIX, Verdict
from mptcp_throttler.runtime.event_loop import begin_acyclic, end_acyclic, wait_at_most
from mptcp_throttler.runtime.logs import log_fields
from mptcp_throttler.shaping.cap import PlanError
from mptcp_throttler.shaping.plan import Planner
from mptcp_throttler.stages.stage import Stage
from mptcp_throttler.telemetry.decision import Comparer, Decision, Verdicts, remove_caps

log = logging.getLogger(__name__)

MAX_AT_ONCE = 64  # maximum number of connections that are decided without a yield to the event loop
SLICE_SECONDS = 0.003  # maximum delay of a new join; after a fork for a status request, slices take 3 times as long
NOT_CAPPED: Final = "counted but not capped: it belongs to a tunnel"
NOT_STEERED: Final = "the tunnel's daemon chooses the paths"
YOUNG_SECONDS = 0.3  # up to this age, an observed subflow has so little in flight that its cap may begin at once


class Decisions:
    def __init__(
        self,
        policy: Policy,
        connections: Mapping[int, Connection],
        stages: Sequence[Stage],
        planners: Sequence[Planner],
        listen_ports: Collection[int],
        handle_decision: Callable[[Decision], None],
        apply_plan: Callable[[], None],
    ) -> None:
        """*connections*: the tracker's connections by token, always up to date. Rules act only on subflows of
        *listen_ports*. *handle_decision* is called before a decision updates the planners, *apply_plan* after the
        decisions on a batch of connections updated them."""
        self.policy = policy  # the policy in force, from which verdicts are made
        self.applied = policy.applied  # the policy that is applied to the kernel: without rules in a dry run
        self.verdicts: dict[int, Verdicts] = {}  # by token of the connection: one per active subflow and direction
        self._connections = connections
        self._stages, self._planners = stages, planners
        self.anticipation = JoinPredictor()
        self._comparer = Comparer()
        self._handle_decision, self._apply_plan = handle_decision, apply_plan
        self._listen_ports = frozenset(listen_ports)
        self._pending: dict[int, None] = {}
        self._wake = asyncio.Event()

    def set_policy(self, policy: Policy) -> None:
        """Put *policy* in force. The caller must then call :meth:`decide_all`."""
        self.policy, self.applied = policy, policy.applied
        for stage in self._stages:
            stage.is_applied = not self.is_dry
            stage.set_policy(policy)
        for planner in self._planners:
            planner.set_policy(self.applied)

    @property
    def is_dry(self) -> bool:
        """Whether this is a dry run, in which verdicts are decided and shown but not applied."""
        return self.applied is not self.policy

    def applied_verdicts(self, verdicts: Verdicts) -> Verdicts:
        """Return *verdicts*, in a dry run without their caps."""
        return remove_caps(verdicts) if self.is_dry else verdicts

    def decide(self, tokens: Collection[int]) -> None:
        """Decide the verdicts of connections: a few at once, many later in :meth:`run`."""
        if len(tokens) > MAX_AT_ONCE:
            self._pending.update(dict.fromkeys(tokens))
            self._wake.set()
        elif tokens:
            now = time.monotonic()
            for token in tokens:
                self._pending.pop(token, None)
                self._decide(token, now)
            self._apply_plan()

    async def decide_all(self) -> None:
        """Decide the verdicts of every connection, in slices. This also works while :meth:`run` does not run."""
        self._pending.update(dict.fromkeys((*self._connections, *self.verdicts)))
        await asyncio.sleep(0)  # setting the policy took some milliseconds
        await self._decide_pending()

    async def run(self) -> None:
        """Decide the verdicts of pending connections and of those whose anticipation ended, forever."""
        while True:
            due = self.anticipation.next_window_end
            await wait_at_most(self._wake, None if due is None else max(0.0, due - time.monotonic()))
            self._wake.clear()
            self.decide(self.anticipation.take_due(time.monotonic()))
            await self._decide_pending()

    async def _decide_pending(self) -> None:
        while self._pending:
            now = time.monotonic()
            begin_acyclic()
            for _ in range(min(MAX_AT_ONCE, len(self._pending))):
                token = next(iter(self._pending))
                del self._pending[token]
                self._decide(token, now)
                if time.monotonic() > now + SLICE_SECONDS:
                    break
            end_acyclic()
            self._apply_plan()
            await asyncio.sleep(0)

    def _decide(self, token: int, now: float) -> None:
        connection = self._connections.get(token)
        before = self.verdicts.get(token, ())
        young: list[FourTuple] = []
        verdicts: Verdicts = ()
        if connection is None:
            self.verdicts.pop(token, None)
            self.anticipation.forget(token, now)
            for stage in self._stages:
                stage.forget(token)
        else:
            if connection.seen_from_start:
                young = [each.four_tuple for each in connection.subflows if 0 <= now - each.since < YOUNG_SECONDS]
            *_, verdicts = self.verdict_steps(connection)
            self.verdicts[token] = verdicts
        self._handle_decision(self._comparer.compare(token, connection, before, verdicts, now, is_dry=self.is_dry))
        applied = self.applied_verdicts(verdicts)
        for planner in self._planners:
            try:
                planner.set_verdicts(token, applied, now, young)
            except PlanError as error:
                fields = log_fields(connection, token=token)
                log.error("cannot cap connection %08x (%s): %s", token, planner.direction.value, error, extra=fields)

    def verdict_steps(self, connection: Connection) -> Iterator[Verdicts]:
        """Yield the verdicts of the policy, then the verdicts after each stage."""
        wall_time = time.time()
        verdicts = evaluate(self.policy, connection, wall_time, self.expected_paths(connection))
        verdicts = _restrict_to_ports(verdicts, self._listen_ports)
        if connection.is_tunnel:
            verdicts = _adapt_to_tunnel(verdicts)
        yield verdicts
        for stage in self._stages:
            if not connection.is_tunnel:
                verdicts = stage.apply(connection, verdicts, wall_time)
            elif not stage.needs_sockets:
                verdicts = _adapt_to_tunnel(stage.apply(connection, verdicts, wall_time))
            yield verdicts

    def expected_paths(self, connection: Connection) -> int:
        """Return the number of paths that the connection will probably have; caps depend on it."""
        if connection.is_tunnel:
            return 0  # the tunnel daemon reports all paths of a tunnel together
        before = self.anticipation.next_window_end
        paths = self.anticipation.expected_paths(connection, count_paths(self.policy, connection), time.monotonic())
        if self.anticipation.next_window_end != before:
            self._wake.set()
        return paths if self.policy.anticipate else 0


def _restrict_to_ports(verdicts: tuple[Verdict, ...], listen_ports: Collection[int]) -> tuple[Verdict, ...]:
    """Return *verdicts* without cap, budget and steering on subflows whose local port is not in *listen_ports*, because
    sets, rules, BPF programs and dumps cover only these ports. A client joins at another port if the proxy announced it
    (ADD_ADDR, RFC 8684, 3.4.1); a proxy may open a subflow from any port."""

    def restrict(each: Verdict) -> Verdict:
        four_tuple, port = each.four_tuple, each.four_tuple.local_port
        if port in listen_ports:
            return each
        reason = f"{PREFIX[each.direction]}its local port {port} is not among listen_ports"
        return Verdict(four_tuple, each.path, None, None, None, reason, each.direction, rests=each.rests)

    return tuple(map(restrict, verdicts))


def _adapt_to_tunnel(verdicts: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    """Return *verdicts* on a tunnel's paths without upload caps and steering: its upload packets do not pass through
    the throttler's queues, and the tunnel's daemon chooses the paths."""
    result = []
    for each in verdicts:
        verdict = each._replace(steer=None, steer_path=None)
        if each.direction is Direction.UP and each.throttle is not None:
            verdict = verdict._replace(scope=None, throttle=None, reason=PREFIX[Direction.UP] + NOT_CAPPED)
        result.append(verdict)
    return tuple(result)
