# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for client prefixes: look-ups of an address or prefix, and their constant cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_network
from types import FrameType
from typing import Any
from zoneinfo import ZoneInfo

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_values import a_path, a_policy, a_rule, a_throttle
from test_policy_evaluate import NOW, connection, subflow

from mptcp_throttler.policy.evaluate import CompiledPolicy
from mptcp_throttler.policy.model import Share
from mptcp_throttler.policy.values import Network, Prefixes

CAP = a_throttle(5_000_000, 5_000_000, None, Share.PATH)
# Only a few bits differ, so one prefix often contains another.
ADDRESSES = st.one_of(
    st.builds(lambda low: IPv4Address((10 << 24) + low), st.integers(0, 15)),
    st.builds(lambda low: IPv6Address((0xFFFF << 32) + (10 << 24) + low), st.integers(0, 15)),
    st.ip_addresses(),
)
NETWORKS = st.builds(
    lambda address, shorter_by: ip_network(
        (address, address.max_prefixlen - min(shorter_by, address.max_prefixlen)), strict=False
    ),
    ADDRESSES,
    st.one_of(st.integers(0, 5), st.integers(0, 128)),
)


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(NETWORKS, max_size=6), ADDRESSES)
def test_prefix_table_agrees_with_ipaddress_about_addresses(
    networks: list[Network], address: IPv4Address | IPv6Address
) -> None:
    assert Prefixes((each, True) for each in networks).contains(address.packed) is any(
        address in network for network in networks
    )


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(NETWORKS, max_size=6), NETWORKS)
def test_prefix_table_finds_the_prefixes_around_another_longest_first(networks: list[Network], inner: Network) -> None:
    containing = {
        network: networks.index(network)
        for network in networks
        if network.version == inner.version and inner.subnet_of(network)  # type: ignore[arg-type]
    }
    longest_first = sorted(containing, key=lambda network: -network.prefixlen)
    table = Prefixes((network, index) for index, network in enumerate(networks))
    assert list(table.values_around(inner)) == [containing[network] for network in longest_first]


def count_instructions(call: Callable[[], object]) -> int:
    """Return the number of Python instructions that *call* executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def policy_with_prefixes(prefixes: int) -> CompiledPolicy:
    """Return a policy with *prefixes* prefixes in a path and in the condition of a rule."""
    networks = tuple(ip_network(((172 << 24) + number, 32)) for number in range(prefixes))
    path = a_path("path", clients=(*networks, ip_network("10.0.0.0/8")))
    rules = a_rule("clients", ("path",), CAP, clients=networks), a_rule("path", ("path",), CAP)
    return CompiledPolicy(a_policy((path,), rules, ZoneInfo("UTC"), False))


def test_decision_cost_does_not_grow_with_the_number_of_prefixes() -> None:
    """Defect: a decision compared all prefixes, so 64 decisions about new clients took 35 ms."""

    def decision_cost(prefixes: int) -> int:
        subject = policy_with_prefixes(prefixes)
        subject.evaluate(connection(subflow("10.0.0.1"), subflow("192.0.2.1")), NOW)
        return count_instructions(lambda: subject.evaluate(connection(subflow("10.0.0.2"), subflow("192.0.2.2")), NOW))

    assert decision_cost(5_000) < 2 * decision_cost(5)
