"""What a policy decides of a replayed capture: verdicts, the caps in force, and what each subflow carried. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mptcp_common.units import approximate_size
from mptcp_throttler.mptcp.captured import Captured
from mptcp_throttler.mptcp.model import Connection, FourTuple
from mptcp_throttler.policy.anticipation import Anticipation
from mptcp_throttler.policy.evaluate import count_paths, evaluate
from mptcp_throttler.policy.model import Direction, Policy, Verdict
from mptcp_throttler.views.preview import steered_reason
from mptcp_throttler.views.replayed import Caps, Carried, Entry, InForce, Totals
from mptcp_throttler.views.replayed_budgets import ReplayedBudgets
from mptcp_throttler.views.replayed_events import ConnectionOf

_Key = tuple[FourTuple, Direction]


class ReplayedDecisions:
    """Of one capture under one policy. Times are those of the capture, seconds since the epoch."""

    def __init__(self, policy: Policy, totals: Totals, connection_of: ConnectionOf) -> None:
        """What caps come to is added to *totals*."""
        self._policy = policy
        self._totals = totals
        self._connection_of = connection_of
        self._budgets = ReplayedBudgets(policy)
        self._caps: dict[_Key, InForce] = {}
        self._begin()

    def _begin(self) -> None:
        self._anticipation = Anticipation()
        self._verdicts: dict[int, dict[_Key, Verdict]] = {}
        self._carried: dict[FourTuple, Carried] = {}
        """Of active subflows, and of those that close."""
        self._token_of: dict[FourTuple, int] = {}

    def forget(self, now: float) -> None:
        """Know nothing but what was used of budgets."""
        self.end_caps(now)
        for token in self._verdicts:
            self._budgets.forget(token)
        for four_tuple, carried in self._carried.items():
            self._budgets.closed(four_tuple, carried, now)
        self._begin()

    # Subflows

    def begun(self, four_tuple: FourTuple, token: int) -> None:
        """A subflow of the connection *token* is active."""
        self._carried[four_tuple], self._token_of[four_tuple] = Carried(), token

    def closed(self, four_tuple: FourTuple, now: float) -> None:
        """A subflow has ended, of which all is decided."""
        self._token_of.pop(four_tuple, None)
        if (carried := self._carried.pop(four_tuple, None)) is not None:
            self._budgets.closed(four_tuple, carried, now)

    def token_of(self, four_tuple: FourTuple) -> int | None:
        """Return the connection of an active subflow."""
        return self._token_of.get(four_tuple)

    def carried_by(self, four_tuple: FourTuple) -> Carried | None:
        """Return what an active subflow carried."""
        return self._carried.get(four_tuple)

    def count(self, captured: Captured, four_tuple: FourTuple, from_client: bool, now: float) -> None:
        """Count the data that an active subflow carried in *captured*."""
        carried = self._carried[four_tuple]
        if carried.data(captured.segment, captured.payload, from_client):
            self._budgets.carried(self._token_of[four_tuple], four_tuple, carried, now)

    # What is due

    @property
    def window_due(self) -> float | None:
        """When a connection is next anticipated no longer; None while none is."""
        return self._anticipation.next_due

    @property
    def budgets_due(self) -> float:
        """When budgets are next to be looked at; infinity: never."""
        return self._budgets.due

    def end_of_windows(self, now: float) -> Iterator[Entry]:
        """Decide about the connections that are anticipated no longer."""
        yield from self.decide(self._anticipation.due(now), now)

    def sample_budgets(self, now: float) -> Iterator[Entry]:
        """Yield which steps of budgets were reached, and what that changes."""
        changed, reached = self._budgets.sample(now)
        for each in reached:
            whose = f"client {each.client}: " if each.client else ""
            yield Entry(now, "budget", f"{whose}{each.sentence}", rule=each.budget)
        yield from self.decide(changed, now)

    def accounts(self, now: float) -> list[dict[str, Any]]:
        """Return what was used of budgets, the fullest first, as ``summary`` has it."""
        return self._budgets.accounts(now)

    # Decisions

    def decide(self, tokens: Iterable[int], now: float) -> Iterator[Entry]:
        """Decide about the connections *tokens*, open or not, and yield what is another decision than before."""
        for token in tokens:
            connection = self._connection_of(token)
            before = self._verdicts.pop(token, {})
            after: dict[_Key, Verdict] = {}
            if connection is None:
                self._anticipation.forget(token, now)
                self._budgets.forget(token)
            else:
                after = {(each.four_tuple, each.direction): each for each in self._evaluate(connection, now)}
                self._verdicts[token] = after
            for key, verdict in after.items():
                yield from self._changed(token, key, before.get(key), verdict, now)
            for key, verdict in before.items():
                if key not in after and verdict.scope is not None:
                    yield self._end_cap(key, now, token)

    def _evaluate(self, connection: Connection, now: float) -> tuple[Verdict, ...]:
        expected = self._anticipation.paths(connection, count_paths(self._policy, connection), now)
        verdicts = evaluate(self._policy, connection, now, expected if self._policy.anticipate else 0)
        return self._budgets.apply(connection, verdicts, now)

    def _changed(self, token: int, key: _Key, before: Verdict | None, verdict: Verdict, now: float) -> Iterator[Entry]:
        """Yield what is decided of a subflow, if that is another cap, or another reason for none."""
        throttle, scope = verdict.throttle, verdict.scope
        if before is not None and before.throttle == throttle and before.scope == scope:  # noqa: SIM102 - two questions
            if scope is not None or before.reason == verdict.reason:
                return
        if before is not None and before.scope != scope and before.scope is not None:
            yield self._end_cap(key, now, token, verdict if scope is None else None)
            if scope is None:
                return
        word = "not capped: "
        if scope is not None:
            # What a dry run would cap is no cap.
            word = "" if self._policy.dry_run else "capped: "
            self._begin_cap(key, scope.rule, now)
        yield Entry(
            now,
            "decided",
            word + steered_reason(verdict, verdict.reason),
            token,
            verdict.four_tuple,
            verdict.path,
            None if verdict.rule is None else verdict.rule.name,
            verdict.direction,
            None if throttle is None else throttle.rate,
            None if throttle is None else throttle.ceil,
        )

    def end_caps(self, now: float) -> None:
        """The capture is over, or what follows in it is of another time."""
        for key in list(self._caps):
            self._end_cap(key, now)

    def _begin_cap(self, key: _Key, rule: str, now: float) -> None:
        carried = self._carried.get(key[0], Carried())
        self._caps[key] = InForce(rule, now, carried.of(key[1]))
        self._totals.caps.setdefault(rule, Caps()).count += 1

    def _end_cap(self, key: _Key, now: float, token: int | None = None, verdict: Verdict | None = None) -> Entry:
        """Take the cap from the subflow; *verdict* has why, where it goes on without."""
        cap = self._caps.pop(key)
        seconds, carried = max(0.0, now - cap.since), self._carried.get(key[0], Carried()).of(key[1]) - cap.before
        total = self._totals.caps[cap.rule]
        total.seconds += seconds
        total.carried += carried
        why = "" if verdict is None else f": {verdict.reason}"
        upload = "upload: " if key[1] is Direction.UP else ""
        text = f"{upload}cap of rule {cap.rule} is over after {seconds:.1f} s, {approximate_size(carried)}{why}"
        path = None if verdict is None else verdict.path
        return Entry(now, "lifted", text, token, key[0], path, cap.rule, key[1])
