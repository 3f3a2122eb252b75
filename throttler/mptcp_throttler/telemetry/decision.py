"""What one decision about a connection changed, worked out once for all who keep or tell it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from mptcp_throttler.mptcp.model import Connection
from mptcp_throttler.policy.verdict import Verdict

Verdicts = tuple[Verdict, ...]


class Decision(NamedTuple):
    """The verdicts of one connection, and what changed of its caps: each in one direction of one subflow.

    What balances loads changes its rate many times a minute; that is no change.
    """

    token: int
    connection: Connection | None
    """None: it has ended."""
    before: Verdicts
    after: Verdicts
    now: float
    """Monotonic seconds."""
    is_dry: bool
    """A dry run only names these caps."""
    turns: bool = False
    """All caps go, for a dry run began or ended; another decision follows."""
    got: Sequence[Verdict] = ()
    """Verdicts with a cap on what had none."""
    changed: Sequence[tuple[Verdict, Verdict]] = ()
    """Another cap, or the same one at another rate: before and after."""
    lost: Sequence[tuple[Verdict, Verdict]] = ()
    """No cap any more: before and after."""
    ended: Sequence[Verdict] = ()
    """The verdicts of what ended under its cap."""

    @property
    def changes_caps(self) -> bool:
        return bool(self.got or self.changed or self.lost or self.ended)


class Comparer:
    """Compares decisions about all connections of one daemon."""

    def __init__(self) -> None:
        self._dry: set[int] = set()
        """Tokens of the connections that were last decided in a dry run."""

    def decisions(
        self, token: int, connection: Connection | None, before: Verdicts, after: Verdicts, now: float, *, is_dry: bool
    ) -> Iterator[Decision]:
        """Yield what *after* changes: in one decision, or two if a dry run has begun or ended since *before*.

        A cap that is enforced and one that a dry run names are different caps, so the first of two takes all caps.
        """
        was_dry = token in self._dry
        (self._dry.add if is_dry and after else self._dry.discard)(token)
        if before and was_dry is not is_dry:
            bare = without_caps(after)
            yield compare(token, connection, before, bare, now, is_dry=was_dry)._replace(turns=True)
            before = bare
        yield compare(token, connection, before, after, now, is_dry=is_dry)


def compare(
    token: int, connection: Connection | None, before: Verdicts, after: Verdicts, now: float, *, is_dry: bool
) -> Decision:
    """Return what *after* changes."""
    decision = Decision(token, connection, before, after, now, is_dry)
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
    """Return *verdicts* as they are where nothing caps."""
    return tuple([replace(each, scope=None, throttle=None, beside=None, rests=False) for each in verdicts])


def _is_as_before(had: Verdict, verdict: Verdict) -> bool:
    """Most often nothing changes, and so it is by the same objects."""
    return (
        had.throttle is verdict.throttle
        and (had.scope is verdict.scope or had.scope == verdict.scope)
        and (verdict.scope is None or (had.four_tuple == verdict.four_tuple and had.direction is verdict.direction))
    )


def _rates(verdict: Verdict) -> tuple[int, int, int | None] | None:
    """Return what the kernel has of the cap: another onset alone changes nothing."""
    throttle = verdict.throttle
    return None if throttle is None else (throttle.rate, throttle.ceil, throttle.burst)
