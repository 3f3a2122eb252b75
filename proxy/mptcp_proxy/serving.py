# SPDX-License-Identifier: GPL-2.0-or-later
"""Judges whether Squid listens as it should. Pure: times are arguments, in seconds of one clock.

Squid stops restarting a worker that repeatedly ends within seconds. The other workers, or only the coordinator,
continue, so Squid may run without any listener. Therefore the checks continue as long as Squid runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from .listening import Listening, may_be

INTERVAL: Final = 10.0
"""Seconds between checks while the state does not change."""
PROBLEM_INTERVAL: Final = 1.0
"""Seconds between checks while a problem exists that is not reported yet."""
CHANGE_SECONDS: Final = 30.0
"""Seconds that Squid gets to open its ports after a start or a reload."""
TOLERATED_SECONDS: Final = 5.0
"""A problem is not reported until it has lasted this long, because Squid restarts a worker within this time."""
WITHOUT_PROCESSES_SECONDS: Final = 15.0
"""Maximum time without any listener if Squid lacks processes. Squid normally restarts them sooner."""
WITHOUT_LISTENERS_SECONDS: Final = 120.0
"""Maximum time without any listener if Squid has all processes, never listened, or was just asked to reload. Reading
its configuration may take a minute."""


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
    """Compare the listeners of the processes *own* with *wanted*, the number of listeners per port. To see the owner of
    a socket needs CAP_SYS_PTRACE, which the unit does not have. So a socket with an unknown owner counts as Squid's if
    its address is among *hosts* of its port: when Squid was started, no other process had these addresses."""

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
    """Decides which pictures to report, when the next check is due, and when Squid must be restarted."""

    def __init__(self, now: float) -> None:
        self.due = now
        self._reported: Picture | None = None
        self._changing_until = now + CHANGE_SECONDS
        self._reloading_until = now
        """If Squid stops listening before this time, the cause may be a reload."""
        self._wrong_since: float | None = now
        self._unserved_since: float | None = now
        self.ever_served = False

    def expect_change(self, now: float) -> None:
        """Expect Squid to replace its listeners. The next picture is reported, changed or not."""
        self.due = now + PROBLEM_INTERVAL
        self._reported = None
        self._wrong_since, self._changing_until = now, now + CHANGE_SECONDS
        self._reloading_until = self._changing_until

    def process(self, seen: Picture, all_there: bool, now: float) -> bool:
        """Process the picture *seen*, and return whether to report it. *all_there*: as in ``deserted``."""
        if seen.served:
            self.ever_served, self._unserved_since = True, None
        elif self._unserved_since is None:
            self._unserved_since = now
        self.due = now + (INTERVAL if seen.served else PROBLEM_INTERVAL)
        if seen == self._reported:
            self._wrong_since = None
            return False
        if not seen.complete:
            if self._wrong_since is None:
                self._wrong_since = now
            if now < self._tolerated_until(self._wrong_since, all_there):
                self.due = now + PROBLEM_INTERVAL
                return False
        self._wrong_since = None
        self._reported = seen
        return True

    def blind(self, now: float) -> bool:
        """Record that the listeners could not be seen. Return whether the time for a start or reload has passed. The
        time without listeners starts again, because a failure of ss must not end a healthy Squid."""
        self._unserved_since = None
        self.due = now + INTERVAL
        return now >= self._changing_until

    def _tolerated_until(self, since: float, all_there: bool) -> float:
        """Return the time until which a problem that began at *since* is not reported."""
        passing = since + TOLERATED_SECONDS
        return max(passing, self._changing_until) if all_there or not self.ever_served else passing

    def deserted(self, all_there: bool, now: float) -> bool:
        """Return whether Squid has listened on no port for so long that only a restart helps. *all_there*: whether
        Squid has all its processes."""
        if self._unserved_since is None:
            return False
        reading = all_there or not self.ever_served or self._unserved_since < self._reloading_until
        return now - self._unserved_since >= (WITHOUT_LISTENERS_SECONDS if reading else WITHOUT_PROCESSES_SECONDS)


class Standstill:
    """Finds processes that do not run at all, because they are stopped or stuck in the kernel. A Squid process runs
    every second, even when it is idle. A process in an endless loop is not found."""

    CHECKS: Final = 3
    """A process that had no run time in more checks than this is stuck."""

    def __init__(self) -> None:
        self._ran: dict[int, tuple[int, int]] = {}
        """For each process, its run time in nanoseconds, and the number of checks that saw this value."""

    def process(self, ran: Mapping[int, int]) -> frozenset[int]:
        """Process the total run time of each process, in nanoseconds. Return the stuck processes."""
        before = self._ran
        self._ran = {
            pid: (so_far, before[pid][1] + 1 if pid in before and before[pid][0] == so_far else 1)
            for pid, so_far in ran.items()
        }
        return frozenset(pid for pid, (_, checks) in self._ran.items() if checks > self.CHECKS)
