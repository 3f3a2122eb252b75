"""What the control plane's experiment replays is what a throttler takes for connections with two subflows."""

from __future__ import annotations

from mptcp_bench.experiments.replay import PORT, Frame, schedule
from mptcp_throttler.mptcp.segment import parse_frame
from mptcp_throttler.mptcp.tracker import Tracker

RATE, SECONDS = 20, 1


def replayed(turned: bool = False) -> Tracker:
    """Return a tracker that saw the replay; *turned*: every frame came the other way."""
    tracker = Tracker([PORT])
    for moment, frames in schedule(RATE, SECONDS, seed=1):
        for frame in frames:
            assert isinstance(frame, Frame)
            segment = parse_frame(frame.data, moment, "wan0", outgoing=frame.to_proxy is turned)
            assert segment is not None
            tracker.segment(segment)
    return tracker


def test_every_connection_is_opened_with_both_its_subflows() -> None:
    tracker = replayed()
    assert tracker.counters.connections_opened == RATE * SECONDS
    assert tracker.counters.subflows_activated == 2 * RATE * SECONDS


def test_the_direction_matters() -> None:
    assert replayed(turned=True).counters.connections_opened == 0
