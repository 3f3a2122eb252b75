"""The answer to ``explain``: why each subflow has the cap that it has, or none; what would change that, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from mptcp_common.units import format_rate
from mptcp_throttler.mptcp.model import Connection, FourTuple, Subflow, SubflowState
from mptcp_throttler.policy.budget import period
from mptcp_throttler.policy.explanation import ExplainedPolicy, Tried
from mptcp_throttler.policy.model import BEFORE, Direction, Kind, Verdict
from mptcp_throttler.shaping.plan import UNCAPPED
from mptcp_throttler.telemetry import events
from mptcp_throttler.telemetry.events import CUT, EventRing, Happened
from mptcp_throttler.views.known import Known
from mptcp_throttler.views.own_client import connections_with
from mptcp_throttler.views.requests import Request
from mptcp_throttler.views.snapshot import end_text
from mptcp_throttler.views.words import address_text

MAX_CONNECTIONS: Final = 50
"""That are explained: those of a client that began last."""
STAGES: Final = ("budgets", "guard", "steering", "rest")
"""In their order."""

Steps = Callable[[Connection], Iterable[tuple[Verdict, ...]]]
"""Returns the verdicts of the policy, then what each stage makes of them."""


def explain(
    known: Known, ring: EventRing, taken: float, steps: Steps, expected: Callable[[Connection], int], request: Request
) -> dict[str, Any]:
    """Return the answer. The policy in force was *taken* then; *expected* says with how many paths a connection is
    decided."""
    policy = ExplainedPolicy(known.policy)
    found = sorted(_asked_for(known, request), key=lambda each: each.since, reverse=True)
    return {
        "time_zone": str(known.policy.time_zone),
        "total": len(found),
        "connections": [
            _Explained(known, ring, taken, policy, each, list(steps(each)), expected(each)).as_json()
            for each in found[:MAX_CONNECTIONS]
        ],
    }


def _asked_for(known: Known, request: Request) -> Iterator[Connection]:
    token, client, endpoint = (request.get(name) for name in ("token", "client", "endpoint"))
    if token is not None:
        if token in known.connections:
            yield known.connections[token]
    elif endpoint is not None:
        # Once each, though several of its subflows may have it, to several addresses of this host.
        yield from {each.token: each for each, _ in connections_with(known, endpoint)}.values()
    else:
        for connection in known.connections.values():
            if any(each.four_tuple.remote == client for each in connection.subflows):
                yield connection


class _Explained:
    """One connection."""

    def __init__(
        self,
        known: Known,
        ring: EventRing,
        taken: float,
        policy: ExplainedPolicy,
        connection: Connection,
        steps: Sequence[tuple[Verdict, ...]],
        expected: int,
    ) -> None:
        self._known = known
        self._policy = policy
        self._connection = connection
        self._steps = [{(each.four_tuple, each.direction): each for each in step} for step in steps]
        self._expected = expected
        self._taken = taken
        self._events = [each for each in ring.after(0) if each.token in (connection.token, None)]
        self._whole_since = ring.whole_since

    def as_json(self) -> dict[str, Any]:
        connection = self._connection
        subflows = [each for each in connection.subflows if each.state is SubflowState.ACTIVE]
        directions = Direction if self._known.policy.acts_on_upload else (Direction.DOWN,)
        return {
            "token": f"{connection.token:08x}",
            "client": address_text(connection.client),
            "since": self._known.wall(connection.since),
            "subflows": [
                self._subflow(each, direction)
                for each in subflows
                for direction in directions
                if (each.four_tuple, direction) in self._steps[-1]
            ],
        }

    def _subflow(self, subflow: Subflow, direction: Direction) -> dict[str, Any]:
        key = subflow.four_tuple, direction
        verdict = self._steps[-1][key]
        throttle = verdict.throttle
        since = self._known.traffic.since(*key)
        tried = list(self._policy.tried(self._connection, subflow, direction, self._known.now, self._expected))
        dry = " (dry run)" if self._known.policy.dry_run else ""
        return {
            "remote": end_text(subflow.four_tuple.remote, subflow.four_tuple.remote_port),
            "local": end_text(subflow.four_tuple.local, subflow.four_tuple.local_port),
            "path": verdict.path,
            "interface": subflow.interface,
            "direction": direction.value,
            "verdict": "not capped" if throttle is None else f"capped at {format_rate(throttle.ceil)}{dry}",
            "reason": verdict.reason,
            "rate": None if throttle is None else throttle.rate,
            "ceil": None if throttle is None else throttle.ceil,
            "rule": None if verdict.rule is None else verdict.rule.name,
            "since": self._known.wall(subflow.since if since is None else since),
            "tried": [
                {
                    "rule": each.rule,
                    "kind": each.kind.value,
                    "matched": each.matched,
                    "failed": each.failed,
                    "until": each.until,
                }
                for each in tried
            ],
            "stages": list(self._stages(key, tried)),
            "cap_state": self._cap_state(subflow.four_tuple, verdict),
        }

    def _stages(self, key: tuple[FourTuple, Direction], tried: Sequence[Tried]) -> Iterator[dict[str, Any]]:
        for stage, before, after in zip(STAGES, self._steps[:-1], self._steps[1:], strict=True):
            old, new = before[key], after[key]
            what = _added(old.reason, new.reason, BEFORE[key[1]])
            if what:
                yield {"stage": stage, "what": what, "since": self._since(stage, key, new, tried)}

    def _since(
        self, stage: str, key: tuple[FourTuple, Direction], verdict: Verdict, tried: Sequence[Tried]
    ) -> float | None:
        """Return when the stage last did something to the subflow; None where that is not known. *verdict* is its.

        What there is no event of began with the subflow, with the policy, with the budget's period, or when hours last
        opened its rule or closed one before that: of steering there are events of backup flags alone, and it began with
        the last subflow among which data are spread. That an event began it which is kept no more cannot be ruled out.
        """
        four_tuple, _ = key
        if stage not in _EVENTS:
            return None
        opened = max((each.since or 0.0 for each in tried if each.kind is _KINDS.get(stage)), default=0.0)
        of_stage = (each for each in self._events if each.kind == _EVENTS[stage])
        found = [each for each in of_stage if self._concerns(each, four_tuple, verdict)]
        if found and (stage != "budgets" or _says(verdict, found[-1])):
            return max(found[-1].time, opened)
        if stage == "budgets" and verdict.budget is not None and verdict.budget.budget is not None:
            # A period and a policy begin without an event.
            begin, _ = period(verdict.budget.budget, self._known.policy.time_zone, self._known.now)
            opened = max(opened, begin, found[-1].time if found else 0.0)
        subflows = self._connection.subflows
        if stage == "steering":
            began = max((each.since for each in subflows if each.state is SubflowState.ACTIVE), default=0.0)
        else:
            began = next((each.since for each in subflows if each.four_tuple == four_tuple), 0.0)
        since = max(self._known.wall(began), self._taken, opened)
        return since if since >= self._whole_since else None

    def _concerns(self, event: Happened, four_tuple: FourTuple, verdict: Verdict) -> bool:
        if event.kind != events.BUDGET:
            return event.four_tuple in (None, four_tuple) and event.token == self._connection.token
        budget = None if verdict.budget is None else verdict.budget.budget
        if budget is None or event.rule != budget.name:
            return False
        return not budget.per_client or event.detail.startswith(f"client {address_text(four_tuple.remote)}:")

    def _cap_state(self, four_tuple: FourTuple, verdict: Verdict) -> str:
        planner = self._known.download if verdict.direction is Direction.DOWN else self._known.upload
        entry = planner.entries.actual.get(four_tuple)
        there = entry is not None and entry != UNCAPPED
        if verdict.throttle is None or self._known.policy.dry_run:
            return "being lifted" if there else "none"
        settled = there and four_tuple not in planner.entries.upserts and not planner.in_onset(four_tuple)
        return "in force" if settled else "coming"


_EVENTS: Final = {"budgets": events.BUDGET, "guard": events.GUARD, "steering": events.STEERING}
_KINDS: Final = {"budgets": Kind.BUDGET, "steering": Kind.STEER}


def _says(verdict: Verdict, event: Happened) -> bool:
    """Tell whether what an event said of a budget is what is said now: its step, and until when its period lasts."""
    sentence = event.detail.partition(": ")[2] if event.detail.startswith("client ") else event.detail
    reasons = verdict.reason, "" if verdict.beside is None else verdict.beside.reason
    return any(sentence.removesuffix(CUT) in each for each in reasons)


def _added(before: str, after: str, beginning: str) -> str | None:
    """Return what a stage added to a reason, or put in its place."""
    if before == after:
        return None
    added = after.removeprefix(f"{before}; ")
    return added.removeprefix(beginning)
