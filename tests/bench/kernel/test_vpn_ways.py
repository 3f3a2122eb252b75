# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiments vpn-…: each way uses the protocol and paths of its name, and restores the system."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from void_runs import valid

from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.vpn_bed import NEEDS, Bed, measure, set_control, vpn_bed
from mptcp_bench.experiments.vpn_cells import CONTROLS, OVER_TCP, WAYS, Condition, Vpn
from mptcp_lab.testbed.system_state import differences, kernel_state

pytestmark = pytest.mark.kernel
CELL = Condition(20, 40, inner=CONTROLS)


@pytest.fixture(scope="module")
def bed(require: Callable[..., None]) -> Iterator[Bed]:
    require(*NEEDS)
    with vpn_bed(CELL.paths, 1, 3.0) as built:
        yield built


@pytest.mark.nightly(except_for=("tunnel",))
@pytest.mark.parametrize("way", WAYS)
def test_way_carries_downloads_as_its_name_says_and_restores_the_state(bed: Bed, way: str) -> None:
    nodes = (bed.client, bed.server)
    for node in nodes:
        set_control(node, "bbr")
    before = list(map(kernel_state, nodes))
    points = valid(partial(measure, bed, Turn(CELL, str(Vpn(way, "bbr" if way in OVER_TCP else "")), 1)))
    assert list(points) == list(CONTROLS)
    assert all(point.goodput > 1e6 for point in points.values())
    # Where TCP itself distributes the connections, all connections inside the VPN may use the same path.
    assert not WAYS[way].uses_both_paths or max(point.second for point in points.values()) > 0.05
    assert [differences(state, kernel_state(node)) for state, node in zip(before, nodes, strict=True)] == [[], []]
