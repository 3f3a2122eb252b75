# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the budget stage: the volume that a rule's connections have used, and the resulting cap."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
from metering import HOURS, LTE, MB, MONTHLY, STEPS, Host, policy, timestamp
from policy_values import replace

from mptcp_throttler.policy.budget import Account
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.policy.model import Budget, Policy, Share
from mptcp_throttler.policy.verdict import ScopeKey
from mptcp_throttler.stages import budget
from mptcp_throttler.stages.budget import FORGET_SECONDS, StepReached
from mptcp_throttler.stages.stage import Samples


def test_used_up_volume_applies_the_cap_of_its_step() -> None:
    host = Host()
    (verdict,) = host.connect(1, "10.77.1.2")
    assert (verdict.throttle, verdict.rule) == (None, None)
    assert verdict.reason == "budget of rule lte: under 50 % of 1.00 MB used until 2026-12-01 00:00 EET"
    host.carry(1, 900_000, upload=100_000)
    assert host.sweep() == {1}
    (verdict,) = host.decide(1)
    assert verdict.throttle is not None
    assert verdict.throttle.rate == 1_000_000
    assert verdict.rule is not None
    assert verdict.rule.name == "lte"
    assert verdict.reason == "rule lte caps what exceeds 1.00 MB until 2026-12-01 00:00 EET"
    host.carry(1, 5 * MB)
    assert host.sweep() == {1}
    (verdict,) = host.decide(1)
    assert verdict.throttle is not None
    assert verdict.throttle.rate == 64_000
    assert host.sweep() == set()


def test_reasons_change_only_at_certain_percentages() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    reasons = []
    for _ in range(20):
        host.carry(1, 50_000)
        if host.sweep():
            reasons.append(host.decide(1)[0].reason)
    until = "until 2026-12-01 00:00 EET"
    assert reasons == [
        *(f"budget of rule lte: over {percent} % of 1.00 MB used {until}" for percent in (50, 80, 95)),
        f"rule lte caps what exceeds 1.00 MB {until}",
    ]


def test_new_period_starts_from_zero_even_if_status_is_queried_first() -> None:
    """Defect: if `status` was queried between a period's end and the next count, the cap stayed in the kernel."""
    host = Host()
    host.connect(1, "10.77.1.2")
    host.connect(2, "10.77.1.3")
    for token in (1, 2):
        host.carry(token, 2 * MB)
    host.sweep()
    assert [host.decide(token)[0].throttle is not None for token in (1, 2)] == [True, True]
    host.now = timestamp("2026-12-01 00:00")
    assert host.decide(1)[0].throttle is None, "a decision before the stage advanced used the old period"
    assert set(host.stage.advance(host.now, host.clock)) == {1, 2}, "not both connections were decided again"
    assert host.decide(2)[0].throttle is None
    assert host.stage.advance(host.now, host.clock) == set()


