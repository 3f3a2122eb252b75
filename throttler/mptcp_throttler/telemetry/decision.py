# SPDX-License-Identifier: GPL-2.0-or-later
"""Computes the changes of one decision about a connection, once for all consumers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mptcp_throttler.mptcp.model import Connection
from mptcp_throttler.policy.verdict import Verdict

Verdicts = tuple[Verdict, ...]


class Decision(NamedTuple):
    """The verdicts of one connection, and the changes of its caps, per subflow and direction. A new rate of a cap that
    balances loads does not count as a change, because there are many per minute."""

    token: int
    connection: Connection | None  # None if the connection has ended
    before: Verdicts
    after: Verdicts
    now: float  # monotonic seconds
    was_dry: bool  # whether *before* was decided in a dry run, which applies no caps
    is_dry: bool  # whether *after* was decided in a dry run
    gained: Sequence[Verdict] = ()  # new caps
    changed: Sequence[tuple[Verdict, Verdict]] = ()  # other caps or rates: before and after
    lost: Sequence[tuple[Verdict, Verdict]] = ()  # removed caps: before and after
    ended: Sequence[Verdict] = ()  # verdicts of capped subflows that ended

    @property
    def is_dry_run_change(self) -> bool:
        """Whether a dry run began or ended. Then all caps count as lost and gained: applied and dry caps differ."""
        return self.was_dry is not self.is_dry


class Comparer:
    def __init__(self) -> None:
        self._dry_tokens: set[int] = set()  # connections last decided in a dry run

    def compare(
        self, token: int, connection: Connection | None, before: Verdicts, after: Verdicts, now: float, *, is_dry: bool
    ) -> Decision:
        was_dry = token in self._dry_tokens if before else is_dry
        (self._dry_tokens.add if is_dry and after else self._dry_tokens.discard)(token)
        decision = Decision(token, connection, before, after, now, was_dry, is_dry)
        is_dry_run_change = decision.is_dry_run_change
        if not is_dry_run_change and len(before) == len(after) and all(map(_is_unchanged, before, after)):
            return decision
        old = {(each.four_tuple, each.direction): each for each in before if each.scope}
        gained, changed, lost = [], [], []
        for verdict in after:
            previous, scope = old.pop((verdict.four_tuple, verdict.direction), None), verdict.scope
            if previous is not None and (is_dry_run_change or scope is None):
                lost.append((previous, verdict))
            if scope is None:
                continue
            if previous is None or is_dry_run_change:
                gained.append(verdict)
            elif previous.scope != scope or (not scope.balances and _rates(previous) != _rates(verdict)):
                changed.append((previous, verdict))
        return decision._replace(gained=gained, changed=changed, lost=lost, ended=tuple(old.values()))


def remove_caps(verdicts: Verdicts) -> Verdicts:
    return tuple([each._replace(scope=None, throttle=None, rests=False) for each in verdicts])


def _is_unchanged(before: Verdict, after: Verdict) -> bool:
    """Return whether two verdicts have the same cap. Compare identities first: usually the objects are the same."""
    return (
        before.throttle is after.throttle
        and (before.scope is after.scope or before.scope == after.scope)
        and (after.scope is None or (before.four_tuple == after.four_tuple and before.direction is after.direction))
    )


def _rates(verdict: Verdict) -> tuple[int, int, int | None] | None:
    """Return the values that the cap has in the kernel; changes of other values, such as the onset, do not count."""
    throttle = verdict.throttle
    return None if throttle is None else (throttle.rate, throttle.ceil, throttle.burst)
