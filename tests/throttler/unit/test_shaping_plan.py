# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the planner, which turns verdicts into classes and entries."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_values import a_path, a_policy, a_rule, a_throttle, replace

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Direction, Onset, Policy, Rule, Share, Throttle
from mptcp_throttler.policy.verdict import ScopeKey, Verdict
from mptcp_throttler.shaping import cap as cap_module
from mptcp_throttler.shaping import plan
from mptcp_throttler.shaping.cap import PlanError
from mptcp_throttler.shaping.model import FIRST_MINOR, ClassSpec, Ownership, Target, class_spec, gso_limit
from mptcp_throttler.shaping.plan import DRAIN_SECONDS, IDLE_SECONDS, Planner

NOW = 1_700_000_000.0
PROXY = b"\x0a\x00\x00\x01"


def throttle(rate: int = 5_000_000, share: Share = Share.PATH, ceil: int | None = None) -> Throttle:
    return a_throttle(rate, ceil or rate, None, share)


def policy(*rules: Rule) -> Policy:
    return a_policy((a_path("any", subflow="initial"),), rules, ZoneInfo("UTC"))


def rule(name: str = "cap", cap: Throttle | None = None) -> Rule:
    return a_rule(name, None, cap or throttle())


def subflow(number: int) -> FourTuple:
    return FourTuple(PROXY, 3128, b"\x0a\x01" + number.to_bytes(2, "big"), 40000)


def verdict(number: int, capping_rule: Rule, token: int = 1) -> Verdict:
    assert capping_rule.throttle is not None
    member = {Share.PATH: None, Share.CLIENT: subflow(number).remote, Share.CONNECTION: token}[
        capping_rule.throttle.share
    ]
    return Verdict(
        subflow(number),
        "any",
        capping_rule,
        ScopeKey(capping_rule.name, capping_rule.throttle.share, member),
        capping_rule.throttle,
        "",
    )


def uncapped(number: int, capping_rule: Rule) -> Verdict:
    return replace(verdict(number, capping_rule), scope=None, throttle=None)


def planner_for(*rules: Rule) -> Planner:
    planner = Planner(Ownership())
    planner.set_policy(policy(*rules))
    planner.prepare_path_classes(NOW)
    return planner


def test_class_of_a_path_cap_exists_before_its_first_subflow() -> None:
    planner = planner_for(rule())
    assert [spec.rate for spec in planner.classes.desired.values()] == [5_000_000]
    assert not planner.entries.desired


def test_subflows_of_a_path_cap_share_the_class_and_mark() -> None:
    first, second = rule("first"), rule("second")
    planner = planner_for(first, second)
    planner.set_verdicts(1, [verdict(1, second)], NOW)
    planner.set_verdicts(2, [verdict(2, second)], NOW)
    one, other = planner.entries.desired[subflow(1)], planner.entries.desired[subflow(2)]
    assert one == other == Target(one.minor, 0x20000)
    assert one.minor in planner.classes.desired


@pytest.mark.parametrize(("share", "class_count"), [(Share.PATH, 1), (Share.CLIENT, 3), (Share.CONNECTION, 2)])
def test_share_determines_the_number_of_classes(share: Share, class_count: int) -> None:
    shared = rule(cap=throttle(share=share))
    planner = planner_for(shared)
    planner.set_verdicts(1, [verdict(1, shared, 1), verdict(2, shared, 1)], NOW)
    planner.set_verdicts(2, [verdict(3, shared, 2)], NOW)
    assert len(planner.classes.desired) == class_count


def test_subflow_that_loses_its_cap_loses_its_entry() -> None:
    cap = rule()
    planner = planner_for(cap)
    planner.set_verdicts(1, [verdict(1, cap), verdict(2, cap)], NOW)
    planner.set_verdicts(1, [uncapped(1, cap), verdict(2, cap)], NOW)
    assert planner.entries.desired.keys() == {subflow(2)}


