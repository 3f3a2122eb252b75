# SPDX-License-Identifier: GPL-2.0-or-later
"""Arguments, firewall rules and counters of the path emulator, and of a middlebox on a path. Pure.

The emulator (``native/``) gets the packets that the hop forwards from an NFQUEUE for each direction. The middlebox
(``native/middlebox/``) gets the hop's IPv4 TCP packets before the emulator, and sends the changed packets.
``testbed.hops`` builds and runs both.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from .model import Direction, EmulatedPath, seed_of

SOURCES = tuple(sorted((Path(__file__).parent / "native").glob("*.c")))
MIDDLEBOX_SOURCES = tuple(sorted((Path(__file__).parent / "native" / "middlebox").glob("*.c")))
COMPILER_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra")
LIBRARIES = ("-lnetfilter_queue", "-lmnl")
QUEUES, MIDDLEBOX_QUEUES = {"down": 0, "up": 1}, {"up": 2, "down": 3}
READY = "ready"
"""The emulator prints this word when it has bound the queues."""
MAX_LATE_SHARE, MAX_LATE = 0.02, 100
"""A path was not as configured if more packets were late than this share, and more than this number."""
_COUNTERS = struct.Struct("=5Q")
"""The layout of ``struct counters`` of native/emulator.c."""


class Counts(NamedTuple):
    """Numbers of packets in one direction, since the start or between two readings."""

    seen: int
    lost: int
    """Packets that were lost as configured."""
    passed: int
    late: int
    """Passed packets that left more than 1 ms after their delay had passed."""
    dropped: int
    """Packets that the emulator or the kernel dropped because a queue was full, although this was not configured."""

    def since(self, before: Counts | None) -> Counts:
        """Return the increase since *before*, or since the start if *before* is None."""
        return self if before is None else Counts(*(now - then for now, then in zip(self, before, strict=True)))

    def fault(self, late_share: float = MAX_LATE_SHARE) -> str | None:
        """Return how the path differed from its configuration, or None. Up to *late_share* of packets may be late."""
        if self.dropped:
            dropped = (
                f"{self.dropped} of {self.seen + self.dropped} packets were dropped, although this was not configured"
            )
            return f"{dropped}: more packets waited than the emulator holds"
        if self.late > max(MAX_LATE, late_share * self.passed):
            late = f"{self.late} of {self.passed} packets were released more than 1 ms too late"
            return f"{late}: this host was too busy to emulate the path"
        return None


def elements(path: str, name: str, direction: Direction, seed: int) -> tuple[str, ...]:
    """Return *direction*'s arguments. Loss comes first, so that a lost packet does not delay the ones after it."""
    words: list[str] = []
    if (loss := direction.loss) is not None:
        words += ["gemodel", *map(repr, map(float, (loss.p, loss.r, loss.one_minus_h, loss.one_minus_k)))]
        words += [str(seed_of(seed, path, name, "loss"))]
    if direction.delay:
        words += ["delay", str(direction.delay), str(direction.jitter), str(seed_of(seed, path, name, "delay"))]
    return tuple(words)


def impaired_directions(path: EmulatedPath) -> dict[str, Direction]:
    """Return the directions that need the emulator, in the order of its counters."""
    return {name: d for name, d in (("down", path.down), ("up", path.up)) if d.impaired}


def arguments(path: EmulatedPath, seed: int) -> tuple[str, ...]:
    """Return the emulator's arguments that follow the name of the counter file."""
    words: list[str] = []
    for name, direction in impaired_directions(path).items():
        words += ["queue", str(QUEUES[name]), *elements(path.name, name, direction, seed)]
    return tuple(words)


def rules(devices: dict[str, str], variant: str, *, middlebox: bool = False, sent_too: bool = False) -> list[list[str]]:
    """Return the commands that queue forwarded packets, with the *variant* of iptables, ``-legacy`` or empty.

    *devices* has the sending device of each direction. The packets are queued for the emulator or for the *middlebox*.
    With *sent_too*, packets that the hop itself sends are queued as well: a middlebox sends changed packets.
    """
    families = (("iptables", "-t mangle -p tcp"),) if middlebox else (("iptables", ""), ("ip6tables", ""))
    queues = MIDDLEBOX_QUEUES if middlebox else QUEUES
    return [
        f"{family}{variant} --wait {match} -A {hook} -o {device} -j NFQUEUE --queue-num {queues[name]}".split()
        for family, match in families
        for hook in ("FORWARD", "OUTPUT")[: 1 + sent_too]
        for name, device in devices.items()
    ]


def counts(path: EmulatedPath, counters: bytes, kernel: str) -> dict[str, Counts]:
    """Return the emulator's counts, with drops that *kernel* lists, the text of /proc/net/netfilter/nfnetlink_queue.

    Fields 0, 5 and 6 of its lines are a queue's number, and drops because the queue or the socket was full.
    """
    dropped = {int(fields[0]): int(fields[5]) + int(fields[6]) for fields in map(str.split, kernel.splitlines())}
    result: dict[str, Counts] = {}
    for number, name in enumerate(impaired_directions(path)):
        seen, lost, passed, late, full = _COUNTERS.unpack_from(counters, number * _COUNTERS.size)
        result[name] = Counts(seen, lost, passed, late, full + dropped.get(QUEUES[name], 0))
    return result
