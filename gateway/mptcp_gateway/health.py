# SPDX-License-Identifier: GPL-2.0-or-later
"""Decides from the outcomes of trials which ways are alive, and when to try each way. Pure; times are seconds.

A way is tried as soon as it exists, and then every :data:`IDLE_SECONDS`; a way on which connections begin is tried
every :data:`BEST_WAY_SECONDS`. A way is tried immediately when a connection from its address retransmits, which is the
first sign of an outage. A way *fails* if such a trial has no answer, after :data:`MAX_FAILURES` trials without an
answer, or when its link is down.

When a good way fails, all other ways are tried immediately. It becomes *dead* when another way of its IP version
answers a trial that began after the failure. If no way answers, the parent may be down. A way that was never good is
dead as soon as it fails. A dead way is tried every :data:`DEAD_SECONDS`, because users wait for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mptcp_gateway.model import Access, Address, Outcome, Verdict, Way

IDLE_SECONDS: Final = 30.0
"""Interval of the trials of a good way. A trial needs some 300 bytes, so the trials need 26 MB a month."""
BEST_WAY_SECONDS: Final = 10.0
"""Interval of the trials of a way on which connections begin. Such a way also carries all UDP of a home, which shows no
retransmissions in an outage."""
DEAD_SECONDS: Final = 5.0
"""Interval of the trials of a dead way."""
THOROUGH_SECONDS: Final = 3600.0
"""Interval of thorough trials, which also send data."""
SUSPECT_SECONDS: Final = 2.0
"""Minimum interval of trials caused by retransmissions, which are frequent on a lossy way."""
RETRY_SECONDS: Final = 0.1
"""Pause between the first failed trial of a way and the next trial."""
MAX_FAILURES: Final = 2
PROVISIONAL_SECONDS: Final = 1.0
"""After this time without an answer, a trial provisionally counts as failed, and the other ways are tried. A later
answer still counts."""
MIN_TRIAL_SECONDS: Final = 1.5
"""Minimum length of a trial before its way counts as dead, because the kernel sends a SYN again after a second."""
MAX_TRIAL_SECONDS: Final = 1.5
MAX_TRIAL_SECONDS_IF_GOOD: Final = 4.0
"""Maximum length of a trial of a good way. It is longer, because an uplink's full queue takes some seconds to drain."""
DAMPING_SECONDS: Final = 60.0
MAX_CHANGES: Final = 3
"""If the verdict changed this often within DAMPING_SECONDS, a dead way must answer MIN_ANSWERS times before it is
good."""
MIN_ANSWERS: Final = 3
_NEVER: Final = float("-inf")


@dataclass(slots=True)
class Health:
    """The state of one way."""

    access: Access
    generation: int
    """Generation of the way. A way that returns or changes gets a new number."""
    next_trial: float
    since: float
    """When the current verdict began."""
    verdict: Verdict = Verdict.UNTRIED
    rtt: float = 0.0
    """Seconds until the last trial's connection was established."""
    reason: str = ""
    failures: int = 0
    """Consecutive trials without an answer."""
    failing_since: float | None = None
    """When the way began to fail; None if it works."""
    is_suspect: bool = False
    """Whether a connection from the way's address retransmits."""
    in_trial: bool = False
    trial_began: float = _NEVER
    """When the last trial began."""
    trial_ended: float = _NEVER
    proven_at: float = _NEVER
    """When the last trial with a conclusive answer began."""
    answers: int = 0
    """Number of consecutive answered trials since the way became dead."""
    thorough_at: float = _NEVER
    """When a trial last sent data."""
    remark: str = ""
    """Remark on the last trial that sent data."""
    changes: list[float] = field(default_factory=list)
    """Times of the recent changes of the verdict."""

    @property
    def timeout(self) -> float:
        """Maximum seconds for a trial's connection."""
        return MAX_TRIAL_SECONDS_IF_GOOD if self.verdict is Verdict.GOOD else MAX_TRIAL_SECONDS

    def change(self, verdict: Verdict, now: float) -> None:
        if self.verdict is not Verdict.UNTRIED:
            self.changes = [each for each in self.changes if now - each < DAMPING_SECONDS] + [now]
        self.verdict, self.since, self.answers = verdict, now, 0


