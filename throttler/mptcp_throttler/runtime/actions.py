# SPDX-License-Identifier: GPL-2.0-or-later
"""Acts on single subflows and connections: carries out the stages' effects, and closes subflows and connections that
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
from mptcp_throttler.stages.budget import Reached
from mptcp_throttler.stages.guard import Relaxed
from mptcp_throttler.stages.stage import Effect
from mptcp_throttler.stages.steering import SetBackup, SteeringStage
from mptcp_throttler.telemetry.events import BUDGET, EventRecorder, RateLimiter

log = logging.getLogger(__name__)

MAX_LINES: Final = 20
"""Maximum log lines per minute and kind. Any client can cause such lines, and after a reload to a policy that steers by
order, the kernel refuses the flag on all existing connections."""
_EXCESS: Final = {EventKind.SUBFLOW_EXCESS: "subflows", EventKind.CONNECTION_EXCESS: "connections of its client"}


class Actions:
    def __init__(
        self,
        path_manager: UserspacePathManager,
        connections: Mapping[int, Connection],
        sockets: KernelSockets,
        steering: SteeringStage,
        events: EventRecorder,
    ) -> None:
        """*connections* is the tracker's live view by token."""
        self._path_manager, self._connections, self._sockets = path_manager, connections, sockets
        self._steering, self._events = steering, events
        self._refusals = RateLimiter(MAX_LINES)
        self._lines = {kind: RateLimiter(MAX_LINES) for kind in _EXCESS}

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out *effects*; log each effect that the kernel refuses, and continue."""
        for effect in effects:
            match effect:
                case Relaxed(token, rules, None):
                    log.info("connection %08x: caps are in force again", token, extra=self._about(token, rules))
                    self._events.guard(time.monotonic(), token, rules, "are in force again")
                case Relaxed(token, rules, reason):
                    fields = ALREADY_AN_EVENT | self._about(token, rules)
                    log.warning("connection %08x: caps relaxed: %s", token, reason, extra=fields)
                    self._events.guard(time.monotonic(), token, rules, f"relaxed: {reason}")
                case Reached(budget, client, sentence, rule):
                    whose = f"client {client}: " if client else ""
                    log.info("%s%s", whose, sentence, extra=log_fields(client=client or None, rule=rule))
                    self._events.about(time.monotonic(), BUDGET, sentence, client, budget)
                case SetBackup():
                    self._set_backup(effect)
                case _:
                    raise TypeError(f"nothing carries out {effect!r}")

    def _set_backup(self, effect: SetBackup) -> None:
        try:
            self._path_manager.commands.set_backup(effect.token, effect.four_tuple, effect.backup)
        except KernelError as error:
            # An effect without a rule clears a flag of an earlier daemon: the policy in force does not request it, so
            # its refusal is not logged.
            if effect.rule is not None and self._refusals.allow(time.monotonic()):
                text = "%s; a connection from before the policy steered cannot be steered"
                log.warning(text, error, extra=self._about(effect.token, effect.rule))
            self._steering.flags.refused(effect)
            return
        what = "backup" if effect.backup else "regular"
        log.debug("%s: %s", effect.four_tuple, what, extra=self._about(effect.token, effect.rule))
        self._events.steering(time.monotonic(), effect.token, effect.four_tuple, effect.rule, f"made {what}")
        self._steering.confirmed(effect)

    def _about(self, token: int, rule: str | tuple[str, ...] | None) -> dict[str, Any]:
        return log_fields(self._connections.get(token), token=token, rule=rule)

    def close_excess(self, events: Iterable[Event], *, is_dry_run: bool) -> None:
        """Close the subflows and connections that *events* report as excess, because no cap would limit them; log those
        that could not be closed.

        The kernel accepts more subflows than the tracker only under the user-space path manager, which steering by
        order needs. Excess subflows are closed under this path manager, and otherwise only logged. In a dry run,
        connections beyond their client's share (:mod:`mptcp_throttler.mptcp.limits`) are only logged.
        """
        excess = {each.four_tuple: each for each in events if each.kind in _EXCESS and each.four_tuple is not None}
        stayed: dict[FourTuple, str] = {}
        for four_tuple, event in excess.items():
            if event.kind is EventKind.CONNECTION_EXCESS and is_dry_run:
                stayed[four_tuple] = "left open: a dry run"
            elif event.kind is EventKind.SUBFLOW_EXCESS and not self._path_manager.in_force:
                stayed[four_tuple] = "left open: no policy steers by order"
        # Closing takes about 13 µs each. There are at most 500: one batch of an observer, or one step of a resync.
        if closed := [each for each in excess if each not in stayed]:
            stayed |= self._sockets.close_sockets(closed)
        for four_tuple, event in excess.items():
            if self._lines[event.kind].allow(event.time):
                outcome = f"{stayed[four_tuple]}; nothing caps it" if four_tuple in stayed else "closed"
                fields = log_fields(self._connections.get(event.token), token=event.token, subflow=four_tuple)
                text = "%s: too many %s: %s: %s"
                log.warning(text, four_tuple, _EXCESS[event.kind], event.detail, outcome, extra=fields)
