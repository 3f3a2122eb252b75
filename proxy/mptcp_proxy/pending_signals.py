# SPDX-License-Identifier: GPL-2.0-or-later
"""Delays signals for Squid until all of its processes are ready for them.

Squid's first process passes each signal on to the kids (coordinator and workers) that it has started. A signal kills a
kid that has no handler for it yet. So a signal is delayed until

- all kids that Squid starts exist, because a later kid would get the signal when it is started;
- each kid has called execve(2): until then it has its parent's handlers, which execve removes;
- the first process and each kid have a handler for the signal;
- for SIGHUP, each worker listens. A worker that must reconfigure after it has opened its sockets, but before its event
  loop has begun, dies ("check failed: NHttpSockets > 0"; in 5.7 and in the source of August 2026).

Each delay is limited: a kid may be missing because Squid no longer restarts it, and a listener because Squid cannot
open its port.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Final

from . import process

STOP: Final = (signal.SIGTERM, signal.SIGINT)
MAX_STOP_DELAY = 5.0
"""Maximum seconds by which a stop is delayed."""
MAX_KIDS_DELAY = 5.0
"""Maximum seconds for which signals wait for missing kids."""
MAX_LISTENERS_DELAY = 10.0
"""Maximum seconds for which SIGHUP waits for missing listeners."""


class _Wait:
    """Waits for a condition, at most *seconds* from the first call that finds it false."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._false_since: float | None = None

    def restart(self) -> None:
        self._false_since = None

    def is_over(self, condition: bool, now: float) -> bool:
        """Return whether *condition* is true, or has been false for too long."""
        if condition:
            self._false_since = None
            return True
        if self._false_since is None:
            self._false_since = now
        return now >= self._false_since + self._seconds


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
        """Stop signals that were sent before all kids were ready, with the kids that caught them. Such a signal is sent
        again for the other kids, but not before the kids that caught it have ended, because a second signal would abort
        their transfers."""
        self._stop_deadline: float | None = None
        """Time at which Squid gets the stop signal even if it is not ready; None if no stop was requested."""
        self._kids_wait = _Wait(MAX_KIDS_DELAY)
        self._listeners_wait = _Wait(MAX_LISTENERS_DELAY)

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self._stop_deadline is not None

    def __bool__(self) -> bool:
        return bool(self._pending)

    def __contains__(self, number: signal.Signals) -> bool:
        return number in self._pending

    def add(self, number: signal.Signals) -> None:
        self._pending.add(number)

    def stop(self, number: signal.Signals, now: float) -> None:
        """Request a stop by the signal *number*. SIGINT, which does not wait for transfers, replaces SIGTERM."""
        if self._stop_deadline is None:
            self._stop_deadline = now + MAX_STOP_DELAY
        self._pending.add(number)
        # A stopping Squid closes its listeners, and does not reload.
        self._pending.discard(signal.SIGHUP)
        self._sent_early.pop(number, None)
        if number == signal.SIGINT:
            self._pending.discard(signal.SIGTERM)

    def ready_signals(self, squid: int, now: float) -> Iterator[signal.Signals]:
        """Yield the signals to send now to Squid's first process, whose PID is *squid*."""
        if not self._pending:
            self._kids_wait.restart()
            self._listeners_wait.restart()
            return
        kids = self._children(squid)
        complete = self._is_complete(squid, kids, now)
        late = self._stop_deadline is not None and now >= self._stop_deadline
        for number in sorted(self._pending):
            caught = self._sent_early.get(number, frozenset())
            ready = complete and caught.isdisjoint(kids) and all(self._catches(pid, number) for pid in (squid, *kids))
            if ready and (number != signal.SIGHUP or self._listeners_wait.is_over(self._all_listen(squid), now)):
                self._pending.discard(number)
            elif late and number in STOP and number not in self._sent_early:
                self._sent_early[number] = frozenset(
                    kid for kid in kids if self._has_executed(squid, kid) and self._catches(kid, number)
                )
            else:
                continue
            yield number

    def _has_executed(self, squid: int, kid: int) -> bool:
        """Return whether *kid* has called execve(2), which changes its command line."""
        return self._command(kid) != self._command(squid)

    def _is_complete(self, squid: int, kids: tuple[int, ...], now: float) -> bool:
        if not kids or not all(self._has_executed(squid, kid) for kid in kids):
            return False
        return self._kids_wait.is_over(len(kids) >= self._kids, now)
