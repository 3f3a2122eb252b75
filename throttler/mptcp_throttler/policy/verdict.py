# SPDX-License-Identifier: GPL-2.0-or-later
"""The verdict on a subflow: its cap, and the reason in words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Direction, Rule, Share, Throttle


@dataclass(frozen=True, slots=True)
class ScopeKey:
    """Key of one cap: its rule and, by its ``Share``, its client or connection. Equal keys share one HTB class."""

    rule: str
    share: Share
    member: bytes | int | tuple[int, str] | None = None
    """None for PATH; the client's packed address for CLIENT; the token for CONNECTION, with the path if steered."""
    direction: Direction = Direction.DOWN
    step: int | None = None
    """For a budget's cap: the volume at which it begins, bytes. ``rule`` is then the first with the budget."""

    @property
    def balances(self) -> bool:
        """Whether the cap balances loads or relaxes another cap: its rate changes often."""
        return isinstance(self.member, tuple)


class Verdict(NamedTuple):
    """The decision on one active subflow in one direction, with its reason."""

    four_tuple: FourTuple
    path: str | None  # the first path that matches the subflow, for display
    rule: Rule | None  # the rule that decided about the cap, ``none`` included
    scope: ScopeKey | None  # None: not throttled
    throttle: Throttle | None
    reason: str  # for the operator: a sentence on the cap, then the sentences of the stages (:func:`add_sentence`)
    direction: Direction = Direction.DOWN
    budget: Rule | None = None  # the rule whose budget meters the subflow
    steer: Rule | None = None
    steer_path: str | None = None  # the path of ``steer`` that the subflow is on
    guarded: bool = False  # whether the guard may relax the cap
    bound: int | None = None  # limit of a relaxed cap, bits/s: the ceil of a looser cap that is not guarded
    rests: bool = False  # whether the scheduler must not use the subflow while the others carry enough


PREFIX: Final = {Direction.DOWN: "", Direction.UP: "upload: "}
"""Prefix of a reason. Download reasons have none, because they existed before rules for uploads."""
NO_RULE: Final = "no rule matches"


@lru_cache(4096)
def add_sentence(reason: str, sentence: str, direction: Direction = Direction.DOWN) -> str:
    """Return *reason* with *sentence* added, or in place of ``NO_RULE``. Cached: many subflows share a text."""
    prefix = PREFIX[direction]
    return prefix + sentence if reason == prefix + NO_RULE else f"{reason}; {sentence}"
