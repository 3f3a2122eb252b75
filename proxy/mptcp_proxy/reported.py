"""What systemd and ``mptcp-proxy reload`` are told of a supervisor: that it is ready, alive, and how reloads ended."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from mptcp_common import journal
from mptcp_common.reasons import reason
from mptcp_common.service_manager import READY, WATCHDOG, notify, reloading, status, watchdog_seconds

from .installation import write
from .places import Places, Role
from .process import started
from .reloads import Outcome

_PLAIN = {
    Role.PROXY: "by PLAIN TCP, clients have one path only (mptcp-proxy doctor)",
    # As it is meant: Multipath TCP is spoken to parents.
    Role.RELAY: "by TCP",
}
"""How clients come in where the listener is a TCP socket."""


def say(text: object, priority: int = journal.INFO) -> None:
    journal.say(f"mptcp-proxy: {text}", priority)


class Reported:
    """Of one supervisor, which is this process. All files that fail to be written are said, and no more."""

    def __init__(self, places: Places, role: Role = Role.PROXY) -> None:
        self._places = places
        self._plain = _PLAIN[role]
        self._outcome = Outcome(os.getpid(), started(os.getpid()), 0)
        watched = watchdog_seconds(os.environ)
        # Half of it, as sd_watchdog_enabled(3) advises.
        self._interval = None if watched is None else watched / 2
        self.due: float | None = None if watched is None else time.monotonic()
        """When the next sign of life is due, by the monotonic clock; None: nobody waits for one."""
        self._is_ready = False
        self._serving = ""
        self._parents = ""
        self._write()

    def give_sign_of_life(self) -> None:
        """Give one where it is due."""
        if self.due is not None and self._interval is not None and time.monotonic() >= self.due:
            self.due = time.monotonic() + self._interval
            _tell(WATCHDOG)

    def listeners(self, ports: Sequence[int], plain: Sequence[int], missing: Sequence[int]) -> None:
        """Say how Squid listens on *ports*. It is ready once it does on one of them."""
        mptcp = [port for port in ports if port not in plain and port not in missing]
        texts = (
            (mptcp, "by Multipath TCP"),
            (plain, self._plain),
            (missing, "NOT AT ALL"),
        )
        served = "; ".join(f"port{'s' * (len(on) > 1)} {', '.join(map(str, on))} {how}" for on, how in texts if on)
        self._serving = f"serving: {served}"
        first = not self._is_ready and (mptcp or plain)
        self._is_ready = self._is_ready or bool(first)
        _tell(*([READY] if first else []), self._status())

    def parents(self, summary: str) -> None:
        """Say which parents of a relay answer."""
        if summary != self._parents:
            self._parents = summary
            if self._is_ready:
                _tell(self._status())

    def reload_begins(self) -> None:
        _tell(*reloading())

    def reload_ends(self, refused: str = "") -> None:
        """A reload is done; *refused*: why the old settings are still in force."""
        self._outcome = replace(self._outcome, count=self._outcome.count + 1, refused=refused, time=time.time())
        self._write()
        _tell(*([READY] if self._is_ready else []), self._status())

    def _status(self) -> str:
        refused = self._outcome.refused
        parts = (self._serving, self._parents, f"RELOAD REFUSED: {refused}" if refused else "")
        return status("; ".join(filter(None, parts)))

    def _write(self) -> None:
        try:
            write(self._places.reloads, self._outcome.text().encode(), 0o600)
        except OSError as error:
            say(
                f"{self._places.reloads}: {reason(error)}; mptcp-proxy reload will not see how it went", journal.WARNING
            )


def _tell(*lines: str) -> None:
    try:
        notify(*lines)
    except OSError as error:
        say(f"tell the service manager {lines[0]}: {reason(error)}", journal.WARNING)
