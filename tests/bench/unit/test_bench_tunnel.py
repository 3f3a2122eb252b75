# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``tunnel``: how it reads polls and arrivals, and what it plans."""

from __future__ import annotations

from math import inf

import pytest
from mutants_of_tunnel import BEGAN, ENDED, polls

from mptcp_bench.experiments.tunnel import SCENARIO
from mptcp_bench.experiments.tunnel_parts import Poll, called, silence


@pytest.mark.parametrize("path", [0, 1])
def test_the_times_of_both_ends_say_when_a_silent_path_is_left_and_used_again(path: int) -> None:
    found = silence(polls(path), path, BEGAN, ENDED, 0.3)
    assert (found.relay, found.proxy, found.back) == pytest.approx((0.3, 0.3, 0.1), abs=0.021)
    other = silence(polls(path), 1 - path, BEGAN, ENDED, 0.3)
    assert (other.relay, other.proxy) == (inf, inf)


def test_a_path_is_back_when_both_ends_use_it_for_good() -> None:
    lives = [(True, True), (False, False), (True, False), (True, True), (True, False), (True, True)]
    seen = [Poll(float(time), [relay], [proxy]) for time, (relay, proxy) in enumerate(lives)]
    assert silence(seen[:4], 0, 0.5, 1.5, 0).back == 1.5
    assert silence(seen, 0, 0.5, 1.5, 0).back == 3.5
    assert silence([*seen, Poll(6.0, [], [True])], 0, 0.5, 1.5, 0).back == inf, "one end does not answer"


def test_a_packet_of_a_call_that_came_twice_counts_once_and_by_its_first_arrival() -> None:
    came = [(number, 0, 20_000_000) for number in range(150)] + [(7, 0, 90_000_000)]
    found = called(came)
    assert (found.median, found.p99, found.loss) == (0.02, 0.02, 0.5)


def test_variants_alternate_and_those_that_are_only_compared_run_less_often() -> None:
    planned = SCENARIO.plan(SCENARIO.chosen({"cells": "rates"}))
    first = [(turn.number, turn.variant) for turn in planned if turn.cell == planned[0].cell]
    assert first[:6] == [(1, "a alone"), (1, "b alone"), (1, "ours"), (1, "weights"), (1, "mptcp"), (2, "a alone")]
    assert len(first) == 11
    assert len({turn.cell for turn in SCENARIO.plan(SCENARIO.chosen({}, quick=True))}) == 6
