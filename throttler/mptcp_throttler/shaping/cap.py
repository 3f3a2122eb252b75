# SPDX-License-Identifier: GPL-2.0-or-later
"""A cap in use, its members, and the minor numbers of HTB classes. Pure."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import NamedTuple

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Direction, Throttle
from mptcp_throttler.policy.verdict import ScopeKey
from mptcp_throttler.shaping.model import FIRST_MINOR, LAST_MINOR, ClassSpec, class_spec

PATH_RESERVE = 128  # 1/128 of the class numbers is reserved for path caps, because client caps may use all others


class PlanError(Exception):
    """No plan is possible; the message names the exhausted resource."""


class Level(NamedTuple):
    """The rate of each user of a shared cap (``onset.share``). Times: monotonic seconds."""

    computed_at: float
    users: int
    rate: int  # bits/s per user
    round_seconds: float  # seconds that the cap takes to send one segment of each user with waiting data


@dataclass(slots=True, eq=False)
class Member:
    """A subflow that has a cap, rests, or still has an entry."""

    four_tuple: FourTuple
    token: int | None = None  # token of the connection; None after the subflow has ended
    cap: LiveCap | None = None  # the subflow's cap, also while the onset is pending
    entry_cap: LiveCap | None = None  # the former cap, if the entry still points to its class, in an onset or a drain
    accepted_in_class: bool = False  # whether the kernel accepted the socket into its cap's class, which needs no entry
    is_new: bool = False  # whether the young subflow got its cap without a transition, and has no sample since
    rests: bool = False  # whether the scheduler must not assign data to it


@dataclass(slots=True, eq=False)
class LiveCap:
    """A cap in use, with its class and users. Only the planner changes it."""

    scope: ScopeKey
    minor: int
    direction: Direction
    throttle: Throttle  # limits that the class has now
    final_throttle: Throttle  # limits that the class must have when the onsets of its users are complete
    mark: int = 0
    users: dict[FourTuple, Member] = field(default_factory=dict)
    pending: set[FourTuple] = field(default_factory=set)  # users whose onset is not complete
    lowered: set[FourTuple] = field(default_factory=set)
    """Pending users that had the cap before its throttle was lowered. The new rate begins after their onsets."""
    decision_times: dict[FourTuple, float] = field(default_factory=dict)  # times of decisions not yet in force
    interim_rates: dict[FourTuple, int] = field(default_factory=dict)  # bits/s of users whose rate still falls
    held_entries: int = 0  # number of subflows that do not use the cap but still have an entry for its class
    idle_since: float = 0.0
    queue_users: int = 1  # number of users for which the queue is sized: a power of two, so that it seldom changes
    level: Level | None = None
    allowance: float = 0.0  # bits that the cap's transitions may still send in excess of it
    allowance_used_at: float | None = None  # when a transition last began or sent data; None if there was none

    @property
    def ceil(self) -> int:
        """Final rate of all users together, bits/s."""
        return self.final_throttle.ceil

    def resize_queue(self) -> bool:
        """Adapt the queue to the number of users; return whether its size changed."""
        previous, users = self.queue_users, max(1, len(self.users))
        if not users <= previous <= 4 * users:
            self.queue_users = 1 << (users - 1).bit_length()
        return self.queue_users != previous

    @property
    def spec(self) -> ClassSpec:
        throttle = self.throttle
        if self.interim_rates:
            rate = max(throttle.rate, sum(self.interim_rates.values()))
            throttle = throttle.with_rate(rate, ceil=max(throttle.ceil, rate), burst=None)
        return class_spec(self.minor, throttle, self.queue_users, self.direction)


class ClassNumbers:
    """Allocator of the minor numbers of one qdisc."""

    def __init__(self, htb_major: int) -> None:
        self._htb_major = htb_major
        self._used: set[int] = set()
        self._next = FIRST_MINOR

    def allocate(self, minor: int | None, in_kernel: Container[int], *, for_path: bool) -> int:
        """Return *minor* if a class *in_kernel* has this number and no cap uses it. Otherwise return a number that no
        cap and, if possible, no class has. *for_path*: the number is for a path cap. Raises :class:`PlanError`."""
        size = LAST_MINOR - FIRST_MINOR + 1
        remaining = size - (FIRST_MINOR <= self._htb_major <= LAST_MINOR) - len(self._used)
        if remaining <= (0 if for_path else size // PATH_RESERVE):
            raise PlanError(f"no HTB class is left: {len(self._used)} caps are in use; share caps by path or by client")
        if minor is None or minor in self._used or minor not in in_kernel:
            # Avoid the root's number: the leaf qdisc of the class would have the handle of the root.
            minor = next(
                number
                for avoided in (in_kernel, ())
                for step in range(size)
                if (number := FIRST_MINOR + (self._next - FIRST_MINOR + step) % size) not in self._used
                and number not in avoided
                and number != self._htb_major
            )
            self._next = minor + 1
        self._used.add(minor)
        return minor

    def release(self, minor: int) -> None:
        self._used.discard(minor)
