"""Budgets: their periods, their steps, and the accounts of used volume. Pure."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from mptcp_throttler.policy.model import Budget, BudgetStep, Period

_NEIGHBOURS: Final = (-1, 0, 1, 2)


class Account(NamedTuple):
    """The used volume of a budget in one period, of one client or of all ("")."""

    budget: str
    client: str
    start: int
    """Start of the period, seconds since the epoch."""


class Usage(NamedTuple):
    """A change of the ledger, stored atomically."""

    added: Mapping[Account, int]
    """Bytes."""
    counters: Mapping[int, tuple[int, int]]
    """By socket cookie: the acked and received bytes that the accounts include."""
    closed: frozenset[int]
    """Socket cookies."""


def period(budget: Budget, zone: ZoneInfo, now: float) -> tuple[int, int]:
    """Return begin and end (exclusive) of the period that contains *now*, seconds since the epoch.

    A reset in an hour that a clock change skips or repeats happens once, at its first instant.
    """
    today = datetime.fromtimestamp(now, zone).date()
    resets = sorted({_instant(budget, zone, day) for day in _reset_days(budget, today)})
    begin = max(instant for instant in resets if instant <= now)
    return begin, min(instant for instant in resets if instant > now)


def _instant(budget: Budget, zone: ZoneInfo, day: date) -> int:
    return int(datetime.combine(day, budget.reset_time, zone).timestamp())


def _reset_days(budget: Budget, today: date) -> list[date]:
    """Return the reset days around *today*: at least one before and two after."""
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
    """Return the last step that *used* bytes have reached; None before the first step."""
    reached = [step for step in budget.steps if used >= step.after]
    return reached[-1] if reached else None


def next_step(budget: Budget, used: int) -> BudgetStep | None:
    """Return the first step that *used* bytes have not reached; None after the last step."""
    return next((step for step in budget.steps if used < step.after), None)
