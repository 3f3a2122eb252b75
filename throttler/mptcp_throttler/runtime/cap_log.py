"""Says in the log which subflows got a cap and which lost theirs: each one for debugging, a line for each rule else.

After a quiet time that line comes a second after the first change; while changes go on, once a minute. So ten thousand
short downloads are a line a minute, and a cap on one subflow names it. Of a dry run it says what would have a cap; when
one ends, what was named so gets its cap then, and when one begins, what had a cap loses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mptcp_common.units import counted, format_rate
from mptcp_throttler.mptcp.model import Connection, FourTuple
from mptcp_throttler.policy.model import Direction, Verdict
from mptcp_throttler.runtime.logs import about

log = logging.getLogger(__name__)

FIRST_SECONDS = 1.0
AGAIN_SECONDS = 60.0
_Key = tuple[FourTuple, Direction]


@dataclass(slots=True)
class _Change:
    """Of one subflow; put in words where it is logged, for most are only counted."""

    verdict: Verdict
    """Which has the cap."""
    why: str
    fields: dict[str, Any]
    """``extra`` of its line."""
    what: str = ""

    def __str__(self) -> str:
        verdict = self.verdict
        most = "" if verdict.throttle is None else f" ({format_rate(verdict.throttle.ceil)})"
        upload = "upload of " if verdict.direction is Direction.UP else ""
        return f"{upload}{verdict.four_tuple}{most}: {self.what}{self.why}"


@dataclass(slots=True)
class _Changes:
    """Of one rule, since its last line."""

    capped: int = 0
    lifted: int = 0
    ended: int = 0
    """Subflows that ended under their cap."""
    last: _Change | None = None


@dataclass(slots=True)
class _Tally:
    """Of the caps that are set, or of those that a dry run names; by rule."""

    is_dry: bool
    changes: dict[str, _Changes] = field(default_factory=dict)
    now: dict[str, int] = field(default_factory=dict)
    """Capped subflows."""

    def add(self, rule: str, subflows: int) -> None:
        self.now[rule] = self.now.get(rule, 0) + subflows


class CapLog:
    """Of all connections of one daemon. *is_dry*: nothing that is decided is to come into effect."""

    def __init__(self, is_dry: Callable[[], bool]) -> None:
        self._is_dry = is_dry
        self._set, self._named = _Tally(is_dry=False), _Tally(is_dry=True)
        self._dry: set[int] = set()
        """Tokens of connections with caps that were last decided in a dry run."""
        self._changed = asyncio.Event()

    def note(
        self, before: Iterable[Verdict], after: Iterable[Verdict], connection: Connection | None, token: int
    ) -> None:
        """Take note of what was decided for one connection, and what was before; None: it has ended."""
        old, new = _capped(before), _capped(after)
        was_dry, is_dry = token in self._dry, self._is_dry()
        if is_dry and new:
            self._dry.add(token)
        else:
            self._dry.discard(token)
        if was_dry and not is_dry:
            for each in old.values():
                self._named.add(_rule(each), -1)  # they are no more named, but set
            old = {}
        elif is_dry and not was_dry:
            self._compare(self._set, old, {}, after, connection, token)
            old = {}
        self._compare(self._named if is_dry else self._set, old, new, after, connection, token)

    def lines(self) -> list[tuple[str, dict[str, Any]]]:
        """Return a line, and its ``extra``, for each rule that changed anything since the last call."""
        found = []
        for tally in (self._set, self._named):
            changes, tally.changes = tally.changes, {}
            found += [_line(tally, rule, each) for rule, each in changes.items()]
        self._changed.clear()
        return found

    async def run(self) -> None:
        """Log, forever."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(FIRST_SECONDS)
            while lines := self.lines():
                for line, fields in lines:
                    log.info("%s", line, extra=fields)
                await asyncio.sleep(AGAIN_SECONDS)

    def _compare(
        self,
        tally: _Tally,
        old: Mapping[_Key, Verdict],
        new: Mapping[_Key, Verdict],
        after: Iterable[Verdict],
        connection: Connection | None,
        token: int,
    ) -> None:
        for key in old.keys() & new.keys():
            was, rule = _rule(old[key]), _rule(new[key])
            if was != rule:
                # Capped before and after: no line says so, and each rule's next one has how many it caps now.
                tally.add(was, -1)
                tally.add(rule, 1)
        if old.keys() == new.keys():
            return
        for key in new.keys() - old.keys():
            _note_cap(tally, new[key], connection, token)
        gone = old.keys() - new.keys()
        if gone:
            left = {(each.four_tuple, each.direction): each.reason for each in after}
            for key in gone:
                _note_end(tally, old[key], left.get(key), connection, token)
        self._changed.set()


def _note_cap(tally: _Tally, verdict: Verdict, connection: Connection | None, token: int) -> None:
    rule = _rule(verdict)
    changes = tally.changes.setdefault(rule, _Changes())
    changes.capped += 1
    tally.add(rule, 1)
    changes.last = _Change(
        verdict,
        verdict.reason,
        about(connection, token=token, subflow=verdict.four_tuple, rule=rule, path=verdict.path),
    )
    log.debug("%s: %s", "would be capped" if tally.is_dry else "capped", changes.last, extra=changes.last.fields)


def _note_end(tally: _Tally, verdict: Verdict, why: str | None, connection: Connection | None, token: int) -> None:
    rule = _rule(verdict)
    changes = tally.changes.setdefault(rule, _Changes())
    tally.add(rule, -1)
    fields = about(connection, token=token, subflow=verdict.four_tuple, rule=rule, path=verdict.path)
    if why is None:
        changes.ended += 1
        changes.last = _Change(verdict, "ended (dry run)" if tally.is_dry else "ended", fields)
    else:
        changes.lifted += 1
        what = "would have no cap any more (dry run): " if tally.is_dry else "no cap any more: "
        changes.last = _Change(verdict, why, fields, what)
    log.debug("%s", changes.last, extra=fields)


def _line(tally: _Tally, rule: str, changes: _Changes) -> tuple[str, dict[str, Any]]:
    if changes.last is not None and changes.capped + changes.lifted + changes.ended == 1:
        return str(changes.last), changes.last.fields
    capped, lifted, dry = ("would be capped", "no longer", " (dry run)") if tally.is_dry else ("capped", "lifted", "")
    parts = ((changes.capped, capped), (changes.lifted, lifted), (changes.ended, "ended"))
    counts = ", ".join(f"{count} {word}" for count, word in parts if count)
    now = counted(tally.now.get(rule, 0), "subflow")
    return f"rule {rule}: {counts}; {now} {capped} now{dry}", about(rule=rule)


def _capped(verdicts: Iterable[Verdict]) -> dict[_Key, Verdict]:
    return {(each.four_tuple, each.direction): each for each in verdicts if each.scope}


def _rule(verdict: Verdict) -> str:
    assert verdict.scope is not None
    return verdict.scope.rule
