"""Says in the log which subflows got a cap and which lost theirs: each one for debugging, a line for each rule else.

After a quiet time that line comes a second after the first change; while changes go on, once a minute. So ten thousand
short downloads are a line a minute, and a cap on one subflow names it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
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


class CapLog:
    """Of all connections of one daemon."""

    def __init__(self) -> None:
        self._changes: dict[str, _Changes] = {}
        self._now: dict[str, int] = {}
        """Capped subflows by rule."""
        self._changed = asyncio.Event()

    def note(
        self,
        before: Iterable[Verdict],
        after: Iterable[Verdict],
        connection: Connection | None = None,
        token: int | None = None,
    ) -> None:
        """Take note of what was decided for one connection, and what was before; None: it has ended."""
        old: dict[_Key, Verdict] = {(each.four_tuple, each.direction): each for each in before if each.scope}
        new: dict[_Key, Verdict] = {(each.four_tuple, each.direction): each for each in after if each.scope}
        for key in old.keys() & new.keys():
            was, rule = _rule(old[key]), _rule(new[key])
            if was != rule:
                # Capped before and after: no line says so, and each rule's next one has how many it caps now.
                self._now[was] = self._now.get(was, 0) - 1
                self._now[rule] = self._now.get(rule, 0) + 1
        if old.keys() == new.keys():
            return
        for key in new.keys() - old.keys():
            self._note_cap(new[key], connection, token)
        gone = old.keys() - new.keys()
        if gone:
            left = {(each.four_tuple, each.direction): each.reason for each in after}
            for key in gone:
                self._note_end(old[key], left.get(key), connection, token)
        self._changed.set()

    def lines(self) -> list[tuple[str, dict[str, Any]]]:
        """Return a line, and its ``extra``, for each rule that changed anything since the last call."""
        changes, self._changes = self._changes, {}
        self._changed.clear()
        return [self._line(rule, each) for rule, each in changes.items()]

    async def run(self) -> None:
        """Log, forever."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(FIRST_SECONDS)
            while lines := self.lines():
                for line, fields in lines:
                    log.info("%s", line, extra=fields)
                await asyncio.sleep(AGAIN_SECONDS)

    def _note_cap(self, verdict: Verdict, connection: Connection | None, token: int | None) -> None:
        rule = _rule(verdict)
        changes = self._changes.setdefault(rule, _Changes())
        changes.capped += 1
        self._now[rule] = self._now.get(rule, 0) + 1
        changes.last = _Change(
            verdict,
            verdict.reason,
            about(connection, token=token, subflow=verdict.four_tuple, rule=rule, path=verdict.path),
        )
        log.debug("capped: %s", changes.last, extra=changes.last.fields)

    def _note_end(self, verdict: Verdict, why: str | None, connection: Connection | None, token: int | None) -> None:
        rule = _rule(verdict)
        changes = self._changes.setdefault(rule, _Changes())
        self._now[rule] = self._now.get(rule, 0) - 1
        fields = about(connection, token=token, subflow=verdict.four_tuple, rule=rule, path=verdict.path)
        if why is None:
            changes.ended += 1
            changes.last = _Change(verdict, "ended", fields)
        else:
            changes.lifted += 1
            changes.last = _Change(verdict, why, fields, "no cap any more: ")
        log.debug("%s", changes.last, extra=fields)

    def _line(self, rule: str, changes: _Changes) -> tuple[str, dict[str, Any]]:
        if changes.last is not None and changes.capped + changes.lifted + changes.ended == 1:
            return str(changes.last), changes.last.fields
        parts = ((changes.capped, "capped"), (changes.lifted, "lifted"), (changes.ended, "ended"))
        counts = ", ".join(f"{count} {word}" for count, word in parts if count)
        now = counted(self._now.get(rule, 0), "subflow")
        return f"rule {rule}: {counts}; {now} capped now", about(rule=rule)


def _rule(verdict: Verdict) -> str:
    assert verdict.scope is not None
    return verdict.scope.rule
