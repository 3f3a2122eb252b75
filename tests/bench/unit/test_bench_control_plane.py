# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the aims on the rates at which connections are opened, and for figures without an aim."""

from __future__ import annotations

from mutants_of_runs import OPENED

from mptcp_bench.experiments.aims import missed
from mptcp_bench.experiments.control_plane_judging import AIM_RATE, judge


def test_beyond_the_aimed_rate_nothing_is_asked() -> None:
    wrong = {"opened_less_made": -1, "activated_less_made": -1, "lost": 1, "events_lost": 1, "dropped": 1, "cpu": 1.1}
    beyond = {**OPENED, **wrong, "asked": 1.5 * AIM_RATE, "joins": 0}
    assert missed(judge([OPENED, beyond], ["x"])) == ()