def test_entry_of_an_ended_subflow_stays_until_its_data_are_sent() -> None:
    cap = rule(cap=throttle(share=Share.CLIENT))
    planner = planner_for(cap)
    planner.set_verdicts(1, [verdict(1, cap), verdict(2, cap)], NOW)
    planner.set_verdicts(1, [verdict(2, cap)], NOW)
    planner.set_verdicts(1, (), NOW + 1)
    planner.expire(NOW + DRAIN_SECONDS - 0.1)
    assert planner.entries.desired.keys() == {subflow(1), subflow(2)}
    assert len(planner.classes.desired) == 2
    planner.expire(NOW + DRAIN_SECONDS)
    assert planner.entries.desired.keys() == {subflow(2)}
    planner.expire(NOW + DRAIN_SECONDS + 1)
    assert not planner.entries.desired
    planner.expire(NOW + DRAIN_SECONDS + 1 + IDLE_SECONDS)
    assert not planner.classes.desired


def test_subflow_at_another_port_gets_no_entry() -> None:
    """Defect: such a subflow got an entry, although no set exists for its port.

    With iptables, the kernel refused this entry at each attempt.
    """
    cap = rule()
    planner = planner_for(cap)
    at_other_port = replace(verdict(2, cap), four_tuple=subflow(2)._replace(local_port=4000))
    planner.set_verdicts(1, [verdict(1, cap), at_other_port], NOW)
    assert planner.entries.desired.keys() == {subflow(1)}
    planner.set_verdicts(1, [at_other_port], NOW)
    planner.expire(NOW + DRAIN_SECONDS)
    assert not planner.entries.desired


def test_number_of_entries_of_ended_subflows_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MAX_DRAINING", 2)
    cap = rule()
    planner = planner_for(cap)
    planner.set_verdicts(1, [verdict(1, cap), verdict(2, cap), verdict(3, cap)], NOW)
    planner.set_verdicts(1, (), NOW)
    assert len(planner.entries.desired) == 2


def test_uncapped_connection_on_a_reused_port_has_no_entry() -> None:
    cap = rule()
    planner = planner_for(cap)
    planner.set_verdicts(1, [verdict(1, cap)], NOW)
    planner.set_verdicts(1, (), NOW)
    planner.set_verdicts(2, [uncapped(1, cap)], NOW)
    assert not planner.entries.desired
    planner.expire(NOW + DRAIN_SECONDS)


def test_reused_port_gets_the_cap_of_the_newer_connection() -> None:
    cap, other = rule(), rule("other", throttle(1_000_000))
    planner = planner_for(cap, other)
    planner.set_verdicts(1, [verdict(1, cap)], NOW)
    before = planner.entries.desired[subflow(1)]
    planner.set_verdicts(1, (), NOW)
    planner.set_verdicts(2, [verdict(1, other)], NOW)
    after = planner.entries.desired[subflow(1)]
    assert after != before
    planner.expire(NOW + DRAIN_SECONDS)
    assert planner.entries.desired == {subflow(1): after}


def test_reused_port_keeps_its_entry_when_the_older_connection_ends() -> None:
    cap = rule()
    planner = planner_for(cap)
    planner.set_verdicts(1, [verdict(1, cap)], NOW)
    planner.set_verdicts(2, [verdict(1, cap)], NOW)
    planner.set_verdicts(1, (), NOW)
    assert planner.entries.desired.keys() == {subflow(1)}


def test_idle_classes_of_clients_are_removed_and_classes_of_paths_kept() -> None:
    path, client = rule("path"), rule("client", throttle(share=Share.CLIENT))
    planner = planner_for(path, client)
    path_classes = set(planner.classes.desired)
    planner.set_verdicts(1, [verdict(1, client)], NOW)
    planner.set_verdicts(1, (), NOW)
    planner.expire(NOW + IDLE_SECONDS - 1)
    assert len(planner.classes.desired) == 2
    planner.expire(NOW + IDLE_SECONDS)
    assert planner.classes.desired.keys() == path_classes


