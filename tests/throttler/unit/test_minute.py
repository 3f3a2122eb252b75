"""What is told of so many times in a minute."""

from __future__ import annotations

from mptcp_throttler.telemetry.minute import Minute


def test_so_many_have_room_in_a_minute_and_as_many_again_in_the_next() -> None:
    minute = Minute(2)
    times = [60.0, 61.0, 119.9, 120.0, 120.0, 121.0, 300.0]
    assert [minute.has_room(now) for now in times] == [True, True, False, True, True, False, True]
