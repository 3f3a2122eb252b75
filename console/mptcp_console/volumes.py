# SPDX-License-Identifier: GPL-2.0-or-later
"""Counts the bytes of each path today and this month, in the policy's time zone.

The throttler counts from its start. Bytes from before the console's start are included if the throttler started within
the day or month. Other earlier bytes are unknown, so the page also shows the time since which bytes are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mptcp_console.rates import PathKey, path_bytes

MAX_PATHS: Final = 50
"""Maximum number of reported paths; these are the paths with the most bytes."""
MAX_GAP: Final = 90.0
"""Maximum seconds between two summaries, or between a throttler's last summary and the start of the next throttler, for
which no bytes are considered missing. It exceeds a minute, because the saved file may be that old."""
_MIDNIGHT: Final = {"hour": 0, "minute": 0, "second": 0, "microsecond": 0, "fold": 0}
_PERIODS: Final[Mapping[str, Callable[[datetime], datetime]]] = {
    "day": lambda now: now.replace(**_MIDNIGHT),  # type: ignore[arg-type]
    "month": lambda now: now.replace(day=1, **_MIDNIGHT),  # type: ignore[arg-type]
}


@dataclass(slots=True)
class _Period:
    begin: float
    since: float
    """The time since which the bytes are counted, seconds since the epoch."""
    bytes_by_path: dict[PathKey, int] = field(default_factory=dict)


class Volumes:
    """Adds the bytes since the last summary to the day and the month."""

    def __init__(self, saved: bytes = b"") -> None:
        """*saved*: the result of :meth:`serialize`. Raises ValueError for other content."""
        self._periods: dict[str, _Period] = {}
        self._pid: object = None
        self._last_counts: dict[PathKey, int] = {}
        self._last_time: float | None = None
        if not saved:
            return
        try:
            found = json.loads(saved)
            self._pid, self._last_counts, self._last_time = found["pid"], _counts(found["before"]), float(found["last"])
            for name in _PERIODS:
                period = found["periods"][name]
                self._periods[name] = _Period(float(period["begin"]), float(period["since"]), _counts(period["octets"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not written by the console: {error!r}") from error

    def serialize(self) -> bytes:
        """Return the state, from which a new object can continue; empty before the first summary."""
        if not self._periods:
            return b""
        periods = {
            name: {"begin": each.begin, "since": each.since, "octets": _rows(each.bytes_by_path)}
            for name, each in self._periods.items()
        }
        return json.dumps(
            {"pid": self._pid, "last": self._last_time, "before": _rows(self._last_counts), "periods": periods}
        ).encode()

    def update(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Return the bytes of each period, as of *summary*."""
        now, counts, last = float(summary["time"]), path_bytes(summary), self._last_time
        started = float(summary.get("started") or now)
        is_new_throttler = summary.get("pid") != self._pid or (last is not None and started > last + MAX_GAP)
        before = {} if is_new_throttler else self._last_counts
        for name, begin_of in _PERIODS.items():
            begin = begin_of(datetime.fromtimestamp(now, _zone(summary))).timestamp()
            period = self._periods.get(name)
            if period is None or last is None or last < begin:
                # Bytes since the last summary belong to this period if that summary is recent, or if the throttler
                # started within the period. Otherwise, it is unknown how many of them belong to it.
                counted_from = min(now, started) if is_new_throttler else now
                is_recent = last is not None and counted_from - last <= MAX_GAP
                is_complete = is_new_throttler and started >= begin
                since = begin if is_recent else started if is_complete else now
                period = self._periods[name] = _Period(begin, since)
                if not is_recent and not is_complete:
                    continue
            else:
                period.begin = begin  # the clock, or the policy's time zone, may have changed
                if is_new_throttler and started - last > MAX_GAP:
                    period.since = max(period.since, started)
            for key, count in counts.items():
                period.bytes_by_path[key] = period.bytes_by_path.get(key, 0) + max(0, count - before.get(key, 0))
        self._pid, self._last_counts, self._last_time = summary.get("pid"), counts, now
        return {name: _answer(period) for name, period in self._periods.items()}


def _rows(counts: Mapping[PathKey, int]) -> list[tuple[str | None, str, int]]:
    return [(key.path, key.direction, count) for key, count in counts.items()]


def _counts(rows: object) -> dict[PathKey, int]:
    return {PathKey(path, direction): int(count) for path, direction, count in rows}  # type: ignore[attr-defined]


def _answer(period: _Period) -> dict[str, Any]:
    paths: dict[str | None, dict[str, Any]] = {}
    for key, count in period.bytes_by_path.items():
        paths.setdefault(key.path, {"path": key.path, "down": 0, "up": 0})[key.direction] = count
    largest = sorted(paths.values(), key=lambda each: -each["down"] - each["up"])[:MAX_PATHS]
    return {"begin": period.begin, "since": period.since, "paths": largest}


def _zone(summary: Mapping[str, Any]) -> tzinfo:
    try:
        return ZoneInfo(summary["policy"].get("time_zone") or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        return UTC