def test_class_gets_a_new_rate_and_is_deleted_with_its_rule() -> None:
    cap = rule()
    planner = planner_for(cap)
    planner.set_verdicts(1, [verdict(1, cap)], NOW)
    before = planner.entries.desired[subflow(1)]
    faster = rule(cap=throttle(8_000_000))
    planner.set_policy(policy(faster))
    planner.set_verdicts(1, [verdict(1, faster)], NOW)
    assert planner.entries.desired[subflow(1)] == before
    assert planner.classes.desired[before.minor].rate == 8_000_000
    planner.set_policy(policy())
    planner.set_verdicts(1, [uncapped(1, cap)], NOW)
    planner.expire(NOW)
    assert not planner.classes.desired
    assert not planner.entries.desired


def test_new_planner_adopts_existing_classes_and_entries() -> None:
    cap = rule(cap=throttle(share=Share.CLIENT))
    classes = {minor: class_spec(minor, throttle()) for minor in (0x33, 0x44, 0x55)}
    entries = {subflow(1): Target(0x44, 0x10000), subflow(2): Target(0x33, 0x10000), subflow(9): Target(0x55, 0x10000)}
    planner = Planner(Ownership())
    planner.adopt(classes, entries)
    planner.set_policy(policy(cap))
    planner.set_verdicts(1, [verdict(1, cap), verdict(2, cap)], NOW)
    planner.prepare_path_classes(NOW)
    assert not planner.classes.upserts
    assert not planner.entries.upserts
    assert planner.entries.deletes == {subflow(9)}
    assert planner.classes.deletes == {0x55}


def test_lack_of_classes_raises_and_changes_no_other_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cap_module, "LAST_MINOR", FIRST_MINOR + 1)
    cap = rule(cap=throttle(share=Share.CLIENT))
    planner = planner_for(cap)
    planner.set_verdicts(1, [verdict(1, cap), verdict(2, cap)], NOW)
    with pytest.raises(PlanError, match="2 caps are in use"):
        planner.set_verdicts(2, [verdict(1, cap), verdict(3, cap)], NOW)
    assert planner.entries.desired.keys() == {subflow(1), subflow(2)}
    planner.set_verdicts(1, (), NOW)
    planner.set_verdicts(2, (), NOW)
    planner.expire(NOW + DRAIN_SECONDS)
    assert not planner.entries.desired


def test_lack_of_classes_changes_no_cap_of_the_same_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Defect: the verdicts after a verdict without a class were skipped, and their subflows lost their caps."""
    monkeypatch.setattr(cap_module, "LAST_MINOR", FIRST_MINOR + 1)
    shared, per_client = rule("shared"), rule("own", throttle(1_000_000, Share.CLIENT))
    planner = planner_for(shared, per_client)
    planner.set_verdicts(1, [verdict(1, per_client)], NOW)
    planner.set_verdicts(2, [verdict(2, shared), verdict(3, shared)], NOW)
    before = dict(planner.entries.desired)
    for _ in range(2):
        with pytest.raises(PlanError):
            planner.set_verdicts(2, [verdict(2, per_client), verdict(4, per_client), verdict(3, shared)], NOW)
        assert planner.entries.desired == before
        assert planner.caps[ScopeKey("shared", Share.PATH)].users.keys() == {subflow(2), subflow(3)}
    planner.set_verdicts(1, (), NOW)
    planner.expire(NOW + DRAIN_SECONDS)
    planner.expire(NOW + DRAIN_SECONDS + IDLE_SECONDS)
    planner.set_verdicts(2, [verdict(2, per_client), verdict(3, shared)], NOW + 100)
    assert planner.entries.desired[subflow(2)].minor != planner.entries.desired[subflow(3)].minor


def test_reload_to_a_path_cap_works_when_client_caps_use_all_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Defect: after the reload, all clients kept their old caps.

    Newer clients had no cap until their next decision.
    """
    size = 2 * cap_module.PATH_RESERVE
    monkeypatch.setattr(cap_module, "LAST_MINOR", FIRST_MINOR + size - 1)
    client, path = rule(cap=throttle(share=Share.CLIENT)), rule(cap=throttle(1_000_000))
    planner = planner_for(client)
    for number in range(size):
        if number < size - 2:
            planner.set_verdicts(number, [verdict(number, client)], NOW)
        else:
            with pytest.raises(PlanError, match=f"{size - 2} caps are in use"):
                planner.set_verdicts(number, [verdict(number, client)], NOW)
    planner.set_policy(policy(path))
    for number in range(size):
        planner.set_verdicts(number, [verdict(number, path)], NOW)
    planner.expire(NOW)
    (spec,) = planner.classes.desired.values()
    assert spec.rate == 1_000_000
    assert len(planner.entries.desired) == size
    planner.set_policy(policy(client))
    planner.set_verdicts(1, [verdict(1, client)], NOW)


