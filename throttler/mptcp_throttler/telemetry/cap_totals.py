"""The subflows under each cap: by rule, path and direction, and by HTB class.

A rule's cap on one path may have many classes: one per client, connection or budget step. One class may have subflows
on several paths, if the paths, a client or a connection share the cap. So each decision counts classes by their scope
(``policy.verdict.ScopeKey``), and a query visits none of them.
"""

from __future__ import annotations

from typing import NamedTuple

from mptcp_throttler.policy.model import Direction, Share, Throttle
from mptcp_throttler.policy.verdict import ScopeKey


class CapKey(NamedTuple):
    rule: str
    path: str | None
    direction: Direction


class Limits(NamedTuple):
    """Limits of a class, bits/s."""

    rate: int
    ceil: int
    share: Share


class CapTotal:
    """Bytes, subflows and classes of one cap."""

    __slots__ = ("bytes", "key", "limits", "shared", "subflows")

    def __init__(self, key: CapKey) -> None:
        self.key = key
        self.bytes = 0
        self.subflows = 0
        self.limits: dict[Limits, int] = {}
        """Number of classes with each limits."""
        self.shared = 0
        """Number of classes that also have subflows of another path or rule."""


class CapClass:
    """One HTB class, as decided, which the subflows of one scope share."""

    __slots__ = ("limits", "members", "scope")

    def __init__(self, scope: ScopeKey, limits: Limits) -> None:
        self.scope = scope
        self.limits = limits
        self.members: dict[CapTotal, int] = {}
        """Number of subflows of each cap."""


class CapClasses:
    """All classes with subflows, by scope."""

    def __init__(self) -> None:
        self._classes: dict[ScopeKey, CapClass] = {}

    def __len__(self) -> int:
        return len(self._classes)

    def of(self, scope: ScopeKey, throttle: Throttle) -> CapClass:
        """Return the class of *scope*; set its limits to *throttle*."""
        limits = Limits(throttle.rate, throttle.ceil, throttle.share)
        found = self._classes.get(scope)
        if found is None:
            found = self._classes[scope] = CapClass(scope, limits)
        elif found.limits != limits:
            for cap in found.members:
                _remove(cap, found.limits)
                _add(cap, limits)
            found.limits = limits
        return found

    @staticmethod
    def enter(cap: CapTotal, entered: CapClass) -> None:
        """Add a subflow with *cap* to the class *entered*."""
        cap.subflows += 1
        members = entered.members
        members[cap] = members.get(cap, 0) + 1
        if members[cap] > 1:
            return
        _add(cap, entered.limits)
        if len(members) == 2:
            for each in members:
                each.shared += 1
        elif len(members) > 2:
            cap.shared += 1

    def leave(self, cap: CapTotal, left: CapClass) -> None:
        """Remove a subflow with *cap* from the class *left*."""
        cap.subflows -= 1
        members = left.members
        members[cap] -= 1
        if members[cap]:
            return
        del members[cap]
        _remove(cap, left.limits)
        if members:
            cap.shared -= 1
            if len(members) == 1:
                for each in members:
                    each.shared -= 1
        else:
            del self._classes[left.scope]


def _add(cap: CapTotal, limits: Limits) -> None:
    cap.limits[limits] = cap.limits.get(limits, 0) + 1


def _remove(cap: CapTotal, limits: Limits) -> None:
    cap.limits[limits] -= 1
    if not cap.limits[limits]:
        del cap.limits[limits]
