# SPDX-License-Identifier: GPL-2.0-or-later
"""Acts on single subflows and connections: performs the actions of the stages, and closes subflows and connections that
exceed the tracker's limits."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.ports import KernelSockets
from mptcp_throttler.mptcp.model import Connection, Event, EventKind, FourTuple
from mptcp_throttler.runtime.logs import ALREADY_AN_EVENT, log_fields
from mptcp_throttler.runtime.path_manager import UserspacePathManager
from mptcp_throttler.stages.budget import StepReached
from mptcp_throttler.stages.guard import GuardChange
from mptcp_throttler.stages.stage import Action
from mptcp_throttler.stages.steering import SetBackup, SteeringStage
from mptcp_throttler.telemetry.events import BUDGET, EventRecorder, RateLimiter

log = logging.getLogger(__name__)

MAX_LINES: Final = 20
"""Maximum log lines per minute and kind. Any client can cause lines about excess, and after a reload to a policy that
steers by order, the kernel refuses the backup flag on all existing connections."""
_EXCESS: Final = {EventKind.SUBFLOW_EXCESS: "subflows", EventKind.CONNECTION_EXCESS: "connections of its client"}


class ActionRunner:
    def __init__(
        self,
        path_manager: UserspacePathManager,
        connections: Mapping[int, Connection],
        sockets: KernelSockets,
        steering: SteeringStage,
        events: EventRecorder,
    ) -> None:
        """*connections*: the tracker's connections by token, always up to date."""
        self._path_manager, self._connections, self._sockets = path_manager, connections, sockets
        self._steering, self._events = steering, events
        self._refusal_limiter = RateLimiter(MAX_LINES)
        self._excess_limiters = {kind: RateLimiter(MAX_LINES) for kind in _EXCESS}

    def perform(self, actions: Iterable[Action]) -> None:
        """Perform *actions*; log each action that the kernel refuses, and continue."""
        for action in actions:
            match action:
                case GuardChange(token, rules, None):
                    log.info("connection %08x: caps are in force again", token, extra=self._log_fields(token, rules))
                    self._events.record_guard(time.monotonic(), token, rules, "are in force again")
                case GuardChange(token, rules, reason):
                    fields = ALREADY_AN_EVENT | self._log_fields(token, rules)
                    log.warning("connection %08x: caps relaxed: %s", token, reason, extra=fields)
                    self._events.record_guard(time.monotonic(), token, rules, f"relaxed: {reason}")
                case StepReached(budget, client, sentence, rule):
                    prefix = f"client {client}: " if client else ""
                    log.info("%s%s", prefix, sentence, extra=log_fields(client=client or None, rule=rule))
                    self._events.record(time.monotonic(), BUDGET, sentence, client, budget)
                case SetBackup():
                    self._set_backup(action)
                case _:
                    raise TypeError(f"unknown action {action!r}")

    def _set_backup(self, action: SetBackup) -> None:
        try:
            self._path_manager.commands.set_backup(action.token, action.four_tuple, action.backup)
        except KernelError as error:
            # An action without a rule clears a flag that an earlier daemon set. No policy requests this, so a refusal
            # is not logged.
            if action.rule is not None and self._refusal_limiter.allow(time.monotonic()):
                text = "%s; a connection opened before this policy cannot be steered"
                log.warning(text, error, extra=self._log_fields(action.token, action.rule))
            self._steering.flags.record_refused(action)
            return
        role = "backup" if action.backup else "regular"
        log.debug("%s: %s", action.four_tuple, role, extra=self._log_fields(action.token, action.rule))
        self._events.record_steering(time.monotonic(), action.token, action.four_tuple, action.rule, f"made {role}")
        self._steering.record_done(action)

    def _log_fields(self, token: int, rule: str | tuple[str, ...] | None) -> dict[str, Any]:
        return log_fields(self._connections.get(token), token=token, rule=rule)

    def close_excess(self, events: Iterable[Event], *, is_dry_run: bool) -> None:
        """Close the subflows and connections that *events* report as excess, because no cap would limit them; log those
        that could not be closed.

        The kernel accepts more subflows than the tracker only under the user-space path manager, which steering by
        order needs. Excess subflows are closed under this path manager, and otherwise only logged. In a dry run,
        connections above their client's share (:mod:`mptcp_throttler.mptcp.limits`) are only logged.
        """
        excess = {each.four_tuple: each for each in events if each.kind in _EXCESS and each.four_tuple is not None}
        not_closed: dict[FourTuple, str] = {}  # reasons
        for four_tuple, event in excess.items():
            if event.kind is EventKind.CONNECTION_EXCESS and is_dry_run:
                not_closed[four_tuple] = "left open in a dry run"
            elif event.kind is EventKind.SUBFLOW_EXCESS and not self._path_manager.is_active:
                not_closed[four_tuple] = "left open: no policy steers by order"
        # Closing takes about 13 µs per subflow; *events* name at most 500: a batch of an observer, a step of a resync.
        if closed := [each for each in excess if each not in not_closed]:
            not_closed |= self._sockets.close_sockets(closed)
        for four_tuple, event in excess.items():
            if self._excess_limiters[event.kind].allow(event.time):
                outcome = f"{not_closed[four_tuple]}; it is not capped" if four_tuple in not_closed else "closed"
                fields = log_fields(self._connections.get(event.token), token=event.token, subflow=four_tuple)
                text = "%s: too many %s: %s: %s"
                log.warning(text, four_tuple, _EXCESS[event.kind], event.detail, outcome, extra=fields)
