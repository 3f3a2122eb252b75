"""Which ways are alive: when to try one, and what trials make of it. Pure; times are seconds.

A way is tried as soon as it is there, and each :data:`IDLE_SECONDS` from then on, those on which connections begin each
:data:`BEGIN_SECONDS`; at once when a connection from its
address has to send again, which is how an outage shows first. It fails when that trial has no answer either, else
after :data:`FAILURES` trials without one, or when its link is down.

A good way that fails is dead once another way of its IP version has an answer by a trial begun later, for which all
others are tried at once: else the parent may be what is silent. A way that was never good is dead as soon as it fails.
A dead one is tried each :data:`DEAD_SECONDS`: somebody waits for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mptcp_gateway.model import Access, Address, Outcome, Verdict, Way

IDLE_SECONDS: Final = 30.0
"""A trial costs some 300 bytes: 26 MB a month."""
BEGIN_SECONDS: Final = 10.0
"""Where all of a home's UDP goes, by which nobody notices an outage."""
DEAD_SECONDS: Final = 5.0
THOROUGH_SECONDS: Final = 3600.0
"""Between two trials that send data."""
SUSPECT_SECONDS: Final = 2.0
"""Between two trials for that reason: on a lossy way connections send again all the time."""
RETRY_SECONDS: Final = 0.1
FAILURES: Final = 2
DOUBT_SECONDS: Final = 1.0
"""A trial without an answer for so long is a failure, unless the answer comes after all: others are tried."""
LEAST_SECONDS: Final = 1.5
"""That a trial gets before its way is dead: the kernel sends a SYN again after a second."""
SHORT_SECONDS: Final = 1.5
LONG_SECONDS: Final = 4.0
"""That a trial of a good way gets: a full queue of an uplink takes some seconds."""
DAMPING_SECONDS: Final = 60.0
CHANGES: Final = 3
"""So many changes of the verdict in that time, and a way has to answer several times before it is good."""
STEADY: Final = 3
_NEVER: Final = float("-inf")


@dataclass(slots=True)
class Health:
    """Of one way."""

    access: Access
    life: int
    """Its number: a way that was gone, or changed, has another one."""
    due: float
    since: float
    """When the verdict became what it is."""
    verdict: Verdict = Verdict.UNTRIED
    rtt: float = 0.0
    """Seconds until the last trial's connection stood."""
    reason: str = ""
    failures: int = 0
    """Trials without an answer, one after the other."""
    failing: float | None = None
    """Since when it fails; None: it does not."""
    suspect: bool = False
    """A connection has to send again."""
    trying: bool = False
    begun: float = _NEVER
    """When the last trial began, and when it ended."""
    tried: float = _NEVER
    proven: float = _NEVER
    """When the last trial began in which a parent took the connection."""
    answers: int = 0
    """Trials with an answer since it is dead."""
    thorough: float = _NEVER
    """When data were last sent in a trial."""
    remark: str = ""
    """What was remarkable then."""
    changes: list[float] = field(default_factory=list)
    """When the verdict changed."""

    @property
    def timeout(self) -> float:
        """Seconds that a connection for trial gets."""
        return LONG_SECONDS if self.verdict is Verdict.GOOD else SHORT_SECONDS

    def change(self, verdict: Verdict, now: float) -> None:
        if self.verdict is not Verdict.UNTRIED:
            self.changes = [each for each in self.changes if now - each < DAMPING_SECONDS] + [now]
        self.verdict, self.since, self.answers = verdict, now, 0


