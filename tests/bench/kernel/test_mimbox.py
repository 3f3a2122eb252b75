# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiments mimbox-…: MTU, protocol, use of both paths, and closed connections are as intended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from void_runs import valid

from mptcp_bench.experiments.mimbox_bed import DEVICES, Procedure, built, measured, several
from mptcp_bench.experiments.mimbox_delay import FILE, REQUESTS, delays_of
from mptcp_bench.experiments.mimbox_judging import ROUTER
from mptcp_bench.experiments.mimbox_points import Point
from mptcp_bench.experiments.relay_bed import LARGE, SMALL, Bed
from mptcp_bench.experiments.relay_cells import DIRECT, OURS, Cell
from mptcp_lab.testbed.mtu import mtu

pytestmark = pytest.mark.kernel
SECONDS = 2.0
ATTEMPTS = 3


@pytest.fixture(scope="module")
def bed(require: Callable[..., None]) -> Iterator[Bed]:
    require("root", "mptcp", "mptcp-pm", "squid", "apache2", "mptcpize", "ss", "gcc", "curl", "tcpdump")
    with built(1, {LARGE: 50_000_000, SMALL: 1_000, FILE: REQUESTS.down}, SECONDS) as there:
        yield there


def point(bed: Bed, cell: Cell, task: str, procedure: Procedure) -> Point:
    with bed.running(cell) as process:
        return measured(bed, cell, task, 1500, 0, procedure, process)


@pytest.mark.nightly(besides=("ours",))
@pytest.mark.parametrize("cell", [ROUTER, Cell(OURS, "mptcp2")], ids=str)
def test_a_download_has_both_paths_and_passes_the_proxy_where_there_is_one(bed: Bed, cell: Cell) -> None:
    for _ in range(ATTEMPTS):
        found = point(bed, cell, "get", Procedure(memory=True))
        # On a loaded machine one path may have room for all data during the measurement.
        if found.second > 0:
            break
    assert (found.opened, found.multipath, found.joined, found.failures) == (1, 1, 1, 0)
    assert found.goodput > 0
    assert found.second > 0
    assert (found.passed > 0.9) is (cell.proxy == OURS)
    assert (found.kernel > 0) is (cell.proxy == OURS)


@pytest.mark.nightly(besides=("ours",))
@pytest.mark.parametrize("cell", [Cell(DIRECT, "tcp"), Cell(DIRECT, "mptcp1"), Cell(OURS, "mptcp1")], ids=str)
def test_each_request_has_a_connection_of_its_own(bed: Bed, cell: Cell) -> None:
    found = point(bed, cell, "each", Procedure(SMALL, 10, close=True))
    assert found.failures == 0
    assert found.opened >= 10
    assert found.renewed >= 1
    assert (found.multipath >= found.opened) is (cell.client != "tcp")
    assert found.joined == 0
    assert 0 < found.spread[0] <= found.spread[-1] < float("inf")


@pytest.mark.nightly(besides=("9000",))
@pytest.mark.parametrize("size", [296, 9000])
def test_packets_are_as_large_as_the_links_allow(bed: Bed, size: int) -> None:
    with several(mtu(bed.testbed[node], device, size) for node, device in DEVICES):
        found = point(bed, Cell(DIRECT, "tcp"), "get", Procedure())
    assert 0.8 < found.packet / (size + 14) <= 1


@pytest.mark.nightly(besides=("direct",))
@pytest.mark.parametrize("cell", [ROUTER, Cell(OURS, "mptcp2")], ids=str)
def test_each_request_is_stamped_on_its_way(bed: Bed, cell: Cell) -> None:
    found = valid(partial(delays_of, bed, cell, 0))
    assert found.requests == REQUESTS.requests
    assert found.answer > 0
    assert found.data > 0
    assert found.subflows > (1 if cell.proxy == OURS else 0)
    assert 0 < found.syn < 20
