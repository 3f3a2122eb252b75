# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``tunnel``: how it reads polls, sizes, changes and BPF's run times, and what it plans."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants_of_tunnel import BEGAN, ENDED, measured, polls

from mptcp_bench.experiments.tunnel import SCENARIO
from mptcp_bench.experiments.tunnel_cost import RunTime, busiest
from mptcp_bench.experiments.tunnel_parts import (
    LEAST_RATE,
    MOST_RATE,
    Poll,
    called,
    mean_of_changes,
    silence,
    trace,
)


@pytest.mark.parametrize("path", [0, 1])
def test_the_times_of_both_ends_say_when_a_silent_path_is_left_and_used_again(path: int) -> None:
    found = silence(polls(path), path, BEGAN, ENDED, 0.3)
    assert (found.relay, found.proxy, found.back) == pytest.approx((0.3, 0.3, 0.1), abs=0.021)
    other = silence(polls(path), 1 - path, BEGAN, ENDED, 0.3)
    assert (other.relay, other.proxy) == (inf, inf)


def test_a_path_is_back_when_both_ends_use_it_for_good() -> None:
    seen = [
        Poll(0.0, [True], [True]),
        Poll(1.0, [False], [False]),
        Poll(2.0, [True], [False]),
        Poll(3.0, [True], [True]),
    ]
    assert silence(seen, 0, 0.5, 1.5, 0).back == 1.5
    seen += [Poll(4.0, [True], [False]), Poll(5.0, [True], [True])]
    assert silence(seen, 0, 0.5, 1.5, 0).back == 3.5
    assert silence([*seen, Poll(6.0, [], [True])], 0, 0.5, 1.5, 0).back == inf, "one end does not answer"


@given(st.integers(0, 99), st.integers(1, 200))
def test_a_trace_of_rates_stays_within_its_bounds_and_is_that_of_its_seed(seed: int, steps: int) -> None:
    rates = trace(seed, steps)
    assert rates == trace(seed, steps)
    assert len(rates) == steps
    assert all(LEAST_RATE <= rate <= MOST_RATE for rate in rates)


def test_the_mean_of_a_rate_that_changes_is_by_time() -> None:
    assert mean_of_changes([(0.0, 10.0), (4.0, 2.0)], 3.0, 5.0) == 6
    assert mean_of_changes([(0.0, 10.0), (1.0, 2.0)], 3.0, 5.0) == 2
    assert mean_of_changes([(0.0, 10.0), (7.0, 2.0)], 3.0, 5.0) == 10


def test_a_packet_of_a_call_that_came_twice_counts_once_and_by_its_first_arrival() -> None:
    came = [(number, 0, 20_000_000) for number in range(150)] + [(7, 0, 90_000_000)]
    found = called(came)
    assert (found.median, found.p99, found.loss) == (0.02, 0.02, 0.5)


def test_the_cost_is_that_of_the_program_that_ran_most() -> None:
    before, after = (
        {1: RunTime(100, 10), 2: RunTime(50, 1)},
        {1: RunTime(300, 20), 2: RunTime(5050, 101), 3: RunTime(0, 0)},
    )
    assert busiest(before, after) == 50
    with pytest.raises(ValueError, match="no BPF program"):
        busiest(after, after)


def test_variants_alternate_and_those_that_are_only_compared_run_less_often() -> None:
    planned = SCENARIO.plan(SCENARIO.chosen({"cells": "rates"}))
    first = [(turn.number, turn.variant) for turn in planned if turn.cell == planned[0].cell]
    assert first[:6] == [(1, "a alone"), (1, "b alone"), (1, "ours"), (1, "weights"), (1, "mptcp"), (2, "a alone")]
    assert len(first) == 11
    assert {turn.cell.part for turn in SCENARIO.plan(SCENARIO.chosen({"cells": "loss,silence"}))} == {"loss", "silence"}
    assert len({turn.cell for turn in SCENARIO.plan(SCENARIO.chosen({}, quick=True))}) == 7


def test_the_table_of_downloads_has_the_variants_side_by_side() -> None:
    results = measured()
    goodput, *others = SCENARIO.findings(results.turns, results.runs).tables
    assert [column.header for column in goodput.columns][2:] == [
        "a alone", "b alone", "ours", "50/50", "over MPTCP", "ours / sum"
    ]  # fmt: skip
    assert len(others) == 4
