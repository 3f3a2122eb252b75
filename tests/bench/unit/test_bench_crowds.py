# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the verdicts of the experiment ``crowds`` on made-up seconds, and for its readings of processes."""

from __future__ import annotations

import re
from dataclasses import replace
from math import isnan

import pytest
from mutants_of_crowds import BEFORE, QUICK, measured, seconds

from mptcp_bench.experiments.crowds import ASKED_BESIDE_BUSY, IN_ORDER, TABLE, busy_table, table_of
from mptcp_bench.experiments.crowds_judging import ALL, ALONE, DOWNLOADS, REQUESTS, Measured, aims, ratios
from mptcp_bench.experiments.findings import tables_of
from mptcp_lab.testbed.crowds import limit


def rounds(*factors: float) -> list[Measured]:
    """Return rounds on a machine that gets slower. Beside all, the client's requests take *factors* times as long."""
    found = []
    for number, factor in enumerate(factors):
        machine = 1 + number
        found += [
            replace(measured(ALONE, number), seconds=seconds(machine)),
            replace(measured(ALL, number), seconds=seconds(machine * factor)),
        ]
    return found


def test_latencies_are_compared_within_each_round() -> None:
    assert ratios(rounds(1.5, 1.5, 1.5), ALL, 50) == pytest.approx([1.5, 1.5, 1.5])
    assert ratios(rounds(1.0, 2.0)[1:], ALL, 50) == [2.0], "a round without the client alone has no ratio"


@pytest.mark.parametrize(
    ("factors", "bound", "met"),
    [
        ((1.5, 1.5, 1.5), 1.5, True),
        ((1.9, 2.0, 1.8), 2.069, False),
        ((2.1, 2.1, 2.1), 2.1, False),
    ],
)
def test_a_client_waits_unless_the_bound_of_its_ratio_is_below_two(
    factors: tuple[float, ...], bound: float, met: bool
) -> None:
    judged = aims(rounds(*factors), (ALONE, ALL), len(factors), BEFORE)
    [aim] = (aim for aim in judged if "median" in aim.what)
    assert aim.value == pytest.approx(bound, abs=0.001)
    assert aim.met == met


def test_the_table_has_a_row_for_each_arm_that_was_measured() -> None:
    [table] = tables_of([table_of(rounds(1.5, 1.5), (ALONE, "tunnels", ALL))])
    assert table.key == "a-client-beside-connections-that-ask-for-nothing"
    alone, beside = table.rows
    assert alone[:2] == ("alone", "2")
    assert alone[2].startswith(f"{1.5e3 * QUICK:.2f} ±")
    assert (alone[4], beside[4], beside[7]) == ("", "1.50 ± 0.00", "7,500 of 7,500")


def test_beside_a_busy_client_a_request_is_compared_with_each_of_its_requests() -> None:
    """A hundred connections with 1,000 answers a second together wait 0.1 s for each answer."""
    busy = replace(measured(REQUESTS, 0), seconds=(0.1, 0.2), standing=100, answers=1000.0)
    assert busy.due == pytest.approx(1.5)
    assert isnan(replace(busy, seconds=()).due)
    assert isnan(replace(busy, standing=0).due)


def test_a_busy_client_has_a_table_of_its_own() -> None:
    arms = (ALONE, REQUESTS, DOWNLOADS)
    there = [measured(arm, number) for arm in arms for number in range(2)]
    idle, busy = tables_of([table_of(there, arms), busy_table(there, arms)])
    assert [row[0] for row in idle.rows] == [ALONE]
    assert busy.key == "a-client-beside-one-that-is-busy"
    assert [(row[0], row[3], row[9]) for row in busy.rows] == [
        (REQUESTS, "800 ± 0", "0.93 ± 0.62"),
        (DOWNLOADS, "", ""),
    ]


def test_the_table_of_conf_lets_the_client_ask_as_often_as_it_does_beside_a_busy_one() -> None:
    (burst,) = set(re.findall(r"@clients4 .* burst (\d+) packets", TABLE.read_text()))
    assert int(burst) > ASKED_BESIDE_BUSY


def test_headers_that_never_end_are_opened_last_for_squid_gives_them_up() -> None:
    assert IN_ORDER[-1] == "slow-headers"


def test_the_limit_of_descriptors_is_the_soft_one() -> None:
    text = "Limit                     Soft Limit           Hard Limit           Units\n"
    assert limit(f"{text}Max open files            1024                 20000                files\n") == 1024
