# SPDX-License-Identifier: GPL-2.0-or-later
"""Short policies that tests write down."""

from __future__ import annotations

CAP = "throttle: {rate: 5mbit}"
BUDGET = "budget: {period: month, steps: [{after: 1 GB, throttle: {rate: 1mbit}}]}"
STEER = "steer: {mode: waterfall, order: [a, b]}"
NAMED = "budgets: {month: {period: month, steps: [{after: 1 GB, throttle: none}]}}\n"


def rules(*lines: str) -> str:
    """Return a policy of two paths, a and b, and a rule for each of *lines*, from its fourth line on."""
    paths = "{a: {subflow: initial}, b: {subflow: joined}}"
    return f"version: 1\npaths: {paths}\nrules:\n" + "".join(f"- {{{line}}}\n" for line in lines)
