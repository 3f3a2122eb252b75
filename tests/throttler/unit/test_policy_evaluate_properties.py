# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for properties of verdicts, and a comparison with a simple reference implementation."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, time
from ipaddress import ip_address, ip_network
from random import Random
from typing import TypeVar
from zoneinfo import ZoneInfo

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_values import a_path, a_policy, a_rule, a_throttle, replace
from test_policy_evaluate import ETHERNET, LTE, NOW, WIFI, connection, subflow

from mptcp_throttler.mptcp.model import Connection, Subflow
from mptcp_throttler.policy.evaluate import evaluate
from mptcp_throttler.policy.model import Policy, Rule, Share
from mptcp_throttler.policy.schedule import Window, is_open
from mptcp_throttler.policy.verdict import ScopeKey

# The reference implementation follows docs/policy.md.


def reference_paths(tested_policy: Policy, each: Subflow) -> list[str]:
    address = ip_address(each.four_tuple.remote)
    return [
        name
        for name, path in tested_policy.paths.items()
        if (path.interfaces is None or each.interface in path.interfaces)
        and (path.clients is None or any(address in prefix for prefix in path.clients))
        and (path.remote_ids is None or each.remote_id in path.remote_ids)
        and (path.subflow is None or (path.subflow == "initial") == each.initial)
        and (path.backup is None or path.backup == each.backup)
    ]


def reference_count(tested_policy: Policy, active: Iterable[Subflow]) -> int:
    """Return the number of paths. All subflows on no path count as one path."""
    return len({tuple(reference_paths(tested_policy, each)) for each in active})


def reference_rule(tested_policy: Policy, each: Subflow, active: tuple[Subflow, ...], now: float) -> Rule | None:
    names = reference_paths(tested_policy, each)
    local = datetime.fromtimestamp(now, tested_policy.time_zone)
    paths = reference_count(tested_policy, active)
    addresses = [ip_address(other.four_tuple.remote) for other in active]
    for rule in tested_policy.rules:
        when = rule.when
        if (
            (rule.paths is None or set(rule.paths) & set(names))
            and (
                when.min_paths or (1 if when.min_subflows or rule.throttle is None else min(2, when.max_subflows or 2))
            )
            <= paths
            and (when.min_subflows or 1) <= len(active)
            and (when.max_subflows is None or len(active) <= when.max_subflows)
            and (when.clients is None or any(a in prefix for a in addresses for prefix in when.clients))
            and (when.windows is None or is_open(when.windows, local))
        ):
            return rule
    return None


PREFIXES = st.lists(
    st.sampled_from(
        [ip_network(p) for p in ("10.77.1.0/24", "10.77.0.0/16", "10.77.2.2/32", "fd77:1::/64", "::/0", "0.0.0.0/0")]
    ),
    min_size=1,
    max_size=2,
).map(tuple)
NAMES = ["p0", "p1", "p2"]


Value = TypeVar("Value")


def optional(strategy: st.SearchStrategy[Value]) -> st.SearchStrategy[Value | None]:
    return st.one_of(st.none(), strategy)


