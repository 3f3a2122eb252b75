# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``starvation``: its layouts, and the client's addresses of subflows."""

from __future__ import annotations

import pytest

from mptcp_bench.experiments.starvation import LAYOUTS, Layout
from mptcp_bench.experiments.two_paths import peers
from mptcp_lab.testbed.plan import steps
from mptcp_throttler.policy.load import load_policy


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=str)
def test_every_layout_can_be_built_and_its_policy_caps_what_it_says(layout: Layout) -> None:
    assert steps(layout.topology, {node.name: node.name for node in layout.topology.nodes})
    assert len(layout.topology.devices("client")) == len(layout.loads)
    policy = load_policy(layout.policy(), layout.name)
    capped = {load.name: load.cap for load in layout.loads if load.cap is not None}
    assert {rule.name: rule.throttle.rate for rule in policy.rules if rule.throttle} == capped


def test_the_clients_ends_of_subflows_are_the_peers_of_the_proxys_sockets() -> None:
    listing = """\
0  0  [::ffff:10.77.8.2]:3128  [::ffff:10.77.1.2]:41000
0  0  10.77.8.2%wan0:3128      10.77.2.2:41001
0  40 [fd77:8::2]:3128         [fd77:2::2]:41002
"""
    assert peers(listing) == ["10.77.1.2", "10.77.2.2", "fd77:2::2"]
    assert peers("") == []
