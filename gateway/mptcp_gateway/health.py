"""Which ways are alive: when to try one, and what trials make of it. Pure; times are seconds.

A way is tried as soon as it is there, and each :data:`IDLE_SECONDS` from then on; at once when a connection from its
address has to send again, which is how an outage shows first. It is dead when that trial has no answer either, else
after :data:`FAILURES` trials without one. A dead one is tried each :data:`DEAD_SECONDS`: somebody waits for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mptcp_gateway.model import Access, Address, Outcome, Verdict, Way

IDLE_SECONDS: Final = 30.0
"""A trial costs some 300 bytes: 26 MB a month."""
DEAD_SECONDS: Final = 5.0
SUSPECT_SECONDS: Final = 2.0
"""Between two trials for that reason: on a lossy way connections send again all the time."""
RETRY_SECONDS: Final = 0.1
FAILURES: Final = 2


@dataclass(slots=True)
class Health:
    """Of one way."""

    access: Access
    due: float
    since: float
    """When the verdict became what it is."""
    verdict: Verdict = Verdict.UNTRIED
    rtt: float = 0.0
    """Seconds until the last trial's connection stood."""
    reason: str = ""
    failures: int = 0
    """Trials without an answer, one after the other."""
    suspect: bool = False
    """A connection has to send again."""
    trying: bool = False
    tried: float = 0.0
    """When the last trial ended."""


class HealthWatch:
    """All ways of a host."""

    def __init__(self) -> None:
        self.ways: dict[Way, Health] = {}

    @property
    def verdicts(self) -> dict[Way, Verdict]:
        return {way: each.verdict for way, each in self.ways.items()}

    def follow(self, found: Mapping[Way, Access], now: float) -> None:
        """Take which ways there are."""
        for way in self.ways.keys() - found.keys():
            del self.ways[way]
        for way, access in found.items():
            health = self.ways.get(way)
            if health is None or health.access != access:
                self.ways[way] = Health(access, now, now)

    def suspect(self, addresses: Container[Address], now: float) -> None:
        """Take the addresses from which some connection has to send again."""
        for health in self.ways.values():
            health.suspect = health.access.address in addresses
            if health.suspect and health.verdict is not Verdict.DEAD:
                health.due = min(health.due, max(now, health.tried + SUSPECT_SECONDS))

    def due(self, now: float) -> Iterable[Way]:
        """Return the ways that are to be tried now; each counts as one that is being tried from then on."""
        found = [way for way, each in self.ways.items() if each.due <= now and not each.trying]
        for way in found:
            self.ways[way].trying = True
        return found

    def take(self, way: Way, access: Access, outcome: Outcome, now: float) -> bool:
        """Take the outcome of a trial of *way*, which was as *access* says; return whether the verdict is another."""
        health = self.ways.get(way)
        if health is None or health.access != access:
            return False
        health.trying, health.tried, health.reason = False, now, outcome.reason
        if outcome.verdict is Verdict.DEAD:
            health.failures += 1
            if health.failures < FAILURES and not health.suspect:
                health.due = now + RETRY_SECONDS
                return False
            health.due = now + DEAD_SECONDS
        else:
            health.failures, health.rtt, health.due = 0, outcome.rtt, now + IDLE_SECONDS
        if outcome.verdict is health.verdict:
            return False
        health.verdict, health.since = outcome.verdict, now
        return True