class HealthWatch:
    """All ways of a host."""

    def __init__(self) -> None:
        self.ways: dict[Way, Health] = {}
        self._lives = 0
        self.begins: Container[Way] = ()
        """On these connections begin."""

    @property
    def verdicts(self) -> dict[Way, Verdict]:
        return {way: each.verdict for way, each in self.ways.items()}

    @property
    def found(self) -> dict[Way, Access]:
        return {way: each.access for way, each in self.ways.items()}

    def follow(self, found: Mapping[Way, Access], now: float) -> None:
        """Take which ways there are. One without a link is none, unless it was there with it."""
        for way in self.ways.keys() - found.keys():
            del self.ways[way]
        for way, access in found.items():
            health = self.ways.get(way)
            if health is None or health.access != access:
                self.ways.pop(way, None)
                if access.carrier:
                    self._lives += 1
                    self.ways[way] = Health(access, self._lives, now, now)
                continue
            if health.access.carrier is not access.carrier:
                health.due = now
                if not access.carrier:
                    health.failing = now if health.failing is None else health.failing
                    health.reason = "the link is down"
            health.access = access

    def suspect(self, addresses: Container[Address], now: float) -> None:
        """Take the addresses from which some connection to a parent has to send again."""
        for health in self.ways.values():
            health.suspect = health.access.address in addresses
            if health.suspect and health.verdict is not Verdict.DEAD:
                health.due = min(health.due, max(now, health.tried + SUSPECT_SECONDS))

    def due(self, now: float, versions: Container[int]) -> Iterable[Way]:
        """Return the ways that are to be tried now; each counts as one that is being tried from then on.

        *versions*: of IP, by which a parent has a known address. Without one nothing can be said of a way.
        """
        found = [way for way, each in self.ways.items() if each.due <= now and not each.trying]
        found = [way for way in found if way.version in versions]
        for way in found:
            self.ways[way].trying, self.ways[way].begun = True, now
        return found

    def take(self, way: Way, life: int, outcome: Outcome, now: float) -> bool:
        """Take the outcome of a trial of *way* in that *life* of its; return whether the verdict is another."""
        health = self.ways.get(way)
        if health is None or health.life != life:
            return False
        health.trying, health.tried, health.reason = False, now, outcome.reason
        if outcome.thorough:
            health.thorough, health.remark = now, outcome.reason
        if outcome.verdict is Verdict.DEAD:
            return self._unanswered(health, now)
        health.failures, health.rtt = 0, outcome.rtt
        health.failing = None if health.access.carrier else health.failing
        health.due = now + (BEGIN_SECONDS if way in self.begins else IDLE_SECONDS)
        if outcome.unproven:
            if health.verdict in (Verdict.GOOD, Verdict.PLAIN):
                return False
        else:
            health.proven = health.begun
        if outcome.verdict is health.verdict:
            return False
        if health.verdict is Verdict.DEAD:
            health.answers += 1
            if health.answers < STEADY and sum(now - each < DAMPING_SECONDS for each in health.changes) >= CHANGES:
                health.due, health.reason = now + DEAD_SECONDS, "it changes often: good after three answers in a row"
                return False
        health.change(outcome.verdict, now)
        return True

    def is_thorough(self, way: Way, now: float) -> bool:
        """Say whether the next trial of *way* is to send data."""
        return now >= self.ways[way].thorough + THOROUGH_SECONDS

    def judge(self, now: float) -> list[Way]:
        """Return the ways that are dead from now on: good ones that fail while another one has an answer."""
        dead = []
        for way, health in self.ways.items():
            if health.verdict is not Verdict.GOOD:
                continue
            if (
                health.failing is None
                and health.trying
                and now - health.begun >= DOUBT_SECONDS
                and (health.suspect or health.failures + 1 >= FAILURES)
            ):
                health.failing = now
            if health.failing is not None and self._is_dead(way, health, health.failing, now):
                health.reason = health.reason or "timed out"
                health.change(Verdict.DEAD, now)
                dead.append(way)
        return dead

    def _unanswered(self, health: Health, now: float) -> bool:
        health.failures, health.answers = health.failures + 1, 0
        if health.failures < FAILURES and not health.suspect and health.failing is None:
            health.due = now + RETRY_SECONDS
            return False
        health.due = now + DEAD_SECONDS
        if health.verdict is Verdict.GOOD:
            health.failing = now if health.failing is None else health.failing
            return False  # judge() says
        if health.verdict is Verdict.DEAD:
            return False
        health.change(Verdict.DEAD, now)
        return True

    def _is_dead(self, way: Way, health: Health, failing: float, now: float) -> bool:
        """Say whether a way is dead that fails since *failing*; have what has to be known for it tried."""
        others = list(self._others(way))
        proven = max((each.proven for each in others), default=_NEVER)
        if proven < failing:
            for each in others:
                if each.begun < failing:
                    each.due = min(each.due, now)
            return False
        if not health.access.carrier:
            return True
        if health.trying:
            return now - health.begun >= LEAST_SECONDS
        if health.tried < proven:
            health.due = min(health.due, now)  # the parent was silent for all, perhaps: once more, now that it answers
            return False
        return True

    def _others(self, of: Way) -> Iterator[Health]:
        return (each for way, each in self.ways.items() if way.version == of.version and way != of)
