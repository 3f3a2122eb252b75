# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiments vpn-…: protocol, paths, shares and controls are as intended, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from void_runs import valid

from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.vpn_bed import NEEDS, Bed, built, carried, controlled, measure
from mptcp_bench.experiments.vpn_cells import CONTROLS, OVER_TCP, WAYS, Condition, Vpn
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.openvpn import PORT
from mptcp_lab.testbed.system_state import State, differences, kernel_state

pytestmark = pytest.mark.kernel
AT = Condition(20, 40, inner=CONTROLS)
SECONDS = 3.0


@pytest.fixture(scope="module")
def bed(require: Callable[..., None]) -> Iterator[Bed]:
    require(*NEEDS)
    with built(AT.paths, 1, SECONDS) as there:
        yield there


def states(bed: Bed) -> list[State]:
    return [kernel_state(node) for node in (bed.client, bed.server)]


@pytest.mark.nightly(besides=("tunnel",))
@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_what_it_is_called_and_leaves_nothing(bed: Bed, way: str) -> None:
    for node in (bed.client, bed.server):
        controlled(node, "bbr")
    before = states(bed)
    turn = Turn(AT, str(Vpn(way, "bbr" if way in OVER_TCP else "")), 1)
    points = valid(partial(measure, bed, turn))
    assert list(points) == list(CONTROLS)
    for point in points.values():
        assert (point.joined, point.fallbacks) == (WAYS[way].joined, 0)
        assert point.goodput > 1e6
        assert point.carried < 1.1
        assert 1e3 * point.round_trip > 0.9 * AT.first
        assert WAYS[way].both or point.second < 0.01
        share = WAYS[way].share
        assert share is None or abs(point.second - share) < 0.08
    # Where TCP itself distributes the connections, those inside may all use one path.
    assert not WAYS[way].both or max(point.second for point in points.values()) > 0.05
    for one, other in zip(before, states(bed), strict=True):
        assert differences(one, other) == []


def test_the_connections_have_the_control_that_they_are_called_by(bed: Bed) -> None:
    with carried(bed, Vpn("mptcp", "cubic")):
        controlled(bed.testbed["origin"], "bbr")
        for node in (bed.client, bed.server):
            subflows = node.run(["ss", "-Htin", "state", "established"]).stdout
            assert " cubic " in subflows
            assert " bbr " not in subflows
    with pytest.raises(TestbedError, match="and not nothing"):
        controlled(bed.client, "nothing")


def test_a_pair_over_udp_is_one_program_with_one_port(bed: Bed) -> None:
    with carried(bed, Vpn("50/50")):
        sockets = bed.server.run(["ss", "-Hluna", "sport", "=", f":{PORT}"]).stdout.splitlines()
    assert len(sockets) == 1
