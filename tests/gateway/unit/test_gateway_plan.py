# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the plan of rules, routes and endpoints, for any uplinks in any state."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from mptcp_gateway.model import Access, Lan, Mark, Verdict, Way, uplink_mark
from mptcp_gateway.plan import (
    BEST_TABLE,
    FIRST_TABLE,
    MAIN,
    MAX_ENDPOINTS,
    Endpoint,
    abandoned_marks,
    best_way,
    make_plan,
    with_distinct_addresses,
)

ORDER = ("dsl", "lte", "sat", "a", "b")
WAYS = [Way(uplink, version) for uplink in ORDER for version in (4, 6)]
RANK = (Verdict.GOOD, Verdict.UNTRIED, Verdict.PLAIN, Verdict.DEAD)
PARENTS = (ip_address("192.0.2.1"), ip_address("192.0.2.2"), ip_address("2001:db8::1"))


def access(way: Way, is_point_to_point: bool) -> Access:
    number = ORDER.index(way.uplink)
    address = ip_address(f"10.{number}.0.2" if way.version == 4 else f"fd00:{number}::2")
    network = ip_network(f"10.{number}.0.0/24" if way.version == 4 else f"fd00:{number}::/64")
    other_addresses = () if way.version == 4 else (ip_address(f"fd00:{number}::77"),)
    return Access(
        f"u{number}",
        10 + number,
        address,
        None if is_point_to_point else network,
        None if is_point_to_point else network[1],
        other_addresses,
    )


states = st.dictionaries(st.sampled_from(WAYS), st.tuples(st.booleans(), st.sampled_from(RANK)))


@given(states)
def test_plan_routes_each_address_to_its_own_device(state: dict[Way, tuple[bool, Verdict]]) -> None:
    accesses = {way: access(way, is_point_to_point) for way, (is_point_to_point, _) in state.items()}
    verdicts = {way: verdict for way, (_, verdict) in state.items()}
    plan = make_plan(ORDER, accesses, verdicts, PARENTS)
    for way, each in accesses.items():
        # Packets from this address use its own device, unless their destination is a local network.
        for source in (each.address, *each.other_addresses):
            local, own = sorted((rule for rule in plan.rules if rule.source == source), key=lambda it: it.priority)
            assert (local.table, local.ignores_default_routes, local.destination) == (MAIN, True, None)
            assert (own.table, own.ignores_default_routes, own.destination) == (
                FIRST_TABLE + ORDER.index(way.uplink),
                False,
                None,
            )
        routes = [each for each in plan.routes if (each.table, each.version) == (own.table, way.version)]
        assert {route.index for route in routes} == {each.index}
        assert [route.gateway for route in routes if route.destination is None] == [each.gateway]
        assert [route.destination for route in routes if route.destination is not None] == (
            [each.network] if each.network else []
        )
    for version in (4, 6):
        ways_of_version = [way for way in accesses if way.version == version]
        chosen = best_way(ORDER, verdicts, version)
        assert (chosen is None) is (not ways_of_version), (
            "a way was chosen although there is none, or no way although there is one"
        )
        defaults = [each for each in plan.routes if (each.table, each.version) == (BEST_TABLE, version)]
        # Only packets to a parent use this table.
        parents = {rule.destination for rule in plan.rules if rule.table == BEST_TABLE and rule.version == version}
        assert parents == ({each for each in PARENTS if each.version == version} if ways_of_version else set())
        if chosen is None:
            assert defaults == []
            continue
        keys = [(RANK.index(verdicts[way]), ORDER.index(way.uplink)) for way in ways_of_version]
        assert (RANK.index(verdicts[chosen]), ORDER.index(chosen.uplink)) == min(keys)
        assert [each.index for each in defaults] == [accesses[chosen].index]
    assert all(rule.source is not None or rule.destination in PARENTS for rule in plan.rules)
    expected_endpoints = []
    for way in (way for way in WAYS if way in accesses):
        peers = [verdicts[each] for each in accesses if each.version == way.version]
        has_no_good_way = not {Verdict.GOOD, Verdict.UNTRIED} & set(peers)
        if verdicts[way] in (Verdict.GOOD, Verdict.UNTRIED) or (has_no_good_way and verdicts[way] is Verdict.DEAD):
            expected_endpoints.append(Endpoint(accesses[way].address, accesses[way].device))
    assert plan.endpoints == set(expected_endpoints[:MAX_ENDPOINTS])


