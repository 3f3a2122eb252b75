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
    balances loads does not count as a change, because there are many a minute."""

    token: int
    connection: Connection | None  # None if the connection has ended
    before: Verdicts
    after: Verdicts
    now: float  # monotonic seconds
    was_dry: bool  # whether a dry run only named the caps of *before*, and of *after*
    is_dry: bool
    got: Sequence[Verdict] = ()  # new caps
    changed: Sequence[tuple[Verdict, Verdict]] = ()  # other caps or rates: before and after
    lost: Sequence[tuple[Verdict, Verdict]] = ()  # removed caps: before and after
    ended: Sequence[Verdict] = ()  # verdicts of capped subflows that ended

    @property
    def turns(self) -> bool:
        """Whether a dry run began or ended. Then all caps count as lost and got: enforced and dry caps differ."""
        return self.was_dry is not self.is_dry


class Comparer:
    def __init__(self) -> None:
        self._dry: set[int] = set()  # connections last decided in a dry run

    def compare(
        self, token: int, connection: Connection | None, before: Verdicts, after: Verdicts, now: float, *, is_dry: bool
    ) -> Decision:
        was_dry = token in self._dry if before else is_dry
        (self._dry.add if is_dry and after else self._dry.discard)(token)
        decision = Decision(token, connection, before, after, now, was_dry, is_dry)
        turns = decision.turns
        if not turns and len(before) == len(after) and all(map(_is_as_before, before, after)):
            return decision
        old = {(each.four_tuple, each.direction): each for each in before if each.scope}
        got, changed, lost = [], [], []
        for verdict in after:
            had, scope = old.pop((verdict.four_tuple, verdict.direction), None), verdict.scope
            if had is not None and (turns or scope is None):
                lost.append((had, verdict))
            if scope is None:
                continue
            if had is None or turns:
                got.append(verdict)
            elif had.scope != scope or (not scope.balances and _rates(had) != _rates(verdict)):
                changed.append((had, verdict))
        return decision._replace(got=got, changed=changed, lost=lost, ended=tuple(old.values()))


def without_caps(verdicts: Verdicts) -> Verdicts:
    return tuple([each._replace(scope=None, throttle=None, rests=False) for each in verdicts])


def _is_as_before(had: Verdict, verdict: Verdict) -> bool:
    """Return whether two verdicts have the same cap, by identity first: usually the objects are the same."""
    return (
        had.throttle is verdict.throttle
        and (had.scope is verdict.scope or had.scope == verdict.scope)
        and (verdict.scope is None or (had.four_tuple == verdict.four_tuple and had.direction is verdict.direction))
    )


def _rates(verdict: Verdict) -> tuple[int, int, int | None] | None:
    """Return the cap's values in the kernel; the onset is not among them."""
    throttle = verdict.throttle
    return None if throttle is None else (throttle.rate, throttle.ceil, throttle.burst)
