# SPDX-License-Identifier: GPL-2.0-or-later
"""Arguments, rules and counters of the path emulator, and of a middlebox on a path. Pure.

The program (``native/``) gets the packets that the hop forwards from two NFQUEUEs, one for each direction. The first
comment in its source explains how it works. The middlebox (``native/middlebox/``) gets the IPv4 TCP packets that the
hop forwards in both directions, and sends the changed packets. The path's delay and loss come after the
middlebox. ``testbed.hops`` builds and runs both.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from .model import Direction, EmulatedPath, GilbertElliott, seed_of

SOURCES = tuple(sorted((Path(__file__).parent / "native").glob("*.c")))
MIDDLEBOX_SOURCES = tuple(sorted((Path(__file__).parent / "native" / "middlebox").glob("*.c")))
COMPILER_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra")
LIBRARIES = ("-lnetfilter_queue", "-lmnl")
QUEUES, MIDDLEBOX_QUEUES = {"down": 0, "up": 1}, {"up": 2, "down": 3}
READY = "ready"
"""The emulator prints this word when it has bound the queues."""

LATE_SHARE, LATE_FEW = 0.02, 100
"""Share of the passed packets, and number, of late packets above which the path was not as configured. Both must be
exceeded."""

_COUNTERS = struct.Struct("=5Q")
"""The layout of ``struct counters`` of native/emulator.c."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of packets in one direction, since the start or between two readings."""

    seen: int
    lost: int
    """Packets that were lost as configured."""
    passed: int
    late: int
    """Passed packets that left more than 1 ms too late.

    A packet must leave when its delay has passed since the emulator received it. The time that
    the packet waited for the emulator before is not included.
    """
    dropped: int
    """Packets that the emulator or the kernel dropped because a queue was full, although this was not configured."""

    def since(self, before: Counts | None) -> Counts:
        """Return the increase since *before*, or since the start if *before* is None."""
        if before is None:
            return self
        now, then = astuple(self), astuple(before)
        return Counts(*(a - b for a, b in zip(now, then, strict=True)))

    def fault(self, late_share: float = LATE_SHARE) -> str | None:
        """Return how the path differed from its configuration, or None. A share *late_share* of packets may be late."""
        if self.dropped:
            return (
                f"{self.dropped} of {self.seen + self.dropped} packets were dropped and not asked to be: more were "
                f"under way than the emulator holds"
            )
        if self.late > max(LATE_FEW, late_share * self.passed):
            return (
                f"{self.late} of {self.passed} packets came late, let go more than 1 ms after they were due: this "
                f"host was too busy to emulate the path"
            )
        return None


def elements(path: str, name: str, direction: Direction, seed: int) -> tuple[str, ...]:
    """Return *direction*'s arguments. Loss comes first, so that a lost packet does not delay the ones after it."""
    words: list[str] = []
    if isinstance(direction.loss, GilbertElliott):
        loss = direction.loss
        words += ["gemodel", *map(repr, map(float, (loss.p, loss.r, loss.one_minus_h, loss.one_minus_k)))]
    elif direction.loss is not None:
        words += ["random", repr(float(direction.loss.probability))]
    if direction.loss is not None:
        words += [str(seed_of(seed, path, name, "loss"))]
    if direction.delay:
        words += ["delay", str(direction.delay), str(direction.jitter), str(seed_of(seed, path, name, "delay"))]
    return tuple(words)


def impaired(path: EmulatedPath) -> dict[str, Direction]:
    """Return the directions that need the emulator, in the order of its counters."""
    return {name: d for name, d in (("down", path.down), ("up", path.up)) if d.impaired}


def arguments(path: EmulatedPath, seed: int) -> tuple[str, ...]:
    """Return the emulator's arguments that follow the name of the counter file."""
    words: list[str] = []
    for name, direction in impaired(path).items():
        words += ["queue", str(QUEUES[name]), *elements(path.name, name, direction, seed)]
    return tuple(words)


Command = tuple[str, ...]


def rules(devices: dict[str, str], *, sent_too: bool = False) -> list[list[Command]]:
    """Return the commands that queue forwarded packets for the emulator, by each variant of iptables.

    *devices* has the sending device of each direction. With *sent_too*, packets that the hop itself sends are queued as
    well, because a middlebox on the hop sends the packets that it has changed.
    """
    hooks = ("FORWARD", "OUTPUT") if sent_too else ("FORWARD",)
    return _queueing([("ip",), ("ip6",)], devices, QUEUES, hooks)


def middlebox_rules(devices: dict[str, str]) -> list[list[Command]]:
    """Return the commands that queue packets for the middlebox, which is before the emulator."""
    return _queueing([("ip", "-t", "mangle", "-p", "tcp")], devices, MIDDLEBOX_QUEUES, ("FORWARD",))


def _queueing(
    programs: Sequence[Command], devices: dict[str, str], queues: dict[str, int], hooks: Sequence[str]
) -> list[list[Command]]:
    return [
        [
            (f"{family}tables{variant}", "--wait", *match, "-A", hook, "-o", device, *queue)
            for family, *match in programs
            for hook in hooks
            for name, device in devices.items()
            for queue in [("-j", "NFQUEUE", "--queue-num", str(queues[name]))]
        ]
        # A kernel may lack the legacy tables (from 6.17 on).
        for variant in ("-legacy", "")
    ]


def middlebox_arguments(behaviour: str) -> tuple[str, ...]:
    return (behaviour, str(MIDDLEBOX_QUEUES["up"]), str(MIDDLEBOX_QUEUES["down"]))


def counts(path: EmulatedPath, counters: bytes, kernel: str) -> dict[str, Counts]:
    """Return the emulator's counts, with drops that *kernel* lists, the text of /proc/net/netfilter/nfnetlink_queue.

    The file has a line for each queue: number, port id, waiting packets, copy mode, copy range, drops because the
    queue was full, drops because the socket was full, last id (net/netfilter/nfnetlink_queue.c, seq_show).
    """
    dropped: dict[int, int] = {}
    for line in kernel.splitlines():
        fields = line.split()
        dropped[int(fields[0])] = int(fields[5]) + int(fields[6])
    result: dict[str, Counts] = {}
    for number, name in enumerate(impaired(path)):
        seen, lost, passed, late, full = _COUNTERS.unpack_from(counters, number * _COUNTERS.size)
        result[name] = Counts(seen, lost, passed, late, full + dropped.get(QUEUES[name], 0))
    return result
