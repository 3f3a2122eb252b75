# SPDX-License-Identifier: GPL-2.0-or-later
"""Reports the supervisor's state and the outcome of reloads to systemd, and to ``mptcp-proxy reload`` and
``doctor``."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from mptcp_common import journal
from mptcp_common.reasons import reason
from mptcp_common.service_manager import READY, WATCHDOG, notify_or_warn, reloading, status, watchdog_seconds

from .installation import write
from .places import Places, Role
from .process import started
from .reloads import Outcome
from .serving import ListenState

_PLAIN = {
    Role.PROXY: "by PLAIN TCP, clients have one path only (mptcp-proxy doctor)",
    # A relay intentionally uses plain TCP towards clients, and Multipath TCP only towards its parents.
    Role.RELAY: "by TCP",
}
"""Status text for a port whose listener is a TCP socket."""


def say(text: object, priority: int = journal.INFO) -> None:
    journal.say(f"mptcp-proxy: {text}", priority)


class Reporter:
    """Reports for the supervisor in this process. If a file cannot be written, this is only logged."""

    def __init__(self, places: Places, role: Role = Role.PROXY) -> None:
        self._places = places
        self._plain = _PLAIN[role]
        self._outcome = Outcome(os.getpid(), started(os.getpid()), 0)
        watchdog_timeout = watchdog_seconds(os.environ)
        # Half of the watchdog's timeout, as sd_watchdog_enabled(3) advises.
        self._interval = None if watchdog_timeout is None else watchdog_timeout / 2
        self.due: float | None = None if watchdog_timeout is None else time.monotonic()
        """Monotonic time of the next watchdog ping; None if the unit has no watchdog."""
        self._is_ready = False
        self._serving = ""
        self._parents = ""
        self._troubles: dict[str, str] = {}
        self._write()

    def give_sign_of_life(self) -> None:
        """Send a watchdog ping if it is due."""
        if self.due is not None and self._interval is not None and time.monotonic() >= self.due:
            self.due = time.monotonic() + self._interval
            _tell(WATCHDOG)

    def listeners(self, state: ListenState) -> None:
        """Report on which ports Squid listens. The supervisor is ready when Squid listens on at least one port."""
        too_few = {port: f"{port} ({actual} of {required} workers)" for port, actual, required in state.too_few}
        mptcp = [port for port in state.ports if port not in state.plain_tcp and port not in state.missing]
        groups = (
            (mptcp, "by Multipath TCP"),
            (state.plain_tcp, self._plain),
            (state.missing, "NOT AT ALL"),
        )
        texts = "; ".join(
            f"port{'s' * (len(ports) > 1)} {', '.join(too_few.get(port, str(port)) for port in ports)} {text}"
            for ports, text in groups
            if ports
        )
        self._serving = f"serving: {texts}"
        becomes_ready = not self._is_ready and state.listens
        self._is_ready = self._is_ready or state.listens
        _tell(*([READY] if becomes_ready else []), self._status())
        self._set_outcome(replace(self._outcome, serving=self._serving))

    def listeners_unknown(self) -> None:
        """Report readiness although the listeners are unknown. Otherwise systemd would abort the start."""
        if not self._is_ready:
            self._is_ready = True
            _tell(READY, self._status())

    def trouble(self, about: str, text: str) -> bool:
        """Set the current problem of the subject *about*; an empty *text* clears it. Return whether it has changed."""
        if text == self._troubles.get(about, ""):
            return False
        self._troubles[about] = text
        _tell(self._status())
        self._set_outcome(replace(self._outcome, troubles=tuple(each for each in self._troubles.values() if each)))
        return True

    def parents(self, summary: str) -> None:
        """Report which parents of a relay answer."""
        if summary != self._parents:
            self._parents = summary
            if self._is_ready:
                _tell(self._status())

    def reload_begins(self) -> None:
        _tell(*reloading())

    def reload_ends(self, refused: str = "", in_doubt: str = "") -> None:
        """Report the end of a reload. *refused*: why the old settings stay in force. *in_doubt*: why it is unknown
        whether Squid listens as the new settings require."""
        count = self._outcome.count + 1
        self._set_outcome(replace(self._outcome, count=count, refused=refused, in_doubt=in_doubt, time=time.time()))
        _tell(*([READY] if self._is_ready else []), self._status())

    def _status(self) -> str:
        refused = f"RELOAD REFUSED: {self._outcome.refused}" if self._outcome.refused else ""
        return status("; ".join(filter(None, (self._serving, self._parents, *self._troubles.values(), refused))))

    def _set_outcome(self, outcome: Outcome) -> None:
        if outcome != self._outcome:
            self._outcome = outcome
            self._write()

    def _write(self) -> None:
        try:
            write(self._places.reloads, self._outcome.text().encode(), 0o600)
        except OSError as error:
            say(
                f"{self._places.reloads}: {reason(error)}; mptcp-proxy reload will not see the outcome", journal.WARNING
            )


def _tell(*lines: str) -> None:
    notify_or_warn("mptcp-proxy", *lines)
