# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that each layout of the experiment starvation can be built, and that its policy has the layout's caps."""

from __future__ import annotations

import pytest

from mptcp_bench.experiments.starvation import LAYOUTS, Layout
from mptcp_lab.testbed.plan import steps
from mptcp_throttler.policy.load import load_policy


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=str)
def test_layout_can_be_built_and_its_policy_has_its_caps(layout: Layout) -> None:
    assert steps(layout.topology, {node.name: node.name for node in layout.topology.nodes})
    assert len(layout.topology.devices("client")) == len(layout.loads)
    caps = {load.name: load.cap for load in layout.loads if load.cap is not None}
    rules = load_policy(layout.policy(), layout.name).rules
    assert {rule.name: rule.throttle.rate for rule in rules if rule.throttle} == caps
