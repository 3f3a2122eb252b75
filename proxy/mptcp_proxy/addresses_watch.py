# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps Squid's list of this host's addresses up to date; squid.conf denies requests for these addresses.

After a change of the list, Squid must reread its whole configuration, and refuses clients for a moment. So changes are
collected, a removed address stays in the list for some time, and if changes do not stop (router advertisements with a
short lifetime, container networks), the intervals between reloads grow.

Squid exits if it cannot read its configuration, for example if that names a host and no name server answers, which is
likely while addresses change. So each reload is preceded by a trial.
"""

from __future__ import annotations

import time
from typing import Final

from mptcp_common.journal import WARNING
from mptcp_common.reasons import reason

from .installation import install_own_addresses
from .own_addresses import TROUBLE, Lingering, Network, Spacing, local_prefixes, reachable
from .places import Places
from .reported import Reported, say
from .squid import PARSE_SECONDS
from .trial import Trial

_SETTLE: Final = 1.0
"""Seconds from the first change to the reload, because changes come in groups, and IPv6 addresses come late."""
_LINGER: Final = 10.0
"""Seconds for which requests for a removed address are still refused."""
_RETRY_SECONDS: Final = 1.0
"""Seconds until the next attempt after a failure."""
_TRIAL_INTERVAL: Final = 0.2
"""Seconds between checks whether a trial has ended."""
_SHORTEST_INTERVAL, _LONGEST_INTERVAL, _QUIET_SECONDS = 2.0, 60.0, 60.0
"""Seconds between two reloads for new addresses, initially and at most; after _QUIET_SECONDS without a change, the
interval returns to the initial one."""
_FREQUENT_INTERVAL: Final = 16.0
"""If the interval between reloads reaches this many seconds, the log says that addresses keep changing."""
_CONSEQUENCE: Final = "for now, requests for new addresses of this host may pass"


class AddressesWatch:
    """Watches the addresses for one supervisor, whose Squid was started with *prefixes* in the list. *trial* tests
    whether Squid would exit if it reread its configuration."""

    def __init__(self, places: Places, reported: Reported, prefixes: frozenset[Network], trial: Trial) -> None:
        self._places = places
        self._reported = reported
        self._trial = trial
        self._prefixes = prefixes
        self._lingering: Lingering[Network] = Lingering(_LINGER)
        self._lingering.wanted(prefixes, time.monotonic())
        self._spacing = Spacing(_SHORTEST_INTERVAL, _LONGEST_INTERVAL, _QUIET_SECONDS)
        # A trial that fails may take up to PARSE_SECONDS, which adds to the time between the ends of two trials.
        self._trials = Spacing(_SHORTEST_INTERVAL, _LONGEST_INTERVAL, _QUIET_SECONDS + 2 * PARSE_SECONDS)
        """Spacing of failed trials, each of which may wait for name servers until their timeout."""
        self._readable_until = 0.0
        """Until this monotonic time, a failed write of the list is retried without another trial."""
        # Check once soon after the start, because an address may have changed before the watch began.
        self.due: float | None = time.monotonic() + _SETTLE
        """Time of the next check; None if the next check follows a change."""
        self._failed = False
        self._often = False

    def changed(self) -> None:
        """Schedule a check, because the kernel reported a change."""
        now = time.monotonic()
        soon = max(now + _SETTLE, self._spacing.earliest(now))
        self.due = soon if self.due is None else min(self.due, soon)

    def installed(self, prefixes: frozenset[Network]) -> None:
        """Record that a reload has given Squid a list with *prefixes*."""
        self._prefixes, self._readable_until = prefixes, 0.0
        if self._trial.under_way:
            # The running trial tests the earlier configuration.
            self._trial.end()
            self.changed()

    def end(self) -> None:
        """End a running trial, because Squid gets no further updates."""
        self._trial.end()

    def look(self) -> bool:
        """Check the addresses if that is due. Return whether Squid must reread the list."""
        now = time.monotonic()
        if self.due is None or now < self.due:
            return False
        tried, self.due = self._trial.under_way, None
        problem = self._trial.outcome() if tried else ""
        if problem is None:
            self.due = now + _TRIAL_INTERVAL
            return False
        if problem:
            self._trials.done(now)
        elif tried:
            self._readable_until = now + _LONGEST_INTERVAL
        try:
            prefixes, self.due = self._lingering.wanted(local_prefixes(), now)
            if reachable(prefixes) == reachable(self._prefixes):
                self._readable_until = 0.0
                self._tell_failure("")
                return False
            if not tried and now >= self._readable_until:
                self._try_when_due(now)
                return False
            if not problem:
                install_own_addresses(self._places, prefixes)
        except TROUBLE as error:
            problem = reason(error)
        if problem:
            self._tell_failure(f"{problem}; {_CONSEQUENCE}")
            self.due = max(now + _RETRY_SECONDS, self._trials.earliest(now))
            return False
        self._tell_failure("")
        self._prefixes, self._readable_until = prefixes, 0.0
        self._spacing.done(now)
        self._tell_change()
        return True

    def _try_when_due(self, now: float) -> None:
        self.due = max(self._spacing.earliest(now), self._trials.earliest(now))
        if self.due <= now:
            self._trial.begin()
            self.due = now + _TRIAL_INTERVAL

    def _tell_change(self) -> None:
        often = self._spacing.interval >= _FREQUENT_INTERVAL
        if not often:
            say("this host's addresses have changed, Squid rereads them")
        elif not self._often:
            say(
                f"this host's addresses keep changing: Squid rereads them at most every {_LONGEST_INTERVAL:g} s,"
                " because it refuses clients for a moment each time; until then, requests for a new address may pass",
                WARNING,
            )
        self._often = often

    def _tell_failure(self, text: str) -> None:
        self._reported.trouble("addresses", text)
        if text and not self._failed:
            say(text, WARNING)
        self._failed = bool(text)