RULES = st.builds(
    a_rule,
    name=st.just("rule"),
    paths=optional(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2).map(tuple)),
    throttle=optional(st.builds(a_throttle, st.just(5_000_000), st.just(8_000_000), st.none(), st.sampled_from(Share))),
    min_paths=optional(st.integers(1, 3)),
    min_subflows=optional(st.integers(1, 3)),
    max_subflows=optional(st.integers(1, 4)),
    clients=optional(PREFIXES),
    windows=optional(
        st.lists(
            st.builds(
                Window,
                st.frozensets(st.integers(0, 6), min_size=1),
                st.sampled_from([time(0), time(8), time(12)]),
                st.sampled_from([time(0), time(12), time(18)]),
            ),
            min_size=1,
            max_size=2,
        ).map(tuple)
    ),
    exempts=st.just(True),
    lift_last=st.booleans(),
)
POLICIES = st.builds(
    a_policy,
    paths=st.tuples(
        *(
            st.builds(
                a_path,
                name=st.just(name),
                interfaces=optional(st.just(frozenset({"eth0"}))),
                clients=optional(PREFIXES),
                remote_ids=optional(st.frozensets(st.integers(0, 3), min_size=1)),
                subflow=optional(st.sampled_from(["initial", "joined"])),
                backup=optional(st.booleans()),
            ).filter(lambda path: path.model_fields_set)
            for name in NAMES
        )
    ),
    rules=st.lists(RULES, max_size=6).map(
        lambda rules: tuple(replace(rule, name=f"rule{index}") for index, rule in enumerate(rules))
    ),
    time_zone=st.just(ZoneInfo("Europe/Athens")),
    dry_run=st.booleans(),
)
SUBFLOWS = st.builds(
    subflow,
    st.sampled_from([ETHERNET, WIFI, LTE, "fd77:1::2", "fd77:2::2"]),
    initial=st.booleans(),
    backup=st.booleans(),
    interface=st.sampled_from(["eth0", "wan0", None]),
    remote_id=st.sampled_from([0, 1, 2, 3, None]),
)
CONNECTIONS = st.lists(SUBFLOWS, max_size=5).map(
    lambda subflows: connection(
        *(
            replace(each, four_tuple=each.four_tuple._replace(remote_port=1000 + index))
            for index, each in enumerate(subflows)
        )
    )
)
INSTANTS = st.integers(0, 7 * 24 * 4).map(lambda quarters: NOW + quarters * 900.0)


@settings(max_examples=examples(600), deadline=None)
@given(POLICIES, CONNECTIONS, INSTANTS)
def test_verdicts_equal_those_of_the_reference_implementation(
    tested_policy: Policy, connection: Connection, now: float
) -> None:
    verdicts = evaluate(tested_policy, connection, now)
    active = connection.subflows
    assert [verdict.four_tuple for verdict in verdicts] == [each.four_tuple for each in active]
    regular = [each for each in active if not each.backup]
    usable = regular or list(active)
    for each, verdict in zip(active, verdicts, strict=True):
        rule = reference_rule(tested_policy, each, active, now)
        assert verdict.rule == rule
        assert verdict.path == next(iter(reference_paths(tested_policy, each)), None)
        lifted = rule is not None and rule.lift_last and each in usable and reference_count(tested_policy, usable) == 1
        if rule is None or rule.throttle is None or lifted:
            assert (verdict.scope, verdict.throttle) == (None, None)
        else:
            member = {
                Share.PATH: None,
                Share.CLIENT: each.four_tuple.remote,
                Share.CONNECTION: connection.token,
            }[rule.throttle.share]
            assert verdict.scope == ScopeKey(rule.name, rule.throttle.share, member)
            assert verdict.throttle == rule.throttle
        assert verdict.reason.endswith("(dry run)") == (tested_policy.dry_run and verdict.scope is not None)
        assert verdict.reason == verdict.reason.strip() != ""
        assert len(verdict.reason.splitlines()) == 1


@settings(max_examples=examples(300), deadline=None)
@given(POLICIES, CONNECTIONS, INSTANTS)
def test_usable_capped_subflow_always_has_another_usable_path(
    tested_policy: Policy, connection: Connection, now: float
) -> None:
    """lift_last guarantees that a usable subflow on another path exists if a usable subflow is capped."""
    tested_policy = replace(tested_policy, rules=[replace(rule, lift_last=True) for rule in tested_policy.rules])
    capped = {verdict.four_tuple for verdict in evaluate(tested_policy, connection, now) if verdict.scope is not None}
    usable = [each for each in connection.subflows if not each.backup] or connection.subflows
    for each in connection.subflows:
        if each.four_tuple in capped and each in usable:
            assert any(
                reference_paths(tested_policy, other) != reference_paths(tested_policy, each) for other in usable
            )


@settings(max_examples=examples(150), deadline=None)
@given(POLICIES, CONNECTIONS, INSTANTS, st.randoms(use_true_random=False))
def test_verdicts_do_not_depend_on_the_order_of_subflows(
    tested_policy: Policy, connection: Connection, now: float, random: Random
) -> None:
    shuffled = list(connection.subflows)
    random.shuffle(shuffled)
    original_order = evaluate(tested_policy, connection, now)
    other_order = evaluate(tested_policy, replace(connection, subflows=tuple(shuffled)), now)
    assert {verdict.four_tuple: verdict for verdict in original_order} == {
        verdict.four_tuple: verdict for verdict in other_order
    }
