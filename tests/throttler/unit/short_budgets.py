# SPDX-License-Identifier: GPL-2.0-or-later
"""A policy with one budget, for tests of budgets."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.policy.model import Budget, Policy

ATHENS = ZoneInfo("Europe/Athens")
POLICY = """\
version: 1
time_zone: Europe/Athens
paths: {lte: {clients: [10.77.1.0/24]}}
rules:
  - name: lte
    paths: [lte]
    budget: {%s, steps: [{after: 1 MB, throttle: {rate: 1 Mbit/s}}, {after: 3 MB, throttle: {rate: 64 kbit/s}}]}
"""


def policy(budget: str = "period: month") -> Policy:
    return load_policy(POLICY % budget, "policy.yaml")


def budget(text: str) -> Budget:
    (rule,) = policy(text).rules
    assert rule.budget is not None
    return rule.budget


def timestamp(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ATHENS).timestamp()
