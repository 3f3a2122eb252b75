"""Steers connections by mode: the I/O around ``shaping.steering``.

Backup flags go through the path manager in user space, which alone can choose one subflow of several that share the
proxy's address. So while a rule steers by order, ``net.mptcp.pm_type`` is 1: the kernel then accepts joins only while
somebody listens to the path manager's events, as this daemon does, and connections from before cannot be steered.
``net.mptcp.stale_loss_cnt`` is 1 meanwhile: a subflow whose path has died is left after one retransmission, not four.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from .kernel.ports import KernelError
from .kernel.subflow_priority import SubflowPriority
from .kernel.sysctl import OwnedSysctls
from .mptcp.model import FourTuple, KernelSubflow
from .policy.model import LandingKind, Mode, Policy, ScopeKey, Share, Steer, Throttle, Verdict
from .shaping.steering import Look, Steering, Wish

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
MOST_OF_A_PROCESSOR = 0.1
"""Where looking takes long, looks are made less often."""
SYSCTLS = {"net.mptcp.pm_type": "1", "net.mptcp.stale_loss_cnt": "1"}


@dataclass(slots=True)
class _Connection:
    """One connection that one rule steers."""

    steering: Steering
    path_of: dict[FourTuple, str]
    wishes: dict[FourTuple, Wish] = field(default_factory=dict)


class Steerer:
    """One daemon's steering.

    Sockets are looked at through *subflows*; *changed* hears whose caps are to be made anew.
    """

    def __init__(
        self,
        state_directory: Path,
        subflows: Callable[[], Iterable[KernelSubflow]],
        changed: Callable[[Iterable[int]], None],
    ) -> None:
        self._sysctls = OwnedSysctls(state_directory)
        self._subflows = subflows
        self._changed = changed
        self._connections: dict[int, _Connection] = {}
        self._flags: dict[FourTuple, tuple[int, bool]] = {}
        """Token and flag of each subflow whose flag is ours."""
        self._refused: set[FourTuple] = set()
        """Subflows whose flag cannot be set."""
        self._priority: SubflowPriority | None = None
        self._wake = asyncio.Event()

    def prepare(self, policy: Policy) -> None:
        """Set what the kernel needs for *policy*, before it comes into force. Raises KernelError where it cannot be."""
        by_order = not policy.dry_run and any(rule.steer is not None and rule.steer.by_order for rule in policy.rules)
        if by_order and self._priority is None:
            self._priority = SubflowPriority()
        self._sysctls.hold(SYSCTLS if by_order else {})

    def set_policy(self) -> None:
        """Begin anew: a policy has come into force. Verdicts must follow for every connection."""
        self._connections.clear()

    def close(self) -> None:
        """Make all subflows regular again that were not, and put the sysctls back. Raises KernelError."""
        for four_tuple in list(self._flags):
            self._release(four_tuple)
        if self._priority is not None:
            self._priority.close()
        self._sysctls.restore()

    def adopt(self, subflows: Iterable[KernelSubflow]) -> None:
        """Take over the flags that a killed daemon left: those that no rule explains are taken back."""
        left = {each.four_tuple: (each.token, True) for each in subflows if each.made_backup}
        if left and self._priority is None:
            self._priority = SubflowPriority()
        self._flags |= left
        self._wake.set()

    def steer(self, token: int, verdicts: tuple[Verdict, ...], dry_run: bool) -> tuple[Verdict, ...]:
        """Return *verdicts* with the caps that balance loads, and the reasons of all that are steered."""
        steered = {each.four_tuple: each for each in verdicts if _steer_of(each) is not None and each.path is not None}
        if not steered:
            self.forget(token)
            return verdicts
        first = next(iter(steered.values()))
        steer = _steer_of(first)
        assert steer is not None
        # Where several rules steer one connection, the first says how: data cannot follow two modes at once.
        steered = {ft: each for ft, each in steered.items() if each.rule == first.rule}
        path_of = {four_tuple: each.path for four_tuple, each in steered.items() if each.path is not None}
        known = self._connections.get(token)
        if known is None or known.steering.steer != steer:
            known = self._connections[token] = _Connection(Steering(steer), path_of)
            self._wake.set()
        elif known.path_of != path_of:
            known.path_of = path_of
            self._wake.set()
        return tuple(
            _with_wish(each, token, known.wishes.get(each.four_tuple), dry_run) if each.four_tuple in steered else each
            for each in verdicts
        )

    def forget(self, token: int) -> None:
        """Connection *token* has ended, or is steered no more."""
        if self._connections.pop(token, None) is not None:
            self._wake.set()

    async def run(self) -> None:
        """Look, forever; at once when a subflow has come or gone."""
        pause = LOOK_SECONDS
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause if self._connections or self._flags else None)
            self._wake.clear()
            began = time.monotonic()
            try:
                self._look(began)
            except KernelError as error:
                log.error("%s; nothing is steered meanwhile", error)
            pause = max(LOOK_SECONDS, (time.monotonic() - began) / MOST_OF_A_PROCESSOR)

    def _look(self, now: float) -> None:
        found = {subflow.four_tuple: subflow for subflow in self._subflows()}
        changed = []
        for token, connection in self._connections.items():
            looks = list(_looks(connection.path_of, found))
            before, connection.wishes = connection.wishes, connection.steering.look(now, looks)
            if before != connection.wishes:
                changed.append(token)
        self._set_flags(found)
        if changed:
            self._changed(changed)

    def _set_flags(self, found: dict[FourTuple, KernelSubflow]) -> None:
        wanted = {
            four_tuple: (token, wish.backup)
            for token, connection in self._connections.items()
            for four_tuple, wish in connection.wishes.items()
            if connection.steering.steer.by_order
        }
        self._refused &= found.keys()
        for four_tuple in self._flags.keys() - wanted.keys():
            if four_tuple in found:
                self._release(four_tuple)
            else:
                del self._flags[four_tuple]
        for four_tuple, (token, backup) in wanted.items():
            if self._flags.get(four_tuple, (token, False)) != (token, backup) and four_tuple not in self._refused:
                self._set(token, four_tuple, backup)

    def _release(self, four_tuple: FourTuple) -> None:
        token, backup = self._flags.pop(four_tuple)
        if backup:
            self._set(token, four_tuple, False)
            self._flags.pop(four_tuple, None)

    def _set(self, token: int, four_tuple: FourTuple, backup: bool) -> None:
        if self._priority is None:
            return
        try:
            self._priority.set_backup(token, four_tuple, backup)
            self._flags[four_tuple] = token, backup
            log.debug("%s: %s", four_tuple, "backup" if backup else "regular")
        except KernelError as error:
            self._refused.add(four_tuple)
            log.warning("%s; a connection from before the policy steered cannot be", error)


def _steer_of(verdict: Verdict) -> Steer | None:
    steer = None if verdict.rule is None else verdict.rule.steer
    return None if steer is None or steer.mode is Mode.SMALLEST_DELAY else steer


def _with_wish(verdict: Verdict, token: int, wish: Wish | None, dry_run: bool) -> Verdict:
    rule = verdict.rule
    if wish is None or rule is None:
        return verdict
    verdict = replace(verdict, reason=f"{verdict.reason}: {wish.why}")
    if wish.rate is None or dry_run:
        return verdict
    throttle = Throttle(wish.rate, wish.rate, None, Share.CONNECTION, LandingKind.SOFT)
    scope = ScopeKey(rule.name, Share.CONNECTION, (token, str(verdict.path)))
    return replace(verdict, scope=scope, throttle=throttle)


def _looks(path_of: dict[FourTuple, str], found: dict[FourTuple, KernelSubflow]) -> Iterable[Look]:
    for four_tuple, path in path_of.items():
        there = found.get(four_tuple)
        if there is not None and there.tcp is not None:
            yield Look(four_tuple, path, there.delivered, there.tcp.not_sent, there.tcp.unacked)
