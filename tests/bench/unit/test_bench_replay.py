"""The handshakes that the experiment control-plane replays: the throttler believes each of them."""

from __future__ import annotations

import random

from mptcp_bench.experiments.replay import PORT, connection, schedule
from mptcp_throttler.mptcp.segment import parse_frame
from mptcp_throttler.mptcp.tracker import Tracker


def test_a_connection_opens_with_both_subflows_and_no_segment_comes_the_wrong_way() -> None:
    tracker = Tracker([PORT])
    opening, _closing = connection(7, random.Random(1))
    found = []
    for number, (to_proxy, frame) in enumerate(opening):
        segment = parse_frame(frame, 0.01 * number, "wan0", outgoing=not to_proxy)
        assert segment is not None
        assert (segment.destination_port == PORT) is to_proxy
        found += [event.kind.value for event in tracker.segment(segment)]
    assert found == ["connection-opened", "subflow-active", "subflow-active"]


def test_a_schedule_is_in_order_and_the_same_for_a_seed() -> None:
    moments = list(schedule(10, 2, 3))
    assert [moment for moment, _ in moments] == sorted(moment for moment, _ in moments)
    assert len(moments) == 40
    assert moments == list(schedule(10, 2, 3))
