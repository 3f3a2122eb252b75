"""Goodput with entries and without is compared within a round."""

from __future__ import annotations

from mutants import missed
from mutants_of_runs import DATAPATH

from mptcp_bench.experiments.datapath_judging import within_rounds


def test_ratios_compare_within_a_round() -> None:
    goodput = {"0 entries": [1.0, 2.0], "1,000 entries": [1.0, 1.0]}
    assert within_rounds(goodput, 1_000, 0) == [1.0, 0.5]


def test_noise_that_hides_a_cost_misses_the_bound_of_the_mean_and_not_the_median() -> None:
    assert missed(DATAPATH.mutants["noise hides what they do"]) == {
        f"nftables: {count} entries / 0 entries, mean, lower bound" for count in ("1,000", "50,000")
    }
