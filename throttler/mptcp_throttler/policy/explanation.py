"""Which rules were tried for one subflow, in order, which decided, and what kept the others from it. Pure.

Asked by people, one connection at a time: nothing here runs when verdicts are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mptcp_throttler.mptcp.model import Connection, Subflow, SubflowState
from mptcp_throttler.policy.conditions import OpenHours
from mptcp_throttler.policy.evaluate import CompiledPolicy, CompiledRule, Situation, keeps
from mptcp_throttler.policy.model import Direction, Kind, Rule
from mptcp_throttler.policy.schedule import hours_text, last_change, moment_text, next_change


class Tried(NamedTuple):
    """One rule, asked one of the three questions."""

    rule: str
    kind: Kind
    matched: bool
    """It decided; no later rule was asked the same."""
    failed: str | None
    """The first condition that is not met, in words; of a rule that decided, why its cap is lifted nevertheless."""
    until: float | None
    """When the clock alone next changes that, seconds since the epoch; None where it never will, and where the first
    condition that is not met is another one than the hours."""
    since: float | None
    """When the clock last made it so; None where it never did, or where it is not the clock that keeps it from
    deciding."""


class ExplainedPolicy(CompiledPolicy):
    """A policy that says how it decides."""

    def tried(
        self, connection: Connection, subflow: Subflow, direction: Direction, now: float, expected: int = 0
    ) -> Iterator[Tried]:
        """Yield the rules that were tried for an active *subflow*, question by question.

        *expected* is as in :meth:`evaluate`.
        """
        active = [each for each in connection.subflows if each.state is SubflowState.ACTIVE]
        self._read_clock(now)
        facts, seen, kernels = self._views(active, expected)
        path_bits = facts[active.index(subflow)].path_bits
        of_cap = of_others = seen.situation(subflow, path_bits)
        if kernels is not None and subflow.confirmed and direction in self._rules:
            of_others = kernels.situation(subflow, path_bits)
            if keeps(self._asked(of_others, direction), self._asked(of_cap, direction)):
                of_cap = of_others
        for kind, rules in self._rules.get(direction, {}).items():
            situation = of_cap if kind is Kind.THROTTLE else of_others
            for each in rules:
                if each.path_bits is not None and not each.path_bits & path_bits:
                    yield Tried(each.rule.name, kind, False, self._not_caught(each.rule, path_bits), None, None)
                    continue
                decides = self._first(kind, situation, direction)[0] is each
                if not decides:
                    yield self._not_met(each, kind, situation, now)
                    continue
                lifted = kind is Kind.THROTTLE and each.rule.lift_last and situation.last and each.rule.throttle
                why = "lifted: the last usable path" if lifted else None
                yield Tried(each.rule.name, kind, True, why, self._until(each.rule, now), self._since(each.rule, now))
                break

    def _not_caught(self, rule: Rule, path_bits: int) -> str:
        names = [name for place, name in enumerate(self.policy.paths) if path_bits >> place & 1]
        where = f"on path {' and '.join(names)}" if names else "on no path of the policy"
        return f"it is {where}, not on {' or '.join(rule.paths or ())}"

    def _not_met(self, rule: CompiledRule, kind: Kind, situation: Situation, now: float) -> Tried:
        """Return why a rule that catches the subflow does not decide; of its hours, which they are and when they begin
        next, by the policy's clock."""
        seen = self._seen(kind, situation)
        failed = rule.failed(seen)
        assert failed is not None
        why, until, since = failed.why_not(seen), None, None
        if isinstance(failed, OpenHours):
            zone, until, since = self.policy.time_zone, self._until(rule.rule, now), self._since(rule.rule, now)
            begins = "" if until is None else f"; begins {moment_text(until, now, zone)}"
            why = f"{why}, {hours_text(failed.windows)}{begins} ({zone})"
        return Tried(rule.rule.name, kind, False, why, until, since)

    def _until(self, rule: Rule, now: float) -> float | None:
        return next_change([rule.when.windows] if rule.when.windows else [], self.policy.time_zone, now)

    def _since(self, rule: Rule, now: float) -> float | None:
        return None if rule.when.windows is None else last_change(rule.when.windows, self.policy.time_zone, now)
