# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps Squid's list of this host's addresses up to date; squid.conf denies requests for these addresses.

After a change of the list, Squid must reread its whole configuration, and refuses clients for a moment. So changes are
collected, and a removed address stays in the list for some time. If changes do not stop (router advertisements with a
short lifetime, container networks), the intervals between reloads grow.

Squid exits if it cannot read its configuration. This happens if the configuration contains a host name and no name
server answers, which is likely while addresses change. So a trial precedes each reload.
"""

from __future__ import annotations

import time
from typing import Final

from mptcp_common.journal import WARNING
from mptcp_common.reasons import reason

from .installation import install_own_addresses
from .own_addresses import SYSTEM_ERRORS, Lingering, Network, Spacing, local_prefixes, without_fixed_rule
from .places import Places
from .reporter import Reporter, say
from .squid import PARSE_SECONDS
from .trial import Trial

_COLLECT_SECONDS: Final = 1.0
"""Seconds from the first change to the reload: several addresses often change together, the IPv6 addresses last."""
_KEEP_SECONDS: Final = 10.0
"""Seconds for which requests for a removed address are still refused."""
_RETRY_SECONDS: Final = 1.0
"""Seconds until the next attempt after a failure."""
_TRIAL_INTERVAL: Final = 0.2
"""Seconds between checks whether a trial has ended."""
_MIN_INTERVAL, _MAX_INTERVAL, _QUIET_SECONDS = 2.0, 60.0, 60.0
"""Seconds between two reloads for new addresses. The interval begins at the minimum, and returns to it after
_QUIET_SECONDS without a change."""
_FREQUENT_INTERVAL: Final = 16.0
"""If reloads are at least this many seconds apart, a log message reports that addresses keep changing."""
_CONSEQUENCE: Final = "for now, requests for new addresses of this host may pass"


class AddressesWatch:
    """Watches the addresses for one supervisor, whose Squid was started with *prefixes* in the list. *trial* tests
    whether Squid would exit if it reread its configuration."""

    def __init__(self, places: Places, reporter: Reporter, prefixes: frozenset[Network], trial: Trial) -> None:
        self._places = places
        self._reporter = reporter
        self._trial = trial
        self._prefixes = prefixes
        self._lingering: Lingering[Network] = Lingering(_KEEP_SECONDS)
        self._lingering.update(prefixes, time.monotonic())
        self._reload_spacing = Spacing(_MIN_INTERVAL, _MAX_INTERVAL, _QUIET_SECONDS)
        # A failed trial may take up to PARSE_SECONDS, which adds to the time between the ends of two trials.
        self._trial_spacing = Spacing(_MIN_INTERVAL, _MAX_INTERVAL, _QUIET_SECONDS + 2 * PARSE_SECONDS)
        """Spacing of failed trials, each of which may wait for name servers until their timeout."""
        self._trial_valid_until = 0.0
        """Monotonic time until which the list may be written without another trial, after a failed write."""
        # Check once shortly after the start, because an address may have changed before the watch began.
        self.next_check: float | None = time.monotonic() + _COLLECT_SECONDS
        """Time of the next check; None if no check is due before the next change."""
        self._failure_is_logged = False
        self._frequency_is_logged = False

    def schedule_check(self) -> None:
        """Schedule a check, because the kernel reported a change."""
        now = time.monotonic()
        earliest = max(now + _COLLECT_SECONDS, self._reload_spacing.earliest(now))
        self.next_check = earliest if self.next_check is None else min(self.next_check, earliest)

    def record_list(self, prefixes: frozenset[Network]) -> None:
        """Record that a reload has given Squid a list with *prefixes*."""
        self._prefixes, self._trial_valid_until = prefixes, 0.0
        if self._trial.is_running:
            # The running trial tests the previous configuration.
            self._trial.end()
            self.schedule_check()

    def end(self) -> None:
        """End a running trial, because Squid gets no further updates."""
        self._trial.end()

    def check(self) -> bool:
        """Check the addresses if a check is due. Return whether Squid must reread the list."""
        now = time.monotonic()
        if self.next_check is None or now < self.next_check:
            return False
        trial_was_running, self.next_check = self._trial.is_running, None
        problem = self._trial.outcome() if trial_was_running else ""
        if problem is None:
            self.next_check = now + _TRIAL_INTERVAL
            return False
        if problem:
            self._trial_spacing.record(now)
        elif trial_was_running:
            self._trial_valid_until = now + _MAX_INTERVAL
        try:
            prefixes, self.next_check = self._lingering.update(local_prefixes(), now)
            if without_fixed_rule(prefixes) == without_fixed_rule(self._prefixes):
                self._trial_valid_until = 0.0
                self._report_failure("")
                return False
            if not trial_was_running and now >= self._trial_valid_until:
                self._begin_trial_if_due(now)
                return False
            if not problem:
                install_own_addresses(self._places, prefixes)
        except SYSTEM_ERRORS as error:
            problem = reason(error)
        if problem:
            self._report_failure(f"{problem}; {_CONSEQUENCE}")
            self.next_check = max(now + _RETRY_SECONDS, self._trial_spacing.earliest(now))
            return False
        self._report_failure("")
        self._prefixes, self._trial_valid_until = prefixes, 0.0
        self._reload_spacing.record(now)
        self._log_change()
        return True

    def _begin_trial_if_due(self, now: float) -> None:
        self.next_check = max(self._reload_spacing.earliest(now), self._trial_spacing.earliest(now))
        if self.next_check <= now:
            self._trial.begin()
            self.next_check = now + _TRIAL_INTERVAL

    def _log_change(self) -> None:
        frequent = self._reload_spacing.interval >= _FREQUENT_INTERVAL
        if not frequent:
            say("this host's addresses have changed, Squid rereads them")
        elif not self._frequency_is_logged:
            say(
                f"this host's addresses keep changing: Squid rereads them at most every {_MAX_INTERVAL:g} s,"
                " because it refuses clients for a moment each time; until then, requests for a new address may pass",
                WARNING,
            )
        self._frequency_is_logged = frequent

    def _report_failure(self, text: str) -> None:
        self._reporter.set_problem("addresses", text)
        if text and not self._failure_is_logged:
            say(text, WARNING)
        self._failure_is_logged = bool(text)
