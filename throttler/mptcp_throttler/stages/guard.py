# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard: relaxes the caps of connections whose uncapped paths have degraded. Pure.

A relaxed cap applies to one connection. Its rate is the rate that the connection lacks (``stages.degradation``),
because the whole rate of the capped path may exceed what the connection lost; a false alarm costs at most this rate.
Downloads and uploads are guarded separately.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from ipaddress import ip_address
from typing import Final, NamedTuple

from mptcp_common.units import MAX_RATE, format_rate
from mptcp_throttler.mptcp.model import Connection, FourTuple
from mptcp_throttler.policy.model import Direction, Policy, Share
from mptcp_throttler.policy.verdict import PREFIX, ScopeKey, Verdict
from mptcp_throttler.stages.degradation import Capped, DegradationDetector, GuardCounters, Relaxation
from mptcp_throttler.stages.stage import Effect, Outcome, Samples, Stage

HEADROOM: Final = 1.06 * 1.1  # (rate of a relaxed cap) / (lacking rate): allows for headers of segments, and pauses
RELAXED: Final = ""  # stands for a path's name in the key of a relaxed cap


class Relaxed(NamedTuple):
    """Report that the caps of *rules* on a connection were relaxed, or are in force again."""

    token: int
    rules: tuple[str, ...]
    reason: str | None = None  # None: the caps are in force again


class GuardStage(Stage):
    interval = period = 0.1

    def __init__(self, policy: Policy) -> None:
        self.counters = GuardCounters()
        self._detectors = {each: DegradationDetector(policy.guard, self.counters, each) for each in Direction}

    def set_policy(self, policy: Policy) -> None:
        for detector in self._detectors.values():
            detector.guard = policy.guard

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        token = connection.token
        for direction, detector in self._detectors.items():
            there = [each for each in verdicts if each.direction is direction]
            names = [each.rule.name for each in there if each.rule and each.throttle and each.guarded]
            if not names or not detector.guard.enabled:
                detector.forget(token)
                continue
            uncapped = [each.four_tuple for each in there if each.throttle is None]
            capped = {
                each.four_tuple: Capped(each.scope, each.throttle.ceil)
                for each in there
                if each.throttle is not None and each.scope is not None
            }
            detector.watch(token, uncapped, capped).rules = tuple(dict.fromkeys(names))
            relaxation = detector.relaxation(token)
            if relaxation is not None:
                verdicts = tuple([_relaxed(each, relaxation, direction, token) for each in verdicts])
        return verdicts

    def forget(self, token: int) -> None:
        for detector in self._detectors.values():
            detector.forget(token)

    def watches_any(self) -> bool:
        return any(each.watched() for each in self._detectors.values())

    def watched(self) -> Set[FourTuple]:
        """Return the uncapped subflows of guarded downloads, all subflows of guarded uploads, and urgent subflows."""
        down, up = (each.watched() for each in self._detectors.values())
        return down | up if down and up else down or up

    def urgent(self) -> Collection[FourTuple]:
        return dict.fromkeys([one for each in self._detectors.values() for one in each.urgent()]).keys()

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        for direction, detector in self._detectors.items():
            for changed in detector.observe(samples):
                yield Outcome(changed, [each for token in changed for each in self._effects(direction, token)])

    def _effects(self, direction: Direction, token: int) -> Iterator[Effect]:
        """Yield the effects that report a change of a connection; no effect if only a relaxed cap's rate changed."""
        detector = self._detectors[direction]
        connection, relaxation = detector.connections[token], detector.relaxation(token)
        if relaxation is None:
            connection.reported = False
            self.counters.resumptions += 1
            yield Relaxed(token, connection.rules)
        elif not connection.reported:
            connection.reported = True
            self.counters.relaxations += 1
            yield Relaxed(token, connection.rules, PREFIX[direction] + _reason(relaxation))

    def reason(self, token: int) -> str | None:
        """Return the reason, in words, why the caps of connection *token* are relaxed; None while they are in force."""
        found = ((direction, each.relaxation(token)) for direction, each in self._detectors.items())
        return "; ".join([PREFIX[direction] + _reason(each) for direction, each in found if each is not None]) or None

    def relaxed(self) -> int:
        return len(frozenset[int]().union(*(each.relaxed() for each in self._detectors.values())))


def _reason(relaxation: Relaxation) -> str:
    path = ip_address(relaxation.path)
    got, once = (format_rate(round(rate, -4)) for rate in (relaxation.rate, relaxation.baseline))
    lacking = format_rate(round(relaxation.lacking, -4))
    return f"it got {got} in all; its uncapped path from {path} alone once gave {once}, of which it lacks {lacking}"


def _relaxed(verdict: Verdict, relaxation: Relaxation, direction: Direction, token: int) -> Verdict:
    rule, throttle = verdict.rule, verdict.throttle
    if verdict.direction is not direction or rule is None or throttle is None or not verdict.guarded:
        return verdict
    maximum = MAX_RATE if verdict.bound is None else verdict.bound
    rate = max(throttle.ceil, min(maximum, round(HEADROOM * relaxation.lacking)))
    reason = f"{PREFIX[direction]}cap of rule {rule.name} relaxed: {_reason(relaxation)}"
    scope = ScopeKey(rule.name, Share.CONNECTION, (token, RELAXED), direction)
    throttle = throttle.at(rate, burst=None, share=Share.CONNECTION)
    return verdict._replace(scope=scope, throttle=throttle, reason=reason)
