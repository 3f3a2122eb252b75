"""Watches over connections that are capped, and relaxes caps that harm them: the I/O around ``shaping.harm``.

Looks at sockets only while the policy caps something. Uploads are not watched: what a client has to send is not known
here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address

from .kernel.ports import KernelError
from .mptcp.model import FourTuple, KernelSubflow
from .policy.model import Direction, Policy, Verdict
from .policy.units import format_rate
from .shaping.harm import HarmWatch, Look, Relaxation

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
MOST_OF_A_PROCESSOR = 0.1
"""Where looking takes long, looks are made less often."""


@dataclass(slots=True)
class GuardCounters:
    relaxations: int = 0
    resumptions: int = 0


class CapGuard:
    """One daemon's guard.

    Sockets are looked at through *subflows*; *changed* hears whose verdicts are to be made anew.
    """

    def __init__(
        self,
        policy: Policy,
        subflows: Callable[[], Iterable[KernelSubflow]],
        changed: Callable[[Iterable[int]], None],
    ) -> None:
        self.counters = GuardCounters()
        self._watch = HarmWatch(policy.guard)
        self._subflows = subflows
        self._changed = changed
        self._guarded: dict[int, dict[FourTuple, bool]] = {}
        """Of each connection with guarded caps, the active subflows and whether the policy caps them."""

    def set_policy(self, policy: Policy) -> None:
        """Take *policy* as the one in force: what was relaxed under another is not. Verdicts must follow."""
        self._watch = HarmWatch(policy.guard)
        self._guarded.clear()

    def relaxation(self, token: int) -> Relaxation | None:
        """Return why the caps of connection *token* are relaxed; None while they are not."""
        return self._watch.relaxation(token)

    def relax(self, token: int, verdicts: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
        """Return *verdicts*, the policy's on connection *token*, without the caps that are relaxed."""
        down = [each for each in verdicts if each.direction is Direction.DOWN]
        if not self._watch.guard.enabled or not any(_guarded(each) for each in down):
            self._guarded.pop(token, None)
            return verdicts
        self._guarded[token] = {each.four_tuple: each.throttle is not None for each in down}
        relaxation = self._watch.relaxation(token)
        if relaxation is None:
            return verdicts
        return tuple(_relaxed(each, relaxation) if _guarded(each) else each for each in verdicts)

    def forget(self, token: int) -> None:
        """Connection *token* has ended."""
        self._guarded.pop(token, None)

    async def run(self) -> None:
        """Look, forever."""
        pause = LOOK_SECONDS
        while True:
            await asyncio.sleep(pause)
            if self._guarded:
                began = time.monotonic()
                self._look(began)
                pause = max(LOOK_SECONDS, (time.monotonic() - began) / MOST_OF_A_PROCESSOR)

    def _look(self, now: float) -> None:
        try:
            found = {subflow.four_tuple: subflow for subflow in self._subflows()}
        except KernelError as error:
            log.error("%s; no connection is guarded meanwhile", error)
            found = {}
        looks = {token: list(_looks(subflows, found)) for token, subflows in self._guarded.items()}
        changed = self._watch.see(now, looks)
        for token in changed:
            relaxation = self._watch.relaxation(token)
            if relaxation is not None:
                self.counters.relaxations += 1
                log.warning("connection %08x: caps relaxed: %s", token, why(relaxation))
            elif token in looks:
                self.counters.resumptions += 1
                log.info("connection %08x: caps are in force again", token)
        if changed:
            self._changed(changed)


def why(relaxation: Relaxation) -> str:
    """Return for people what was wrong."""
    path = ip_address(relaxation.path)
    got, once = (format_rate(round(rate, -4)) for rate in (relaxation.rate, relaxation.yardstick))
    return f"it got {got} in all; its uncapped path from {path} alone once gave {once}"


def _guarded(verdict: Verdict) -> bool:
    capped = verdict.throttle is not None and verdict.direction is Direction.DOWN
    return capped and verdict.rule is not None and verdict.rule.guard


def _relaxed(verdict: Verdict, relaxation: Relaxation) -> Verdict:
    assert verdict.rule is not None
    reason = f"cap of rule {verdict.rule.name} relaxed: {why(relaxation)}"
    return replace(verdict, scope=None, throttle=None, reason=reason)


def _looks(subflows: Mapping[FourTuple, bool], found: Mapping[FourTuple, KernelSubflow]) -> Iterable[Look]:
    for four_tuple, capped in subflows.items():
        there = found.get(four_tuple)
        if there is not None and there.tcp is not None and not there.backup:
            tcp = there.tcp
            limited = tcp.receive_window_limited
            yield Look(four_tuple, capped, there.delivered, tcp.not_sent, tcp.unacked, limited)
