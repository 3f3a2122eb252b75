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
from mptcp_throttler.stages.degradation import Cap, DegradationDetector, GuardCounters, Relaxation
from mptcp_throttler.stages.stage import Action, Outcome, Samples, Stage

HEADROOM: Final = 1.06 * 1.1  # (rate of a relaxed cap) / (lacking rate): allows for headers of segments, and pauses
RELAXED_PATH: Final = ""  # used instead of a path's name in the scope of a relaxed cap


class GuardChange(NamedTuple):
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
            in_direction = [each for each in verdicts if each.direction is direction]
            rules = [each.rule.name for each in in_direction if each.rule and each.throttle and each.guarded]
            if not rules or not detector.guard.enabled:
                detector.forget(token)
                continue
            uncapped = [each.four_tuple for each in in_direction if each.throttle is None]
            capped = {
                each.four_tuple: Cap(each.scope, each.throttle.ceil)
                for each in in_direction
                if each.throttle is not None and each.scope is not None
            }
            detector.watch(token, uncapped, capped).rules = tuple(dict.fromkeys(rules))
            relaxation = detector.relaxation(token)
            if relaxation is not None:
                verdicts = tuple([_relax_cap(each, relaxation, direction, token) for each in verdicts])
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
        return dict.fromkeys([each for detector in self._detectors.values() for each in detector.urgent()]).keys()

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        for direction, detector in self._detectors.items():
            for changed in detector.observe(samples):
                yield Outcome(changed, [each for token in changed for each in self._actions(direction, token)])

    def _actions(self, direction: Direction, token: int) -> Iterator[Action]:
        """Yield the actions that report a change of a connection; no action if only a relaxed cap's rate changed."""
        detector = self._detectors[direction]
        connection, relaxation = detector.connections[token], detector.relaxation(token)
        if relaxation is None:
            connection.is_reported = False
            self.counters.resumptions += 1
            yield GuardChange(token, connection.rules)
        elif not connection.is_reported:
            connection.is_reported = True
            self.counters.relaxations += 1
            yield GuardChange(token, connection.rules, PREFIX[direction] + _reason(relaxation))

    def reason(self, token: int) -> str | None:
        """Return the reason, in words, why the caps of connection *token* are relaxed; None while they are in force."""
        relaxations = ((direction, each.relaxation(token)) for direction, each in self._detectors.items())
        reasons = [PREFIX[direction] + _reason(each) for direction, each in relaxations if each is not None]
        return "; ".join(reasons) or None

    def count_relaxed(self) -> int:
        return len(frozenset[int]().union(*(each.relaxed_tokens() for each in self._detectors.values())))


def _reason(relaxation: Relaxation) -> str:
    path = ip_address(relaxation.path)
    got, best = (format_rate(round(rate, -4)) for rate in (relaxation.rate, relaxation.baseline))
    lacking = format_rate(round(relaxation.lacking, -4))
    return f"the connection got {got}; its uncapped path from {path} alone once carried {best} and now lacks {lacking}"


def _relax_cap(verdict: Verdict, relaxation: Relaxation, direction: Direction, token: int) -> Verdict:
    rule, throttle = verdict.rule, verdict.throttle
    if verdict.direction is not direction or rule is None or throttle is None or not verdict.guarded:
        return verdict
    rate = max(throttle.ceil, min(verdict.bound or MAX_RATE, round(HEADROOM * relaxation.lacking)))
    reason = f"{PREFIX[direction]}cap of rule {rule.name} relaxed: {_reason(relaxation)}"
    scope = ScopeKey(rule.name, Share.CONNECTION, (token, RELAXED_PATH), direction)
    relaxed = throttle.with_rate(rate, burst=None, share=Share.CONNECTION)
    return verdict._replace(scope=scope, throttle=relaxed, reason=reason)
