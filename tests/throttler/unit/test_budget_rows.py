# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a summary's rows about budgets: per account and in total, at each step."""

from __future__ import annotations

import pytest
from short_budgets import policy, timestamp

from mptcp_throttler.policy.budget import Account, period
from mptcp_throttler.views.budgets import budget_rows, budgets_of

NOW = timestamp("2026-11-10 12:00")
MB = 1_000_000
PER_CLIENT = policy("per: client, period: month")
(BUDGET,) = PER_CLIENT.budgets.values()
START, END = period(BUDGET, PER_CLIENT.time_zone, NOW)


@pytest.mark.parametrize(
    ("used", "step", "next_step"),
    [
        (0, None, MB),
        (MB - 1, None, MB),
        (MB, MB, 3 * MB),
        (3 * MB - 1, MB, 3 * MB),
        (3 * MB, 3 * MB, None),
        (9 * MB, 3 * MB, None),
    ],
)
def test_account_is_used_up_at_the_first_step(used: int, step: int | None, next_step: int | None) -> None:
    """Defect: at the first step, the volume changed to the volume of the second step.

    So no account was used up before the last step.
    """
    volume, used_up = MB, int(used >= MB)
    (total,), (account,) = budget_rows(PER_CLIENT, {Account(BUDGET.name, "10.77.1.9", START): used}, NOW, 100)
    assert (account["used"], account["volume"], account["left"]) == (used, volume, max(0, volume - used))
    assert (account["step"], account["next_step"]) == (step, next_step)
    assert (account["client"], account["rule"], account["until"]) == ("10.77.1.9", "lte", END)
    assert (total["used"], total["volume"], total["used_up"], total["accounts"]) == (used, volume, used_up, 1)
    assert (total["first_volume"], total["until"]) == (MB, END)


def test_accounts_of_other_periods_and_clients_are_left_out() -> None:
    first, second, previous_period = (
        Account(BUDGET.name, client, start)
        for client, start in (("10.77.1.1", START), ("10.77.1.2", START), ("10.77.1.1", START - 1))
    )
    used = {previous_period: 5, first: 6, second: 7}
    (total,), accounts = budget_rows(PER_CLIENT, used, NOW, 100)
    assert total["accounts"] == 2
    assert [each["used"] for each in accounts] == [7, 6]
    assert [each["used"] for each in budgets_of(PER_CLIENT, used, NOW, {"10.77.1.1"})] == [6]


def test_shared_budget_has_an_account_before_it_is_used() -> None:
    ((total,), (account,)) = budget_rows(policy("per: path, period: month"), {}, NOW, 100)
    assert (account["client"], account["used"], account["volume"]) == (None, 0, MB)
    assert (total["accounts"], total["volume"]) == (1, MB)
    ((total,), accounts) = budget_rows(PER_CLIENT, {}, NOW, 100)
    assert (total["accounts"], total["volume"], accounts) == (0, 0, [])
