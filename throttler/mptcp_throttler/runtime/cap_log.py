"""Logs which subflows got or lost a cap: each one at debug level, otherwise one line per rule.

After a quiet time, that line comes a second after the first change, then once a minute while changes go on. So ten
thousand short downloads make one line a minute, and a cap on one subflow names it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from mptcp_common.units import counted, format_rate
from mptcp_throttler.policy.model import Direction
from mptcp_throttler.policy.verdict import Verdict
from mptcp_throttler.runtime.logs import about
from mptcp_throttler.telemetry.decision import Decision

log = logging.getLogger(__name__)

FIRST_SECONDS = 1.0
AGAIN_SECONDS = 60.0


@dataclass(slots=True)
class _Changes:
    capped: int = 0
    lifted: int = 0
    ended: int = 0
    """Subflows that ended while capped."""
    last: _Change | None = None


class _Change(NamedTuple):
    """Of one subflow. Put in words only if it is logged, because most are only counted."""

    decision: Decision
    verdict: Verdict
    """The one with the cap."""
    text: str

    def line(self) -> tuple[str, dict[str, Any]]:
        decision, verdict, text = self
        most = "" if verdict.throttle is None else f" ({format_rate(verdict.throttle.ceil)})"
        upload = "upload of " if verdict.direction is Direction.UP else ""
        subflow = verdict.four_tuple
        fields = about(
            decision.connection, token=decision.token, subflow=subflow, rule=_rule(verdict), path=verdict.path
        )
        return f"{upload}{subflow}{most}: {text}", fields


class CapLog:
    """Collects the changes of one daemon's caps."""

    def __init__(self, subflows: Callable[[str], int]) -> None:
        """*subflows* returns how many subflows a rule caps, or would in a dry run."""
        self._subflows = subflows
        self._changes: dict[tuple[str, bool], _Changes] = {}
        """By rule, and whether it was a dry run."""
        self._is_dry = False
        """The last decision was a dry run's."""
        self._changed = asyncio.Event()

    def decided(self, decision: Decision) -> None:
        """Note what *decision* changed. When a dry run ends, subflows that it named have lost nothing."""
        self._is_dry = is_dry = decision.is_dry
        if is_dry and decision.turns:
            return
        for verdict in decision.got:
            self._note(decision, verdict, verdict.reason).capped += 1
        what = "would have no cap any more (dry run)" if is_dry else "no cap any more"
        for had, verdict in decision.lost:
            self._note(decision, had, f"{what}: {verdict.reason}").lifted += 1
        for had in decision.ended:
            self._note(decision, had, "ended (dry run)" if is_dry else "ended").ended += 1

    def _note(self, decision: Decision, capped: Verdict, text: str) -> _Changes:
        changes = self._changes.setdefault((_rule(capped), decision.is_dry), _Changes())
        changes.last = _Change(decision, capped, text)
        if log.isEnabledFor(logging.DEBUG):
            line, fields = changes.last.line()
            log.debug("%s", line, extra=fields)
        self._changed.set()
        return changes

    def lines(self) -> list[tuple[str, dict[str, Any]]]:
        """Return, for each rule with changes since the last call, a line and its ``extra``."""
        changes, self._changes = self._changes, {}
        self._changed.clear()
        return [self._line(rule, is_dry, each) for (rule, is_dry), each in sorted(changes.items(), key=_set_first)]

    def _line(self, rule: str, is_dry: bool, changes: _Changes) -> tuple[str, dict[str, Any]]:
        if changes.last is not None and changes.capped + changes.lifted + changes.ended == 1:
            return changes.last.line()
        capped, lifted, dry = ("would be capped", "no longer", " (dry run)") if is_dry else ("capped", "lifted", "")
        parts = ((changes.capped, capped), (changes.lifted, lifted), (changes.ended, "ended"))
        counts = ", ".join(f"{count} {word}" for count, word in parts if count)
        now = counted(self._subflows(rule) if is_dry is self._is_dry else 0, "subflow")
        return f"rule {rule}: {counts}; {now} {capped} now{dry}", about(rule=rule)

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(FIRST_SECONDS)
            while lines := self.lines():
                for line, fields in lines:
                    log.info("%s", line, extra=fields)
                await asyncio.sleep(AGAIN_SECONDS)


def _rule(verdict: Verdict) -> str:
    return "" if verdict.rule is None else verdict.rule.name


def _set_first(changes: tuple[tuple[str, bool], _Changes]) -> bool:
    return changes[0][1]