@pytest.mark.usefixtures("manual_collection")
def test_accounts_of_past_periods_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: each account was in a reference cycle.

    The daemon never frees such cycles, so one account stayed for each client and period.
    """
    accounts: list[weakref.ref[budget.OpenAccount]] = []

    class RecordedAccount(budget.OpenAccount):
        def __init__(self, key: Account, budget: Budget) -> None:
            super().__init__(key, budget)
            accounts.append(weakref.ref(self))

    monkeypatch.setattr(budget, "OpenAccount", RecordedAccount)
    host = Host(policy(LTE % "period: day"))
    host.connect(1, "10.77.1.2")
    for _ in range(3):
        host.carry(1, 2 * MB)
        for token in host.sweep():
            host.decide(token)
        host.total_used()
        host.now += 86_400
    assert [each() is None for each in accounts] == [True, True, False]
    assert host.total_used() == {"lte": 6 * MB}


def test_usage_is_kept_if_the_clock_is_set_forward_and_corrected() -> None:
    """Defect: until the ledger was read again, the usage was 0, and no cap applied."""
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 2 * MB)
    host.sweep()
    host.stage.accounts.set_used((), {Account("lte", "10.77.1.9", int(timestamp("2026-11-01 00:00"))): 3 * MB})
    correct_time = host.now
    host.now = timestamp("2026-12-15 12:00")
    assert host.stage.advance(host.now, host.clock) == {1}
    host.carry(1, 100_000)
    host.sweep()
    assert host.decide(1)[0].throttle is None
    host.now = correct_time
    assert host.stage.advance(host.now, host.clock) == {1}
    (verdict,) = host.decide(1)
    assert verdict.throttle is not None
    assert verdict.throttle.rate == 1_000_000
    (other,) = host.connect(2, "10.77.1.9")
    assert other.throttle is not None, "usage in the ledger was ignored because its client had no connection"
    host.carry(1, 2 * MB)
    assert host.sweep() == {1}
    assert host.total_used() == {"lte": 4_100_000}
    assert host.stage.accounts.used == {
        Account("lte", "10.77.1.2", int(timestamp("2026-11-01 00:00"))): 4_000_000,
        Account("lte", "10.77.1.9", int(timestamp("2026-11-01 00:00"))): 3 * MB,
        Account("lte", "10.77.1.2", int(timestamp("2026-12-01 00:00"))): 100_000,
    }


def test_clients_at_different_steps_have_their_own_classes() -> None:
    """Defect: with the defaults `per: client` and `share: path`, clients changed the rate of one class alternately."""
    host = Host()
    host.connect(1, "10.77.1.2")
    host.connect(2, "10.77.1.3")
    host.carry(1, 1 * MB)
    host.carry(2, 3 * MB)
    host.sweep()
    (one,), (other,) = host.decide(1), host.decide(2)
    assert (one.scope, other.scope) == (
        ScopeKey("lte", Share.PATH, step=1 * MB),
        ScopeKey("lte", Share.PATH, step=3 * MB),
    )


@pytest.mark.parametrize(("share", "class_count"), [("client", 2), ("connection", 3), ("path", 1)])
def test_budget_cap_is_shared_according_to_its_share_key(share: str, class_count: int) -> None:
    steps = f"steps: [{{after: 0, throttle: {{rate: 1 Mbit/s, share: {share}}}}}]"
    host = Host(policy(f"- {{name: lte, paths: [lte], budget: {{period: day, {steps}}}}}\n"))
    found = [host.connect(1, "10.77.1.2"), host.connect(2, "10.77.1.3"), host.connect(3, "10.77.1.3")]
    assert len({verdict.scope for (verdict,) in found}) == class_count


def test_bytes_after_a_rules_hours_are_not_counted() -> None:
    """Defect: a metered subflow stayed metered until it ended.

    The bytes up to the first sample after the hours still count.
    """
    host = Host(policy(HOURS), now="2026-11-20 17:59")
    host.connect(1, "10.77.1.2")
    host.carry(1, 1000)
    host.sweep(30)
    host.carry(1, 100)
    host.now += 60
    host.decide(1)
    host.carry(1, 10)
    host.sweep()
    host.carry(1, 5000)
    host.sweep()
    assert host.total_used() == {"by-day": 1110}
    assert not host.stage.watched()


def test_bytes_before_a_rules_hours_are_not_counted() -> None:
    host = Host(policy(HOURS), now="2026-11-20 07:59")
    host.connect(1, "10.77.1.2")
    host.carry(1, 5000)
    host.sweep(60)
    host.decide(1)
    host.carry(1, 100)
    host.sweep()
    host.carry(1, 10)
    host.sweep()
    assert host.total_used() == {"by-day": 10}


NO_BUDGET = policy("- {name: cap, throttle: {rate: 1mbit}}\n")


def test_budget_added_by_a_reload_counts_only_later_bytes() -> None:
    host = Host(NO_BUDGET)
    host.connect(1, "10.77.1.2")
    host.carry(1, 5000)
    host.now += 5
    host.clock += 5
    host.stage.advance(host.now, host.clock)
    host.policy = MONTHLY
    host.stage.set_policy(MONTHLY)
    host.decide(1)
    host.now += 1
    host.connect(2, "10.77.1.3")
    host.carry(2, 300)
    host.sweep()
    host.carry(1, 20)
    host.sweep()
    assert host.total_used() == {"lte": 320}
    host.stage.set_policy(NO_BUDGET)
    host.carry(1, 1)
    host.sweep()
    host.carry(1, 9000)
    host.sweep()
    assert host.total_used() == {"lte": 321}
    assert not host.stage.watched()


@pytest.mark.parametrize("closed", ["before the next sample", "before the reload", "unreported"])
def test_no_socket_is_watched_for_a_budget_that_a_reload_removed(closed: str) -> None:
    """Defect: a socket that closed before its next sample stayed watched permanently, with a sweep every second."""
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 300)
    host.sweep()
    host.carry(1, 40)
    (socket,) = host.sockets.values()
    if closed == "before the reload":
        host.report(socket)
    host.policy = NO_BUDGET
    host.stage.set_policy(NO_BUDGET)
    host.decide(1)
    host.close(1, report=closed == "before the next sample")
    host.sweep()
    host.sweep(FORGET_SECONDS + 1)
    assert not host.stage.watched()
    assert host.total_used() == {"lte": 300 if closed == "unreported" else 340}


def test_budget_removed_and_added_before_a_sample_continues_to_count() -> None:
    host = Host()
    host.connect(1, "10.77.1.2")
    for each in (NO_BUDGET, MONTHLY):
        host.policy = each
        host.stage.set_policy(each)
        host.decide(1)
    host.carry(1, 300)
    host.sweep()
    host.sockets.clear()
    host.sweep()
    host.sweep(FORGET_SECONDS + 1)
    assert host.stage.watched(), "the socket of an open connection is no longer watched"
    assert host.total_used() == {"lte": 300}


EXAMPLE = Path(__file__).parents[3] / "conf/examples/office-hours-and-volume.yaml"


@pytest.mark.parametrize("order", [1, -1], ids=["cap first", "budget first"])
def test_office_hours_cap_and_monthly_volume_apply_together(order: int) -> None:
    """Defect: only the first of the two rules was applied."""
    example = load_policy(EXAMPLE.read_text(), EXAMPLE.name)
    host = Host(replace(example, rules=example.rules[::order]), now="2026-11-20 12:00")
    verdict, other = host.connect(1, "10.77.3.2", "10.77.2.2")
    assert other.reason == "no rule matches"
    assert verdict.throttle is not None
    assert verdict.throttle.rate == 2_000_000
    assert verdict.reason == (
        "rule lte-by-day caps path lte at 2 Mbit/s: 2 subflows active; "
        "budget of rule lte-month: under 50 % of 5.00 GB used until 2026-12-01 00:00 EET"
    )
    host.carry(1, 4_999 * MB)
    host.carry(1, 4_999 * MB, index=1)
    host.sweep()
    assert host.total_used() == {"lte-month": 4_999 * MB}, (
        "bytes in office hours were not counted, or the other path's bytes were"
    )
    host.carry(1, 1 * MB)
    assert host.sweep() == {1}
    verdict, _ = host.decide(1)
    assert verdict.throttle is not None
    assert verdict.throttle.rate == 512_000
    assert verdict.rule is not None
    assert (verdict.rule.name, verdict.guarded) == ("lte-month", False)
    assert verdict.reason == (
        "rule lte-month caps what exceeds 5.00 GB until 2026-12-01 00:00 EET; "
        "tighter than the 2 Mbit/s of rule lte-by-day"
    )
    host.now = timestamp("2026-11-20 20:00")
    verdict, _ = host.decide(1)
    assert verdict.throttle is not None
    assert verdict.throttle.rate == 512_000
    assert verdict.reason == (
        "rule lte-by-day does not apply: outside its hours; "
        "rule lte-month caps what exceeds 5.00 GB until 2026-12-01 00:00 EET"
    )


def test_cap_of_a_rule_applies_if_it_is_lower_than_the_budgets_cap() -> None:
    rules = "- {name: cap, paths: [lte], when: {min_subflows: 1}, throttle: {rate: 100 kbit/s}, lift_last: false}\n"
    host = Host(policy(rules + LTE % "period: month"))
    host.connect(1, "10.77.1.2")
    host.carry(1, 2 * MB)
    host.sweep()
    (verdict,) = host.decide(1)
    assert verdict.scope == ScopeKey("cap", Share.PATH)
    assert verdict.reason.endswith(
        "; tighter than the budget of rule lte, 1 Mbit/s above 1.00 MB until 2026-12-01 00:00 EET"
    )
    assert (verdict.guarded, verdict.bound) == (True, 1_000_000), "the budget's cap does not bound the verdict"
    host.carry(1, 2 * MB)
    host.sweep()
    assert host.decide(1)[0].scope == ScopeKey("lte", Share.PATH, step=3 * MB)


def test_exemption_from_caps_does_not_exempt_from_budgets() -> None:
    rules = "- {name: ops, when: {clients: [10.77.1.9]}, throttle: none%s}\n" + LTE % "period: month"
    host = Host(policy(rules % ""))
    (verdict,) = host.connect(1, "10.77.1.9")
    assert verdict.reason.startswith("exempted by rule ops; budget of rule lte: under 50 %")
    host = Host(policy(rules % ", budget: none"))
    (verdict,) = host.connect(1, "10.77.1.9")
    assert verdict.reason == "exempted by rule ops; exempted from budgets by rule ops"
    host.carry(1, 5 * MB)
    host.sweep()
    assert host.total_used() == {}


BUDGETS = f"budgets: {{month: {{period: month, per: path, {STEPS}}}}}\n"
SHARED = """\
- {name: lte, paths: [lte], budget: month}
- {name: wifi, paths: [wifi], budget: month, direction: both}
"""


def test_several_rules_count_into_one_budget() -> None:
    host = Host(policy(SHARED, BUDGETS))
    host.connect(1, "10.77.1.2", "10.77.2.2")
    host.carry(1, 600_000)
    host.carry(1, 600_000, index=1)
    assert host.sweep() == {1}
    lte, wifi, upload = [verdict for verdict in host.decide(1) if verdict.throttle is not None]
    assert lte.scope == wifi.scope == ScopeKey("lte", Share.PATH, step=1 * MB)
    assert upload.scope is not None
    assert upload.scope.direction is not lte.direction
    assert wifi.reason == "budget month caps what exceeds 1.00 MB until 2026-12-01 00:00 EET"
    assert upload.reason.startswith("upload: budget month caps")
    assert wifi.rule is not None
    assert wifi.rule.name == "wifi"
    assert host.total_used() == {"month": 1_200_000}, "bytes counted for each verdict that names the budget"


def test_dry_run_counts_bytes_and_reports_the_cap_that_it_would_apply() -> None:
    host = Host(replace(MONTHLY, dry_run=True))
    host.connect(1, "10.77.1.2")
    host.carry(1, 2 * MB)
    host.sweep()
    assert host.decide(1)[0].reason.startswith("rule lte would cap what exceeds 1.00 MB")


@pytest.mark.parametrize(("new", "reports"), [(MONTHLY, 1), (NO_BUDGET, 0)], ids=["same budget", "no budget"])
def test_step_reached_while_a_policy_is_loaded_is_reported_if_it_still_exists(new: Policy, reports: int) -> None:
    """Defect: the daemon ended with a KeyError.

    It did not know the periods of a budget that was in only one of the two policies.
    """
    host = Host()
    host.connect(1, "10.77.1.2")
    host.carry(1, 2 * MB)
    sweep = host.stage.observe(Samples(host.clock, dict(host.sockets), True))
    next(sweep)
    host.stage.set_policy(new)
    actions = [action for outcome in sweep for action in outcome.actions]
    assert [type(each) for each in actions] == [StepReached] * reports


def test_bytes_across_a_period_end_are_counted_before_the_first_decision() -> None:
    """Defect: after a reload, the daemon ended with a KeyError if a socket carried bytes past the end of a period."""
    host = Host(policy(LTE % "period: day"), now="2026-11-20 23:59")
    host.connect(1, "10.77.1.2")
    host.carry(1, 1000)
    host.sweep()
    host.carry(1, 500)
    (socket,) = host.sockets.values()
    host.close(1, report=False)
    host.now += 60
    host.stage.advance(host.now, host.clock)
    host.stage.set_policy(host.policy)
    host.report(socket)
    added = {account.start: octets for account, octets in host.stage.sockets.take_pending().added.items()}
    assert added == {timestamp("2026-11-20 00:00"): 1000, timestamp("2026-11-21 00:00"): 500}
