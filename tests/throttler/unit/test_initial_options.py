# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the initial options of sockets: the limits that a client's prefix sets when a subflow is accepted."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from zoneinfo import ZoneInfo

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_values import a_path, a_policy, a_rule, a_throttle, replace

from mptcp_throttler.kernel.bpf import _map_key
from mptcp_throttler.mptcp.model import map_to_ipv6
from mptcp_throttler.policy.conditions import PathMatch
from mptcp_throttler.policy.model import Direction, Onset, Policy, Rule, Share
from mptcp_throttler.policy.values import Network
from mptcp_throttler.policy.verdict import ScopeKey
from mptcp_throttler.shaping.initial_options import (
    DEFAULT_OPTIONS,
    MAX_REST_RATE,
    UNANTICIPATED,
    initial_options,
    options_under_cap,
)
from mptcp_throttler.shaping.model import InitialOptions

ETHERNET, WIFI = ip_network("10.77.1.0/24"), ip_network("10.77.2.0/24")
PATHS = (a_path("ethernet", clients=(ETHERNET,)), a_path("wifi", clients=(WIFI,)))
CAP = a_throttle(5_000_000, 5_000_000, None, Share.PATH)
RULE = a_rule("cap", ("ethernet",), CAP)
CLASS = 0x4D500010


def policy(*rules: Rule, paths: tuple[PathMatch, ...] = PATHS, dry_run: bool = False) -> Policy:
    return a_policy(paths, rules, ZoneInfo("UTC"), dry_run)


def options_for(*rules: Rule, **changes: object) -> Mapping[Network, InitialOptions]:
    changed_policy = replace(policy(*rules), **changes)
    return initial_options(changed_policy, [True] * len(rules), {ScopeKey("cap", Share.PATH): CLASS}.get)


def test_only_sockets_of_a_capped_prefix_begin_with_small_limits() -> None:
    assert options_for(RULE) == {ETHERNET: options_under_cap(5_000_000, CLASS), WIFI: DEFAULT_OPTIONS}
    assert options_under_cap(5_000_000).initial_window == 2
    assert options_under_cap(MAX_REST_RATE, rests=True).rests
    assert not options_under_cap(MAX_REST_RATE + 1, rests=True).rests
    assert (options_under_cap(5_000_000).not_sent or 0) < 1448


def test_high_cap_does_not_reduce_the_initial_window() -> None:
    assert options_under_cap(30_000_000).initial_window is not None
    assert options_under_cap(100_000_000).initial_window is None


def test_rule_without_paths_applies_to_all_paths() -> None:
    assert set(options_for(replace(RULE, paths=None))) == {ETHERNET, WIFI}


def test_without_a_download_cap_no_initial_limit_is_set() -> None:
    assert initial_options(policy(RULE, dry_run=True).applied, [], lambda scope: None) == {}
    assert options_for(replace(RULE, direction=frozenset({Direction.UP}))) == {}
    assert options_for(replace(RULE, throttle=None), RULE) == {}
    assert initial_options(policy(RULE), [False], lambda scope: None) == {}


def test_only_the_limit_on_unsent_bytes_is_set_without_anticipation() -> None:
    assert options_for(RULE, anticipate=False) == {ETHERNET: UNANTICIPATED, WIFI: DEFAULT_OPTIONS}
    assert options_for(replace(RULE, min_subflows=3)) == {}


def test_path_with_further_conditions_has_no_initial_options() -> None:
    """Otherwise, uncapped subflows with the same prefix would start with small limits, too."""
    assert options_for(RULE, paths=(replace(PATHS[0], subflow="initial"), PATHS[1])) == {}
    assert options_for(RULE, paths=(a_path("ethernet", interfaces=frozenset({"eth0"})), PATHS[1])) == {}


def test_rule_for_some_clients_sets_no_initial_options() -> None:
    assert options_for(replace(RULE, clients=(WIFI,))) == {}
    exempt = a_rule("office", ("ethernet",), None, clients=(WIFI,), exempts=True)
    assert options_for(exempt, RULE) == {}, "a path with exempt connections has initial options"


