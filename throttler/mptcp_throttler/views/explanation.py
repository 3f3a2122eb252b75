"""The answer to ``explain`` as lines: the rules in the order tried, then what later stages changed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo

from mptcp_common.units import counted, format_rate
from mptcp_throttler.policy.schedule import moment_text

_DIRECTIONS: Final = {"down": "download", "up": "upload"}
_KINDS: Final = {"throttle": "rule", "budget": "budget of rule", "steer": "steering of rule"}
"""Rules are matched separately for each kind."""
_DRY: Final = "(dry run)"
_STATES: Final = {
    "coming": "coming into force",
    "in force": "in force",
    "being lifted": "being lifted",
}


def explanation(answer: Mapping[str, Any], zone: tzinfo | None = None) -> Iterator[str]:
    """Yield the lines. Past events are in *zone* (None: this host's), hours in the policy's zone."""
    clock = Clock(answer["time"], zone, ZoneInfo(answer["time_zone"]))
    if not answer["connections"]:
        yield "no such connection by Multipath TCP is open; the throttler neither knows nor caps those of plain TCP"
    for connection in answer["connections"]:
        subflows = connection["subflows"]
        what = f"tunnel {connection['tunnel']}," if "tunnel" in connection else "connection"
        ends = {each["remote"] for each in subflows}
        yield (
            f"{what} {connection['token']} from {connection['client'] or 'an unknown address'}, "
            f"{counted(len(ends), 'active subflow')}, since {clock.at(connection['since'])}"
        )
        for subflow in subflows:
            yield from _subflow(subflow, clock)
    if (more := answer.get("total", 0) - len(answer["connections"])) > 0:
        yield f"and {counted(more, 'older connection')}"


class Clock:
    """Formats times for people, relative to today."""

    def __init__(self, now: float, zone: tzinfo | None, policys: tzinfo) -> None:
        self._zone = zone
        self._policys = policys
        self._now = now

    def at(self, time: float) -> str:
        """Return the time of day, with the date if not today, and the zone if not the policy's."""
        when, today = (datetime.fromtimestamp(each, self._zone).astimezone(self._zone) for each in (time, self._now))
        clock = when.strftime("%H:%M:%S")
        if when.utcoffset() != datetime.fromtimestamp(time, self._policys).utcoffset():
            clock += f" {when.tzname()}"
        return clock if when.date() == today.date() else f"{when.strftime('%a %Y-%m-%d')} {clock}"

    def hour(self, time: float) -> str:
        """Return a future time in the policy's zone: ``18:00 (Europe/Athens)``."""
        return f"{moment_text(time, self._now, self._policys)} ({self._policys})"


def _subflow(subflow: Mapping[str, Any], clock: Clock) -> Iterator[str]:
    where = f"path {subflow['path']}" if subflow["path"] else "on no path"
    by = f" by {subflow['interface']}" if subflow["interface"] else ""
    direction = _DIRECTIONS.get(subflow["direction"], subflow["direction"])
    yield f"  {subflow['remote']}, {where}{by}, {direction}: {_verdict(subflow, clock)}"
    for rule in subflow["tried"]:
        yield f"    {rule_line(rule, clock)}"
    if not subflow["tried"]:
        yield "    no rule is for this direction"
    for stage in subflow["stages"]:
        since = "" if stage.get("since") is None else f", since {clock.at(stage['since'])}"
        yield f"    then {stage['stage']}: {stage['what']}{since}"


def _verdict(subflow: Mapping[str, Any], clock: Clock) -> str:
    parts = [subflow["verdict"]]
    if subflow["rate"] is not None and subflow["ceil"] not in (None, subflow["rate"]):
        parts.append(f"{format_rate(subflow['rate'])} of it guaranteed")
    if subflow["rule"] is not None:
        parts.append(f"rule {subflow['rule']}")
    if subflow["since"] is not None:
        parts.append(f"since {clock.at(subflow['since'])}")
    if (state := _STATES.get(subflow["cap_state"])) is not None:
        parts.append(state)
    elif subflow["rate"] is not None and not subflow["verdict"].endswith(_DRY):
        parts.append("not in the kernel yet")
    return ", ".join(parts)


def rule_line(rule: Mapping[str, Any], clock: Clock) -> str:
    """Return ``rule night: does not match: outside its hours, 22:00-06:00; begins 22:00 (Europe/Athens)``.

    The reason of a failed match already says when that changes; *clock* tells it for a rule that matches.
    """
    name = f"{_KINDS.get(rule.get('kind', 'throttle'), 'rule')} {rule['rule']}"
    if rule["matched"]:
        until = None if rule.get("until") is None else f"until {clock.hour(rule['until'])}"
        return "; ".join(filter(None, (f"{name}: matches", rule["failed"], until)))
    return f"{name}: does not match: {rule['failed']}"
