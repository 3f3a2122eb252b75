# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that three typical first policies of operators have the intended effect."""

from __future__ import annotations

from datetime import datetime
from ipaddress import ip_address
from zoneinfo import ZoneInfo

import pytest

from mptcp_throttler.mptcp.model import Connection, FourTuple, Subflow
from mptcp_throttler.policy.evaluate import evaluate
from mptcp_throttler.policy.load import check_policy
from mptcp_throttler.policy.model import Direction, Policy
from mptcp_throttler.policy.verdict import Verdict

HEAD = """\
version: 1
time_zone: Europe/Athens
paths:
  dsl: {clients: [10.1.0.0/16]}
  lte: {clients: [10.2.0.0/16]}
rules:
"""
OVERFLOW = """\
  - name: dsl-first
    steer: {mode: waterfall, order: [dsl, lte]}
  - name: lte-month
    paths: [lte]
    budget: {period: month, steps: [{after: 20 GB, throttle: {rate: 512 kbit/s}}]}
"""
CUSTOMERS = """\
  - name: vip
    when: {clients: [10.2.9.0/24]}
    throttle: none
  - name: customers
    paths: [lte]
    when: {days: [mon-fri], hours: ["08:00-18:00"]}
    direction: both
    throttle: {rate: 4 Mbit/s, share: client}
"""
UPLOADS = """\
  - {name: lte-up, paths: [lte], direction: up, always: true, throttle: {rate: 1 Mbit/s}}
"""
NOON = datetime(2026, 11, 27, 12, tzinfo=ZoneInfo("Europe/Athens")).timestamp()
"""Noon on a Friday."""
NIGHT = NOON + 10 * 3600


def policy(rules: str) -> Policy:
    checked = check_policy(HEAD + rules, "policy.yaml")
    assert checked.policy is not None
    assert not checked.problems
    assert not checked.notes
    return checked.policy


def verdicts(rules: str, now: float, *clients: str) -> dict[tuple[str, Direction], Verdict]:
    """Return the verdicts about a connection with a subflow from each of *clients*, by address and direction."""
    proxy = ip_address("192.0.2.1").packed
    subflows = [
        Subflow(FourTuple(proxy, 3128, ip_address(each).packed, 40_000), index == 0, 0, index, False, None, now)
        for index, each in enumerate(clients)
    ]
    found = evaluate(policy(rules), Connection(1, tuple(subflows), now), now)
    return {(str(ip_address(each.four_tuple.remote)), each.direction): each for each in found}


def test_dsl_before_lte_with_a_monthly_lte_volume() -> None:
    both = verdicts(OVERFLOW, NOON, "10.1.0.5", "10.2.0.5")
    assert {each.steer_path for each in both.values()} == {"dsl", "lte"}
    lte = both["10.2.0.5", Direction.DOWN]
    assert lte.budget is not None
    assert lte.throttle is None, "a cap applies before the volume is used up"
    assert both["10.1.0.5", Direction.DOWN].budget is None


@pytest.mark.parametrize("direction", list(Direction))
def test_each_customer_is_capped_in_office_hours_and_vips_are_not(direction: Direction) -> None:
    customer = "10.2.0.5", direction
    capped = verdicts(CUSTOMERS, NOON, "10.1.0.5", "10.2.0.5")[customer]
    assert capped.throttle is not None
    assert capped.scope is not None
    assert capped.scope.member == ip_address("10.2.0.5").packed
    assert verdicts(CUSTOMERS, NIGHT, "10.1.0.5", "10.2.0.5")[customer].throttle is None
    assert verdicts(CUSTOMERS, NOON, "10.1.0.5", "10.2.9.5")["10.2.9.5", direction].throttle is None


def test_uploads_on_lte_are_always_capped() -> None:
    verdicts_of_lte = verdicts(UPLOADS, NOON, "10.2.0.5")
    assert verdicts_of_lte["10.2.0.5", Direction.UP].throttle is not None, (
        "the cap does not apply on the last usable path"
    )
    assert verdicts_of_lte["10.2.0.5", Direction.DOWN].throttle is None
    rule = policy(UPLOADS).rules[0]
    assert not rule.guard
