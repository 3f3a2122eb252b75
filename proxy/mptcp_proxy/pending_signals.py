"""Signals for Squid that wait until all of its processes are ready for them.

Squid's first process passes each signal on to its kids (coordinator and workers) once it has started them. A kid dies
of one that comes before it has a function for it. So a signal waits until

- there are as many kids as Squid starts: one that is not there yet would get the signal at its birth;
- each kid runs a program of its own: between fork(2) and execve(2) it shows its parent's functions, lost then;
- the first process and each kid catch the signal;
- for SIGHUP, each worker listens: one that is told to read its configuration anew after it has opened its sockets and
  before its loop has begun dies of it ("check failed: NHttpSockets > 0"), in 5.7 and in the source of August 2026.

A stop does not wait for ever. Nor does anything wait for a kid that Squid starts no more, because it ended too often,
or for a port that it cannot open.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Final

from . import process

STOP: Final = (signal.SIGTERM, signal.SIGINT)
STOP_PATIENCE = 5.0
"""Seconds that a Squid which is just starting has to become ready for its orderly end."""
KIDS_PATIENCE = 5.0
"""Seconds that signals wait for kids that are not there."""
LISTENERS_PATIENCE = 10.0
"""Seconds that SIGHUP waits for listeners that are not there."""


class _Wait:
    """For something that may be missing for *seconds* before it is waited for no more."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._missing_since: float | None = None

    def begin_anew(self) -> None:
        self._missing_since = None

    def is_over(self, there: bool, now: float) -> bool:
        if there:
            self._missing_since = None
            return True
        if self._missing_since is None:
            self._missing_since = now
        return now >= self._missing_since + self._seconds


class PendingSignals:
    """For one Squid with *kids* processes beside its first. Times are seconds of one clock that only goes forward.

    *all_listen* says of the Squid whose first process has a number whether all listeners are there.
    """

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
        """Those of them that it was sent all the same, and the kids that caught them: who lost one is sent it again,
        but not while a kid lives that caught it, since a second one would break off what that kid lets finish."""
        self._stop_at_latest: float | None = None
        """When Squid is stopped, ready for it or not. None: nobody wants it to stop."""
        self._for_kids = _Wait(KIDS_PATIENCE)
        self._for_listeners = _Wait(LISTENERS_PATIENCE)

    @property
    def stopping(self) -> bool:
        """Whether Squid was ever to stop."""
        return self._stop_at_latest is not None

    def __bool__(self) -> bool:
        return bool(self._pending)

    def __contains__(self, number: signal.Signals) -> bool:
        return number in self._pending

    def add(self, number: signal.Signals) -> None:
        self._pending.add(number)

    def stop(self, number: signal.Signals, now: float) -> None:
        """Have Squid stop by *number*; SIGINT, which waits for no transfer, takes the place of SIGTERM."""
        if self._stop_at_latest is None:
            self._stop_at_latest = now + STOP_PATIENCE
        self._pending.add(number)
        # One that is to stop closes its listeners, and reads nothing anew.
        self._pending.discard(signal.SIGHUP)
        self._sent_early.pop(number, None)
        if number == signal.SIGINT:
            self._pending.discard(signal.SIGTERM)

    def due(self, squid: int, now: float) -> Iterator[signal.Signals]:
        """Yield what the first process, number *squid*, is to be sent now."""
        if not self._pending:
            self._for_kids.begin_anew()
            self._for_listeners.begin_anew()
            return
        kids = self._children(squid)
        complete = self._complete(squid, kids, now)
        late = self._stop_at_latest is not None and now >= self._stop_at_latest
        for number in sorted(self._pending):
            caught = self._sent_early.get(number, frozenset())
            ready = complete and caught.isdisjoint(kids) and all(self._catches(pid, number) for pid in (squid, *kids))
            if ready and (number != signal.SIGHUP or self._for_listeners.is_over(self._all_listen(squid), now)):
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
        return self._for_kids.is_over(len(kids) >= self._kids, now)
