# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment relay: its cells, and figures that a mutant of its result cannot show."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_bench.experiments.peers import nginx_features
from mptcp_bench.experiments.relay import SCENARIO, lacking
from mptcp_bench.experiments.relay_judging import DIRECT, LIMIT, TASKS, Cell, Setting, cost, protocol_error
from mptcp_bench.experiments.relay_load import BUCKETS, buffers, latencies


def test_each_proxy_has_the_tasks_and_clients_that_it_supports(monkeypatch: pytest.MonkeyPatch) -> None:
    every = SCENARIO.cells(SCENARIO.chosen({}))
    cells = {(cell.proxy, cell.client): cell.tasks for cell in every}
    assert len({cell.setting for cell in every}) == 4
    assert [client for proxy, client in cells if proxy == "squid"] == ["tcp"]
    assert [client for proxy, client in cells if proxy == LIMIT] == ["tcp", "mptcp1", "mptcp2"]
    assert cells["haproxy", "tcp"] == ("get", "requests")
    assert (cells[DIRECT, "tcp"], cells[LIMIT, "tcp"]) == (("get", "requests"), TASKS)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    assert lacking(Cell(DIRECT, "tcp", Setting(own_processor=True))) is not None
    assert lacking(Cell(DIRECT, "tcp")) is None


@pytest.mark.parametrize(
    ("build", "features"),
    [
        ("nginx version: nginx/1.29.6\nconfigure arguments:", (False, False)),
        ("nginx version: nginx/1.29.7\nconfigure arguments:", (True, False)),
        ("nginx version: nginx/1.31.0\nconfigure arguments: --prefix=/x", (True, True)),
        ("nginx version: nginx/1.32.0\nconfigure arguments: --without-http_tunnel_module", (True, False)),
        ("", (False, False)),
    ],
)
def test_nginx_has_the_features_of_its_version_and_build(build: str, features: tuple[bool, bool]) -> None:
    assert nginx_features(build) == features


@given(st.lists(st.integers(0, 10**11), min_size=1), st.sampled_from((0.1, 50, 90, 99, 100)))
def test_percentiles_of_the_histogram_are_those_of_its_values(values: list[int], percent: float) -> None:
    counts = [0] * BUCKETS
    for value in values:
        # The bucket as native/relay_load.c computes it.
        shift = max(0, value.bit_length() - 6)
        counts[shift * 32 + (value >> shift)] += 1
    exact = sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
    assert latencies(counts, (percent,))[0] * 1e9 == pytest.approx(exact, rel=1 / 32, abs=1)
    assert latencies([0] * BUCKETS, (percent,)) == (math.inf,)


@pytest.mark.parametrize(
    ("client", "capable", "joins", "reason"),
    [
        ("mptcp1", 9, 0, "9 of 10 connections were Multipath TCP"),
        ("mptcp2", 10, 9, "9 of 10 connections had a second subflow"),
        ("tcp", 1, 0, "1 connections were Multipath TCP"),
        ("mptcp1", 10, 1, "1 second subflows"),
        ("mptcp2", 10, 10, None),
    ],
)
def test_connections_of_another_kind_are_void(client: str, capable: int, joins: int, reason: str | None) -> None:
    assert protocol_error(client, 10, capable, joins) == reason


def test_cost_of_nothing_is_infinite_and_unseen_processor_time_is_not_free() -> None:
    assert (cost("get", 1.0, 500_000_000, 0), cost("requests", 1.0, 1, 10_000)) == (2.0, 100.0)
    assert cost("get", 1.0, 0, 0) == math.inf
    assert math.isnan(cost("get", 0.0, 500_000_000, 0))


def test_buffers_of_a_socket_may_be_negative() -> None:
    """Defect: a socket whose forward allocation was 20 bytes below zero counted as 4 GB."""
    line = "ESTAB 0 0 10.77.8.2:3128 10.77.1.2:4\n\t skmem:(r1000,rb131072,t7,tb87040,f20,w3,o0,bl0,d0)\n"
    assert buffers(line + line.replace("f20", f"f{2**32 - 20}")) == 1023 + 983
