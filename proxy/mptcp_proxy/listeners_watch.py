# SPDX-License-Identifier: GPL-2.0-or-later
"""Watches Squid's listeners and processes, and logs each problem once.

This module gathers their state, and the module ``serving`` decides what to report.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from mptcp_common.journal import ERROR, WARNING

from .configuration.listeners import Listener
from .listening import identities, listening_or_none
from .places import Places, Role
from .process import children, command, first_thread_nanoseconds
from .reporter import Reporter, say
from .serving import INTERVAL, ListenJudge, ListenState, StuckProcesses, listen_state

NO_SOCKET_LIST = "cannot see which processes listen: ss does not answer (apt install iproute2)"


def required_sockets(listeners: Iterable[Listener], workers: int) -> dict[int, int]:
    """Return how many listening sockets each port must have: one per worker. A port that only some workers open,
    because of an ``if``, needs at least one socket."""
    counts: Counter[int] = Counter()
    for listener in listeners:
        counts[listener.port] += 0 if listener.statement.conditional else workers
    return {port: max(1, count) for port, count in counts.items()}


class ListenersWatch:
    """Watches one Squid that must listen on *listeners*. *child_count*: the number of its child processes."""

    def __init__(
        self,
        places: Places,
        role: Role,
        reporter: Reporter,
        child_count: int,
        listeners: Sequence[Listener],
        workers: int,
    ) -> None:
        self._log = places.logs / "cache.log"
        self._role = role
        self._reporter = reporter
        self._child_count = child_count
        self._workers = workers
        self._set_listeners(listeners)
        self._judge = ListenJudge(time.monotonic())
        self._stuck_processes = StuckProcesses()
        self._next_process_check = time.monotonic() + INTERVAL
        self._identities: tuple[str, ...] | None = None
        """Identities of the sockets in ``_state``, which is valid as long as exactly these sockets exist."""
        self._state: ListenState | None = None
        self._logged: dict[str, int] = {}

    @property
    def next_check(self) -> float:
        return min(self._judge.next_check, self._next_process_check)

    @property
    def ever_listened(self) -> bool:
        """Whether Squid has ever listened on a port."""
        return self._judge.ever_listened

    def _set_listeners(self, listeners: Sequence[Listener]) -> None:
        self._ports: Mapping[int, int] = required_sockets(listeners, self._workers)
        self._hosts: dict[int, set[str]] = {}
        for listener in listeners:
            self._hosts.setdefault(listener.port, set()).add(listener.host)

    def expect_change(self, listeners: Sequence[Listener]) -> None:
        """Expect Squid to close its listeners and open *listeners*."""
        self._set_listeners(listeners)
        self._identities = None
        self._judge.expect_change(time.monotonic())

    def check(self, squid: int) -> str | None:
        """Run the checks that are due. *squid*: PID of Squid's first process. When a start or reload has ended, return
        why Squid does not listen on all ports, or an empty string if it does; otherwise None. If ss fails, a start or
        reload is considered ended after its maximum time."""
        now = time.monotonic()
        child_pids = children(squid)
        if now >= self._next_process_check:
            self._next_process_check = now + INTERVAL
            self._check_processes(child_pids)
        if now < self._judge.next_check:
            return None
        state = self._current_state({squid, *child_pids})
        if state is None:
            if not self._judge.observe_unknown(now):
                return None
            self._reporter.report_unknown_listeners()
            return NO_SOCKET_LIST
        if not self._judge.observe(state, self._has_all_processes(child_pids), now):
            return None
        self._log_changes(state)
        return "; ".join(self._missing_listeners(state))

    def all_listen(self, squid: int) -> bool:
        """Return whether each worker listens on each port; also True if ss fails."""
        state = self._current_state({squid, *children(squid)})
        return state is None or state.complete

    def report_end(self) -> None:
        """Report that no process listens any longer, because Squid has ended."""
        ports = tuple(sorted(self._ports))
        self._reporter.report_listeners(ListenState(ports, missing=ports))

    def must_restart(self, squid: int) -> bool:
        """Return whether Squid has not listened on any port for so long that it must be restarted."""
        return self._judge.must_restart(self._has_all_processes(children(squid)), time.monotonic())

    def _has_all_processes(self, child_pids: Collection[int]) -> bool:
        return len(child_pids) >= self._child_count

    def _current_state(self, pids: set[int]) -> ListenState | None:
        """Return the state of the processes *pids*; None if ss fails."""
        found = identities(self._ports)
        if found is not None and found == self._identities and self._state is not None:
            return self._state
        sockets = listening_or_none()
        if sockets is None or found is None:
            if self._reporter.set_problem("listeners", NO_SOCKET_LIST):
                say(NO_SOCKET_LIST, WARNING)
            return None
        self._reporter.set_problem("listeners", "")
        self._identities, self._state = found, listen_state(self._ports, pids, sockets, self._hosts)
        return self._state

    def _log_changes(self, state: ListenState) -> None:
        lines = dict.fromkeys(self._missing_listeners(state), ERROR)
        for port, actual, required in state.too_few:
            text = f"port {port}: {actual} of {required} workers listen; the reason is in {self._log}"
            lines[text] = WARNING
        # A relay may listen over plain TCP, because its clients have only one path to it (conf/relay-squid.conf).
        for port in state.plain_tcp if self._role is Role.PROXY else ():
            text = (
                f"port {port} accepts only plain TCP, not Multipath TCP, so clients can use only one path; "
                "run mptcp-proxy doctor"
            )
            lines[text] = WARNING
        for text, priority in lines.items():
            if text not in self._logged:
                say(text, priority)
        if self._logged and not lines:
            say("Squid listens on all ports again")
        self._logged = lines
        self._reporter.report_listeners(state)

    def _missing_listeners(self, state: ListenState) -> list[str]:
        return [f"Squid does not listen on port {port}; the reason is in {self._log}" for port in state.missing]

    def _check_processes(self, child_pids: Iterable[int]) -> None:
        run_times = {pid: run_time for pid in child_pids if (run_time := first_thread_nanoseconds(pid)) is not None}
        stuck = sorted(self._stuck_processes.observe(run_times))
        names = ", ".join(f"{_name(pid)} (process {pid})" for pid in stuck)
        problem = (
            f"these processes of Squid hang, and clients that the kernel assigns to them wait: {names}" if stuck else ""
        )
        if self._reporter.set_problem("processes", problem) and problem:
            say(f"{problem}; kill -KILL {' '.join(map(str, stuck))} makes Squid restart them", WARNING)


def _name(pid: int) -> str:
    return command(pid).partition(b"\0")[0].decode(errors="replace").strip("()")
