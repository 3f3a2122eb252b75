# SPDX-License-Identifier: GPL-2.0-or-later
"""Holds back signals for Squid until all of its processes are ready for them.

Squid's first process passes each signal on to the kids (coordinator and workers) that it has started. A signal kills a
kid that has no handler for it yet. So a signal is held back until

- all kids that Squid starts exist, because a later kid would get the signal when it is started;
- each kid has called execve(2), because after fork(2) it only shows its parent's handlers, which execve removes;
- the first process and each kid catch the signal;
- for SIGHUP, each worker listens. If a worker must reconfigure before its event loop has begun but after it has opened
  its sockets, it dies ("check failed: NHttpSockets > 0"), in 5.7 and in the source of August 2026.

A stop is held back only for a limited time. So is a signal that waits for a kid that Squid no longer starts because it
ended too often, or for a port that Squid cannot open.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Final

from . import process

STOP: Final = (signal.SIGTERM, signal.SIGINT)
STOP_PATIENCE = 5.0
"""Seconds that a starting Squid has to get ready for an orderly stop."""
KIDS_PATIENCE = 5.0
"""Seconds that signals wait for missing kids."""
LISTENERS_PATIENCE = 10.0
"""Seconds that SIGHUP waits for missing listeners."""


class _Wait:
    """Waits for a condition, at most *seconds* from the first time at which it was not met."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._missing_since: float | None = None

    def restart(self) -> None:
        self._missing_since = None

    def is_over(self, condition: bool, now: float) -> bool:
        if condition:
            self._missing_since = None
            return True
        if self._missing_since is None:
            self._missing_since = now
        return now >= self._missing_since + self._seconds


class PendingSignals:
    """The pending signals for one Squid, which has *kids* processes in addition to its first process. Times are seconds
    of a monotonic clock. *all_listen* takes the PID of the first process, and returns whether this Squid has all its
    listeners."""

    def __init__(
        self,
        kids: int,
        *,
        all_listen: Callable[[int], bool],
        children: Callable[[int], tuple[int, ...]] = process.children,
        catches: Callable[[int, int], bool] = process.catches,
        command: Callable[[int], bytes] = process.command,
    ) -> None:
        self._kids = kids
        self._all_listen = all_listen
        self._children = children
        self._catches = catches
        self._command = command
        self._pending: set[signal.Signals] = set()
        self._sent_early: dict[signal.Signals, frozenset[int]] = {}
        """Stop signals sent early, with the kids that caught them. Such a signal is sent again for the kids that missed
        it, but only when no kid that caught it is alive: a second signal would abort the transfers of that kid."""
        self._stop_at_latest: float | None = None
        """Deadline at which Squid gets the stop signal even if it is not ready; None if no stop was requested."""
        self._kids_wait = _Wait(KIDS_PATIENCE)
        self._listeners_wait = _Wait(LISTENERS_PATIENCE)

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self._stop_at_latest is not None

    def __bool__(self) -> bool:
        return bool(self._pending)

    def __contains__(self, number: signal.Signals) -> bool:
        return number in self._pending

    def add(self, number: signal.Signals) -> None:
        self._pending.add(number)

    def stop(self, number: signal.Signals, now: float) -> None:
        """Request a stop by *number*. SIGINT, which does not wait for transfers, replaces SIGTERM."""
        if self._stop_at_latest is None:
            self._stop_at_latest = now + STOP_PATIENCE
        self._pending.add(number)
        # A stopping Squid closes its listeners and reloads nothing.
        self._pending.discard(signal.SIGHUP)
        self._sent_early.pop(number, None)
        if number == signal.SIGINT:
            self._pending.discard(signal.SIGTERM)

    def due(self, squid: int, now: float) -> Iterator[signal.Signals]:
        """Yield the signals to send now to Squid's first process, whose PID is *squid*."""
        if not self._pending:
            self._kids_wait.restart()
            self._listeners_wait.restart()
            return
        kids = self._children(squid)
        complete = self._complete(squid, kids, now)
        late = self._stop_at_latest is not None and now >= self._stop_at_latest
        for number in sorted(self._pending):
            caught = self._sent_early.get(number, frozenset())
            ready = complete and caught.isdisjoint(kids) and all(self._catches(pid, number) for pid in (squid, *kids))
            if ready and (number != signal.SIGHUP or self._listeners_wait.is_over(self._all_listen(squid), now)):
                self._pending.discard(number)
            elif late and number in STOP and number not in self._sent_early:
                self._sent_early[number] = frozenset(
                    kid for kid in kids if self._has_begun(squid, kid) and self._catches(kid, number)
                )
            else:
                continue
            yield number

    def _has_begun(self, squid: int, kid: int) -> bool:
        return self._command(kid) != self._command(squid)

    def _complete(self, squid: int, kids: tuple[int, ...], now: float) -> bool:
        if not kids or not all(self._has_begun(squid, kid) for kid in kids):
            return False
        return self._kids_wait.is_over(len(kids) >= self._kids, now)
