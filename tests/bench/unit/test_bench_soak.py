# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``soak``: its readings, and what counts as a wrong cap and as growth."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import pytest
from mutants_of_soak import sample, soaked

from mptcp_bench.experiments.scale_crowd import two_subflows
from mptcp_bench.experiments.scale_policy import CROWD_CAP
from mptcp_bench.experiments.soak import bpf_bytes, ceilings, process, shown
from mptcp_bench.experiments.soak_judging import CAP as CAP_RATE
from mptcp_bench.experiments.soak_judging import growth, judge, misplaced
from mptcp_common.units import parse_rate

FIRST, SECOND = "10.77.3.2:40000", "10.77.4.2:40001"
SUBFLOWS = {"abcd": [(FIRST, "capped"), (SECOND, "other")]}
CAP, DEFAULT = "4d50:10", "4d50:ffff"


@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ({FIRST: CAP}, 0),
        ({FIRST: CAP, SECOND: DEFAULT}, 0),
        ({}, 1),
        ({FIRST: DEFAULT}, 1),
        ({SECOND: CAP}, 1),
        ({FIRST: CAP, SECOND: CAP}, 1),
    ],
    ids=["right", "the other is known", "no entry", "not in the cap", "the wrong path", "both paths"],
)
def test_a_cap_is_right_if_the_capped_path_alone_is_in_its_class(entries: dict[str, str], wrong: int) -> None:
    assert len(misplaced({"abcd"}, SUBFLOWS, entries, "capped", CAP)) == wrong


def test_a_connection_without_subflows_is_wrong() -> None:
    assert misplaced({"abcd"}, {}, {FIRST: CAP}, "capped", CAP) == [f"abcd (class of the cap: {CAP}): no subflows"]


def test_a_cap_whose_class_is_not_there_is_wrong() -> None:
    assert misplaced({"abcd"}, SUBFLOWS, {FIRST: CAP}, "capped", "") == [
        f"abcd (class of the cap: none): {FIRST}, capped, {CAP}; {SECOND}, other, no entry"
    ]


def test_the_class_of_the_cap_is_found_by_a_ceiling_that_may_be_lowered_for_a_while() -> None:
    line = "class htb 4d50:{} parent 4d50:1 leaf 2: prio 0 rate 8bit ceil {} burst 1500b cburst 1500b\n"
    others = line.format("ffff", "100Gbit") + line.format("12", "5Mbit")
    assert ceilings(others + line.format("11", "1Gbit")) == {"4d50:11": 1e9}
    assert ceilings(others + line.format("11", "998877Kbit")) == {"4d50:11": 998.877e6}
    assert ceilings(others) == {}
    assert parse_rate(CROWD_CAP) == CAP_RATE


def test_growth_is_from_the_second_third_to_the_last() -> None:
    samples = soaked().samples
    assert growth(samples, lambda each: each.daemon.resident) == 0
    assert growth(samples, lambda each: 100 if each.time < 2400 else 120) == pytest.approx(0.2)
    assert math.isnan(growth(samples[:2], lambda each: each.entries))
    assert math.isnan(growth((*samples, replace(sample(120), bpf=math.nan)), lambda each: each.bpf))


def test_a_lone_tunnel_is_compared_too() -> None:
    """Half of one tunnel rounds to none, and if none were compared, no cap would be wrong."""
    alone = soaked(lambda number, one: {"standing": 1, "checked": 0}, tunnels=1)
    assert [aim.what for aim in judge(alone) if not aim.met] == ["caps: connections compared, fewest in a sample"]


def test_status_is_read_by_tokens_as_ss_writes_them() -> None:
    def subflow(remote: str) -> dict[str, str]:
        return {"remote": remote}

    status = {
        "connections": [
            {"token": "0000abcd", "subflows": [subflow(FIRST), subflow(SECOND)]},
            {"token": "11111111", "subflows": [subflow(FIRST)]},
            {"token": "22222222", "subflows": [subflow("10.77.1.2:5"), subflow("10.77.2.2:5")]},
            {"token": "00000001", "subflows": [subflow(FIRST), subflow(SECOND)]},
        ]
    }
    assert shown(status) == {"abcd": SUBFLOWS["abcd"], "0001": SUBFLOWS["abcd"]}


def test_connections_with_two_subflows_are_found_in_the_list_of_ss() -> None:
    line = "0 0 10.77.8.2:3128 10.77.3.2:40000 cubic tcp-ulp-mptcp flags:Mmec token:1(id:0)/{}(id:{})"
    text = "\n".join(line.format(token, number) for token, number in (("abcd", 0), ("abcd", 1), ("ef", 0)))
    assert two_subflows(text) == {"abcd"}


def test_what_a_process_has_is_read_and_of_a_dead_one_is_no_number() -> None:
    own = process(os.getpid())
    assert own.resident > 1
    assert own.descriptors >= 3
    assert process(os.getpid(), 2**22 + 1).descriptors >= 3
    assert math.isnan(process(2**22 + 1).resident)
    assert bpf_bytes(os.getpid()) == 0
    assert math.isnan(bpf_bytes(2**22 + 1))
