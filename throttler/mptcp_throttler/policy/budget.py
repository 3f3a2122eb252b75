# SPDX-License-Identifier: GPL-2.0-or-later
"""Budgets: their periods, their steps, and the accounts of used volume; and grants to clients."""

from __future__ import annotations

import re
from bisect import bisect_right
from calendar import monthrange
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from mptcp_common.units import approximate_size
from mptcp_throttler.policy.model import Budget, BudgetStep
from mptcp_throttler.policy.values import Network, parse_prefix, parse_volume

_NEARBY_PERIODS: Final = (-1, 0, 1, 2)
_DURATION: Final = re.compile(r"([0-9]+) *([mhd])", re.ASCII)
_UNIT_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400}
MAX_GRANT_SECONDS: Final = 366 * 86_400  # Seconds. A permanent exemption belongs in the policy, as a rule.


class Account(NamedTuple):
    """Key of the used volume of a budget in one period, of one client or, with "" as client, of all clients."""

    budget: str
    client: str
    start: int  # start of the period, seconds since the epoch


class Usage(NamedTuple):
    """A change of the ledger, stored atomically."""

    added: Mapping[Account, int]  # bytes
    counters: Mapping[int, tuple[int, int]]  # by socket cookie: the acked and received bytes that the accounts include
    closed: frozenset[int]  # cookies of closed sockets


def period(budget: Budget, zone: ZoneInfo, now: float) -> tuple[int, int]:
    """Return start and end (exclusive) of the period that contains *now*, seconds since the epoch. A reset time that a
    clock change skips or repeats takes effect once, at the earliest matching instant."""
    today = datetime.fromtimestamp(now, zone).date()
    moments = (datetime.combine(day, budget.reset_time, zone) for day in _reset_days(budget, today))
    resets = sorted({int(moment.timestamp()) for moment in moments})
    next_index = bisect_right(resets, now)
    return resets[next_index - 1], resets[next_index]


def _reset_days(budget: Budget, today: date) -> list[date]:
    """Return the reset days around *today*: at least one before and two after."""
    if budget.period == "day":
        return [today + timedelta(days=step) for step in _NEARBY_PERIODS]
    if budget.period == "week":
        this_week = today - timedelta(days=(today.weekday() - budget.reset_day) % 7)
        return [this_week + timedelta(weeks=step) for step in _NEARBY_PERIODS]
    days = []
    for step in _NEARBY_PERIODS:
        years, month = divmod(today.month - 1 + step, 12)
        year = today.year + years
        days.append(date(year, month + 1, min(budget.reset_day, monthrange(year, month + 1)[1])))
    return days


def step_of(budget: Budget, used: int) -> BudgetStep | None:
    """Return the last step that *used* bytes have reached; None before the first step."""
    return next((step for step in reversed(budget.steps) if used >= step.after), None)


def next_step(budget: Budget, used: int) -> BudgetStep | None:
    """Return the first step that *used* bytes have not reached; None after the last step."""
    return next((step for step in budget.steps if used < step.after), None)


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stored grant: no caps for a client until a time, or more volume. Times are seconds since the epoch. A grant of
    volume is a record only: the command has already reduced the used volume in the ledger (``storage.Ledger``)."""

    client: str  # an address or a prefix; empty for a budget that all clients share
    since: int
    until: int
    by: str = ""
    why: str = ""
    budget: str = ""  # the budget that gets more volume; empty: no caps
    octets: int = 0

    @property
    def network(self) -> Network:
        return parse_prefix(self.client)

    def text(self) -> str:
        """Return ``no caps, by alice (a release party)``."""
        grant = f"{approximate_size(self.octets)} more of {self.budget}" if self.budget else "no caps"
        author = f", by {self.by}" if self.by else ""
        return f"{grant}{author}{f' ({self.why})' if self.why else ''}"


def parse_duration(text: str) -> int:
    """Return the seconds of ``90m``, ``2h`` or ``1d``. Raises ValueError."""
    match = _DURATION.fullmatch(text.strip())
    seconds = 0 if match is None else int(match[1]) * _UNIT_SECONDS[match[2]]
    if not 0 < seconds <= MAX_GRANT_SECONDS:
        raise ValueError(f'"{text}" is neither a time (90m, 2h or 1d; at most 366d) nor a volume ("+5 GB")')
    return seconds


def parse_extra_volume(text: str) -> int:
    """Return the bytes of ``+5 GB``. Raises ValueError."""
    octets = parse_volume(text.strip().removeprefix("+").strip())
    if not octets:
        raise ValueError(f'"{text}" is not a volume; write "+5 GB"')
    return octets
