# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for what the experiments load and soak read from packets and entries, and for limits that crowds depends on."""

from __future__ import annotations

import math
import re

import pytest

from mptcp_bench.experiments.crowds import MAX_REQUESTS_WITH_BUSY, TABLE
from mptcp_bench.experiments.join_probe import GIVE_UP_SECONDS, delays
from mptcp_bench.experiments.soak import misplaced
from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.options import MpCapable, MpJoinAck, MptcpOption

PORT, FIRST, SECOND, NEXT = 3128, 40_000, 50_000, 40_002
"""The proxy's port; the client's ports of first and second subflow, and of the first subflow of another connection."""
CAPABLE, THIRD_ACK = MpCapable(1, 0), MpJoinAck(b"\0" * 20)


def segment(time: float, port: int, option: MptcpOption) -> Segment:
    return Segment(time, "wan0", b"\x0a\x4d\x01\x02", port, b"\x0a\x4d\x08\x02", PORT, 16, 0, 0, (option,))


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ({FIRST: 10.304, NEXT: 10.512}, [4, 2]),
        ({FIRST: 10.1, NEXT: 10.512}, [-200, 2]),
        ({FIRST: 10.31 + GIVE_UP_SECONDS, SECOND: 10.3015}, [math.inf, math.inf]),
    ],
    ids=["after the join", "before the join", "never, or much later"],
)
def test_reaction_ends_with_the_first_marked_packet_of_the_capped_subflow(
    marked: dict[int, float], expected: list[float]
) -> None:
    segments = [
        segment(10.0, FIRST, CAPABLE), segment(10.001, FIRST, CAPABLE), segment(10.3, SECOND, THIRD_ACK),
        segment(10.45, SECOND, THIRD_ACK), segment(10.5, NEXT, CAPABLE), segment(10.51, SECOND + 1, THIRD_ACK),
    ]  # fmt: skip
    assert delays(segments, marked, PORT) == pytest.approx(expected)


ENDS = ["10.77.3.2:40000", "10.77.4.2:40001"]
CAP, DEFAULT = "4d50:10", "4d50:ffff"


@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ({ENDS[0]: CAP, ENDS[1]: DEFAULT}, 0),
        ({}, 1),
        ({ENDS[0]: DEFAULT}, 1),
        ({ENDS[0]: CAP, ENDS[1]: CAP}, 1),
    ],
    ids=["correct", "no entry", "another class", "both paths"],
)
def test_cap_is_correct_if_its_class_has_only_the_capped_path(entries: dict[str, str], wrong: int) -> None:
    assert misplaced({"abcd"}, {"abcd": ENDS}, entries, CAP) == wrong


def test_nftables_limit_allows_the_requests_with_a_busy_client() -> None:
    (burst,) = set(re.findall(r"@clients4 .* burst (\d+) packets", TABLE.read_text()))
    assert int(burst) > MAX_REQUESTS_WITH_BUSY
