"""The policy as the daemon uses it: frozen, checked, in base units. Made by ``policy.load`` only.

Rates are integer bits per second, bursts integer bytes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from datetime import time
from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple
from zoneinfo import ZoneInfo

from mptcp_throttler.mptcp.model import FourTuple

Network = IPv4Network | IPv6Network


class Kind(enum.Enum):
    """The three questions about a subflow. Each is answered for itself: the first rule that answers it decides."""

    THROTTLE = "throttle"
    """Which cap is on it."""
    BUDGET = "budget"
    """Which budget meters it."""
    STEER = "steer"
    """Which rule says how its connection's data are spread."""


class Share(enum.Enum):
    """Among whom one cap is shared: who falls into the same HTB class."""

    __hash__ = object.__hash__

    PATH = "path"
    """All subflows that the rule catches share one cap."""
    CLIENT = "client"
    """One cap for each client address."""
    CONNECTION = "connection"
    """One cap for each MPTCP connection."""


class Direction(enum.Enum):
    """Which way the capped packets go."""

    # Members are singletons; the hash of their names is computed in Python each time.
    __hash__ = object.__hash__

    DOWN = "down"
    """From the proxy to the client."""
    UP = "up"
    """From the client to the proxy."""


DOWN_ONLY = frozenset({Direction.DOWN})


class Onset(enum.Enum):
    """How a cap falls on a subflow that is sending."""

    SOFT = "soft"
    """In steps within a second, so that the connection's other paths go on."""
    IMMEDIATE = "at-once"


@dataclass(frozen=True, slots=True)
class Throttle:
    """A cap. HTB's terms, tc-htb(8)."""

    rate: int
    """Guaranteed bits per second."""
    ceil: int
    """Most bits per second; at least ``rate``."""
    burst: int | None
    """Bytes that may pass at once at full speed; None lets the planner choose."""
    share: Share
    onset: Onset = Onset.SOFT


class Mode(enum.Enum):
    """How a connection's data are spread over paths: the steering modes of 3GPP ATSSS, TS 23.501, 5.32.8."""

    ACTIVE_STANDBY = "active-standby"
    PRIORITY_BASED = "priority-based"
    LOAD_BALANCING = "load-balancing"
    SMALLEST_DELAY = "smallest-delay"


@dataclass(frozen=True, slots=True)
class Steer:
    """A steering mode and the paths among which it steers, the most preferred first."""

    mode: Mode
    paths: tuple[str, ...] = ()
    weights: tuple[int, ...] = ()
    """Of each path, with load-balancing."""
    alias: str | None = None
    """What the operator called the mode, where that is not 3GPP's name of it."""

    @property
    def name(self) -> str:
        """The mode as the operator wrote it."""
        return self.alias or self.mode.value

    @property
    def by_order(self) -> bool:
        """Whether a path is used only while those before it are not enough: by the backup flag."""
        return self.mode is Mode.ACTIVE_STANDBY or self.opens_when_full

    @property
    def opens_when_full(self) -> bool:
        """Whether a path is used once those before it are full, not only when they are gone."""
        return self.mode is Mode.PRIORITY_BASED


class Period(enum.Enum):
    """After what a budget begins anew."""

    MONTH = "month"
    WEEK = "week"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class BudgetStep:
    """What holds from a volume on."""

    after: int
    """Bytes."""
    throttle: Throttle | None


@dataclass(frozen=True, slots=True)
class Budget:
    """Caps that begin after a volume."""

    name: str
    """Of its accounts in the ledger: its own, or that of the rule in which it stands."""
    own_name: bool
    """It stands under ``budgets``, for several rules."""
    period: Period
    reset_day: int
    """Of the month, from 1; of the week, from 0 for Monday."""
    reset_time: time
    counted: frozenset[Direction]
    per_client: bool
    """Each client address has a volume of its own; else all together."""
    steps: tuple[BudgetStep, ...]
    """By volume, ascending."""

    @property
    def title(self) -> str:
        """What people call it."""
        return f"budget {self.name}" if self.own_name else f"budget of rule {self.name}"


