"""When a budget's period began and ends, which of its steps holds, and whose volume is whose. Pure."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from mptcp_throttler.policy.model import Budget, BudgetStep, Period

_NEIGHBOURS: Final = (-1, 0, 1, 2)


class Account(NamedTuple):
    """Whose bytes: a budget's, of one client or of all ("")."""

    budget: str
    client: str
    start: int
    """Of the period, seconds since the epoch."""


class Usage(NamedTuple):
    """What the ledger is to hear, all of it or nothing."""

    added: Mapping[Account, int]
    """Bytes."""
    counters: Mapping[int, tuple[int, int]]
    """Of each socket, by cookie, acked and received bytes that the accounts know of."""
    closed: frozenset[int]
    """Sockets that are gone."""


def period(budget: Budget, zone: ZoneInfo, now: float) -> tuple[int, int]:
    """Return begin and end of the period that holds *now*, seconds since the epoch; the end is not in it.

    A reset that falls into the hour which a change of the clock skips or repeats happens once, at its first instant.
    """
    today = datetime.fromtimestamp(now, zone).date()
    resets = sorted({_instant(budget, zone, day) for day in _reset_days(budget, today)})
    begin = max(instant for instant in resets if instant <= now)
    return begin, min(instant for instant in resets if instant > now)


def _instant(budget: Budget, zone: ZoneInfo, day: date) -> int:
    return int(datetime.combine(day, budget.reset_time, zone).timestamp())


def _reset_days(budget: Budget, today: date) -> list[date]:
    """Return the reset days around *today*, two before and two after at the least."""
    if budget.period is Period.DAY:
        return [today + timedelta(days=step) for step in _NEIGHBOURS]
    if budget.period is Period.WEEK:
        of_this = today - timedelta(days=(today.weekday() - budget.reset_day) % 7)
        return [of_this + timedelta(weeks=step) for step in _NEIGHBOURS]
    days = []
    for step in _NEIGHBOURS:
        years, month = divmod(today.month - 1 + step, 12)
        year = today.year + years
        days.append(date(year, month + 1, min(budget.reset_day, monthrange(year, month + 1)[1])))
    return days


def step_of(budget: Budget, used: int) -> BudgetStep | None:
    """Return the last step that *used* bytes have reached; None before the first."""
    reached = [step for step in budget.steps if used >= step.after]
    return reached[-1] if reached else None


def next_step(budget: Budget, used: int) -> BudgetStep | None:
    """Return the first step that *used* bytes have not reached; None after the last."""
    return next((step for step in budget.steps if used < step.after), None)
