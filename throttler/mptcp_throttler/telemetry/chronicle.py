"""Turns what the daemon's parts report into events: what was seen, decided, applied, lifted, for whom, by which rule.

Told of every change of every connection: what follows costs a few microseconds for each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from mptcp_throttler.mptcp.model import Connection, Event, EventKind, FourTuple
from mptcp_throttler.policy.model import Direction, Verdict
from mptcp_throttler.telemetry.event_ring import (
    APPLIED,
    BUDGET,
    CLOSED,
    CONNECTION,
    DECIDED,
    FAULT,
    GUARD,
    LIFTED,
    RELOAD,
    STEERING,
    SUBFLOW,
    EventRing,
)
from mptcp_throttler.telemetry.minute import Minute
from mptcp_throttler.telemetry.traffic import Traffic

MAX_REFUSED: Final = 20
"""Refused joins in a minute that are events; the tracker counts them all."""

_KINDS: Final = {
    EventKind.CONNECTION_OPENED: CONNECTION,
    EventKind.CONNECTION_CLOSED: CLOSED,
    EventKind.SUBFLOW_ACTIVE: SUBFLOW,
    EventKind.SUBFLOW_CHANGED: SUBFLOW,
    EventKind.SUBFLOW_CLOSED: CLOSED,
    EventKind.JOIN_REFUSED: FAULT,
    EventKind.DISAGREEMENT: FAULT,
}


class Chronicle:
    """Of one daemon. Times are seconds since the epoch."""

    def __init__(self, traffic: Traffic) -> None:
        self.ring = EventRing()
        self._traffic = traffic
        self._refused = Minute(MAX_REFUSED)
        """Anybody can have joins refused: with all of them as events, what happened before would go."""

    def tracked(self, events: Iterable[Event]) -> None:
        """Take what the tracker reports."""
        add = self.ring.add
        for event in events:
            detail = event.detail
            if event.kind in (EventKind.SUBFLOW_EXCESS, EventKind.CONNECTION_EXCESS):
                continue  # what became of it is told by a warning
            if event.kind is EventKind.JOIN_REFUSED:
                if not self._refused.has_room(event.time):
                    continue
                detail = f"join refused: {detail}"
            elif event.kind is EventKind.SUBFLOW_ACTIVE:
                detail = "active"
            elif event.kind is EventKind.DISAGREEMENT:
                detail = f"packets and kernel disagree: {detail}"
            add(event.time, _KINDS[event.kind], event.token or None, event.four_tuple, detail=detail)

    def decided(
        self,
        token: int,
        connection: Connection | None,
        before: tuple[Verdict, ...],
        after: tuple[Verdict, ...],
        now: float,
    ) -> None:
        """Take what was decided for a connection: who got a cap, another one, or none any more."""
        del connection
        # Most often nothing changed, or nobody is capped.
        if not any(each.scope for each in after) and not any(each.scope for each in before):
            return
        scopes = {(each.four_tuple, each.direction): (each.scope, each.throttle) for each in before}
        for verdict in after:
            scope, throttle = scopes.get((verdict.four_tuple, verdict.direction), (None, None))
            if scope == verdict.scope and (throttle == verdict.throttle or scope is None or not scope.of_rule):
                continue  # what balances loads changes its rate many times a minute
            rule = None if verdict.rule is None else verdict.rule.name
            self.ring.add(
                now,
                DECIDED,
                token,
                verdict.four_tuple,
                verdict.path,
                rule,
                verdict.direction.value,
                verdict.reason,
            )

    def entries(self, direction: Direction, four_tuples: Collection[FourTuple], there: bool, now: float) -> None:
        """Take which subflows have an entry in the kernel now, and which have none any more."""
        for four_tuple in four_tuples:
            known = self._traffic.standing(four_tuple, direction)
            if known is None:
                continue  # it has ended: that is an event of its own
            token, path, rule = known
            # One that began in the class of a cap and has none is sent past it by an entry.
            kind = APPLIED if there and rule is not None else LIFTED
            self.ring.add(now, kind, token, four_tuple, path, rule, direction.value)

    def guard(self, now: float, token: int, rules: Iterable[str], became: str) -> None:
        """Take what *became* of the caps that *rules* put on a connection: an event for each, which is found by it."""
        for rule in rules:
            self.ring.add(now, GUARD, token, rule=rule, detail=f"caps of rule {rule} {became}")

    def budget(self, now: float, name: str, client: str, sentence: str) -> None:
        whose = f"client {client}: " if client else ""
        self.ring.add(now, BUDGET, rule=name, detail=f"{whose}{sentence}")

    def steering(self, now: float, token: int, four_tuple: FourTuple, rule: str | None, detail: str) -> None:
        known = self._traffic.standing(four_tuple, Direction.DOWN)
        path = None if known is None else known[1]
        self.ring.add(now, STEERING, token, four_tuple, path, rule, detail=detail)

    def reload(self, now: float, detail: str) -> None:
        self.ring.add(now, RELOAD, detail=detail)

    def fault(self, now: float, detail: str) -> None:
        self.ring.add(now, FAULT, detail=detail)
