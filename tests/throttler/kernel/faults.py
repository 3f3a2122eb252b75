# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers for the kernel tests of faults: traffic that must not stop, and the time until everything is restored.

The limits for both depend on the load of the machine. A test must not fail because another suite runs at the same
time, but it must fail if an action that took a second takes a minute.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from throttler_site import until
from time_limit import slowness

from mptcp_lab.agent import processors

LONG_TIMEOUT = 60.0
"""Timeout in seconds. On a busy machine, even an action that must happen within two seconds may take longer."""
RARE_INTERVAL = 300
"""Seconds between two comparisons with the kernel. The interval is so long that none happens during a test: the
throttler must notice all damage by other means."""
MAX_REPAIR_SECONDS = 2.0
"""Seconds in which everything must be restored, on a machine that is otherwise idle."""
ATTEMPTS = 3
MAX_PAUSE = 2.0
"""Maximum pause in traffic, in seconds. It allows one or two retransmissions (RFC 6298); their timers start at 0.2 s
and double."""
MIN_STALL = 0.1
"""Time in seconds. A round trip that takes longer counts as a pause."""

Interval = tuple[float, float]
"""Start and end in monotonic seconds."""
Clock = Callable[[], float]
"""Returns monotonic seconds."""


class _RoundTrips:
    """Sends a byte back and forth repeatedly, and records the round trips that took longer than `MIN_STALL`."""

    def __init__(self, requester: socket.socket, responder: socket.socket | None) -> None:
        """Start. *responder* is the socket of the other end, or None if a program there echoes each byte."""
        self.count = 0
        self.slow: list[Interval] = []
        self.error: OSError | None = None
        self._ends = requester, responder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        requester, responder = self._ends
        try:
            while not self._over.wait(0.01):
                began = time.monotonic()
                requester.sendall(b"?")
                if responder is not None:
                    responder.sendall(responder.recv(1))
                if not requester.recv(1):
                    raise ConnectionResetError("the other end has closed")
                ended = time.monotonic()
                if ended - began > MIN_STALL:
                    self.slow.append((began, ended))
                self.count += 1
        except OSError as error:
            self.error = error

    def end(self) -> None:
        self._over.set()
        self._thread.join()


class Pulse:
    """Traffic that a fault must not stop, with reference traffic on the loopback device, which no fault here affects.

    If both pause, the machine was too busy: only the part of a pause that the reference traffic did not have counts.
    """

    def __init__(self, client: socket.socket, proxy: socket.socket | None) -> None:
        """Start. *proxy* is the socket of the other end, or None if a program there echoes each byte."""
        self._loopback_sockets = _loopback()
        self._round_trips, self._reference = _RoundTrips(client, proxy), _RoundTrips(*self._loopback_sockets)

    @property
    def round_trips(self) -> int:
        return self._round_trips.count

    @property
    def longest_pause(self) -> float:
        """Return the longest pause, in seconds, without the time in which the machine itself was stalled."""
        return longest_pause(tuple(self._round_trips.slow), tuple(self._reference.slow))

    def stop(self) -> None:
        """Stop. Raises AssertionError if the traffic stopped, or paused for longer than `MAX_PAUSE`."""
        self._round_trips.end()
        self._reference.end()
        for each in self._loopback_sockets:
            each.close()
        assert self._round_trips.error is None, self._round_trips.error
        assert self._round_trips.count > 0, "no round trip was completed"
        assert self.longest_pause <= MAX_PAUSE, f"traffic paused for {self.longest_pause:.1f} s"


def _loopback() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        requester = socket.create_connection(listener.getsockname())
        responder, _ = listener.accept()
    return requester, responder


def longest_pause(slow: Sequence[Interval], stalls: Sequence[Interval]) -> float:
    """Return the length in seconds of the longest of *slow*, without its overlap with *stalls*, which are disjoint."""
    return max((end - begin - sum(_overlap((begin, end), each) for each in stalls) for begin, end in slow), default=0.0)


def _overlap(first: Interval, second: Interval) -> float:
    return max(0.0, min(first[1], second[1]) - max(first[0], second[0]))


@contextmanager
def traffic(ends: tuple[socket.socket, socket.socket | None]) -> Iterator[Pulse]:
    """Send traffic over the connection with these *ends*. The traffic must not stop within the block."""
    pulse = Pulse(*ends)
    try:
        yield pulse
    finally:
        pulse.stop()


def seconds_until(holds: Callable[[], bool], timeout: float = LONG_TIMEOUT, clock: Clock = time.monotonic) -> float:
    """Wait until *holds* returns true. Return how long that took by *clock*.

    The time of the last, successful check is not counted: the check's own programs take most of this time.
    """
    began = checked = clock()

    def check() -> bool:
        nonlocal checked
        checked = clock()
        return holds()

    until(check, timeout)
    return checked - began


def repair_seconds(
    damage: Callable[[], object], is_repaired: Callable[[], bool], clock: Clock = time.monotonic
) -> float:
    """Call *damage* and wait for the repair, up to three times. Return the seconds of the first repair in time.

    Raises AssertionError if no repair was in time.
    """
    attempts = []
    for _ in range(ATTEMPTS):
        damage()
        attempts.append(measure_time(is_repaired, clock))
        if attempts[-1].is_in_time:
            return attempts[-1].seconds
    raise AssertionError(f"no repair was within the allowed time: {attempts}")


class MeasuredTime(NamedTuple):
    """A measured time and the time that was allowed, in seconds."""

    seconds: float
    allowed: float

    @property
    def is_in_time(self) -> bool:
        return self.seconds <= self.allowed


def measure_time(holds: Callable[[], bool], clock: Clock = time.monotonic) -> MeasuredTime:
    """Wait until *holds* returns true. The allowed time grows with the load of the machine during the wait."""
    before = processors.read()
    took = seconds_until(holds, clock=clock)
    return MeasuredTime(took, allowed_seconds(processors.usage(before, processors.read()).waiting))


def allowed_seconds(waiting: float | None) -> float:
    """Return the allowed seconds. *waiting*: share of the time in which processes waited for a processor, or None."""
    return MAX_REPAIR_SECONDS * slowness(waiting)
