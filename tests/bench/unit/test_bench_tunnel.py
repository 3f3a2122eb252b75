# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``tunnel``: reactions computed from polls, and the delays of a call."""

from __future__ import annotations

from math import inf

from mptcp_bench.experiments.tunnel_parts import Poll, Silence, reactions, to_call


def test_reactions_to_a_silent_path_are_those_of_the_first_polls_and_its_return_is_final() -> None:
    polls = [Poll(0.0, True, True), Poll(1.0, False, True), Poll(2.0, True, False), Poll(3.0, True, True)]
    assert reactions(polls, 0.5, 1.5, 0.3) == Silence(relay=0.5, proxy=1.5, back=1.5, lost=0.3)
    polls += [Poll(4.0, True, False), Poll(5.0, True, True)]
    assert reactions(polls, 0.5, 1.5, 0).back == 3.5
    assert reactions([*polls, Poll(6.0, False, True)], 0.5, 1.5, 0).back == inf
    assert reactions(polls[:1], 0.0, 1.5, 0) == Silence(inf, inf, inf, 0)


def test_a_packet_of_a_call_that_came_twice_counts_once_and_by_its_first_arrival() -> None:
    call = to_call([(number, 0, 20_000_000) for number in range(150)] + [(7, 0, 90_000_000)])
    assert (call.median, call.p99, call.loss) == (0.02, 0.02, 0.5)
