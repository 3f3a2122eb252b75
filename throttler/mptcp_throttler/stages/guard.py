"""The guard: takes caps off connections whose uncapped paths have degraded (``stages.degradation``). Pure.

Uploads are not guarded: what a client has to send is not known here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_address

from mptcp_throttler.mptcp.model import Connection, FourTuple
from mptcp_throttler.policy.model import Direction, Policy, Verdict
from mptcp_throttler.policy.units import format_rate
from mptcp_throttler.stages.degradation import DegradationDetector, Relaxation
from mptcp_throttler.stages.stage import Effect, Outcome, Samples


@dataclass(frozen=True, slots=True)
class Relaxed(Effect):
    """To be logged: the caps of a connection were relaxed."""

    token: int
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed(Effect):
    """To be logged: the caps of a connection are in force again."""

    token: int


@dataclass(slots=True)
class GuardCounters:
    """Since the start of the daemon."""

    relaxations: int = 0
    resumptions: int = 0


class GuardStage:
    """The guard of one daemon."""

    interval = period = 0.1
    """Seconds."""

    def __init__(self, policy: Policy) -> None:
        self.counters = GuardCounters()
        self._detector = DegradationDetector(policy.guard)
        self._retired: list[object] = []
        """What earlier detectors kept of connections."""

    def set_policy(self, policy: Policy) -> None:
        """Take *policy* as the one in force: what was relaxed under another is not, and no path has a baseline."""
        self._retired += self._detector.connections()
        self._detector = DegradationDetector(policy.guard)

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Return *verdicts* without the caps that are relaxed."""
        del now
        if self._retired:
            # To free ten thousand at once takes as long as the loop may be silent.
            self._retired.pop()
        token = connection.token
        if not self._detector.guard.enabled or not any(map(_guarded, verdicts)):
            self._detector.forget(token)
            return verdicts
        down = [each for each in verdicts if each.direction is Direction.DOWN]
        uncapped = tuple([each.four_tuple for each in down if each.throttle is None])
        capped = tuple([each.four_tuple for each in down if each.throttle is not None])
        self._detector.watch(token, uncapped, capped)
        relaxation = self._detector.relaxation(token)
        if relaxation is None:
            return verdicts
        return tuple([_relaxed(each, relaxation) if _guarded(each) else each for each in verdicts])

    def forget(self, token: int) -> None:
        """Connection *token* has ended."""
        self._detector.forget(token)

    def watched(self) -> Collection[FourTuple]:
        """Return the uncapped subflows of all connections with guarded caps, and all that are urgent."""
        return self._detector.watched()

    def urgent(self) -> Collection[FourTuple]:
        """Return the subflows of connections that are backlogged or whose caps are relaxed."""
        return self._detector.urgent()

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        """Take *samples*; yield the connections whose caps are relaxed or in force again, and what to log of each."""
        detector = self._detector
        for changed in detector.observe(samples):
            if detector is not self._detector:
                return  # a policy came into force between two slices
            yield Outcome(changed, [self._effect(token) for token in changed])

    def _effect(self, token: int) -> Effect:
        reason = self.reason(token)
        if reason is None:
            self.counters.resumptions += 1
            return Resumed(token)
        self.counters.relaxations += 1
        return Relaxed(token, reason)

    def reason(self, token: int) -> str | None:
        """Return for people why the caps of connection *token* are relaxed; None while they are in force."""
        relaxation = self._detector.relaxation(token)
        return None if relaxation is None else _reason(relaxation)


def _reason(relaxation: Relaxation) -> str:
    path = ip_address(relaxation.path)
    got, once = (format_rate(round(rate, -4)) for rate in (relaxation.rate, relaxation.baseline))
    return f"it got {got} in all; its uncapped path from {path} alone once gave {once}"


def _guarded(verdict: Verdict) -> bool:
    capped = verdict.throttle is not None and verdict.direction is Direction.DOWN
    return capped and verdict.rule is not None and verdict.rule.guard


def _relaxed(verdict: Verdict, relaxation: Relaxation) -> Verdict:
    assert verdict.rule is not None
    reason = f"cap of rule {verdict.rule.name} relaxed: {_reason(relaxation)}"
    beside = verdict.beside
    if beside is None:
        return replace(verdict, scope=None, throttle=None, reason=reason)
    # A looser cap that is not guarded still holds.
    reason = f"{reason}; {beside.reason}"
    return replace(verdict, rule=beside.rule, scope=beside.scope, throttle=beside.throttle, reason=reason, beside=None)
