"""What subflows have from their first segment on, by the client's prefix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_network
from zoneinfo import ZoneInfo

from mptcp_throttler.policy.model import Direction, Kind, Network, PathMatch, Policy, Rule, ScopeKey, Share, Throttle
from mptcp_throttler.shaping.birth import AS_USUAL, UNANTICIPATED, births, of_clients, under_cap
from mptcp_throttler.shaping.model import Birth

ETHERNET, WIFI = ip_network("10.77.1.0/24"), ip_network("10.77.2.0/24")
PATHS = (PathMatch("ethernet", clients=(ETHERNET,)), PathMatch("wifi", clients=(WIFI,)))
CAP = Throttle(5_000_000, 5_000_000, None, Share.PATH)
RULE = Rule("cap", ("ethernet",), CAP)
CLASS = 0x4D500010


def policy(*rules: Rule, paths: tuple[PathMatch, ...] = PATHS, dry_run: bool = False) -> Policy:
    return Policy(paths, rules, ZoneInfo("UTC"), dry_run)


def found(*rules: Rule, **others: object) -> Mapping[Network, Birth]:
    made = replace(policy(*rules), **others)  # type: ignore[arg-type]
    return births(made, [True] * len(rules), {ScopeKey("cap", Share.PATH): CLASS}.get)


def test_a_capped_prefix_begins_small_and_no_other() -> None:
    assert found(RULE) == {ETHERNET: under_cap(5_000_000, CLASS), WIFI: AS_USUAL}
    assert under_cap(5_000_000).initial_window == 2
    assert (under_cap(5_000_000).not_sent or 0) < 1448


def test_a_high_cap_leaves_the_initial_window() -> None:
    assert under_cap(30_000_000).initial_window is not None
    assert under_cap(100_000_000).initial_window is None


def test_a_rule_without_paths_is_for_all_of_them() -> None:
    assert set(found(replace(RULE, paths=None))) == {ETHERNET, WIFI}


def test_nothing_where_nothing_is_capped() -> None:
    assert found(RULE, dry_run=True) == {}
    assert found(replace(RULE, directions=frozenset({Direction.UP}))) == {}
    assert found(replace(RULE, throttle=None, exempts=frozenset({Kind.THROTTLE})), RULE) == {}
    assert births(policy(RULE), [False], {}.get) == {}


def test_where_nothing_is_anticipated_little_changes() -> None:
    assert found(RULE, anticipate=False) == {ETHERNET: UNANTICIPATED, WIFI: AS_USUAL}
    assert found(replace(RULE, min_subflows=3)) == {}


def test_a_path_by_more_than_addresses_has_none() -> None:
    """An uncapped subflow of the same prefix would begin small for nothing."""
    assert found(RULE, paths=(replace(PATHS[0], initial=True), PATHS[1])) == {}
    assert found(RULE, paths=(PathMatch("ethernet", interfaces=frozenset({"eth0"})), PATHS[1])) == {}


def test_a_rule_for_some_clients_has_none() -> None:
    assert found(replace(RULE, clients=(WIFI,))) == {}
    exempt = Rule("office", ("ethernet",), None, clients=(WIFI,), exempts=frozenset({Kind.THROTTLE}))
    assert found(exempt, RULE) == {}, "some of its connections are exempt"


def test_an_exempt_prefix_within_a_capped_one_begins_as_usual() -> None:
    office = ip_network("10.77.1.128/25")
    paths = (PathMatch("office", clients=(office,)), *PATHS)
    exempt = Rule("exempt", ("office",), None, exempts=frozenset({Kind.THROTTLE}))
    assert found(exempt, RULE, paths=paths)[office] == AS_USUAL


def test_a_client_with_a_single_path_begins_as_usual() -> None:
    assert of_clients({b"\x0a\x4d\x01\x02": True, b"\xfd" + bytes(15): False}) == {
        ip_network("10.77.1.2/32"): UNANTICIPATED,
        ip_network("fd00::/128"): None,
    }
    assert UNANTICIPATED.initial_window is None
