# SPDX-License-Identifier: GPL-2.0-or-later
"""Reports the supervisor's state and the outcome of reloads to systemd, and to ``mptcp-proxy reload`` and
``doctor``."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import replace

from mptcp_common import journal
from mptcp_common.reasons import reason
from mptcp_common.service_manager import READY, WATCHDOG, notify_or_warn, reloading, status, watchdog_seconds

from .installation import write
from .places import Places, Role
from .process import start_time
from .reloads import Outcome
from .serving import ListenState

_PLAIN_TCP_TEXTS = {
    Role.PROXY: "over PLAIN TCP, clients have one path only (mptcp-proxy doctor)",
    # A relay intentionally uses plain TCP towards clients, and Multipath TCP only towards its parents.
    Role.RELAY: "over TCP",
}
"""Status text for a port whose listener is a TCP socket."""


def say(text: object, priority: int = journal.INFO) -> None:
    journal.say(f"mptcp-proxy: {text}", priority)


class Reporter:
    """Reports for the supervisor in this process. If a file cannot be written, this is only logged."""

    def __init__(self, places: Places, role: Role = Role.PROXY) -> None:
        self._places = places
        self._plain_tcp_text = _PLAIN_TCP_TEXTS[role]
        self._outcome = Outcome(os.getpid(), start_time(os.getpid()), 0)
        watchdog_timeout = watchdog_seconds(os.environ)
        # Half of the watchdog's timeout, as sd_watchdog_enabled(3) advises.
        self._interval = None if watchdog_timeout is None else watchdog_timeout / 2
        self.next_ping: float | None = None if watchdog_timeout is None else time.monotonic()
        """Monotonic time of the next watchdog ping; None if the unit has no watchdog."""
        self._is_ready = False
        self._serving = ""
        self._parents = ""
        self._problems: dict[str, str] = {}
        self._write()

    def ping_watchdog(self) -> None:
        """Send a watchdog ping if it is due."""
        if self.next_ping is not None and self._interval is not None and time.monotonic() >= self.next_ping:
            self.next_ping = time.monotonic() + self._interval
            _notify(WATCHDOG)

    def report_listeners(self, state: ListenState) -> None:
        """Report on which ports Squid listens. The supervisor is ready when Squid listens on at least one port."""
        too_few = {port: f"{port} ({actual} of {required} workers)" for port, actual, required in state.too_few}
        mptcp = [port for port in state.ports if port not in state.plain_tcp and port not in state.missing]

        def port_names(ports: Collection[int]) -> str:
            return f"port{'s' * (len(ports) > 1)} {', '.join(too_few.get(port, str(port)) for port in ports)}"

        served = [f"{port_names(mptcp)} over Multipath TCP"] if mptcp else []
        served += [f"{port_names(state.plain_tcp)} {self._plain_tcp_text}"] if state.plain_tcp else []
        texts = [f"serving: {'; '.join(served)}"] if served else []
        texts += [f"NOT LISTENING: {port_names(state.missing)}"] if state.missing else []
        self._serving = "; ".join(texts)
        becomes_ready = not self._is_ready and state.listens
        self._is_ready = self._is_ready or state.listens
        _notify(*([READY] if becomes_ready else []), self._status())
        self._set_outcome(replace(self._outcome, serving=self._serving))

    def report_unknown_listeners(self) -> None:
        """Report readiness although the listeners are unknown. Otherwise systemd would abort the start."""
        if not self._is_ready:
            self._is_ready = True
            _notify(READY, self._status())

    def set_problem(self, subject: str, text: str) -> bool:
        """Set the current problem of *subject*; an empty *text* clears it. Return whether it has changed."""
        if text == self._problems.get(subject, ""):
            return False
        self._problems[subject] = text
        _notify(self._status())
        self._set_outcome(replace(self._outcome, problems=tuple(each for each in self._problems.values() if each)))
        return True

    def report_parents(self, summary: str) -> None:
        """Report which parents of a relay answer."""
        if summary != self._parents:
            self._parents = summary
            if self._is_ready:
                _notify(self._status())

    def reload_begins(self) -> None:
        _notify(*reloading())

    def reload_ends(self, refused: str = "", unconfirmed: str = "") -> None:
        """Report the end of a reload. *refused*: why the old settings stay in force. *unconfirmed*: why it is unknown
        whether Squid listens as the new settings require."""
        count = self._outcome.count + 1
        self._set_outcome(
            replace(self._outcome, count=count, refused=refused, unconfirmed=unconfirmed, time=time.time())
        )
        _notify(*([READY] if self._is_ready else []), self._status())

    def _status(self) -> str:
        refused = f"RELOAD REFUSED: {self._outcome.refused}" if self._outcome.refused else ""
        return status("; ".join(filter(None, (self._serving, self._parents, *self._problems.values(), refused))))

    def _set_outcome(self, outcome: Outcome) -> None:
        if outcome != self._outcome:
            self._outcome = outcome
            self._write()

    def _write(self) -> None:
        try:
            write(self._places.reloads, self._outcome.text().encode(), 0o600)
        except OSError as error:
            say(
                f"{self._places.reloads}: {reason(error)}; mptcp-proxy reload cannot report the outcome",
                journal.WARNING,
            )


def _notify(*lines: str) -> None:
    notify_or_warn("mptcp-proxy", *lines)
