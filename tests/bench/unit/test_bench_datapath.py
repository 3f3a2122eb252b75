"""Goodput with entries and without is compared within a round."""

from __future__ import annotations

from mptcp_bench.experiments.datapath_judging import within_rounds


def test_ratios_compare_within_a_round() -> None:
    goodput = {"0 entries": [1.0, 2.0], "1,000 entries": [1.0, 1.0]}
    assert within_rounds(goodput, 1_000, 0) == [1.0, 0.5]
