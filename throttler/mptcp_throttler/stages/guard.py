"""The guard: takes caps off connections whose uncapped paths have degraded. Pure.

Downloads (``stages.degradation``) and uploads (``stages.upload_degradation``) are guarded each for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final

from mptcp_common.units import format_rate
from mptcp_throttler.mptcp.model import Connection, FourTuple
from mptcp_throttler.policy.model import Direction, Policy, Verdict
from mptcp_throttler.policy.reasons import BEFORE
from mptcp_throttler.stages.degradation import DegradationDetector, Kept, Relaxation
from mptcp_throttler.stages.stage import Effect, Outcome, Samples
from mptcp_throttler.stages.upload_degradation import Capped, UploadDegradationDetector

KEPT_OF_EACH: Final = 3
"""What detectors keep of one connection at the most: as a download and as an upload, and of its demand."""


@dataclass(frozen=True, slots=True)
class Relaxed(Effect):
    """To be told: the caps that some rules put on a connection were relaxed."""

    token: int
    rules: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed(Effect):
    """To be told: the caps that some rules put on a connection are in force again."""

    token: int
    rules: tuple[str, ...]


@dataclass(slots=True)
class GuardCounters:
    """Since the start of the daemon."""

    relaxations: int = 0
    resumptions: int = 0


class _Either(Set[FourTuple]):
    """What is in one of two sets, without making a third one."""

    def __init__(self, one: Set[FourTuple], other: Set[FourTuple]) -> None:
        self._one, self._other = one, other

    def __contains__(self, item: object) -> bool:
        return item in self._one or item in self._other

    def __iter__(self) -> Iterator[FourTuple]:
        yield from self._one
        yield from (each for each in self._other if each not in self._one)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return bool(self._one or self._other)


class GuardStage:
    """The guard of one daemon."""

    interval = period = 0.1
    """Seconds."""

    def __init__(self, policy: Policy) -> None:
        self.counters = GuardCounters()
        self._down, self._up = DegradationDetector(policy.guard), UploadDegradationDetector(policy.guard)
        self._rules: dict[tuple[int, Direction], tuple[str, ...]] = {}
        """Of each guarded connection, by its token, the rules whose caps are guarded."""
        self._retired: list[Kept] = []
        """What earlier detectors kept of connections."""

    def set_policy(self, policy: Policy) -> None:
        """Take *policy* as the one in force: what was relaxed under another is not, and no path has a baseline."""
        self._retired += [*self._down.kept(), *self._up.kept()]
        self._down, self._up = DegradationDetector(policy.guard), UploadDegradationDetector(policy.guard)

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Return *verdicts* without the caps that are relaxed."""
        del now
        self._free_some()
        token = connection.token
        guarded = {each.direction for each in verdicts if _guarded(each)} if self._down.guard.enabled else ()
        for direction, detector in ((Direction.DOWN, self._down), (Direction.UP, self._up)):
            if direction not in guarded:
                detector.forget(token)
                self._rules.pop((token, direction), None)
                continue
            there = [each for each in verdicts if each.direction is direction]
            names = [each.rule.name for each in there if each.rule is not None and _guarded(each)]
            self._rules[token, direction] = tuple(dict.fromkeys(names))
            uncapped = tuple([each.four_tuple for each in there if each.throttle is None])
            if direction is Direction.DOWN:
                self._down.watch(token, uncapped, tuple([each.four_tuple for each in there if each.throttle]))
            else:
                self._up.watch_caps(token, uncapped, _caps(there))
            relaxation = detector.relaxation(token)
            if relaxation is not None:
                verdicts = tuple([_relaxed(each, relaxation, direction) for each in verdicts])
        return verdicts

    def forget(self, token: int) -> None:
        """Connection *token* has ended."""
        self._free_some()
        for direction, detector in ((Direction.DOWN, self._down), (Direction.UP, self._up)):
            detector.forget(token)
            self._rules.pop((token, direction), None)

    def _free_some(self) -> None:
        """Free what earlier detectors kept of a connection: ten thousand at once would take as long as the loop may be
        silent. Every connection is decided after a new policy, so that then nothing of them is left."""
        for _ in range(min(KEPT_OF_EACH, len(self._retired))):
            self._retired.pop().part()

    def watched(self) -> Collection[FourTuple]:
        """Return the uncapped subflows of guarded downloads, all of guarded uploads, and all that are urgent."""
        down, up = self._down.watched(), self._up.watched()
        return _Either(down, up) if down and up else down or up

    def urgent(self) -> Collection[FourTuple]:
        """Return the subflows of connections that are backlogged or whose caps are relaxed."""
        return dict.fromkeys([*self._down.urgent(), *self._up.urgent()]).keys()

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        """Take *samples*; yield the connections whose caps are relaxed or in force again, and what to log of each."""
        for detector in (self._down, self._up):
            for changed in detector.observe(samples):
                if detector not in (self._down, self._up):
                    return  # a policy came into force between two slices
                yield Outcome(changed, [self._effect(detector, token) for token in changed])

    def _effect(self, detector: DegradationDetector, token: int) -> Effect:
        rules = self._rules.get((token, Direction.UP if detector is self._up else Direction.DOWN), ())
        relaxation = detector.relaxation(token)
        if relaxation is None:
            self.counters.resumptions += 1
            return Resumed(token, rules)
        self.counters.relaxations += 1
        return Relaxed(token, rules, self._told(detector, relaxation))

    def reason(self, token: int) -> str | None:
        """Return for people why the caps of connection *token* are relaxed; None while they are in force."""
        down, up = self._down.relaxation(token), self._up.relaxation(token)
        if down is None and up is None:
            return None
        found = (self._down, down), (self._up, up)
        return "; ".join([self._told(each, relaxation) for each, relaxation in found if relaxation is not None])

    def relaxed(self) -> int:
        """Return how many connections there are whose caps are relaxed."""
        return len(self._down.relaxed() | self._up.relaxed())

    def _told(self, detector: DegradationDetector, relaxation: Relaxation) -> str:
        return BEFORE[Direction.UP if detector is self._up else Direction.DOWN] + _reason(relaxation)


def _reason(relaxation: Relaxation) -> str:
    path = ip_address(relaxation.path)
    got, once = (format_rate(round(rate, -4)) for rate in (relaxation.rate, relaxation.baseline))
    return f"it got {got} in all; its uncapped path from {path} alone once gave {once}"


def _guarded(verdict: Verdict) -> bool:
    return verdict.throttle is not None and verdict.rule is not None and verdict.rule.guard


def _caps(verdicts: Iterable[Verdict]) -> dict[FourTuple, Capped]:
    return {
        each.four_tuple: Capped(each.scope, each.throttle.ceil)
        for each in verdicts
        if each.throttle is not None and each.scope is not None
    }


def _relaxed(verdict: Verdict, relaxation: Relaxation, direction: Direction) -> Verdict:
    if verdict.direction is not direction or not _guarded(verdict):
        return verdict
    assert verdict.rule is not None
    reason = f"{BEFORE[direction]}cap of rule {verdict.rule.name} relaxed: {_reason(relaxation)}"
    beside = verdict.beside
    if beside is None or beside.rule.guard:
        return replace(verdict, scope=None, throttle=None, reason=reason, beside=None)
    # A looser cap that is not guarded still holds.
    reason = f"{reason}; {beside.reason}"
    return replace(verdict, rule=beside.rule, scope=beside.scope, throttle=beside.throttle, reason=reason, beside=None)
