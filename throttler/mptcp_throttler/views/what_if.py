"""The answer to ``what_if``: which live subflows another policy would treat otherwise. Made from what was decided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from mptcp_common.units import format_rate
from mptcp_throttler.mptcp.model import Connection, FourTuple
from mptcp_throttler.policy.model import Direction, Verdict
from mptcp_throttler.views.snapshot import end_text

MAX_CHANGES: Final = 200

Decided = tuple[Connection, tuple[Verdict, ...], tuple[Verdict, ...]]
"""A connection, its verdicts, and those that it would have."""


def what_if(decided: Iterable[Decided]) -> dict[str, Any]:
    """Return the answer."""
    changes: list[dict[str, Any]] = []
    changed = capped_now = capped_then = 0
    for connection, now, then in decided:
        before, after = _by_subflow(now), _by_subflow(then)
        capped_now += sum(each.throttle is not None for each in now)
        capped_then += sum(each.throttle is not None for each in then)
        for key in dict.fromkeys([*before, *after]):
            old, new = before.get(key), after.get(key)
            if _cap(old) == _cap(new):
                continue
            changed += 1
            if len(changes) < MAX_CHANGES:
                four_tuple, direction = key
                changes.append(
                    {
                        "token": f"{connection.token:08x}",
                        "remote": end_text(four_tuple.remote, four_tuple.remote_port),
                        "path": None if new is None else new.path,
                        "direction": direction.value,
                        "now": _words(old),
                        "then": _words(new),
                        "why": None if new is None else new.reason,
                    }
                )
    return {"changes": changes, "changed": changed, "capped_now": capped_now, "capped_then": capped_then}


def _by_subflow(verdicts: Iterable[Verdict]) -> dict[tuple[FourTuple, Direction], Verdict]:
    return {(each.four_tuple, each.direction): each for each in verdicts}


def _cap(verdict: Verdict | None) -> object:
    """Return what of a verdict makes a difference to the subflow, and which rule it is."""
    if verdict is None or verdict.throttle is None or verdict.rule is None:
        return None
    return verdict.rule.name, verdict.throttle


def _words(verdict: Verdict | None) -> str:
    if verdict is None or verdict.throttle is None or verdict.rule is None:
        return "not capped"
    return f"capped at {format_rate(verdict.throttle.ceil)} by rule {verdict.rule.name}"