@dataclass(frozen=True, slots=True)
class PathMatch:
    """Which subflows are on a path. Every field that is not None must match."""

    name: str
    interfaces: frozenset[str] | None = None
    """The proxy's own interfaces."""
    clients: tuple[Network, ...] | None = None
    """Prefixes of the subflow's remote address."""
    remote_ids: frozenset[int] | None = None
    initial: bool | None = None
    """True: the initial subflow only; False: joined ones only."""
    backup: bool | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """A weekly time window: on ``days`` (0 is Monday) from ``start`` to ``end``, which may pass midnight."""

    days: frozenset[int]
    start: time
    end: time
    """``start == end`` means the whole day."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What holds for the subflows on ``paths`` of a connection that meets the conditions: an answer to one question or
    to several (:class:`Kind`)."""

    name: str
    paths: tuple[str, ...] | None
    """Names of paths; None for any subflow."""
    throttle: Throttle | None
    min_paths: int | None = None
    """None, and no ``min_subflows`` either: what is usual for the kind, see :meth:`least_paths`."""
    min_subflows: int | None = None
    max_subflows: int | None = None
    clients: tuple[Network, ...] | None = None
    """The rule applies only to connections of which some subflow comes from one of these prefixes."""
    windows: tuple[Window, ...] | None = None
    lift_last: bool = True
    """Lift the cap of ``throttle`` when the subflow is on the last usable path of its connection."""
    directions: frozenset[Direction] = DOWN_ONLY
    """The rule catches subflows in these, in each for itself."""
    guard: bool = True
    """Relax the cap of ``throttle`` where it causes degradation."""
    steer: Steer | None = None
    budget: Budget | None = None
    budget_guard: bool = False
    """The same for the caps of ``budget``. They are about money: they hold unless the rule says otherwise."""
    exempts: frozenset[Kind] = frozenset()
    """The questions that are answered with ``none``."""

    def answers(self, kind: Kind) -> bool:
        """Whether a subflow that this rule catches is not asked about in later rules."""
        return kind in self.exempts or getattr(self, kind.value) is not None

    def least_paths(self, kind: Kind) -> int:
        """Return the least number of paths on which active subflows must be for the rule to answer.

        What a path carries counts from the first subflow on; and an exemption that began with the second path would
        leave the first to later rules.
        """
        if self.min_paths is not None or self.min_subflows is not None:
            return self.min_paths or 1
        always = kind is Kind.BUDGET or kind in self.exempts
        always = always or (kind is Kind.STEER and self.steer is not None and self.steer.mode is Mode.SMALLEST_DELAY)
        return 1 if always else min(2, self.max_subflows or 2)

    def least_subflows(self, kind: Kind) -> int:
        """Return the least number of active subflows with which the rule answers."""
        return max(self.min_subflows or 1, self.least_paths(kind))


@dataclass(frozen=True, slots=True)
class Guard:
    """When caps are relaxed for a degraded connection (``stages.degradation``). Times in seconds."""

    enabled: bool = True
    after: float = 0.3
    retry: float = 5.0
    longest_retry: float = 300.0


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy. Rules are tried in order, for each kind and direction apart: the first that answers decides."""

    paths: tuple[PathMatch, ...]
    rules: tuple[Rule, ...]
    time_zone: ZoneInfo
    dry_run: bool = False
    guard: Guard = Guard()
    anticipate: bool = True
    """A young connection is decided as if it had a subflow on a second path (``policy.anticipation``)."""
    rest_slow_paths: bool = False
    """A subflow without a cap rests, too, while it costs the others more than it carries (``stages.resting``)."""
    text: str = field(default="", compare=False, repr=False)
    """What it was made of, for who wants to change it: the file may be another by now."""

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """All budgets that rules feed, each once."""
        return tuple({rule.budget.name: rule.budget for rule in self.rules if rule.budget is not None}.values())

    @property
    def acts_on_upload(self) -> bool:
        """Some rule is for packets from the clients."""
        return any(Direction.UP in rule.directions for rule in self.rules)

    @property
    def enforced(self) -> Policy:
        """What is to come into effect: a policy without rules in a dry run."""
        return replace(self, rules=()) if self.dry_run else self


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
    """In plain words, for the operator: a sentence on the cap, then those that the stages add (``policy.reasons``)."""
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
