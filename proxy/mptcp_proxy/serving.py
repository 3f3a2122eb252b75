# SPDX-License-Identifier: GPL-2.0-or-later
"""Judges whether Squid listens as it should. Pure: times are arguments, in seconds of one clock.

Squid stops restarting a worker that ends again and again within seconds. The other workers, or only the coordinator, go
on: Squid runs, and perhaps nobody listens. So the checks never end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from .listening import Listening, may_be

INTERVAL: Final = 10.0
"""Between checks while nothing changes."""
SOON: Final = 1.0
"""Between checks while something is wrong and not yet reported."""
CHANGING: Final = 30.0
"""Time for Squid to open its ports after a start or a reload."""
PASSING: Final = 5.0
"""A shorter trouble is not reported: Squid restarts a worker within it."""
DESERTED: Final = 15.0
"""Longest time without any listener while Squid lacks processes; Squid restarts them sooner."""
UNOPENED: Final = 120.0
"""The same for a Squid that lacks none, never listened, or was just told to reload: that may take a minute."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A snapshot of how Squid listens."""

    ports: tuple[int, ...]
    plain: tuple[int, ...] = ()
    """Ports with a listener for plain TCP only."""
    missing: tuple[int, ...] = ()
    fewer: tuple[tuple[int, int, int], ...] = ()
    """Ports with too few listeners: port, actual number, required number."""

    @property
    def complete(self) -> bool:
        return not self.missing and not self.fewer

    @property
    def served(self) -> bool:
        """Whether Squid listens on any port."""
        return len(self.missing) < len(self.ports)


def picture(
    wanted: Mapping[int, int],
    own: Collection[int],
    sockets: Iterable[Listening],
    hosts: Mapping[int, Collection[str]],
) -> Picture:
    """Compare the listeners of the processes *own* with *wanted*, the number of listeners per port. Seeing a socket's
    owner takes CAP_SYS_PTRACE, which the unit does not grant. Before Squid was started nobody else had our addresses,
    so a socket of an unknown owner is ours if it is at one of *hosts*, by port."""

    def is_at(socket: Listening) -> bool:
        return any(may_be(host, socket) for host in hosts.get(socket.port, ()))

    ours = [each for each in sockets if (any(pid in own for pid in each.pids) if each.pids else is_at(each))]
    there = Counter(each.port for each in ours)
    plain = {each.port for each in ours if not each.mptcp}
    ports = tuple(sorted(wanted))
    return Picture(
        ports,
        tuple(port for port in ports if port in plain),
        tuple(port for port in ports if not there[port]),
        tuple((port, there[port], wanted[port]) for port in ports if 0 < there[port] < wanted[port]),
    )


class Judge:
    """Decides which pictures to report, when the next check is due, and when Squid is beyond hope."""

    def __init__(self, now: float) -> None:
        self.due = now
        self._told: Picture | None = None
        self._changing_until = now + CHANGING
        self._reloading_until = now
        """A Squid that stops listening before then may do so for a reload."""
        self._wrong_since: float | None = now
        self._unserved_since: float | None = now
        self.ever_served = False

    def expect_change(self, now: float) -> None:
        """Expect Squid to replace its listeners. The next picture is reported, changed or not."""
        self.due = now + SOON
        self._told = None
        self._wrong_since, self._changing_until = now, now + CHANGING
        self._reloading_until = self._changing_until

    def looked(self, seen: Picture, all_there: bool, now: float) -> bool:
        """Take the picture *seen*, and say whether to report it. *all_there*: as in ``deserted``."""
        if seen.served:
            self.ever_served, self._unserved_since = True, None
        elif self._unserved_since is None:
            self._unserved_since = now
        self.due = now + (INTERVAL if seen.served else SOON)
        if seen == self._told:
            self._wrong_since = None
            return False
        if not seen.complete:
            if self._wrong_since is None:
                self._wrong_since = now
            if now < self._patient_until(self._wrong_since, all_there):
                self.due = now + SOON
                return False
        self._wrong_since = None
        self._told = seen
        return True

    def blind(self, now: float) -> bool:
        """Note that the listeners could not be seen. Say whether a start or reload has had its time. The time without
        listeners starts again: a missing ss must not end a healthy Squid."""
        self._unserved_since = None
        self.due = now + INTERVAL
        return now >= self._changing_until

    def _patient_until(self, since: float, all_there: bool) -> float:
        """Return the time until which a trouble that began at *since* is not reported."""
        passing = since + PASSING
        return max(passing, self._changing_until) if all_there or not self.ever_served else passing

    def deserted(self, all_there: bool, now: float) -> bool:
        """Say whether Squid has listened on no port for so long that only a restart helps. *all_there*: Squid lacks
        none of its processes."""
        if self._unserved_since is None:
            return False
        reading = all_there or not self.ever_served or self._unserved_since < self._reloading_until
        return now - self._unserved_since >= (UNOPENED if reading else DESERTED)


class Standstill:
    """Finds processes that do not run at all: stopped, or stuck in the kernel. A Squid process runs every second, even
    when idle. One in an endless loop is not found."""

    LOOKS: Final = 3
    """More checks than this without any run time mean a standstill."""

    def __init__(self) -> None:
        self._ran: dict[int, tuple[int, int]] = {}
        """Per process: its run time in nanoseconds, and how many checks saw that value."""

    def looked(self, ran: Mapping[int, int]) -> frozenset[int]:
        """Take each process's run time so far, in nanoseconds. Return the processes that stand still."""
        before = self._ran
        self._ran = {
            pid: (so_far, before[pid][1] + 1 if pid in before and before[pid][0] == so_far else 1)
            for pid, so_far in ran.items()
        }
        return frozenset(pid for pid, (_, looks) in self._ran.items() if looks > self.LOOKS)
