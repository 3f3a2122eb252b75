"""The policy as the daemon uses it: frozen, checked, in base units. Made by ``policy.load`` only.

Rates are integer bits per second, bursts integer bytes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import time
from ipaddress import IPv4Network, IPv6Network
from zoneinfo import ZoneInfo

from ..mptcp.model import FourTuple

Network = IPv4Network | IPv6Network


class Share(enum.Enum):
    """Among whom one cap is shared: who falls into the same HTB class."""

    PATH = "path"
    """All subflows that the rule catches share one cap."""
    CLIENT = "client"
    """One cap for each client address."""
    CONNECTION = "connection"
    """One cap for each MPTCP connection."""


class Direction(enum.Enum):
    """Which way the capped packets go."""

    DOWN = "down"
    """From the proxy to the client."""
    UP = "up"
    """From the client to the proxy."""


DOWN_ONLY = frozenset({Direction.DOWN})


class LandingKind(enum.Enum):
    """How a cap falls on a subflow that is sending."""

    SOFT = "soft"
    """In steps within a second, so that the connection's other paths go on."""
    AT_ONCE = "at-once"


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
    landing: LandingKind = LandingKind.SOFT


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

    @property
    def by_order(self) -> bool:
        """Whether a path is used only while those before it are not enough: by the backup flag."""
        return self.mode in (Mode.ACTIVE_STANDBY, Mode.PRIORITY_BASED)


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

    period: Period
    reset_day: int
    """Of the month, from 1; of the week, from 0 for Monday."""
    reset_time: time
    counted: frozenset[Direction]
    per_client: bool
    """Each client address has a volume of its own; else all together."""
    steps: tuple[BudgetStep, ...]
    """By volume, ascending."""


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
    """The subflows on ``paths`` of a connection that meets the conditions get ``throttle`` (None: left alone)."""

    name: str
    paths: tuple[str, ...] | None
    """Names of paths; None for any subflow."""
    throttle: Throttle | None
    min_subflows: int = 2
    max_subflows: int | None = None
    clients: tuple[Network, ...] | None = None
    """The rule applies only to connections of which some subflow comes from one of these prefixes."""
    windows: tuple[Window, ...] | None = None
    lift_last: bool = True
    """Lift the cap when the subflow is the last usable one of its connection."""
    directions: frozenset[Direction] = DOWN_ONLY
    """The rule catches subflows in these, in each for itself."""
    guard: bool = True
    """Relax the cap where it harms a connection."""
    steer: Steer | None = None
    """In place of a throttle; the same goes for a budget."""
    budget: Budget | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """When caps are relaxed for a connection that they harm (``shaping.harm``). Times in seconds."""

    enabled: bool = True
    after: float = 0.3
    retry: float = 5.0
    longest_retry: float = 300.0


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy. Rules are tried in order; for each direction, the first that catches a subflow decides."""

    paths: tuple[PathMatch, ...]
    rules: tuple[Rule, ...]
    time_zone: ZoneInfo
    dry_run: bool = False
    guard: Guard = Guard()

    @property
    def acts_on_upload(self) -> bool:
        """Some rule is for packets from the clients."""
        return any(Direction.UP in rule.directions for rule in self.rules)


@dataclass(frozen=True, slots=True)
class ScopeKey:
    """Names one cap: the rule it comes from and, by its ``Share``, for whom. Equal keys share one HTB class."""

    rule: str
    share: Share
    member: bytes | int | tuple[int, str] | None = None
    """None for PATH; the client's packed address for CLIENT; the token for CONNECTION, with the path where steered."""
    direction: Direction = Direction.DOWN


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the policy says of one active subflow in one direction, and why."""

    four_tuple: FourTuple
    path: str | None
    """The first path that matches the subflow, for people; None where none does."""
    rule: Rule | None
    scope: ScopeKey | None
    """None: not throttled."""
    throttle: Throttle | None
    reason: str
    """One sentence in plain words, for the operator."""
    direction: Direction = Direction.DOWN
