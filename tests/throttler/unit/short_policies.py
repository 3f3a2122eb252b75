# SPDX-License-Identifier: GPL-2.0-or-later
"""Builds short policies for tests."""

from __future__ import annotations

CAP = "throttle: {rate: 5mbit}"
BUDGET = "budget: {period: month, steps: [{after: 1 GB, throttle: {rate: 1mbit}}]}"
STEER = "steer: {mode: waterfall, order: [a, b]}"
NAMED = "budgets: {month: {period: month, steps: [{after: 1 GB, throttle: none}]}}\n"


def rules(*lines: str) -> str:
    """Return a policy with two paths, a and b, and one rule for each of *lines*, starting on line 4."""
    paths = "{a: {subflow: initial}, b: {subflow: joined}}"
    return f"version: 1\npaths: {paths}\nrules:\n" + "".join(f"- {{{line}}}\n" for line in lines)
