# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the verdicts and tables of the experiment ``crowds`` on made-up seconds, and for its readings."""

from __future__ import annotations

import re
from dataclasses import replace
from math import isnan

import pytest
from mutants import rehearsed
from mutants_of_crowds import measured, seconds

from mptcp_bench.experiments.columns import Results, Turn
from mptcp_bench.experiments.crowds import ASKED_BESIDE_BUSY, SCENARIO, TABLE
from mptcp_bench.experiments.crowds_judging import ALL, REQUESTS, Measured
from mptcp_lab.testbed.crowds import limit


def rounds(*factors: float) -> Results[str, Measured]:
    """Return rounds on a machine that gets slower. Beside all, the client's requests take *factors* times as long."""

    def of(turn: Turn[str]) -> Measured:
        machine = float(turn.number)
        factor = factors[turn.number - 1] if turn.cell == ALL else 1.0
        return replace(measured(turn.cell, turn.number), seconds=seconds(machine * factor))

    return rehearsed(SCENARIO, {"arm": ALL, "runs": str(len(factors))}, of)


@pytest.mark.parametrize(
    ("factors", "bound", "met"),
    [((1.5, 1.5, 1.5), 1.5, True), ((1.9, 2.0, 1.8), 2.069, False), ((2.1, 2.1, 2.1), 2.1, False)],
)
def test_client_waits_unless_the_bound_of_its_ratio_to_the_same_round_alone_is_below_two(
    factors: tuple[float, ...], bound: float, met: bool
) -> None:
    [aim] = (aim for aim in SCENARIO.aims(rounds(*factors)) if "median" in aim.what)
    assert aim.value == pytest.approx(bound, abs=0.001)
    assert aim.met == met


def test_latency_beside_a_busy_client_is_compared_with_that_of_its_own_requests() -> None:
    """A hundred connections with 1,000 answers a second together wait 0.1 s for each answer."""
    busy = replace(measured(REQUESTS, 0), seconds=(0.1, 0.2), standing=100, answers=1000.0)
    assert busy.due == pytest.approx(1.5)
    assert isnan(replace(busy, seconds=()).due)
    assert isnan(replace(busy, standing=0).due)


def test_conf_nftables_allows_the_requests_beside_a_busy_client() -> None:
    (burst,) = set(re.findall(r"@clients4 .* burst (\d+) packets", TABLE.read_text()))
    assert int(burst) > ASKED_BESIDE_BUSY


def test_limit_of_descriptors_is_the_soft_one() -> None:
    text = "Limit                     Soft Limit           Hard Limit           Units\n"
    assert limit(f"{text}Max open files            1024                 20000                files\n") == 1024
