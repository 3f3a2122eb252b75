"""Keeps the list of this host's addresses, which Squid reads, as they are: by its rules no request is for them.

Squid reads its whole configuration anew for a change, and refuses clients for a moment. So changes are taken together,
an address that went stays for a while, and where new ones come again and again, as by router advertisements of a short
lifetime or networks of containers, Squid is told at growing intervals.

Squid ends where it cannot read its configuration, as where a name of a host is in it and no name server answers, which
is often so while addresses change. So it is told only when it can.
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
"""Seconds from the first change of an address to the reload: changes come in groups, and IPv6 addresses late."""
_LINGER: Final = 10.0
"""Seconds for which requests for an address that went are still refused."""
_AGAIN: Final = 1.0
"""Seconds until the addresses are looked at again where that failed."""
_TRIAL_INTERVAL: Final = 0.2
"""Seconds between two looks whether it is known that Squid can read its configuration."""
_LEAST, _LONGEST, _FORGET = 2.0, 60.0, 60.0
"""Seconds between two reloads because of them: as many at the first, and at the most; and after which quiet time they
are as many as at the first again."""
_OFTEN: Final = 16.0
"""From this interval on it is said that they change again and again."""
_UNTIL: Final = "until it can be, requests for new addresses of this host may pass"


class AddressesWatch:
    """Of one supervisor, whose Squid was started with *prefixes* in the list.

    *trial* finds out whether Squid would end if it read its configuration anew.
    """

    def __init__(self, places: Places, reported: Reported, prefixes: frozenset[Network], trial: Trial) -> None:
        self._places = places
        self._reported = reported
        self._trial = trial
        self._prefixes = prefixes
        self._lingering: Lingering[Network] = Lingering(_LINGER)
        self._lingering.wanted(prefixes, time.monotonic())
        self._spacing = Spacing(_LEAST, _LONGEST, _FORGET)
        # Of two that take the longest time, the ends are so much further apart.
        self._trials = Spacing(_LEAST, _LONGEST, _FORGET + 2 * PARSE_SECONDS)
        """Of those in which there was an obstacle: each may take as long as name servers are waited for."""
        self._readable_until = 0.0
        """Until then a list that could not be written is tried again without a trial."""
        # Once soon after the start, since an address may have changed before the first look for changes.
        self.due: float | None = time.monotonic() + _SETTLE
        """When they are looked at next; None: when something changes."""
        self._failed = False
        """That the last attempt failed has been said."""
        self._often = False
        """That they change again and again has been said."""

    def changed(self) -> None:
        """Note that the kernel told of a change."""
        now = time.monotonic()
        soon = max(now + _SETTLE, self._spacing.earliest(now))
        self.due = soon if self.due is None else min(self.due, soon)

    def installed(self, prefixes: frozenset[Network]) -> None:
        """Note that Squid gets a list with *prefixes* by a reload."""
        self._prefixes, self._readable_until = prefixes, 0.0
        if self._trial.under_way:
            # It is of the configuration of before.
            self._trial.end()
            self.changed()

    def end(self) -> None:
        """Leave no trial under way: Squid is not told of addresses any more."""
        self._trial.end()

    def look(self) -> bool:
        """Look at them where that is due. Return whether Squid is to read the list anew."""
        now = time.monotonic()
        if self.due is None or now < self.due:
            return False
        tried, self.due = self._trial.under_way, None
        obstacle = self._trial.outcome() if tried else ""
        if obstacle is None:
            self.due = now + _TRIAL_INTERVAL
            return False
        if obstacle:
            self._trials.done(now)
        elif tried:
            self._readable_until = now + _LONGEST
        try:
            prefixes, self.due = self._lingering.wanted(local_prefixes(), now)
            if reachable(prefixes) == reachable(self._prefixes):
                self._readable_until = 0.0
                self._tell_failure("")
                return False
            if not tried and now >= self._readable_until:
                self._try_when_due(now)
                return False
            if not obstacle:
                install_own_addresses(self._places, prefixes)
        except TROUBLE as error:
            obstacle = reason(error)
        if obstacle:
            self._tell_failure(f"{obstacle}; {_UNTIL}")
            self.due = max(now + _AGAIN, self._trials.earliest(now))
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
        often = self._spacing.interval >= _OFTEN
        if not often:
            say("this host's addresses have changed, Squid reads them anew")
        elif not self._often:
            say(
                "this host's addresses change again and again: Squid, which refuses clients for a moment each time,"
                f" reads them anew every {_LONGEST:g} s at the most; until it does, requests for a new one may pass",
                WARNING,
            )
        self._often = often

    def _tell_failure(self, text: str) -> None:
        self._reported.trouble("addresses", text)
        if text and not self._failed:
            say(text, WARNING)
        self._failed = bool(text)
