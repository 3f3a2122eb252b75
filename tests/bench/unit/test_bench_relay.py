# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment relay: its cells, the computed figures, and the memory that the kernel reports."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_bench.experiments import relay_load
from mptcp_bench.experiments.peers import nginx_of
from mptcp_bench.experiments.relay import SCENARIO, SETTINGS, lacking, ready
from mptcp_bench.experiments.relay_judging import BASE, CARRIED, DIRECT, LIMIT, TASKS, Cell, Setting, cost, ratios
from mptcp_bench.experiments.relay_load import buffers, latencies, octets
from mptcp_lab.testbed import TestbedError


def test_cells_are_what_each_proxy_can_do_and_the_first_setting_is_measured_thoroughly() -> None:
    there = SCENARIO.cells(SCENARIO.chosen({}))
    assert list(dict.fromkeys(cell.setting for cell in there)) == list(SETTINGS)
    assert {(cell.setting == BASE, cell.tasks) for cell in there if cell.proxy == LIMIT} == {
        (True, TASKS), (False, CARRIED)
    }  # fmt: skip
    base = {(cell.proxy, cell.client): cell.tasks for cell in there if cell.setting == BASE}
    assert [client for proxy, client in base if proxy == "squid"] == ["tcp"]
    assert [client for proxy, client in base if proxy == LIMIT] == ["tcp", "mptcp1", "mptcp2"]
    assert base["haproxy", "tcp"] == ("get", "requests", "idle-get")
    assert base[DIRECT, "tcp"] == ("get", "requests")
    assert {cell.setting for cell in SCENARIO.cells(SCENARIO.chosen({}, quick=True))} == {BASE}


def test_own_processor_is_refused_when_asked_for_and_left_out_when_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    assert lacking(Cell(DIRECT, "tcp", Setting(apart=True))) is not None
    assert lacking(Cell(DIRECT, "tcp")) is None
    ready(SCENARIO.chosen({}))
    with pytest.raises(TestbedError, match="this machine has one processor"):
        ready(SCENARIO.chosen({"processors": "apart"}))


def bucket(nanoseconds: int) -> int:
    """Return the bucket as native/relay_load.c computes it."""
    shift = max(0, nanoseconds.bit_length() - 6)
    return shift * 32 + (nanoseconds >> shift)


@given(st.lists(st.integers(0, 10**11), min_size=1), st.sampled_from((0.1, 50, 90, 99, 100)))
def test_percentiles_of_the_histogram_are_those_of_its_values(values: list[int], percent: float) -> None:
    late = [0] * relay_load.BUCKETS
    for value in values:
        late[bucket(value)] += 1
    exact = sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
    [seconds] = latencies(late, (percent,))
    assert seconds * 1e9 == pytest.approx(exact, rel=1 / 32, abs=1)
    assert latencies([0, 0], (percent,)) == (math.inf,)


def test_nothing_unseen_is_free_and_a_round_without_a_finite_value_of_the_peer_does_not_count() -> None:
    assert (cost("get", 1.0, 500_000_000, 0), cost("requests", 1.0, 1, 10_000)) == (2.0, 100.0)
    assert cost("get", 1.0, 0, 0) == math.inf
    assert math.isnan(cost("get", 0.0, 500_000_000, 0))
    assert ratios({0: 1.0, 2: 3.0, 3: 1.0}, {0: 2.0, 1: 5.0, 2: 3.0, 3: 0.0}) == (0.5, 1.0)
    assert ratios({0: 1.2, 1: 1.2, 2: math.inf}, {0: 1.0, 1: math.inf, 2: 1.0}) == (1.2, math.inf)


def test_memory_is_read_as_the_kernel_writes_it() -> None:
    assert octets("Rss:  9 kB\nPss:      12 kB\nPss_Dirty:  3 kB\n", "Pss") == 12 * 1024
    with pytest.raises(ValueError, match="Slab"):
        octets("MemTotal: 1 kB\n", "Slab")
    line = "ESTAB 0 0 10.77.8.2:3128 10.77.1.2:4\n\t skmem:(r1000,rb131072,t7,tb87040,f20,w3,o0,bl0,d0)\n"
    assert buffers(2 * line) == 2 * 1023
    # Defect: a socket whose forward allocation was 20 bytes below zero counted as 4 GB.
    assert buffers(line.replace("f20", f"f{2**32 - 20}")) == 983


@pytest.mark.parametrize(
    ("build", "multipath", "tunnels"),
    [
        ("nginx version: nginx/1.22.1\nconfigure arguments: --with-debug", "wrapped", False),
        ("nginx version: nginx/1.29.6\nconfigure arguments:", "wrapped", False),
        ("nginx version: nginx/1.29.7\nconfigure arguments:", "own", False),
        ("nginx version: nginx/1.31.0\nconfigure arguments: --prefix=/x", "own", True),
        ("nginx version: nginx/1.32.0\nconfigure arguments: --without-http_tunnel_module", "own", False),
        ("nginx version: nginx/2.0.0\n", "own", True),
        ("", "wrapped", False),
    ],
)
def test_nginx_has_multipath_listeners_and_tunnels_when_its_version_and_build_say_so(
    build: str, multipath: str, tunnels: bool
) -> None:
    nginx = nginx_of(build)
    assert (nginx.multipath, nginx.tunnels) == (multipath, tunnels)
