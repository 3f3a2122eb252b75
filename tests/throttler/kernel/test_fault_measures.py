# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the checks of the fault tests can fail: a pause counts unless the machine itself stalled."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import faults
import pytest
import time_limit
from faults import MAX_PAUSE, MAX_REPAIR_SECONDS, Pulse, allowed_seconds, longest_pause, repair_seconds
from throttler_site import until
from time_limit import MAX_SLOWNESS


@pytest.mark.parametrize(
    ("slow", "stalls", "longest"),
    [
        pytest.param([], [(0.0, 9.0)], 0.0, id="stall, but no slow round trip"),
        pytest.param([(1.0, 4.0)], [], 3.0, id="no stall"),
        pytest.param([(1.0, 4.0)], [(0.0, 9.0)], 0.0, id="stall longer than the round trip"),
        pytest.param([(1.0, 4.0)], [(0.5, 1.5), (3.0, 3.5)], 2.0, id="two stalls"),
        pytest.param([(1.0, 4.0), (5.0, 5.5)], [(1.0, 4.0)], 0.5, id="first of two slow round trips is a stall"),
        pytest.param([(1.0, 4.0)], [(4.0, 9.0)], 3.0, id="stall after the round trip"),
    ],
)
def test_longest_pause_excludes_time_in_which_the_machine_stalled(
    slow: list[tuple[float, float]], stalls: list[tuple[float, float]], longest: float
) -> None:
    assert longest_pause(slow, stalls) == longest


def test_allowed_time_grows_with_load_up_to_a_limit() -> None:
    assert allowed_seconds(0.0) == MAX_REPAIR_SECONDS
    assert allowed_seconds(0.5) == MAX_REPAIR_SECONDS * (1 + (MAX_SLOWNESS - 1) / 2)
    assert allowed_seconds(1.0) == allowed_seconds(1.1) == allowed_seconds(None) == MAX_REPAIR_SECONDS * MAX_SLOWNESS


def test_repair_that_is_always_late_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repair takes 0.3 s on a clock that advances with each check, but the allowed time is 0.1 s.

    The load of the machine is ignored.
    """
    monkeypatch.setattr(faults, "MAX_REPAIR_SECONDS", 0.1)
    monkeypatch.setattr(time_limit, "MAX_SLOWNESS", 1)
    now = 0.0
    damage_times: list[float] = []

    def damage() -> None:
        damage_times.append(now)

    def is_repaired() -> bool:
        nonlocal now
        now += 0.125
        return now > damage_times[-1] + 0.3

    with pytest.raises(AssertionError, match="no repair was within"):
        repair_seconds(damage, is_repaired, lambda: now)
    assert len(damage_times) == faults.ATTEMPTS
    # A single successful attempt within the time limit is enough.
    took = repair_seconds(damage, lambda: len(damage_times) > 4 or is_repaired(), lambda: now)
    assert took == 0
    assert len(damage_times) == 5


@pytest.mark.parametrize("pause", [0.0, MAX_PAUSE + 1], ids=["no pause", "long pause"])
def test_only_traffic_with_a_long_pause_fails(pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if pause:
        # Part of the pause may be subtracted because the machine stalled, so the limit is far below the pause.
        monkeypatch.setattr(faults, "MAX_PAUSE", 0.2)
    client, proxy = socket.socketpair()
    pauses = iter([0.0] * 10 + [pause])

    def answer() -> None:
        while data := proxy.recv(1):
            time.sleep(next(pauses, 0.0))
            proxy.sendall(data)

    # The sockets are closed before the executor waits for its thread, which reads from them.
    with ThreadPoolExecutor(1) as pool, client, proxy:
        answering = pool.submit(answer)
        pulse = Pulse(client, None)
        until(lambda: pulse.round_trips > 20)
        with pytest.raises(AssertionError, match="traffic paused") if pause else nullcontext():
            pulse.stop()
        client.shutdown(socket.SHUT_WR)
        answering.result()
