"""What is asked of replays, and what is shown alone."""

from __future__ import annotations

from mptcp_bench.experiments.aims import missed
from mptcp_bench.experiments.control_plane_judging import AIM_RATE, judge


def test_beyond_the_aimed_rate_nothing_is_asked_of_a_replay() -> None:
    slow = {"rate": 1000.0, "opened_less_sent": -1, "activated_less_sent": -1, "lost": 1, "dropped": 1, "cpu": 1.1}
    aimed = {**dict.fromkeys(slow, 0), "rate": 1000.0, "backend": "x", "asked": AIM_RATE}
    assert missed(judge([aimed, {**slow, "backend": "x", "asked": 1500}], ["x"])) == ()
