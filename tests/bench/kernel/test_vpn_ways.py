# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiments vpn-…: each way uses the protocol and paths of its name, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from void_runs import valid

from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.vpn_bed import NEEDS, Bed, built, carried, controlled, measure
from mptcp_bench.experiments.vpn_cells import CONTROLS, OVER_TCP, WAYS, Condition, Vpn
from mptcp_lab.testbed.system_state import differences, kernel_state

pytestmark = pytest.mark.kernel
AT = Condition(20, 40, inner=CONTROLS)


@pytest.fixture(scope="module")
def bed(require: Callable[..., None]) -> Iterator[Bed]:
    require(*NEEDS)
    with built(AT.paths, 1, 3.0) as there:
        yield there


@pytest.mark.nightly(besides=("tunnel",))
@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_what_it_is_called_and_leaves_nothing(bed: Bed, way: str) -> None:
    ends = (bed.client, bed.server)
    for node in ends:
        controlled(node, "bbr")
    before = list(map(kernel_state, ends))
    points = valid(partial(measure, bed, Turn(AT, str(Vpn(way, "bbr" if way in OVER_TCP else "")), 1)))
    assert list(points) == list(CONTROLS)
    assert all(point.goodput > 1e6 and point.carried < 1.1 for point in points.values())
    # Where TCP itself distributes the connections, all connections inside the VPN may use the same path.
    assert not WAYS[way].both or max(point.second for point in points.values()) > 0.05
    assert [differences(one, kernel_state(node)) for one, node in zip(before, ends, strict=True)] == [[], []]


def test_the_connections_have_the_control_that_they_are_called_by(bed: Bed) -> None:
    with carried(bed, Vpn("mptcp", "cubic")):
        controlled(bed.testbed["origin"], "bbr")
        for node in (bed.client, bed.server):
            subflows = node.run(["ss", "-Htin", "state", "established"]).stdout
            assert " cubic " in subflows
            assert " bbr " not in subflows