def test_exempt_prefix_within_a_capped_one_has_default_options() -> None:
    office = ip_network("10.77.1.128/25")
    paths = (a_path("office", clients=(office,)), *PATHS)
    exempt = a_rule("exempt", ("office",), None, exempts=True)
    assert options_for(exempt, RULE, paths=paths)[office] == DEFAULT_OPTIONS


def test_cap_with_landing_at_once_sets_only_the_class() -> None:
    """Defect: sockets always kept the small limit, even if their client had only one path and its cap was lifted."""
    at_once = replace(RULE, throttle=replace(CAP, landing=Onset.IMMEDIATE))
    assert options_for(at_once) == {ETHERNET: InitialOptions(class_id=CLASS), WIFI: DEFAULT_OPTIONS}
    assert options_for(replace(at_once, throttle=replace(CAP, landing=Onset.IMMEDIATE, share=Share.CLIENT))) == {}
    assert options_for(at_once, anticipate=False) == {ETHERNET: UNANTICIPATED, WIFI: DEFAULT_OPTIONS}


def test_cap_limited_by_max_subflows_sets_no_initial_options() -> None:
    """Defect: a connection with more subflows kept the small limit until its end, because no cap replaced it."""
    assert options_for(replace(RULE, max_subflows=2)) == {}


EXEMPTION = a_rule("none", ("other",), None, exempts=True)
INNER, OUTER = ip_network("10.77.1.128/25"), ip_network("10.77.0.0/16")


@pytest.mark.parametrize(
    "other",
    [
        a_path("other", clients=(ETHERNET,), subflow="joined"),
        a_path("other", clients=(WIFI, ETHERNET)),
        a_path("other", clients=(OUTER,)),
        a_path("other", clients=(ip_network("0.0.0.0/0"),), backup=True),
        a_path("other", interfaces=frozenset({"eth1"})),
    ],
    ids=["same prefix", "two prefixes", "larger prefix", "all addresses", "interface"],
)
@pytest.mark.parametrize("other_is_last", [False, True])
def test_higher_rule_that_may_match_a_prefix_prevents_initial_options(other: PathMatch, other_is_last: bool) -> None:
    """Defect: exempted subflows were accepted into the class of the cap, and kept the small limit until their end."""
    paths = (*PATHS, other) if other_is_last else (other, *PATHS)
    assert options_for(EXEMPTION, RULE, paths=paths) == {}
    capped_otherwise = replace(EXEMPTION, throttle=replace(CAP, ceil=1_000_000))
    assert options_for(capped_otherwise, RULE, paths=paths).get(ETHERNET, DEFAULT_OPTIONS) != options_under_cap(
        5_000_000, CLASS
    )
    assert options_for(RULE, EXEMPTION, paths=(*PATHS, other))[ETHERNET] == options_under_cap(5_000_000, CLASS), (
        "a rule with a lower priority prevented the initial options"
    )


@pytest.mark.parametrize(
    "other",
    [
        a_path("other", clients=(INNER,), subflow="joined"),
        a_path("other", clients=(ip_network("10.77.3.0/24"),)),
        a_path("other", clients=(ip_network("fd77::/16"), ip_network("::/0"))),
    ],
    ids=["prefix within it", "other prefix", "IPv6"],
)
def test_higher_rule_for_other_prefixes_changes_no_initial_options(other: PathMatch) -> None:
    """If one prefix contains another, the longer prefix decides."""
    options = options_for(EXEMPTION, RULE, paths=(*PATHS, other))
    assert options[ETHERNET] == options_under_cap(5_000_000, CLASS)
    assert all(options[each] == DEFAULT_OPTIONS for each in other.clients or ())


def test_only_prefixes_that_a_higher_rule_may_match_have_no_options() -> None:
    v6 = ip_network("fd77:1::/64")
    paths = (a_path("ethernet", clients=(ETHERNET, v6)), a_path("other", clients=(v6,), subflow="joined"))
    assert options_for(EXEMPTION, RULE, paths=paths) == {
        ETHERNET: options_under_cap(5_000_000, CLASS),
        v6: DEFAULT_OPTIONS,
    }