class HealthWatch:
    """All ways of a host."""

    def __init__(self) -> None:
        self.ways: dict[Way, Health] = {}
        self._generations = 0
        self.best_ways: Container[Way] = ()
        """The ways on which connections begin."""

    @property
    def verdicts(self) -> dict[Way, Verdict]:
        return {way: each.verdict for way, each in self.ways.items()}

    @property
    def access_by_way(self) -> dict[Way, Access]:
        return {way: each.access for way, each in self.ways.items()}

    def update_ways(self, found: Mapping[Way, Access], now: float) -> None:
        """Update the ways. A way without a link is ignored, unless it had one before."""
        for way in self.ways.keys() - found.keys():
            del self.ways[way]
        for way, access in found.items():
            health = self.ways.get(way)
            if health is None or health.access != access:
                self.ways.pop(way, None)
                if access.carrier:
                    self._generations += 1
                    self.ways[way] = Health(access, self._generations, now, now)
                continue
            if health.access.carrier is not access.carrier:
                health.next_trial = now
                if not access.carrier:
                    health.failing_since = now if health.failing_since is None else health.failing_since
                    health.reason = "the link is down"
            health.access = access

    def mark_suspects(self, addresses: Container[Address], now: float) -> None:
        """Mark the ways of *addresses*, from which a connection to a parent retransmits, and try them soon."""
        for health in self.ways.values():
            health.is_suspect = health.access.address in addresses
            if health.is_suspect and health.verdict is not Verdict.DEAD:
                health.next_trial = min(health.next_trial, max(now, health.trial_ended + SUSPECT_SECONDS))

    def begin_due_trials(self, now: float, versions: Container[int]) -> Iterable[Way]:
        """Return the ways to try now, and mark them as being tried.

        *versions*: the IP versions of the parents' known addresses. A way of another version cannot be judged.
        """
        found = [way for way, each in self.ways.items() if each.next_trial <= now and not each.in_trial]
        found = [way for way in found if way.version in versions]
        for way in found:
            self.ways[way].in_trial, self.ways[way].trial_began = True, now
        return found

    def record(self, way: Way, generation: int, outcome: Outcome, now: float) -> bool:
        """Record the outcome of a trial of *way* in that *generation*; return whether the verdict changed."""
        health = self.ways.get(way)
        if health is None or health.generation != generation:
            return False
        health.in_trial, health.trial_ended, health.reason = False, now, outcome.reason
        if outcome.thorough:
            health.thorough_at, health.remark = now, outcome.reason
        if outcome.verdict is Verdict.DEAD:
            return self._record_failure(health, now)
        health.failures, health.rtt = 0, outcome.rtt
        health.failing_since = None if health.access.carrier else health.failing_since
        health.next_trial = now + (BEST_WAY_SECONDS if way in self.best_ways else IDLE_SECONDS)
        if outcome.unproven:
            if health.verdict in (Verdict.GOOD, Verdict.PLAIN):
                return False
        else:
            health.proven_at = health.trial_began
        if outcome.verdict is health.verdict:
            return False
        if health.verdict is Verdict.DEAD:
            health.answers += 1
            if (
                health.answers < MIN_ANSWERS
                and sum(now - each < DAMPING_SECONDS for each in health.changes) >= MAX_CHANGES
            ):
                health.next_trial = now + DEAD_SECONDS
                health.reason = "the verdict changes often, so three answers are needed"
                return False
        health.change(outcome.verdict, now)
        return True

    def is_thorough(self, way: Way, now: float) -> bool:
        """Return whether the next trial of *way* must send data."""
        return now >= self.ways[way].thorough_at + THOROUGH_SECONDS

    def find_dead(self, now: float) -> list[Way]:
        """Declare dead the good ways that fail while a parent answers on another way; return these ways."""
        dead = []
        for way, health in self.ways.items():
            if health.verdict is not Verdict.GOOD:
                continue
            if (
                health.failing_since is None
                and health.in_trial
                and now - health.trial_began >= PROVISIONAL_SECONDS
                and (health.is_suspect or health.failures + 1 >= MAX_FAILURES)
            ):
                health.failing_since = now
            if health.failing_since is not None and self._is_dead(way, health, health.failing_since, now):
                health.reason = health.reason or "timed out"
                health.change(Verdict.DEAD, now)
                dead.append(way)
        return dead

    def _record_failure(self, health: Health, now: float) -> bool:
        health.failures, health.answers = health.failures + 1, 0
        if health.failures < MAX_FAILURES and not health.is_suspect and health.failing_since is None:
            health.next_trial = now + RETRY_SECONDS
            return False
        health.next_trial = now + DEAD_SECONDS
        if health.verdict is Verdict.GOOD:
            health.failing_since = now if health.failing_since is None else health.failing_since
            return False  # find_dead() decides whether the way is dead
        if health.verdict is Verdict.DEAD:
            return False
        health.change(Verdict.DEAD, now)
        return True

    def _is_dead(self, way: Way, health: Health, failing_since: float, now: float) -> bool:
        """Return whether a way that has failed since *failing_since* is dead; schedule the trials that show this."""
        others = list(self._other_ways(way))
        last_proof = max((each.proven_at for each in others), default=_NEVER)
        if last_proof < failing_since:
            for each in others:
                if each.trial_began < failing_since:
                    each.next_trial = min(each.next_trial, now)
            return False
        if not health.access.carrier:
            return True
        if health.in_trial:
            return now - health.trial_began >= MIN_TRIAL_SECONDS
        if health.trial_ended < last_proof:
            # The parent may have been down; now that it answers, try this way again.
            health.next_trial = min(health.next_trial, now)
            return False
        return True

    def _other_ways(self, excluded: Way) -> Iterator[Health]:
        return (each for way, each in self.ways.items() if way.version == excluded.version and way != excluded)
