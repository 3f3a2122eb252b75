# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses the weekly hours of a rule, and computes whether they are open and when that changes.

A window is open while the local time of day is between its ends. A window inside a repeated hour opens twice. A window
inside a skipped hour does not open; a window that only begins in a skipped hour opens at the end of that hour. A window
that passes midnight belongs to the day on which it starts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, time, timedelta, tzinfo
from itertools import chain, pairwise, product
from typing import Final, NamedTuple

from mptcp_common.problems import did_you_mean, shown

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EVERY_DAY: Final = frozenset(range(7))
MIDNIGHT: Final = time(0, 0)

_ANY_DAY: Final = "|".join("".join(f"[{letter}{letter.upper()}]" for letter in day) for day in DAYS)
DAYS_PATTERN: Final = f"^({_ANY_DAY})(-({_ANY_DAY}))?$"
HOURS_PATTERN: Final = "^([01]?[0-9]|2[0-3]):[0-5][0-9]-(([01]?[0-9]|2[0-3]):[0-5][0-9]|24:00)$"
_HOURS: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})-([0-9]{1,2}):([0-9]{2})", re.ASCII)

_HORIZON: Final = timedelta(days=15)  # a weekly window changes within one week, or two if it opens in a skipped hour
_STEP: Final = 900  # Seconds. Offsets from UTC change at multiples of this.


class Window(NamedTuple):
    """A weekly window on ``days`` (0 is Monday) from ``start`` to ``end``; it may pass midnight."""

    days: frozenset[int]
    start: time
    end: time  # ``start == end`` means the whole day

    def is_open(self, day: int, now: time) -> bool:
        today = day in self.days
        if self.start == self.end:
            return today
        if self.start < self.end:
            return today and self.start <= now < self.end
        return (today and now >= self.start) or ((day - 1) % 7 in self.days and now < self.end)


def parse_days(value: object) -> frozenset[int]:
    """Return the days (0 is Monday) of ``mon`` or ``mon-fri``; ``fri-mon`` includes the weekend. Raises ValueError."""
    parts = value.lower().split("-") if isinstance(value, str) else []
    if not 1 <= len(parts) <= 2 or any(part not in DAYS for part in parts):
        hint = did_you_mean(parts[0][:3], DAYS) if len(parts) == 1 else ""
        raise ValueError(f'{shown(value)} is not a day{hint}; write {", ".join(DAYS)}, or a range such as "mon-fri"')
    first, last = DAYS.index(parts[0]), DAYS.index(parts[-1])
    return frozenset((first + offset) % 7 for offset in range((last - first) % 7 + 1))


def parse_hours(value: object) -> tuple[time, time]:
    """Return start and end of ``08:00-18:00``; an end of 24:00 is midnight. Raises ValueError."""
    match = _HOURS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f'{shown(value)} is not a range of hours; write HH:MM-HH:MM (e.g. "08:00-18:00")')
    start_hour, start_minute, end_hour, end_minute = (int(part) for part in match.groups())
    ends_at_24 = (end_hour, end_minute) == (24, 0)
    if start_hour > 23 or start_minute > 59 or end_minute > 59 or (end_hour > 23 and not ends_at_24):
        raise ValueError(f"{shown(value)} has a time of day that does not exist; 00:00 to 23:59, or 24:00 as the end")
    start = time(start_hour, start_minute)
    end = MIDNIGHT if ends_at_24 else time(end_hour, end_minute)
    if start == end and not ends_at_24:
        raise ValueError(f'{shown(value)} has equal ends; for the whole day write "00:00-24:00"')
    return start, end


def is_open(windows: Iterable[Window], local: datetime) -> bool:
    return any(window.is_open(local.weekday(), local.time()) for window in windows)


def hours_text(windows: Iterable[Window]) -> str:
    """Return ``Mon-Fri 08:00-18:00, 20:00-24:00``; the days are omitted if they are every day."""
    by_days: dict[frozenset[int], list[str]] = {}
    for window in windows:
        is_whole_day = window.start == window.end
        end = "24:00" if window.end == MIDNIGHT else f"{window.end:%H:%M}"
        by_days.setdefault(window.days, []).append("" if is_whole_day else f"{window.start:%H:%M}-{end}")
    texts = []
    for days, hours in by_days.items():
        # A window of the whole day includes all others of these days.
        times = "" if "" in hours else ", ".join(hours)
        texts.append(f"{_days_text(days)} {times}".strip() or "every day")
    return ", ".join(texts)


def _days_text(days: frozenset[int]) -> str:
    if days == EVERY_DAY:
        return ""
    first_days = sorted(day for day in days if (day - 1) % 7 not in days)
    texts = []
    for first in first_days:
        length = next(count for count in range(1, 8) if (first + count) % 7 not in days)
        last = (first + length - 1) % 7
        texts.append(DAYS[first].title() if length == 1 else f"{DAYS[first].title()}-{DAYS[last].title()}")
    return ", ".join(texts)


def moment_text(moment: float, now: float, zone: tzinfo) -> str:
    """Return the local time of *moment*: ``18:00`` or ``Mon 08:00``. Add the date from a week after *now* on, and the
    offset from UTC in a repeated hour."""
    local, today = datetime.fromtimestamp(moment, zone), datetime.fromtimestamp(now, zone).date()
    days_ahead = (local.date() - today).days
    weekday = DAYS[local.weekday()].title()
    day = "" if not days_ahead else f"{weekday} " if days_ahead < 7 else f"{weekday} {local:%Y-%m-%d} "
    is_repeated = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
    return f"{day}{local:%H:%M}" + (f" {local.isoformat()[-6:]}" if is_repeated else "")


def may_coincide(first: Iterable[Window], second: Iterable[Window]) -> bool:
    """Return whether both are ever open at once. It is enough to test the moments at which either opens."""
    first, second = tuple(first), tuple(second)
    starts = {(day, window.start) for window in (*first, *second) for day in window.days}
    monday = datetime(2024, 1, 1)
    moments = [datetime.combine(monday + timedelta(days=day), start) for day, start in starts]
    return any(is_open(first, moment) and is_open(second, moment) for moment in moments)


def next_change(schedules: Collection[Sequence[Window]], zone: tzinfo, now: float) -> float | None:
    """Return when, after *now*, any of *schedules* next opens or closes; None if never."""
    if not schedules:
        return None

    def state(instant: float) -> list[bool]:
        local = datetime.fromtimestamp(instant, zone)
        return [is_open(windows, local) for windows in schedules]

    # A window may open or close at its ends on each day (twice in a repeated hour), and when the offset from UTC
    # changes. Its ends in a skipped hour have no effect.
    edges = {edge for window in chain.from_iterable(schedules) for edge in (window.start, window.end)} | {MIDNIGHT}
    days = [datetime.fromtimestamp(now, zone).date() + timedelta(days=ahead) for ahead in range(_HORIZON.days + 1)]
    ends = product(days, edges, (0, 1))
    moments = {datetime.combine(day, edge, zone).replace(fold=fold).timestamp() for day, edge, fold in ends}
    steps = range(int(now) // _STEP * _STEP, int(now + _HORIZON.total_seconds()) + _STEP, _STEP)
    offsets = [(moment, datetime.fromtimestamp(moment, zone).utcoffset()) for moment in steps]
    moments.update(float(moment) for (_, before), (moment, after) in pairwise(offsets) if before != after)
    present = state(now)
    return next((moment for moment in sorted(moments) if moment > now and state(moment) != present), None)