def test_options_of_many_rules_are_computed_nearly_as_fast_as_of_one() -> None:
    """Defect: each prefix was compared with the paths of all higher rules, which blocked the event loop for 0.5 s."""
    paths = tuple(
        a_path(f"p{path}", clients=tuple(ip_network(f"10.{path}.{net}.0/24") for net in range(250)))
        for path in range(40)
    )
    rules = tuple(a_rule(each.name, (each.name,), CAP) for each in paths)

    def seconds(*rules: Rule) -> float:
        start = time.process_time()
        assert len(initial_options(policy(*rules, paths=paths), [True] * len(rules), lambda _: CLASS)) == 10_000
        return time.process_time() - start

    # With the defect, many rules took 100 times as long as one rule; now they take twice as long.
    assert min(seconds(*rules) for _ in range(3)) < 15 * min(seconds(replace(RULE, paths=None)) for _ in range(3))


def test_client_with_one_path_has_the_default_window() -> None:
    assert UNANTICIPATED.initial_window is None


V4_MAPPED = IPv6Network("::ffff:0:0/96")
V4 = st.one_of(st.ip_addresses(v=4), st.sampled_from([ip_address("10.77.1.2"), ip_address("10.77.2.2")]))
V6 = st.one_of(st.ip_addresses(v=6), st.sampled_from([ip_address("fd77::2"), ip_address("::fffe:10.77.1.2")])).filter(
    lambda address: address not in V4_MAPPED
)
PREFIXES = st.one_of(
    st.builds(lambda address, length: ip_network((address, length), strict=False), V4, st.integers(0, 32)),
    st.builds(lambda address, length: ip_network((address, length), strict=False), V6, st.integers(0, 128)),
    st.integers(0, 95).map(lambda length: V4_MAPPED.supernet(new_prefix=length)),
).filter(lambda network: network.version == 4 or not network.subnet_of(V4_MAPPED))
CLIENTS = st.lists(PREFIXES, min_size=1, max_size=4).map(tuple)


def lookup(options: Mapping[Network, InitialOptions], address: IPv4Address | IPv6Address) -> InitialOptions:
    """Return the entry with the longest prefix that contains *address*, as the kernel does."""
    packed = map_to_ipv6(address.packed) if address.version == 4 else address.packed
    number, longest = int.from_bytes(packed, "big"), (-1, DEFAULT_OPTIONS)
    for network, candidate in options.items():
        key = _map_key(network)
        length, prefix = int.from_bytes(key[:4], sys.byteorder), int.from_bytes(key[4:], "big")
        if number >> (128 - length) == prefix >> (128 - length):
            longest = max(longest, (length, candidate), key=lambda each: each[0])
    return longest[1]


@settings(max_examples=examples(500), deadline=None)
@given(CLIENTS, CLIENTS, st.one_of(V4, V6))
def test_address_gets_the_options_of_its_longest_prefix(
    capped: tuple[Network, ...], other: tuple[Network, ...], address: IPv4Address | IPv6Address
) -> None:
    """Defect: IPv4 clients matched ``::/0``, and began like clients of a capped IPv6 path."""
    options = options_for(RULE, paths=(a_path("ethernet", clients=capped), a_path("wifi", clients=other)))
    matching = [network for network in (*capped, *other) if address in network]
    expected = (
        options[max(matching, key=lambda network: network.prefixlen)] if matching and options else DEFAULT_OPTIONS
    )
    assert lookup(options, address) == expected


def test_cap_on_all_of_ipv6_does_not_apply_to_ipv4() -> None:
    all_of_ipv6 = ip_network("::/0")
    paths = (a_path("ethernet", clients=(all_of_ipv6,)), a_path("wifi", clients=(WIFI,)))
    options = options_for(RULE, paths=paths)
    assert lookup(options, ip_address("203.0.113.7")) == DEFAULT_OPTIONS
    assert lookup(options, ip_address("2001:db8::7")) == options_under_cap(5_000_000, CLASS)
    all_of_ipv4 = ip_network("0.0.0.0/0")
    assert all_of_ipv4 not in options_for(RULE, paths=(a_path("ethernet", clients=(ip_network("2000::/3"),)),))
    both = options_for(RULE, paths=(a_path("ethernet", clients=(all_of_ipv6, all_of_ipv4)),))
    assert both[all_of_ipv4] == options_under_cap(5_000_000, CLASS), (
        "the cap on all IPv4 clients sets no initial options"
    )
