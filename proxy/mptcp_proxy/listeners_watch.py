# SPDX-License-Identifier: GPL-2.0-or-later
"""Watches Squid's listeners and processes, and logs each problem once.

The module ``serving`` judges their state; this module gathers its input and acts on its results.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from mptcp_common.journal import ERROR, WARNING

from .configuration.listeners import Listener
from .listening import identities, listening_if_known
from .places import Places, Role
from .process import children, command, run_nanoseconds
from .reported import Reported, say
from .serving import INTERVAL, Judge, Picture, Standstill, picture

BLIND = "cannot see who listens: ss does not answer (apt install iproute2)"


def wanted(listeners: Iterable[Listener], workers: int) -> dict[int, int]:
    """Return how many listening sockets each port must have: one per worker. A port that only some workers open,
    because of an ``if``, needs at least one."""
    counts: Counter[int] = Counter()
    for listener in listeners:
        counts[listener.port] += 0 if listener.statement.conditional else workers
    return {port: max(1, count) for port, count in counts.items()}


class ListenersWatch:
    """Watches one Squid that must listen on *listeners*. *processes*: number of its processes, without the first."""

    def __init__(
        self,
        places: Places,
        role: Role,
        reported: Reported,
        processes: int,
        listeners: Sequence[Listener],
        workers: int,
    ) -> None:
        self._log = places.logs / "cache.log"
        self._role = role
        self._reported = reported
        self._processes = processes
        self._workers = workers
        self._set(listeners)
        self._judge = Judge(time.monotonic())
        self._standstill = Standstill()
        self._processes_due = time.monotonic() + INTERVAL
        self._identities: tuple[str, ...] | None = None
        """Identities of the sockets in the last picture. The picture is valid as long as exactly these sockets exist.
        """
        self._picture: Picture | None = None
        self._logged: dict[str, int] = {}

    @property
    def due(self) -> float:
        return min(self._judge.due, self._processes_due)

    @property
    def ever_served(self) -> bool:
        """Whether Squid ever listened on a port."""
        return self._judge.ever_served

    def _set(self, listeners: Sequence[Listener]) -> None:
        self._ports: Mapping[int, int] = wanted(listeners, self._workers)
        self._hosts: dict[int, set[str]] = {}
        for listener in listeners:
            self._hosts.setdefault(listener.port, set()).add(listener.host)

    def expect_change(self, listeners: Sequence[Listener]) -> None:
        """Expect Squid to close its listeners and open these."""
        self._set(listeners)
        self._identities = None
        self._judge.expect_change(time.monotonic())

    def look(self, squid: int) -> str | None:
        """Run the checks that are due. Return None, or the outcome if a start or reload is over: the reason why Squid
        does not listen on all ports, or an empty string. If the listeners cannot be seen, a start or reload is over
        when its time has passed."""
        now = time.monotonic()
        kids = children(squid)
        if now >= self._processes_due:
            self._processes_due = now + INTERVAL
            self._look_at_processes(kids)
        if now < self._judge.due:
            return None
        seen = self._look_at_listeners({squid, *kids})
        if seen is None:
            if not self._judge.blind(now):
                return None
            self._reported.listeners_unseen()
            return BLIND
        if not self._judge.process(seen, self._all_there(kids), now):
            return None
        self._tell(seen)
        return "; ".join(self._absent(seen))

    def all_listen(self, squid: int) -> bool:
        """Return whether each worker listens on each port; also True if the listeners cannot be seen."""
        seen = self._look_at_listeners({squid, *children(squid)})
        return seen is None or seen.complete

    def gone(self) -> None:
        """Report that no process listens any longer, because Squid has ended."""
        ports = tuple(sorted(self._ports))
        self._reported.listeners(Picture(ports, missing=ports))

    def deserted(self, squid: int) -> bool:
        """Return whether Squid has listened on no port for so long that it should be restarted."""
        return self._judge.deserted(self._all_there(children(squid)), time.monotonic())

    def _all_there(self, kids: Collection[int]) -> bool:
        return len(kids) >= self._processes

    def _look_at_listeners(self, own: set[int]) -> Picture | None:
        now = identities(self._ports)
        if now is not None and now == self._identities and self._picture is not None:
            return self._picture
        sockets = listening_if_known()
        if sockets is None or now is None:
            if self._reported.trouble("listeners", BLIND):
                say(BLIND, WARNING)
            return None
        self._reported.trouble("listeners", "")
        self._identities, self._picture = now, picture(self._ports, own, sockets, self._hosts)
        return self._picture

    def _tell(self, seen: Picture) -> None:
        lines = dict.fromkeys(self._absent(seen), ERROR)
        for port, there, should in seen.fewer:
            text = f"port {port}: {there} of {should} workers listen; the reason is in {self._log}"
            lines[text] = WARNING
        # A relay may listen by plain TCP, because its clients have only one path to it; see conf/relay-squid.conf.
        for port in seen.plain if self._role is Role.PROXY else ():
            text = (
                f"port {port} takes plain TCP, not Multipath TCP: clients have one path only; see: mptcp-proxy doctor"
            )
            lines[text] = WARNING
        for text, priority in lines.items():
            if text not in self._logged:
                say(text, priority)
        if self._logged and not lines:
            say("Squid listens on all ports again")
        self._logged = lines
        self._reported.listeners(seen)

    def _absent(self, seen: Picture) -> list[str]:
        return [f"Squid does not listen on port {port}; the reason is in {self._log}" for port in seen.missing]

    def _look_at_processes(self, kids: Iterable[int]) -> None:
        ran = {pid: so_far for pid in kids if (so_far := run_nanoseconds(pid)) is not None}
        still = sorted(self._standstill.process(ran))
        names = ", ".join(f"{_name(pid)} (process {pid})" for pid in still)
        trouble = f"Squid's {names} does not run at all: clients that the kernel assigns to it wait" if still else ""
        if self._reported.trouble("processes", trouble) and trouble:
            say(f"{trouble}; kill -KILL {' '.join(map(str, still))} makes Squid restart it", WARNING)


def _name(pid: int) -> str:
    return command(pid).partition(b"\0")[0].decode(errors="replace").strip("()")
