# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``tunnel``: how it reads polls and calls, and what it plans."""

from __future__ import annotations

from math import inf

from mutants_of_tunnel import measured

from mptcp_bench.experiments.tunnel import SCENARIO
from mptcp_bench.experiments.tunnel_parts import CHANGES, END_STEP, MAX_RATE, MIN_RATE, Poll, call_of, silence, trace


def test_a_path_is_back_when_both_ends_use_it_for_good() -> None:
    seen = [Poll(0.0, True, True), Poll(1.0, False, False), Poll(2.0, True, False), Poll(3.0, True, True)]
    assert silence(seen, 0.5, 1.5, 0).back == 1.5
    seen += [Poll(4.0, True, False), Poll(5.0, True, True)]
    assert silence(seen, 0.5, 1.5, 0).back == 3.5
    assert silence([*seen, Poll(6.0, None, True)], 0.5, 1.5, 0).back == inf, "one end does not answer"


def test_each_change_has_a_rate_within_its_bounds_in_each_step() -> None:
    for rates in map(trace, CHANGES):
        assert len(rates) == END_STEP
        assert all(MIN_RATE <= rate <= MAX_RATE for rate in rates)


def test_a_packet_of_a_call_that_came_twice_counts_once_and_by_its_first_arrival() -> None:
    call = call_of([(number, 0, 20_000_000) for number in range(150)] + [(7, 0, 90_000_000)])
    assert (call.median, call.p99, call.loss) == (0.02, 0.02, 0.5)


def test_variants_alternate_and_a_quick_run_has_one_cell_of_each_part() -> None:
    planned = SCENARIO.plan(SCENARIO.chosen({"cells": "rates"}))
    assert [turn.variant for turn in planned[:5]] == ["a alone", "b alone", "ours", "mptcp", "a alone"]
    assert len({turn.cell for turn in SCENARIO.plan(SCENARIO.chosen({}, quick=True))}) == 7


def test_the_table_of_downloads_has_the_variants_side_by_side() -> None:
    results = measured()
    goodput, *others = SCENARIO.findings(results.turns, results.runs).tables
    headings = ["a alone", "b alone", "ours", "over MPTCP", "ours / sum"]
    assert [column.header for column in goodput.columns][2:] == headings
    assert len(others) == 5
