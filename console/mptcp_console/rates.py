"""From one summary of the throttler to the next: rates, caps, and what of it is kept.

The throttler's byte counts only grow while it runs, so that a rate is a difference. One that became smaller, a
throttler that was started anew, or a pause too long to say what happened within it, gives no rate. Of what is capped,
a part may be ``landing``: its cap is just coming into force.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from mptcp_console.history import Tracks, highest, latest, mean

LONGEST_PAUSE: Final = 15.0
"""Seconds between two summaries; over a longer time nothing is said."""
SHORTEST: Final = 0.5
"""Seconds: over less a rate says nothing."""

Direction = Literal["down", "up"]
What = Literal["cap", "lowest", "guaranteed", "total", "shared", "capped"]


@dataclass(frozen=True, slots=True)
class PathKey:
    """What goes over one path, in one direction, on all interfaces."""

    path: str | None
    direction: Direction


@dataclass(frozen=True, slots=True)
class RuleKey:
    """What one rule does to one path in one direction.

    *what*: ``cap`` b/s, the most that one class of it lets through; ``capped`` subflows. Where it is not what the cap
    says as well: ``lowest`` b/s, the least that one lets through; ``guaranteed`` b/s; ``total`` b/s of all classes; and
    where there are any, ``shared``, classes that other paths have subflows in.
    """

    policy: str
    rule: str
    path: str | None
    direction: str
    share: str
    what: What


def path_bytes(summary: Mapping[str, Any]) -> dict[PathKey, int]:
    """Return how many bytes went over each path since the throttler's start."""
    found: dict[PathKey, int] = {}
    for each in summary["paths"]:
        for direction, name in (("down", "bytes_sent"), ("up", "bytes_received")):
            key = PathKey(each["path"], direction)  # type: ignore[arg-type]
            found[key] = found.get(key, 0) + (each[name] or 0)
    return found


def present(summary: Mapping[str, Any], rates: Mapping[PathKey, float]) -> dict[PathKey, float]:
    """Return the *rates* of paths that the policy of *summary* has, and of others that somebody is on or that carry
    something: the throttler goes on to count for those that a reload renamed or removed."""
    named = summary["policy"].get("paths_in_words")
    if named is None:  # a throttler from before it
        return dict(rates)
    shown: set[str | None] = {each["path"] for each in named} or {None}
    shown |= {each["path"] for each in summary["paths"] if each["subflows"]}
    shown |= {key.path for key, rate in rates.items() if rate}
    return {key: rate for key, rate in rates.items() if key.path in shown}


def capping(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what caps somebody of the *summary*'s rules: in a dry run nothing does, whatever was decided."""
    return [] if summary["policy"]["dry_run"] else [each for each in summary["rules"] if each["capped"]]


def _rule_key(each: Mapping[str, Any], what: What) -> RuleKey:
    return RuleKey(each["policy"], each["rule"], each["path"], each["direction"], each.get("share") or "path", what)


class Meter:
    """Rates of paths, from one summary to the next.

    The throttler counts now and then, when it samples its sockets, and says when it did: between two summaries it may
    not have. What was last known holds until it has.
    """

    def __init__(self) -> None:
        self._base: Mapping[str, Any] | None = None
        """The summary from which on the next rate counts."""
        self._time: float | None = None
        """That of the last summary."""
        self.paths: dict[PathKey, float] = {}
        """Bits/s."""

    def take(self, summary: Mapping[str, Any]) -> float:
        """Go on to *summary*; return from when on the rates hold, seconds since the epoch."""
        base, before, now = self._base, self._time, float(summary["time"])
        self._time = now
        paths = path_bytes(summary)
        if base is None or before is None or base["pid"] != summary["pid"] or not 0 <= now - before <= LONGEST_PAUSE:
            self._base, self.paths = summary, {}
            return now
        seconds = _counted(summary) - _counted(base)
        if seconds >= SHORTEST:
            self.paths = dict(_grown(path_bytes(base), paths, seconds))
            self._base = summary
        elif not any(summary["subflows"].values()):
            # What was there last is over. What it carried may be told in a second, when closed sockets are counted.
            self.paths = dict.fromkeys(paths, 0.0)
        return before


def _counted(summary: Mapping[str, Any]) -> float:
    """Return when the throttler last counted."""
    return float(summary.get("counted") or summary["time"])


def _grown(
    before: Mapping[PathKey, int], after: Mapping[PathKey, int], seconds: float
) -> Iterator[tuple[PathKey, float]]:
    """Yield the rate in bits/s of each count that is in both."""
    for key, count in after.items():
        if key in before and count >= before[key]:
            yield key, (count - before[key]) * 8 / seconds


def record(tracks: Tracks, meter: Meter, summary: Mapping[str, Any]) -> None:
    """Keep in *tracks* what *summary* says, with the rates that *meter* takes from it."""
    since = meter.take(summary)
    now = int(summary["time"])
    tracks.advance(now)
    first = min(now, int(since) + 1)
    for path, rate in present(summary, meter.paths).items():
        tracks.put(path, first, rate, mean)
    for each in capping(summary):
        if each["ceil"] is not None:
            tracks.put(_rule_key(each, "cap"), first, each["ceil"], latest)
            tracks.put(_rule_key(each, "capped"), first, each["capped"], highest)
            for what, value in _besides(each):
                tracks.put(_rule_key(each, what), first, value, latest)


def _besides(rule: Mapping[str, Any]) -> Iterator[tuple[What, float]]:
    """Yield what a cap's ceil and subflows do not say; of most caps that is nothing."""
    most = rule["ceil"]
    named: tuple[tuple[What, str], ...] = (("lowest", "lowest_ceil"), ("guaranteed", "rate"), ("total", "total_ceil"))
    for what, name in named:
        value = rule.get(name)  # .get: a throttler from before it
        if value is not None and value != most:
            yield what, value
    if rule.get("shared_classes"):
        yield "shared", rule["shared_classes"]


def columns(tracks: Tracks, first: int, last: int, step: int) -> dict[str, Any]:
    """Return what is kept from *first* to *last*, a list of values for each number, for a graph. Rates in b/s."""
    window = tracks.window(first, last, step)
    paths: list[dict[str, Any]] = []
    rules: dict[tuple[Any, ...], dict[str, Any]] = {}
    for key, values in window:
        rounded = [None if value is None else round(value) for value in values]
        if isinstance(key, PathKey):
            paths.append({"path": key.path, "direction": key.direction, "rate": rounded})
        elif isinstance(key, RuleKey):
            head = (key.policy, key.rule, key.path, key.direction, key.share)
            names = ("policy", "rule", "path", "direction", "share")
            rules.setdefault(head, dict(zip(names, head, strict=True)))[key.what] = rounded
    paths.sort(key=lambda each: (each["path"] is None, each["path"] or "", each["direction"]))
    return {
        "first": window.first,
        "step": step,
        "length": window.length,
        "paths": paths,
        "rules": [each for _, each in sorted(rules.items(), key=lambda item: [str(part) for part in item[0]])],
        "since": tracks.since,
        "refused": tracks.refused,
    }