@pytest.mark.parametrize("capped", [True, False])
@pytest.mark.parametrize("older_ends_first", [True, False])
def test_reused_port_follows_the_newer_connection_in_any_order(capped: bool, older_ends_first: bool) -> None:
    """Defect: a newer connection on a reused port was mistaken for the older connection.

    If the newer connection should have no cap, it kept the older one's cap while it was busy. If it should have the
    same cap, the planner did not report that the socket had changed.
    """
    cap = rule()
    planner = planner_for(cap)
    planner.soft_caps = True
    planner.set_verdicts(1, [verdict(1, cap)], NOW, {subflow(1)})
    planner.take_changed_subflows(10)
    newer = [verdict(1, cap) if capped else uncapped(1, cap)]
    if older_ends_first:
        planner.set_verdicts(1, (), NOW)
    planner.set_verdicts(2, newer, NOW, {subflow(1)})
    planner.set_verdicts(1, (), NOW)
    assert (subflow(1) in planner.entries.desired) is capped
    assert subflow(1) not in planner.draining
    assert planner.take_changed_subflows(10) == [subflow(1)]


def test_reused_port_without_a_class_for_the_newer_connection_has_no_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the newer connection had the cap of the older one while it was busy."""
    monkeypatch.setattr(cap_module, "LAST_MINOR", FIRST_MINOR)
    per_connection, other = (
        rule("own", throttle(share=Share.CONNECTION)),
        rule("other", throttle(1_000_000, Share.CONNECTION)),
    )
    planner = planner_for(per_connection, other)
    planner.set_verdicts(1, [verdict(1, per_connection)], NOW)
    with pytest.raises(PlanError):
        planner.set_verdicts(2, [verdict(1, other, 2)], NOW)
    planner.set_verdicts(1, (), NOW)
    assert not planner.entries.desired
    assert subflow(1) not in planner.draining


def test_immediate_cap_after_a_reload_replaces_a_transition() -> None:
    """Defect: subflows in a transition never got their cap.

    The planner waited for the end of the transition, but no transition was running any longer.
    """
    soft = rule()
    planner = planner_for(soft)
    planner.soft_caps = True
    planner.set_verdicts(1, [verdict(1, soft)], NOW)
    assert subflow(1) in planner.pending()
    at_once = rule(cap=replace(throttle(), landing=Onset.IMMEDIATE))
    planner.set_policy(policy(at_once))
    planner.set_verdicts(1, [verdict(1, at_once)], NOW)
    assert planner.entries.desired.keys() == {subflow(1)}
    assert not planner.pending()


def test_no_class_has_a_number_that_conflicts_with_the_root_handle() -> None:
    cap = rule(cap=throttle(share=Share.CLIENT))
    planner = Planner(Ownership(htb_major=FIRST_MINOR))
    planner.set_policy(policy(cap))
    planner.set_verdicts(1, [verdict(1, cap)], NOW)
    assert planner.classes.desired.keys() == {FIRST_MINOR + 1}


@given(st.integers(8, 10_000_000_000), st.integers(1, 10))
def test_class_parameters_are_valid_and_not_below_the_requested_rate(rate: int, factor: int) -> None:
    spec = class_spec(0x10, throttle(rate, ceil=rate * factor))
    assert rate <= spec.rate < rate + 8
    assert spec.rate % 8 == spec.ceil % 8 == 0
    assert spec.ceil >= spec.rate
    assert spec.burst >= 1514
    assert 1000 <= spec.quantum <= 200_000  # For other values, sch_htb logs a warning.
    assert 4 <= spec.queue_packets <= 1000
    assert spec.same_as(spec)
    assert not spec.same_as(replace(spec, rate=spec.rate + 8))


def test_queue_of_a_shared_cap_grows_with_its_subflows_in_steps() -> None:
    cap = rule()
    planner = planner_for(cap)
    (minor,) = planner.classes.desired
    lengths = []
    for number in range(1, 101):
        planner.set_verdicts(number, [verdict(number, cap)], NOW)
        lengths.append(planner.classes.desired[minor].queue_packets)
    assert all(length >= number for number, length in enumerate(lengths, 1))
    assert len(set(lengths)) == 6
    for number in range(1, 101):
        planner.set_verdicts(number, (), NOW)
    assert planner.classes.desired[minor].queue_packets == lengths[0] == 4


def test_gso_limit_follows_the_lowest_cap_but_never_grows() -> None:
    assert gso_limit(policy(), 65536) == 65536
    assert gso_limit(policy(rule(cap=throttle(1_000_000))), 65536) == 3028
    assert gso_limit(policy(rule(cap=throttle(5_000_000)), rule("b", throttle(50_000_000))), 65536) == 3125
    assert gso_limit(policy(rule(cap=throttle(1_000_000_000))), 32768) == 32768


SPEC = ClassSpec(1, 8, 8, 3000, 3000, 1514, 16)


def test_bursts_may_be_rounded_by_the_kernel() -> None:
    assert SPEC.same_as(replace(SPEC, burst=2999))
    assert not SPEC.same_as(replace(SPEC, burst=2000))


def test_planner_uses_only_verdicts_of_its_direction() -> None:
    both = replace(rule(), direction=frozenset(Direction))
    down, up = Planner(Ownership()), Planner(Ownership(), Direction.UP)
    upload_verdict = replace(
        verdict(1, both), direction=Direction.UP, scope=ScopeKey("cap", Share.PATH, None, Direction.UP)
    )
    for planner in (down, up):
        planner.set_policy(policy(both))
        planner.prepare_path_classes(NOW)
        planner.set_verdicts(1, [verdict(1, both), verdict(2, both), upload_verdict], NOW)
    assert set(down.entries.desired) == {subflow(1), subflow(2)}
    assert set(up.entries.desired) == {subflow(1)}
    assert [len(planner.classes.desired) for planner in (down, up)] == [1, 1]


def test_rule_for_downloads_creates_no_class_for_uploads() -> None:
    planner = Planner(Ownership(), Direction.UP)
    planner.set_policy(policy(rule()))
    planner.prepare_path_classes(NOW)
    assert not planner.classes.desired


def test_gso_limit_depends_only_on_download_caps() -> None:
    assert gso_limit(policy(replace(rule(), direction=frozenset({Direction.UP}))), 65536) == 65536


def test_budget_step_and_cap_of_its_rule_have_different_classes() -> None:
    cap = rule()
    planner = planner_for(cap)
    step = Verdict(subflow(1), "any", cap, ScopeKey("cap", Share.PATH, step=1000), throttle(512_000), "")
    planner.set_verdicts(1, [step], NOW)
    planner.set_policy(policy(cap))
    assert sorted(spec.rate for spec in planner.classes.desired.values()) == [512_000, 5_000_000]
    planner.set_verdicts(1, (), NOW)
    planner.expire(NOW + DRAIN_SECONDS)
    assert [spec.rate for spec in planner.classes.desired.values()] == [5_000_000]


def test_reload_does_not_change_load_balancing_caps() -> None:
    cap = rule()
    planner = planner_for(cap)
    scope = ScopeKey(cap.name, Share.CONNECTION, (1, "a"))
    balancing = Verdict(subflow(1), "a", cap, scope, throttle(300_000), "balanced")
    planner.set_verdicts(1, [balancing], NOW)
    planner.set_policy(policy(cap))
    minor = planner.entries.desired[subflow(1)].minor
    assert planner.classes.desired[minor].rate == 300_000
