# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for how the experiment ``crowds`` compares latencies, and for the limits that it depends on."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from mutants import rehearsed
from mutants_of_crowds import measured, seconds

from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.crowds import ALL, ASKED_BESIDE_BUSY, SCENARIO, TABLE, Measured


@pytest.mark.parametrize(
    ("factors", "bound", "met"),
    [((1.5, 1.5, 1.5), 1.5, True), ((1.9, 2.0, 1.8), 2.069, False), ((2.1, 2.1, 2.1), 2.1, False)],
)
def test_client_waits_unless_the_bound_of_its_ratio_to_the_same_round_alone_is_below_two(
    factors: tuple[float, ...], bound: float, met: bool
) -> None:
    """The machine slows down from round to round. With all other clients, requests take *factors* times as long."""

    def of(turn: Turn[str]) -> Measured:
        factor = factors[turn.number - 1] if turn.cell == ALL else 1.0
        return replace(measured(turn.cell, turn.number), seconds=seconds(turn.number * factor))

    results = rehearsed(SCENARIO, {"arm": ALL, "runs": "3"}, of)
    [aim] = (aim for aim in SCENARIO.aims(results) if "median" in aim.what)
    assert aim.value == pytest.approx(bound, abs=0.001)
    assert aim.met == met


def test_conf_nftables_allows_the_requests_beside_a_busy_client() -> None:
    (burst,) = set(re.findall(r"@clients4 .* burst (\d+) packets", TABLE.read_text()))
    assert int(burst) > ASKED_BESIDE_BUSY
