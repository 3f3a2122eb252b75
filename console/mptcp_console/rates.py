# SPDX-License-Identifier: GPL-2.0-or-later
"""Computes rates and caps from the throttler's summaries, and stores them in the history.

The throttler's byte counts only grow while it runs, so a rate is computed from the difference of two counts. There is
no rate if a count has fallen, if the throttler was restarted, or if the time between two summaries was too long. Capped
subflows whose cap does not have its full effect yet are ``landing``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from mptcp_console.history import Tracks, highest, latest, mean

MAX_PAUSE: Final = 15.0
"""Maximum seconds between two summaries for a rate."""
MIN_SECONDS: Final = 0.5
"""Minimum seconds over which a rate is computed. A rate over a shorter time would be meaningless."""

Direction = Literal["down", "up"]
Quantity = Literal["cap", "lowest", "guaranteed", "total", "shared", "capped"]


@dataclass(frozen=True, slots=True)
class PathKey:
    """A path's traffic in one direction, on all interfaces."""

    path: str | None
    direction: Direction


@dataclass(frozen=True, slots=True)
class RuleKey:
    """The effect of a rule on a path in one direction.

    *quantity*: the tracked quantity. ``cap``: the highest ceil of a class, bits/s. ``capped``: number of subflows.
    Three quantities, also in bits/s, exist only if they differ from the cap: ``lowest``, the lowest ceil of a class;
    ``guaranteed``, the guaranteed rate; ``total``, the sum of all classes' ceils. ``shared`` exists only if it is not
    0: the number of classes that also have subflows on other paths.
    """

    policy: str
    rule: str
    path: str | None
    direction: str
    share: str
    quantity: Quantity


def path_bytes(summary: Mapping[str, Any]) -> dict[PathKey, int]:
    """Return the bytes of each path since the throttler's start."""
    found: dict[PathKey, int] = {}
    for each in summary["paths"]:
        for direction, name in (("down", "bytes_sent"), ("up", "bytes_received")):
            key = PathKey(each["path"], direction)  # type: ignore[arg-type]
            found[key] = found.get(key, 0) + (each[name] or 0)
    return found


def present_paths(summary: Mapping[str, Any], rates: Mapping[PathKey, float]) -> dict[PathKey, float]:
    """Return the *rates* of the policy's paths, and of paths with subflows or traffic: the throttler still counts paths
    that a reload renamed or removed."""
    policy_paths = summary["policy"].get("paths_in_words")
    if policy_paths is None:  # an older throttler
        return dict(rates)
    present: set[str | None] = {each["path"] for each in policy_paths} or {None}
    present |= {each["path"] for each in summary["paths"] if each["subflows"]}
    present |= {key.path for key, rate in rates.items() if rate}
    return {key: rate for key, rate in rates.items() if key.path in present}


def capping_rules(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rules of *summary* that cap subflows; an empty list in a dry run."""
    return [] if summary["policy"]["dry_run"] else [each for each in summary["rules"] if each["capped"]]


def _rule_key(each: Mapping[str, Any], quantity: Quantity) -> RuleKey:
    return RuleKey(each["policy"], each["rule"], each["path"], each["direction"], each.get("share") or "path", quantity)


class RateMeter:
    """Rates of paths, from one summary to the next. The throttler counts bytes only when it samples its sockets, and
    reports when it did so. Until the next sample, the last rates are kept."""

    def __init__(self) -> None:
        self._base: Mapping[str, Any] | None = None
        """The summary at which the next rate starts."""
        self._time: float | None = None
        self.paths: dict[PathKey, float] = {}
        """Rates of the paths, bits/s."""

    def update(self, summary: Mapping[str, Any]) -> float:
        """Process *summary*; return the time since which the rates apply, seconds since the epoch."""
        base, before, now = self._base, self._time, float(summary["time"])
        self._time = now
        paths = path_bytes(summary)
        if base is None or before is None or base["pid"] != summary["pid"] or not 0 <= now - before <= MAX_PAUSE:
            self._base, self.paths = summary, {}
            return now
        seconds = _count_time(summary) - _count_time(base)
        if seconds >= MIN_SECONDS:
            self.paths = dict(_rates_between(path_bytes(base), paths, seconds))
            self._base = summary
        elif not any(summary["subflows"].values()):
            # The last subflows have closed. Their final bytes may be counted a second later, with the closed sockets.
            self.paths = dict.fromkeys(paths, 0.0)
        return before


def _count_time(summary: Mapping[str, Any]) -> float:
    """Return the time at which the throttler last counted bytes."""
    return float(summary.get("counted") or summary["time"])


def _rates_between(
    before: Mapping[PathKey, int], after: Mapping[PathKey, int], seconds: float
) -> Iterator[tuple[PathKey, float]]:
    """Yield the rate in bits/s of each count that both summaries have."""
    for key, count in after.items():
        if key in before and count >= before[key]:
            yield key, (count - before[key]) * 8 / seconds


def record(tracks: Tracks, meter: RateMeter, summary: Mapping[str, Any]) -> None:
    """Store the rates and caps of *summary* in *tracks*; *meter* calculates the rates."""
    since = meter.update(summary)
    now = int(summary["time"])
    tracks.advance(now)
    first = min(now, int(since) + 1)
    for path, rate in present_paths(summary, meter.paths).items():
        tracks.put(path, first, rate, mean)
    for each in capping_rules(summary):
        if each["ceil"] is not None:
            tracks.put(_rule_key(each, "cap"), first, each["ceil"], latest)
            tracks.put(_rule_key(each, "capped"), first, each["capped"], highest)
            for quantity, value in _extra_values(each):
                tracks.put(_rule_key(each, quantity), first, value, latest)


def _extra_values(rule: Mapping[str, Any]) -> Iterator[tuple[Quantity, float]]:
    """Yield the values of a cap in addition to its ceil and its number of subflows. Most caps have no such values."""
    ceil = rule["ceil"]
    fields: tuple[tuple[Quantity, str], ...] = (
        ("lowest", "lowest_ceil"),
        ("guaranteed", "rate"),
        ("total", "total_ceil"),
    )
    for quantity, name in fields:
        value = rule.get(name)  # .get, because an older throttler lacks it
        if value is not None and value != ceil:
            yield quantity, value
    if rule.get("shared_classes"):
        yield "shared", rule["shared_classes"]


def columns(tracks: Tracks, first: int, last: int, step: int) -> dict[str, Any]:
    """Return the tracks from *first* to *last* as lists of values, for a graph. Rates are bits/s."""
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
            rules.setdefault(head, dict(zip(names, head, strict=True)))[key.quantity] = rounded
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
