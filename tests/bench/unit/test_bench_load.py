# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for what the experiments load and soak read from packets, tc(8) and status, and for their policies."""

from __future__ import annotations

import math

import pytest

from mptcp_bench.experiments.join_probe import GIVE_UP_SECONDS, delays
from mptcp_bench.experiments.load_crowd import CAPPED, FULL, UNCAPPED
from mptcp_bench.experiments.soak import ceilings, misplaced
from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.options import MpCapable, MpJoinAck, MptcpOption
from mptcp_throttler.policy.load import load_policy

PORT, FIRST, SECOND, NEXT = 3128, 40_000, 50_000, 40_002
"""The proxy's port; the client's ports of first and second subflow, and of the first subflow of another connection."""
CAPABLE, THIRD_ACK = MpCapable(1, 0), MpJoinAck(b"\0" * 20)


def segment(at: float, port: int, option: MptcpOption) -> Segment:
    return Segment(at, "wan0", b"\x0a\x4d\x01\x02", port, b"\x0a\x4d\x08\x02", PORT, 16, 0, 0, (option,))


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ({FIRST: 10.304, NEXT: 10.512}, [4, 2]),
        ({FIRST: 10.1, NEXT: 10.512}, [-200, 2]),
        ({FIRST: 10.31 + GIVE_UP_SECONDS, SECOND: 10.3015}, [math.inf, math.inf]),
    ],
    ids=["after the join", "before it", "never, or much later"],
)
def test_a_reaction_ends_with_the_first_marked_packet_of_the_capped_subflow(
    marked: dict[int, float], expected: list[float]
) -> None:
    seen = [
        segment(10.0, FIRST, CAPABLE), segment(10.001, FIRST, CAPABLE), segment(10.3, SECOND, THIRD_ACK),
        segment(10.45, SECOND, THIRD_ACK), segment(10.5, NEXT, CAPABLE), segment(10.51, SECOND + 1, THIRD_ACK),
    ]  # fmt: skip
    assert delays(seen, marked, PORT) == pytest.approx(expected)


def test_policies_are_valid_and_anticipate_nothing_when_reactions_are_measured() -> None:
    policies = {text: load_policy(text, "policy.yaml") for text in (UNCAPPED, CAPPED, FULL)}
    names = [[rule.name for rule in policy.rules] for policy in policies.values()]
    assert names == [[], ["crowd"], ["client", "crowd", "volume"]]
    assert "anticipate: false" in FULL


ENDS = ["10.77.3.2:40000", "10.77.4.2:40001"]
CAP, DEFAULT = "4d50:10", "4d50:ffff"


@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ({ENDS[0]: CAP}, 0),
        ({ENDS[0]: CAP, ENDS[1]: DEFAULT}, 0),
        ({}, 1),
        ({ENDS[0]: DEFAULT}, 1),
        ({ENDS[1]: CAP}, 1),
        ({ENDS[0]: CAP, ENDS[1]: CAP}, 1),
    ],
    ids=["right", "the other is known", "no entry", "not in the cap", "the wrong path", "both paths"],
)
def test_a_cap_is_right_when_only_the_capped_path_is_in_its_class(entries: dict[str, str], wrong: int) -> None:
    assert misplaced({"abcd"}, {"abcd": ENDS}, entries, CAP) == wrong


def test_the_class_of_the_cap_is_found_by_a_ceiling_that_may_be_lowered_for_a_while() -> None:
    line = "class htb 4d50:{} parent 4d50:1 leaf 2: prio 0 rate 8bit ceil {} burst 1500b cburst 1500b\n"
    others = line.format("ffff", "100Gbit") + line.format("12", "5Mbit")
    assert ceilings(others + line.format("11", "998877Kbit")) == {"4d50:11": 998.877e6}
    assert ceilings(others) == {}
