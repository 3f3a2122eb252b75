# SPDX-License-Identifier: GPL-2.0-or-later
"""The answers to ``events`` (recorded events) and ``explain`` (the reasons why a subflow has a cap or no cap)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal

from mptcp_common.units import format_rate
from mptcp_throttler.mptcp.model import Connection, FourTuple, Subflow
from mptcp_throttler.policy.evaluate import CompiledPolicy, RuleOutcome
from mptcp_throttler.policy.model import Direction, Kind
from mptcp_throttler.policy.verdict import PREFIX, Verdict
from mptcp_throttler.runtime.answers.snapshot import Snapshot
from mptcp_throttler.runtime.decisions import NOT_CAPPED, NOT_STEERED
from mptcp_throttler.shaping.plan import UNCAPPED
from mptcp_throttler.telemetry import events as kinds
from mptcp_throttler.telemetry.events import ELLIPSIS, RecordedEvent
from mptcp_throttler.views.answers import (
    EventAnswer,
    EventsAnswer,
    ExplainAnswer,
    ExplainedConnection,
    ExplainedSubflow,
    StageText,
)
from mptcp_throttler.views.requests import Arguments
from mptcp_throttler.views.text import address_text, end_text

MAX_CONNECTIONS: Final = 50  # maximum number of explained connections; if a client has more, the latest are explained
StageName = Literal["budgets", "grants", "guard", "steering", "rest"]
_STAGES: Final[tuple[StageName, ...]] = ("budgets", "grants", "guard", "steering", "rest")  # in the engine's order
_EVENT_KINDS: Final = {"budgets": kinds.BUDGET, "guard": kinds.GUARD, "steering": kinds.STEERING}


def events(snapshot: Snapshot, request: Arguments) -> EventsAnswer:
    """Return the requested events: the first events after a given number or, without a number, the latest events."""
    ring = snapshot.engine.events.ring
    return {**snapshot.common_keys, "first": ring.first, "last": ring.last, "events": list(_events(snapshot, request))}


def _events(snapshot: Snapshot, request: Arguments) -> Iterator[EventAnswer]:
    ring = snapshot.engine.events.ring
    after, limit = request.get("after"), request["limit"]
    client, token, rule = (request.get(name) for name in ("client", "token", "rule"))
    # The client address of each connection that exists or that an event names.
    clients = {token: each.client for token, each in snapshot.connections.items()}
    for event in ring.events_after(0):
        if event.token is not None and event.four_tuple is not None:
            clients.setdefault(event.token, event.four_tuple.remote)
    matching = (
        event
        for event in ring.events_after(after or 0)
        if token in (None, event.token)
        and rule in (None, event.rule)
        and client in (None, _remote(event), clients.get(event.token or 0))
    )
    for event in deque(matching, limit) if after is None else islice(matching, limit):
        four_tuple = event.four_tuple
        remote = "" if four_tuple is None else end_text(four_tuple.remote, four_tuple.remote_port)
        address = _remote(event) if event.token is None else clients.get(event.token)
        yield {
            "seq": event.sequence,
            "time": event.time,
            "kind": event.kind,
            "token": None if event.token is None else f"{event.token:08x}",
            "client": address_text(address or b""),
            "remote": remote or None,
            "local": None if four_tuple is None else end_text(four_tuple.local, four_tuple.local_port),
            "path": event.path,
            "rule": event.rule,
            "direction": event.direction,
            "text": _text(event, remote),
        }


def _remote(event: RecordedEvent) -> bytes | None:
    return None if event.four_tuple is None else event.four_tuple.remote


def _text(event: RecordedEvent, remote: str) -> str:
    path = "" if event.path is None else f" on path {event.path}"
    upload = "upload of " if event.direction == "up" else ""
    match event.kind:
        case kinds.CONNECTION:
            return f"connection opened from {remote}"
        case kinds.SUBFLOW:
            return f"subflow {remote}: {event.detail}"
        case kinds.CLOSED if not remote:
            return f"connection closed: {event.detail}"
        case kinds.CLOSED:
            return f"subflow {remote} closed: {event.detail}"
        case kinds.DECIDED:
            return f"{upload}{remote}{path}: {event.detail}"
        case kinds.APPLIED:
            return f"{upload}{remote}{path}: cap of rule {event.rule} in force"
        case kinds.LIFTED:
            return f"{upload}{remote}{path}: no cap is in force"
        case _:
            return f"{remote}{path}: {event.detail}" if remote else event.detail


def explain(snapshot: Snapshot, request: Arguments) -> ExplainAnswer:
    """Explain the connections that *request* names, the latest first, :data:`MAX_CONNECTIONS` at most."""
    token, client, endpoint = (request.get(name) for name in ("token", "client", "endpoint"))
    connections = snapshot.connections
    if token is not None:
        selected = [connections[token]] if token in connections else []
    elif endpoint is not None:
        # Several subflows of a connection, to different addresses of this host, may have the same endpoint.
        selected = list({each.token: each for each, _ in snapshot.connections_with(endpoint)}.values())
    else:
        selected = [each for each in connections.values() if client in {sub.four_tuple.remote for sub in each.subflows}]
    selected.sort(key=lambda each: each.since, reverse=True)
    policy = CompiledPolicy(snapshot.policy)
    return {
        **snapshot.common_keys,
        "time_zone": str(snapshot.policy.time_zone),
        "total": len(selected),
        "connections": [_Explanation(snapshot, policy, each).answer() for each in selected[:MAX_CONNECTIONS]],
    }


class _Explanation:
    def __init__(self, snapshot: Snapshot, policy: CompiledPolicy, connection: Connection) -> None:
        self._snapshot, self._policy, self._connection = snapshot, policy, connection
        decisions, ring = snapshot.engine.decisions, snapshot.engine.events.ring
        self._verdict_steps = [
            {(each.four_tuple, each.direction): each for each in step} for step in decisions.verdict_steps(connection)
        ]
        self._expected = decisions.expected_paths(connection)
        self._events = [each for each in ring.events_after(0) if each.token in (connection.token, None)]

    def answer(self) -> ExplainedConnection:
        connection, snapshot = self._connection, self._snapshot
        directions = Direction if snapshot.policy.acts_on_upload else (Direction.DOWN,)
        return {
            "token": f"{connection.token:08x}",
            "client": address_text(connection.client),
            "since": snapshot.to_wall_clock(connection.since),
            **snapshot.tunnel_name(connection),
            "subflows": [
                self._subflow(subflow, direction)
                for subflow in connection.subflows
                for direction in directions
                if (subflow.four_tuple, direction) in self._verdict_steps[-1]
            ],
        }

    def _subflow(self, subflow: Subflow, direction: Direction) -> ExplainedSubflow:
        four_tuple, snapshot = subflow.four_tuple, self._snapshot
        verdict = self._verdict_steps[-1][four_tuple, direction]
        throttle = verdict.throttle
        since = snapshot.engine.traffic.cap_since(four_tuple, direction)
        note = snapshot.policy.cap_note
        return {
            "remote": end_text(four_tuple.remote, four_tuple.remote_port),
            "local": end_text(four_tuple.local, four_tuple.local_port),
            "path": verdict.path,
            "interface": subflow.interface,
            "direction": direction,
            "verdict": "not capped" if throttle is None else f"capped at {format_rate(throttle.ceil)}{note}",
            "reason": verdict.reason,
            "rate": None if throttle is None else throttle.rate,
            "ceil": None if throttle is None else throttle.ceil,
            "rule": None if verdict.rule is None else verdict.rule.name,
            "since": snapshot.to_wall_clock(subflow.since if since is None else since),
            "tried": [
                {
                    "rule": each.rule,
                    "kind": each.kind,
                    "matched": each.matched,
                    "failed": self._failed_condition(each, direction),
                    "until": each.until,
                }
                for each in self._policy.explain(self._connection, subflow, direction, snapshot.now, self._expected)
            ],
            "stages": list(self._stages(four_tuple, direction)),
            "cap_state": self._cap_state(verdict),
        }

    def _failed_condition(self, tried: RuleOutcome, direction: Direction) -> str | None:
        if self._connection.is_tunnel and tried.matched:
            if tried.kind is Kind.STEER:
                return NOT_STEERED
            if tried.kind is Kind.THROTTLE and direction is Direction.UP:
                return NOT_CAPPED
        return tried.failed

    def _stages(self, four_tuple: FourTuple, direction: Direction) -> Iterator[StageText]:
        """Yield, for each stage that changed the reason, the text that it added, or its new reason."""
        reasons = [step[four_tuple, direction].reason for step in self._verdict_steps]
        for stage, step, before, after in zip(_STAGES, self._verdict_steps[1:], reasons[:-1], reasons[1:], strict=True):
            text = after.removeprefix(f"{before}; ").removeprefix(PREFIX[direction])
            if before != after and text:
                yield {"stage": stage, "what": text, "since": self._since(stage, step[four_tuple, direction])}

    def _since(self, stage: StageName, verdict: Verdict) -> float | None:
        """Return the time of the last event in which the stage acted on the subflow; None if there is none, or if a new
        period or policy has changed the state of the budget after it."""
        kind = _EVENT_KINDS.get(stage)
        matching = (each for each in reversed(self._events) if each.kind == kind and self._concerns(each, verdict))
        last = next(matching, None)
        return None if last is None or (stage == "budgets" and not _matches_budget_state(verdict, last)) else last.time

    def _concerns(self, event: RecordedEvent, verdict: Verdict) -> bool:
        if event.kind != kinds.BUDGET:
            return event.four_tuple in (None, verdict.four_tuple) and event.token == self._connection.token
        budget = None if verdict.budget is None else verdict.budget.budget
        if budget is None or event.rule != budget.name:
            return False
        return not budget.per_client or event.detail.startswith(f"client {address_text(verdict.four_tuple.remote)}:")

    def _cap_state(self, verdict: Verdict) -> Literal["none", "coming", "in force", "being lifted"]:
        four_tuple, (download, upload) = verdict.four_tuple, self._snapshot.planners
        planner = download if verdict.direction is Direction.DOWN else upload
        is_applied = planner.entries.actual.get(four_tuple, UNCAPPED) != UNCAPPED
        if verdict.throttle is None or self._snapshot.is_dry:
            return "being lifted" if is_applied else "none"
        is_changing = four_tuple in planner.entries.upserts or planner.in_onset(four_tuple)
        return "in force" if is_applied and not is_changing else "coming"


def _matches_budget_state(verdict: Verdict, event: RecordedEvent) -> bool:
    """Return whether *event* reports the state of the budget in *verdict*: the same step and end of period."""
    sentence = event.detail.partition(": ")[2] if event.detail.startswith("client ") else event.detail
    # If another cap is tighter, the verdict's reason has only the part after "exceeds".
    return sentence.removesuffix(ELLIPSIS).rpartition(" exceeds ")[2] in verdict.reason