@given(states, st.sampled_from([None, 77]))
def test_home_packets_never_use_a_dead_way(state: dict[Way, tuple[bool, Verdict]], tunnel: int | None) -> None:
    """If a way is not dead, each packet of the home is routed, and never with a dead way's table."""
    accesses = {way: access(way, is_point_to_point) for way, (is_point_to_point, _) in state.items()}
    verdicts = {way: verdict for way, (_, verdict) in state.items()}
    plan = make_plan(ORDER, accesses, verdicts, PARENTS, Lan(("br0",), tunnel="wg0"), (tunnel, {4}) if tunnel else None)
    assert make_plan(ORDER, accesses, verdicts, PARENTS).rules <= plan.rules
    parents_answer = Verdict.GOOD in verdicts.values()
    for version in (4, 6):

        def device_for(mark: int, version: int = version) -> int | None:
            """Return the device that packets with this mark use, in the kernel's order of rules and routes."""
            rules = [
                each for each in plan.rules if each.version == version and each.source is None and not each.destination
            ]
            for rule in sorted(rules, key=lambda it: it.priority):
                if (rule.mark and rule.mark != mark) or rule.ignores_default_routes:
                    continue
                for route in plan.routes:
                    if (route.table, route.version, route.destination) == (rule.table, version, None):
                        return route.index
            return None

        chosen = best_way(ORDER, verdicts, version)
        first = accesses[chosen].index if chosen is not None else None
        assert device_for(0) == device_for(Mark.BEST) == first
        assert device_for(Mark.DELIVER) == 1, "delivered packets do not use lo"
        assert device_for(Mark.TUNNEL) == (tunnel if tunnel and version == 4 and parents_answer else first)
        for number, uplink in enumerate(ORDER):
            way = Way(uplink, version)
            is_alive = way in accesses and verdicts[way] is not Verdict.DEAD
            assert device_for(uplink_mark(number)) == (accesses[way].index if is_alive else first)


def test_abandoned_marks_are_those_of_unused_ways() -> None:
    ways = {Way("dsl", 4): access(Way("dsl", 4), False), Way("lte", 4): access(Way("lte", 4), False)}
    good = dict.fromkeys(ways, Verdict.GOOD)
    dead = good | {Way("dsl", 4): Verdict.DEAD}
    before, after = (
        make_plan(ORDER, ways, each, PARENTS, Lan(("br0",), tunnel="wg0"), (77, {4})) for each in (good, dead)
    )
    assert abandoned_marks(before, after) == {uplink_mark(0)}
    assert abandoned_marks(after, before) == set()
    assert abandoned_marks(before, make_plan(ORDER, ways, good, PARENTS, Lan(("br0",), tunnel="wg0"), None)) == {
        Mark.TUNNEL
    }


def test_first_of_two_uplinks_with_the_same_address_is_used() -> None:
    accesses = {Way(uplink, 4): access(Way("dsl", 4), False) for uplink in ("lte", "dsl")}
    distinct, duplicates = with_distinct_addresses(ORDER, accesses)
    assert list(distinct) == [Way("dsl", 4)]
    assert duplicates == {Way("lte", 4): "dsl"}


def test_first_uplinks_get_the_available_endpoints() -> None:
    accesses = {way: access(way, False) for way in reversed(WAYS)}
    plan = make_plan(ORDER, accesses, dict.fromkeys(accesses, Verdict.GOOD), PARENTS)
    assert {each.address for each in plan.endpoints} == {accesses[way].address for way in WAYS[:MAX_ENDPOINTS]}
