# SPDX-License-Identifier: GPL-2.0-or-later
"""Decides whether Squid listens as it should. Pure: times are arguments, in seconds of one clock.

Squid stops restarting a worker that repeatedly ends within seconds, but its other workers and the coordinator continue.
So a running Squid may lose all its listeners at any time, and the checks continue as long as Squid runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from .listening import ListeningSocket, may_belong_to_host

INTERVAL: Final = 10.0
"""Seconds between checks while the state does not change."""
PROBLEM_INTERVAL: Final = 1.0
"""Seconds between checks during a problem that is not reported yet."""
CHANGE_SECONDS: Final = 30.0
"""Maximum seconds that Squid needs to open its ports after a start or a reload."""
TOLERATED_SECONDS: Final = 5.0
"""Seconds for which a problem must last before it is reported, because Squid restarts a worker within this time."""
WITHOUT_PROCESSES_SECONDS: Final = 15.0
"""Maximum seconds without any listener while processes of Squid are missing. Squid normally restarts them sooner."""
WITHOUT_LISTENERS_SECONDS: Final = 120.0
"""Maximum seconds without any listener if no process is missing, if Squid has never listened, or if it got a reload
signal. Squid may need a minute to read its configuration."""


@dataclass(frozen=True, slots=True)
class ListenState:
    """The ports on which Squid listens at one moment."""

    ports: tuple[int, ...]
    """All ports on which Squid should listen."""
    plain_tcp: tuple[int, ...] = ()
    """Ports with a listener that accepts only plain TCP."""
    missing: tuple[int, ...] = ()
    """Ports without a listener."""
    too_few: tuple[tuple[int, int, int], ...] = ()
    """Ports with too few listeners: port, actual number, required number."""

    @property
    def complete(self) -> bool:
        return not self.missing and not self.too_few

    @property
    def listens(self) -> bool:
        """Whether Squid listens on any port."""
        return len(self.missing) < len(self.ports)


def listen_state(
    required: Mapping[int, int],
    pids: Collection[int],
    sockets: Iterable[ListeningSocket],
    hosts: Mapping[int, Collection[str]],
) -> ListenState:
    """Compare the listeners of Squid's processes, *pids*, with *required*, the number of listeners per port. Only a
    process with CAP_SYS_PTRACE sees the owner of a socket, and the unit lacks this capability. So a socket with an
    unknown owner counts as Squid's if its address is among *hosts* of its port, because no other process had these
    addresses when Squid was started."""

    def has_configured_address(socket: ListeningSocket) -> bool:
        return any(may_belong_to_host(host, socket) for host in hosts.get(socket.port, ()))

    own_sockets = [
        each
        for each in sockets
        if (any(pid in pids for pid in each.pids) if each.pids else has_configured_address(each))
    ]
    counts = Counter(each.port for each in own_sockets)
    plain_tcp = {each.port for each in own_sockets if not each.mptcp}
    ports = tuple(sorted(required))
    return ListenState(
        ports,
        tuple(port for port in ports if port in plain_tcp),
        tuple(port for port in ports if not counts[port]),
        tuple((port, counts[port], required[port]) for port in ports if 0 < counts[port] < required[port]),
    )


class ListenJudge:
    """Decides which states to report, when the next check is due, and when Squid must be restarted."""

    def __init__(self, now: float) -> None:
        self.next_check = now
        self._reported: ListenState | None = None
        self._changing_until = now + CHANGE_SECONDS
        self._reloading_until = now
        """If Squid stops listening before this time, the cause may be a reload."""
        self._problem_since: float | None = now
        self._no_listener_since: float | None = now
        self.ever_listened = False

    def expect_change(self, now: float) -> None:
        """Expect Squid to replace its listeners. The next state is reported even if it is unchanged."""
        self.next_check = now + PROBLEM_INTERVAL
        self._reported = None
        self._problem_since, self._changing_until = now, now + CHANGE_SECONDS
        self._reloading_until = self._changing_until

    def observe(self, state: ListenState, has_all_processes: bool, now: float) -> bool:
        """Process the current *state*, and return whether to report it. *has_all_processes*: whether no process of
        Squid is missing."""
        if state.listens:
            self.ever_listened, self._no_listener_since = True, None
        elif self._no_listener_since is None:
            self._no_listener_since = now
        self.next_check = now + (INTERVAL if state.listens else PROBLEM_INTERVAL)
        if state == self._reported:
            self._problem_since = None
            return False
        if not state.complete:
            if self._problem_since is None:
                self._problem_since = now
            if now < self._tolerated_until(self._problem_since, has_all_processes):
                self.next_check = now + PROBLEM_INTERVAL
                return False
        self._problem_since = None
        self._reported = state
        return True

    def observe_unknown(self, now: float) -> bool:
        """Record that the listeners are unknown, because ss failed. Return whether the maximum time of a start or
        reload has passed. The time without listeners starts again, because a failure of ss must not end a healthy
        Squid."""
        self._no_listener_since = None
        self.next_check = now + INTERVAL
        return now >= self._changing_until

    def _tolerated_until(self, since: float, has_all_processes: bool) -> float:
        """Return the time until which a problem that began at *since* is not reported."""
        tolerated = since + TOLERATED_SECONDS
        return max(tolerated, self._changing_until) if has_all_processes or not self.ever_listened else tolerated

    def must_restart(self, has_all_processes: bool, now: float) -> bool:
        """Return whether Squid has not listened on any port for so long that only a restart helps.
        *has_all_processes*: whether no process of Squid is missing."""
        if self._no_listener_since is None:
            return False
        may_be_reading = has_all_processes or not self.ever_listened or self._no_listener_since < self._reloading_until
        return now - self._no_listener_since >= (
            WITHOUT_LISTENERS_SECONDS if may_be_reading else WITHOUT_PROCESSES_SECONDS
        )


class StuckProcesses:
    """Finds processes that do not run at all, because they are stopped or stuck in the kernel. An idle process of Squid
    still runs every second. A process in an endless loop is not found."""

    MAX_CHECKS: Final = 3
    """A process is stuck if more checks than this have found the same run time."""

    def __init__(self) -> None:
        self._run_times: dict[int, tuple[int, int]] = {}
        """For each process, its total run time in nanoseconds, and the number of checks that have found this value."""

    def observe(self, run_times: Mapping[int, int]) -> frozenset[int]:
        """Process the total run time of each process, in nanoseconds. Return the stuck processes."""
        before = self._run_times
        self._run_times = {
            pid: (run_time, before[pid][1] + 1 if pid in before and before[pid][0] == run_time else 1)
            for pid, run_time in run_times.items()
        }
        return frozenset(pid for pid, (_, checks) in self._run_times.items() if checks > self.MAX_CHECKS)
