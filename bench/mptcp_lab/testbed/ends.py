# SPDX-License-Identifier: GPL-2.0-or-later
"""Both ends of an emulated path: send echo requests, a load, or numbered packets, and observe their arrival."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from .build import Testbed
from .commands import TestbedError
from .probes import Ping, Receiver, load_command

BURST = 5
"""Packets that a load sends at a time."""
DATAGRAM = 64
"""Bytes of each numbered packet."""
PER_SECOND = 15_000
"""Numbered packets that are sent per second."""
PING_INTERVAL = 0.01
"""Seconds between two echo requests."""
ANSWERED = 0.99
"""Least share of echo requests that must be answered on a path without loss."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Both ends of an emulated path: the client's device and the core's."""

    testbed: Testbed
    device: str

    @property
    def far_device(self) -> str:
        return f"to-{self.device}"

    @property
    def client(self) -> str:
        return self.testbed["client"].address(self.device)

    @property
    def core(self) -> str:
        return self.testbed["core"].address(self.far_device)

    def ping(self, count: int) -> list[float]:
        """Return round-trip times in milliseconds. Raises TestbedError if a path without loss loses echo requests."""
        trips = Ping(self.testbed["client"], self.client, self.core).run(count, PING_INTERVAL)
        if len(trips) < ANSWERED * count:
            raise TestbedError(f"{self.device}: {len(trips)} of {count} echo requests were answered")
        return trips

    @contextmanager
    def loaded(self, rate: float, seconds: float) -> Iterator[None]:
        """Load both directions, each with *rate* bits per second, for *seconds* or until the scope ends."""
        client, core = self.testbed["client"], self.testbed["core"]
        programs = [
            client.popen(load_command(self.client, self.core, int(rate), BURST, seconds), name="load"),
            core.popen(load_command(self.core, self.client, int(rate), BURST, seconds), name="load"),
        ]
        try:
            yield
        finally:
            for program in programs:
                program.stop()

    def arrivals(self, direction: str, count: int) -> list[int]:
        """Send *count* numbered packets in *direction*. Return their numbers in order of arrival."""
        client, core = self.testbed["client"], self.testbed["core"]
        if direction == "up":
            sender, source, receiver, target = client, self.client, core, self.core
        else:
            sender, source, receiver, target = core, self.core, client, self.client
        with Receiver(receiver, target) as socket:
            words = [source, target, str(socket.port), str(PER_SECOND), str(DATAGRAM), str(count / PER_SECOND)]
            program = sender.popen(sender.agent("stream", "send", *words), name="send")
            numbers = socket.numbers(program)
            if program.wait(60) != 0:
                raise TestbedError(f"{self.device}: send numbered packets: it failed{program.tail()}")
        return numbers


def ends(testbed: Testbed) -> dict[str, Ends]:
    """Return the ends of each emulated path of *testbed*, by the path's name."""
    return {hop.path.name: Ends(testbed, hop.client_device) for hop in testbed.topology.hops}


def reordered(numbers: Sequence[int]) -> int:
    """Return how many numbers arrived after a higher number."""
    late, highest = 0, -1
    for number in numbers:
        late += number < highest
        highest = max(highest, number)
    return late


def lost_of(numbers: Sequence[int], count: int) -> list[int]:
    return sorted(set(range(count)) - set(numbers))
