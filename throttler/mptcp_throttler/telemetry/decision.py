# SPDX-License-Identifier: GPL-2.0-or-later
"""Computes the changes of one decision about a connection, once for all consumers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mptcp_throttler.mptcp.model import Connection
from mptcp_throttler.policy.verdict import Verdict

Verdicts = tuple[Verdict, ...]


class Decision(NamedTuple):
    """The verdicts of one connection, and the changes of its caps, per subflow and direction. A new rate of a cap that
    balances loads does not count as a change, because there are many a minute."""

    token: int
    connection: Connection | None  # None if it has ended
    before: Verdicts
    after: Verdicts
    now: float  # monotonic seconds
    is_dry: bool  # a dry run only names these caps
    turns: bool = False  # whether all caps are removed because a dry run began or ended; then another decision follows
    got: Sequence[Verdict] = ()  # new caps
    changed: Sequence[tuple[Verdict, Verdict]] = ()  # other caps or rates: before and after
    lost: Sequence[tuple[Verdict, Verdict]] = ()  # removed caps: before and after
    ended: Sequence[Verdict] = ()  # verdicts of capped subflows that ended

    @property
    def changes_caps(self) -> bool:
        return bool(self.got or self.changed or self.lost or self.ended)


class Comparer:
    def __init__(self) -> None:
        self._dry: set[int] = set()  # connections last decided in a dry run

    def decisions(
        self, token: int, connection: Connection | None, before: Verdicts, after: Verdicts, now: float, *, is_dry: bool
    ) -> Iterator[Decision]:
        """Yield the changes of *after*. If a dry run began or ended since *before*, a first decision removes all caps,
        because an enforced cap and a dry one are different caps."""
        was_dry = token in self._dry
        (self._dry.add if is_dry and after else self._dry.discard)(token)
        if before and was_dry is not is_dry:
            bare = without_caps(after)
            yield _compared(Decision(token, connection, before, bare, now, was_dry, turns=True))
            before = bare
        yield _compared(Decision(token, connection, before, after, now, is_dry))


def _compared(decision: Decision) -> Decision:
    """Return *decision* completed with its changes."""
    before, after = decision.before, decision.after
    if len(before) == len(after) and all(map(_is_as_before, before, after)):
        return decision
    old = {(each.four_tuple, each.direction): each for each in before if each.scope}
    got, changed, lost = [], [], []
    for verdict in after:
        had = old.pop((verdict.four_tuple, verdict.direction), None)
        if verdict.scope is None:
            if had is not None:
                lost.append((had, verdict))
        elif had is None:
            got.append(verdict)
        elif had.scope != verdict.scope or (not verdict.scope.balances and _rates(had) != _rates(verdict)):
            changed.append((had, verdict))
    return decision._replace(got=got, changed=changed, lost=lost, ended=tuple(old.values()))


def without_caps(verdicts: Verdicts) -> Verdicts:
    return tuple([each._replace(scope=None, throttle=None, rests=False) for each in verdicts])


def _is_as_before(had: Verdict, verdict: Verdict) -> bool:
    """Tell whether two verdicts have the same cap, by identity first: usually the objects are the same."""
    return (
        had.throttle is verdict.throttle
        and (had.scope is verdict.scope or had.scope == verdict.scope)
        and (verdict.scope is None or (had.four_tuple == verdict.four_tuple and had.direction is verdict.direction))
    )


def _rates(verdict: Verdict) -> tuple[int, int, int | None] | None:
    """Return the cap's values in the kernel; the onset is not among them."""
    throttle = verdict.throttle
    return None if throttle is None else (throttle.rate, throttle.ceil, throttle.burst)
