"""What comes of the policy for a subflow: a verdict, the cap that it names, and the reason in words. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Direction, Rule, Share, Throttle


@dataclass(frozen=True, slots=True)
class ScopeKey:
    """Names one cap: the rule it comes from and, by its ``Share``, for whom. Equal keys share one HTB class."""

    rule: str
    share: Share
    member: bytes | int | tuple[int, str] | None = None
    """None for PATH; the client's packed address for CLIENT; the token for CONNECTION, with the path where steered."""
    direction: Direction = Direction.DOWN
    step: int | None = None
    """The volume, bytes, after which the cap begins, where it is that of a budget. The rule is then the first one that
    feeds the budget."""

    @property
    def of_rule(self) -> bool:
        """The cap is the rule's own throttle: neither a budget's step nor what balances loads."""
        return self.step is None and not self.balances

    @property
    def balances(self) -> bool:
        """The cap balances loads, or relaxes another: its rate changes all the time."""
        return isinstance(self.member, tuple)


class Cap(NamedTuple):
    """One of several caps on a subflow."""

    rule: Rule
    scope: ScopeKey
    throttle: Throttle
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the policy says of one active subflow in one direction, and why."""

    four_tuple: FourTuple
    path: str | None
    """The first path that matches the subflow, for people; None where none does."""
    rule: Rule | None
    """The rule that decided about the cap, ``none`` included; None where none did."""
    scope: ScopeKey | None
    """None: not throttled."""
    throttle: Throttle | None
    reason: str
    """In plain words, for the operator: a sentence on the cap, then those that the stages add (:func:`joined`)."""
    direction: Direction = Direction.DOWN
    budget: Rule | None = None
    """The rule with a budget that meters the subflow."""
    steer: Rule | None = None
    """The rule that steers the subflow."""
    steer_path: str | None = None
    """The path of ``steer`` that the subflow is on."""
    beside: Cap | None = None
    """The looser one of two caps, of which a budget has one: unless it is guarded, too, it holds where the cap of
    ``rule`` is relaxed."""
    rests: bool = False
    """The scheduler is to give it nothing, while the other subflows do well."""


BEFORE: Final = {Direction.DOWN: "", Direction.UP: "upload: "}
"""What a reason begins with. One on download is as it was before there were directions."""
NO_RULE: Final = "no rule matches"


@lru_cache(4096)
def joined(reason: str, sentence: str, direction: Direction = Direction.DOWN) -> str:
    """Return *reason* with *sentence* added; one that says that there is no rule gives way.

    The same few come for thousands of subflows, which share the text.
    """
    before = BEFORE[direction]
    return before + sentence if reason == before + NO_RULE else f"{reason}; {sentence}"
