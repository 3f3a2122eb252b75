# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel tests of faults share: traffic that must go on all the while, and how long until all is as it was.

Both have a bound that the machine's other work moves: a test must not fail for a suite beside it, and must fail where
what took a second takes a minute.
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

GENEROUS = 60.0
"""Seconds: what has to happen within two takes longer on a busy machine."""
NEVER = 300
"""Seconds between two comparisons: what is put right in a test was noticed."""
AIM = 2.0
"""Seconds until all is as it was, on a machine that does nothing else."""
ATTEMPTS = 3
LONGEST_GAP = 2.0
"""Seconds for which traffic may pause: a retransmission or two (RFC 6298), whose timers begin at 0.2 s and double."""
STALL = 0.1
"""Seconds: a round that takes longer is one in which something stood still."""

Interval = tuple[float, float]
"""Beginning and end, monotonic seconds."""
Clock = Callable[[], float]
"""Returns monotonic seconds."""


class _Rounds:
    """A byte there and back, over and over; keeps the rounds that took long."""

    def __init__(self, ask: socket.socket, answer: socket.socket | None) -> None:
        """*answer*: the other end; None where a program is there that sends back what it gets."""
        self.count = 0
        self.slow: list[Interval] = []
        self.error: OSError | None = None
        self._ends = ask, answer
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        ask, answer = self._ends
        try:
            while not self._over.wait(0.01):
                began = time.monotonic()
                ask.sendall(b"?")
                if answer is not None:
                    answer.sendall(answer.recv(1))
                if not ask.recv(1):
                    raise ConnectionResetError("the other end has closed")
                ended = time.monotonic()
                if ended - began > STALL:
                    self.slow.append((began, ended))
                self.count += 1
        except OSError as error:
            self.error = error

    def end(self) -> None:
        self._over.set()
        self._thread.join()


class Pulse:
    """Traffic that a fault must not stop, and a second one, over the loopback device, that no fault here touches.

    Where both pause it was the machine: only what the first one paused beyond that counts.
    """

    def __init__(self, client: socket.socket, proxy: socket.socket | None) -> None:
        """*proxy*: the other end; None where a program is there that sends back what it gets."""
        self._beside = _loopback()
        self._rounds, self._reference = _Rounds(client, proxy), _Rounds(*self._beside)

    @property
    def count(self) -> int:
        return self._rounds.count

    @property
    def longest(self) -> float:
        """Seconds of the longest pause that was not the machine's."""
        return longest_gap(tuple(self._rounds.slow), tuple(self._reference.slow))

    def stop(self) -> None:
        """End; raises AssertionError where traffic had stopped, for good or for longer than `LONGEST_GAP`."""
        self._rounds.end()
        self._reference.end()
        for each in self._beside:
            each.close()
        assert self._rounds.error is None, self._rounds.error
        assert self._rounds.count > 0
        assert self.longest <= LONGEST_GAP, f"traffic paused for {self.longest:.1f} s"


def _loopback() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ask = socket.create_connection(listener.getsockname())
        answer, _ = listener.accept()
    return ask, answer


def longest_gap(slow: Sequence[Interval], stalls: Sequence[Interval]) -> float:
    """Return the seconds of the longest of *slow* without what it shares with *stalls*, none of which overlap."""
    return max((end - begin - sum(_common((begin, end), each) for each in stalls) for begin, end in slow), default=0.0)


def _common(one: Interval, other: Interval) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


@contextmanager
def traffic(ends: tuple[socket.socket, socket.socket | None]) -> Iterator[Pulse]:
    """Traffic over the connection with these *ends*, which must not stop within."""
    pulse = Pulse(*ends)
    try:
        yield pulse
    finally:
        pulse.stop()


def seconds_until(holds: Callable[[], bool], timeout: float = GENEROUS, clock: Clock = time.monotonic) -> float:
    """Wait until *holds* and return how long that took by *clock*.

    The look that found it is not counted: of a look at the kernel, by programs, most of the time is theirs.
    """
    began = looked = clock()

    def look() -> bool:
        nonlocal looked
        looked = clock()
        return holds()

    until(look, timeout)
    return looked - began


def soon_right_again(damage: Callable[[], object], right: Callable[[], bool], clock: Clock = time.monotonic) -> float:
    """Do *damage*, up to three times, until *right* holds within the aim. Return the seconds it took, by *clock*.

    Raises AssertionError where it never did.
    """
    tried = []
    for _ in range(ATTEMPTS):
        damage()
        tried.append(timed(right, clock))
        if tried[-1].within_aim:
            return tried[-1].seconds
    raise AssertionError(f"right again within none of the aims: {tried}")


class Timed(NamedTuple):
    """How long something took, and how long it might."""

    seconds: float
    allowed: float

    @property
    def within_aim(self) -> bool:
        return self.seconds <= self.allowed


def timed(holds: Callable[[], bool], clock: Clock = time.monotonic) -> Timed:
    """Wait until *holds*; how long it might take depends on how much else the machine did meanwhile."""
    before = processors.read()
    took = seconds_until(holds, clock=clock)
    return Timed(took, allowed(processors.usage(before, processors.read()).waiting))


def allowed(waiting: float | None) -> float:
    """Return the aim where somebody waited for a processor in this share of the time; None: nobody knows."""
    return AIM * slowness(waiting)
