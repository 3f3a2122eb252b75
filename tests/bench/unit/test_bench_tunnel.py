# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment tunnel: how it judges polls, sizes and changes, and its options."""

from __future__ import annotations

import io
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants import missed
from mutants_of_tunnel import BEGAN, CELLS, ENDED, TUNNEL, polls, sound
from rich.console import Console

from mptcp_bench.experiments.options import OptionError
from mptcp_bench.experiments.tunnel import other_tables, table_of
from mptcp_bench.experiments.tunnel_cells import BURSTS, PAYLOAD, RANDOM, PathPair, plan
from mptcp_bench.experiments.tunnel_cost import RunTime, busiest
from mptcp_bench.experiments.tunnel_faults import LEAST_RATE, MOST_RATE, mean_rate, trace
from mptcp_bench.experiments.tunnel_judging import Measured, Poll, rate_between, silence


@pytest.mark.parametrize("path", [0, 1])
def test_a_silent_path_is_left_and_used_again_by_the_times_of_both_ends(path: int) -> None:
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


def test_with_the_second_path_unused_no_lossless_cell_is_enough() -> None:
    found = missed(TUNNEL.mutants["second path unused"])
    lossless = [cell.name for cell in CELLS if cell.part == "goodput"]
    assert all(any(what.startswith(name) for what in found) for name in lossless)


@given(st.floats(1e5, 1e8), st.floats(0.5, 4))
def test_a_rate_is_that_of_the_window_alone(rate: float, begin: float) -> None:
    sizes = [(t / 20, round(rate / 8 * min(max(0.0, t / 20 - begin), 3.0))) for t in range(200)]
    assert rate_between(sizes, begin + 0.1, begin + 2.9) == pytest.approx(rate, rel=0.01)


def test_a_download_that_was_not_seen_to_its_end_has_no_rate() -> None:
    with pytest.raises(ValueError, match="not seen from 1 to 9 s"):
        rate_between([(t / 20, t) for t in range(100)], 1, 9)


@given(st.integers(0, 99), st.integers(1, 200))
def test_a_trace_stays_within_its_bounds_and_is_that_of_its_seed(seed: int, steps: int) -> None:
    rates = trace(seed, steps)
    assert rates == trace(seed, steps)
    assert len(rates) == steps
    assert all(LEAST_RATE <= rate <= MOST_RATE for rate in rates)


def test_the_mean_of_a_rate_that_changes_is_by_time() -> None:
    assert mean_rate([(0.0, 10.0), (4.0, 2.0)], 3.0, 5.0) == 6
    assert mean_rate([(0.0, 10.0), (1.0, 2.0)], 3.0, 5.0) == 2
    assert mean_rate([(0.0, 10.0), (7.0, 2.0)], 3.0, 5.0) == 10


def test_the_program_that_ran_most_is_taken() -> None:
    before, after = (
        {1: RunTime(100, 10), 2: RunTime(50, 1)},
        {1: RunTime(300, 20), 2: RunTime(5050, 101), 3: RunTime(0, 0)},
    )
    assert busiest(before, after) == 50
    with pytest.raises(ValueError, match="no BPF program"):
        busiest(after, after)


def test_both_losses_are_one_percent() -> None:
    assert RANDOM.mean == pytest.approx(0.01, rel=0.02)
    assert BURSTS.mean == pytest.approx(0.01, rel=0.02)


def test_files_take_as_long_as_asked() -> None:
    sizes = PathPair((30, 10)).octets(8)
    assert sizes["sum"] * 8 / (40e6 * PAYLOAD) == pytest.approx(8)
    assert sizes["a"] + sizes["b"] == pytest.approx(sizes["sum"], abs=2)


def test_what_is_chosen_is_planned() -> None:
    chosen = plan({"cells": "loss,silence"}, quick=False)
    assert [cell.part for cell in chosen.cells()] == ["loss"] * 4
    assert [plan({}, quick=False).runs_of(part) for part in ("goodput", "loss")] == [5, 3]
    turns = list(plan({}, quick=False).turns("rates"))
    assert turns[:5] == [(0, "alone"), (0, "ours"), (0, "weights"), (0, "mptcp"), (1, "alone")], "variants take turns"
    assert len(turns) == 8
    assert [plan({"runs": "2"}, quick=True).runs_of(part) for part in ("goodput", "loss")] == [2, 2]
    assert [cell.part for cell in plan({}, quick=True).cells()] == ["goodput", "rates", "loss"]


@pytest.mark.parametrize("measured", [sound(), Measured()])
def test_tables_show_what_there_is(measured: Measured) -> None:
    console = Console(width=140, record=True, file=io.StringIO())
    for table in (table_of(measured, CELLS), *other_tables(measured)):
        console.print(table)
    shown = console.export_text()
    assert all(cell.name in shown for cell in CELLS)
    assert ("jitter" in shown) is (len(measured) > 0)


@pytest.mark.parametrize("option", ["cells=all", "runs=0", "seconds=0"])
def test_an_option_that_makes_no_sense_is_refused(option: str) -> None:
    with pytest.raises(OptionError, match=r"^--set "):
        plan(dict([option.split("=")]), quick=False)
