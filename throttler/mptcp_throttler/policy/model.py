# SPDX-License-Identifier: GPL-2.0-or-later
"""The sections of the policy file: frozen, checked, in base units (bits per second, bytes), ready for evaluation.

The docstrings and examples of keys are in the published JSON Schema. ``values`` has the types of single values,
``conditions`` the paths and the conditions of rules, ``mptcp_throttler.steering`` the steering modes; ``load`` checks
several sections together.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from datetime import datetime, time
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Self
from zoneinfo import ZoneInfo

from pydantic import (
    ConfigDict,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from mptcp_common.fields import (
    NAME_PATTERN,
    Name,
    Parsed,
    Section,
    alternatives,
    between,
    choice,
    one_of,
    parse_name,
    seconds,
)
from mptcp_common.problems import KeyPath, shown
from mptcp_common.units import format_rate, format_size, parse_rate
from mptcp_throttler.policy.conditions import Conditions, NamedSection, PathMatch, When
from mptcp_throttler.policy.schedule import DAYS, is_open, next_change
from mptcp_throttler.policy.values import (
    Burst,
    Rate,
    ResetDay,
    ResetTime,
    Volume,
    Zone,
    allow_also,
    none_or,
    volume_as_budget,
)
from mptcp_throttler.steering import BY_NAME, MODES, Mode

VERSION: Final = 1  # the version of the policy format that this release reads
MAX_BURST_SECONDS: Final = 60  # seconds at the cap's rate
MAX_RETRY_SECONDS: Final = 300.0  # seconds
MAX_WEIGHT: Final = 1000


class Kind(enum.Enum):
    """The three decisions on a subflow. For each of them, the first matching rule with its key decides."""

    THROTTLE = "throttle"  # which cap does the subflow have?
    BUDGET = "budget"  # which budget meters it?
    STEER = "steer"  # which rule spreads its connection's data over paths?


class Share(enum.Enum):
    """The subflows that share one cap, and so one HTB class."""

    __hash__ = object.__hash__

    PATH = "path"
    CLIENT = "client"
    CONNECTION = "connection"


class Direction(enum.Enum):
    """The direction of the capped packets."""

    # Members are singletons, and Enum's own hash runs in Python each time.
    __hash__ = object.__hash__

    DOWN = "down"  # from the proxy to the client
    UP = "up"  # from the client to the proxy


class Onset(enum.Enum):
    """How a cap takes effect on a subflow that is sending."""

    SOFT = "soft"
    IMMEDIATE = "at-once"


DIRECTIONS: Final = {"down": frozenset({Direction.DOWN}), "up": frozenset({Direction.UP}), "both": frozenset(Direction)}
NO_BUDGET: Final = "none"


class Throttle(Section):
    """The cap: an HTB class (tc-htb(8))."""

    rate: Rate = Field(examples=["5 Mbit/s", "512kbit"])
    """The rate of the capped subflows together, 8 kbit/s to 1000 Gbit/s."""
    ceil: Rate = Field(default_factory=lambda data: data["rate"], examples=["8 Mbit/s"])
    """Their rate while the link has spare capacity. Default: the rate."""
    burst: Burst | None = Field(default=None, examples=["15 KB"])
    """How much may pass at full speed: 1600 B to 64 MiB, at most what passes in 60 s at `rate`. Default: by rate."""
    share: Annotated[Share, choice({each.value: each for each in Share})] = Field(
        default=Share.PATH, examples=["client"]
    )
    """path: one cap for all subflows that the rule catches; client: one for each client address; connection: one for
    each connection."""
    landing: Annotated[Onset, choice({each.value: each for each in Onset})] = Field(
        default=Onset.SOFT, examples=["at-once"]
    )
    """How the cap begins on a sending subflow. soft: in steps, so that the other paths keep their rate; at-once:
    immediately, which stalls them for seconds."""

    @field_validator("ceil")
    @classmethod
    def _check_ceil(cls, ceil: int, info: ValidationInfo) -> int:
        rate = info.data.get("rate")
        if rate is not None and ceil < rate:
            raise ValueError(
                f"{format_rate(ceil)} is below the rate, {format_rate(rate)}; write the rate or more, or leave ceil out"
            )
        return ceil

    @field_validator("burst")
    @classmethod
    def _check_burst(cls, burst: int, info: ValidationInfo) -> int:
        rate = info.data.get("rate")
        if rate is not None and burst is not None and burst > (maximum := rate * MAX_BURST_SECONDS // 8):
            raise ValueError(
                f"{format_size(burst)} takes more than {MAX_BURST_SECONDS} seconds at {format_rate(rate)}; "
                f"write {format_size(maximum)} or less"
            )
        return burst

    def with_rate(self, rate: int, **changes: Any) -> Throttle:
        """Return a copy with *rate* (bits/s) as rate and ceil, and with other *changes*."""
        return self.model_copy(update={"rate": rate, "ceil": rate, **changes})


ThrottleOrNone = Annotated[
    Throttle | None, none_or("rate", parse_rate), Field(json_schema_extra=allow_also({"const": "none"}))
]


class BudgetStep(Section):
    """The cap after a part of the volume is used up."""

    after: Volume = Field(examples=["5 GB", 0])
    """The volume after which the step begins, up to 1000000 TB."""
    throttle: ThrottleOrNone = Field(examples=[{"rate": "512 kbit/s"}, "none"])
    """The cap, as in a rule, or none."""


class Budget(NamedSection):
    """A volume for each period. While it is not used up nothing is capped; then the last step reached applies."""

    period: Annotated[str, one_of("month", "week", "day")] = Field(examples=["month"])
    """After this time the volume begins again, in the policy's time zone."""
    reset_day: ResetDay = Field(default_factory=lambda data: 0 if data["period"] == "week" else 1, examples=[15])
    """The day on which it begins; in a month without that day, the last one. Default: 1 or `mon`."""
    # After validation: the day of the month from 1, or of the week from 0 (Monday).
    reset_time: ResetTime = Field(default=time(0), examples=["03:00"], json_schema_extra={"default": "00:00"})
    """The time of day, `HH:MM` in quotes."""
    count: Annotated[frozenset[Direction], choice(DIRECTIONS)] = Field(
        default=DIRECTIONS["both"], examples=["down"], json_schema_extra={"default": "both"}
    )
    """Which bytes count: down, to the client; up, from it; both. The rule's `direction` says which are capped."""
    per: Annotated[str, one_of("client", "path")] = Field(default="client", examples=["path"])
    """client: a volume for each client address; path: one volume for everything that its rules catch."""
    steps: list[BudgetStep] = Field(min_length=1, examples=[[{"after": "5 GB", "throttle": {"rate": "512 kbit/s"}}]])
    """The caps by volume, ascending."""
    is_shared: ClassVar[bool] = False  # whether it is defined under ``budgets``, for several rules

    @model_validator(mode="after")
    def _check_steps_and_reset_day(self) -> Self:
        if any(after.after <= before.after for before, after in pairwise(self.steps)):
            raise ValueError("the volumes of the steps must ascend")
        day: int | str = self.reset_day
        day_fits = self.period == ("week" if isinstance(day, str) else "month")
        if "reset_day" in self.model_fields_set and not day_fits:
            requirement = {"day": "has no reset_day", "week": "needs mon to sun", "month": "needs 1 to 31"}[self.period]
            raise ValueError(f"reset_day: the period {self.period} {requirement}")
        if isinstance(day, str):
            self.__dict__["reset_day"] = DAYS.index(day)
        return self

    @property
    def per_client(self) -> bool:
        """Whether each client address has its own volume."""
        return self.per == "client"

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"budget {self.name}" if self.is_shared else f"budget of rule {self.name}"


def _parse_budget(value: object, parse_section: ValidatorFunctionWrapHandler) -> object:
    """Return a rule's ``budget``: None for ``none``, a name or a budget."""
    if not isinstance(value, str):
        return parse_section(value)
    if value == NO_BUDGET:
        return None
    if " " in value.strip() and (message := volume_as_budget(value)):
        raise ValueError(message)
    return parse_name(value)


_mode = one_of(*BY_NAME)


def _parse_mode(value: object) -> object:
    if value == "redundant":
        raise ValueError(
            "redundant is not possible: Linux's MPTCP scheduler sends data on one subflow and cannot "
            f"duplicate them on another; write {alternatives(tuple(BY_NAME))}"
        )
    return _mode.parse(value)


class Steer(Section):
    """A steering mode and the paths that it steers among."""

    mode: Annotated[str, Parsed(_parse_mode, {"enum": list(BY_NAME)})] = Field(
        description=f"{'; '.join(mode.meaning for mode in MODES)}.", examples=["active-standby"]
    )

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                {"if": {"properties": {"mode": {"const": name}}}, "then": {"required": list(mode.keys)}}
                for name, mode in BY_NAME.items()
                if mode.keys
            ]
        }
    )

    active: Name | None = Field(default=None, examples=["wifi"])
    """With active-standby: the path that is used."""
    standby: Name | None = Field(default=None, examples=["lte"])
    """With active-standby: the path in reserve."""
    order: list[Name] | None = Field(default=None, min_length=2, examples=[["wifi", "lte"]])
    """With waterfall (priority-based): paths, the cheapest or most preferred first."""
    weights: dict[Name, Annotated[int, between(1, MAX_WEIGHT)]] | None = Field(
        default=None,
        examples=[{"ethernet": 70, "wifi": 30}],
        json_schema_extra={"additionalProperties": {"type": "integer", "minimum": 1, "maximum": MAX_WEIGHT}},
    )
    """With load-balancing: each path's share of the bytes; they need not add up to 100."""

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        keys = self.model_fields_set - {"mode"}
        missing = [key for key in self.mode_class.keys if key not in keys]
        unexpected = [key for key in type(self).model_fields if key in keys and key not in self.mode_class.keys]
        if missing:
            raise ValueError(f"mode {self.mode} needs {' and '.join(missing)}")
        if unexpected:
            raise ValueError(f"mode {self.mode} has no {' and no '.join(unexpected)}")
        if len(set(self.paths)) < len(self.paths):
            raise ValueError(f"a path is named twice in {', '.join(self.paths)}")
        if self.weights is not None and len(self.weights) < 2:
            raise ValueError("weights has one path only; there is nothing to balance")
        return self

    @property
    def mode_class(self) -> type[Mode]:
        return BY_NAME[self.mode]

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The paths that it steers among, the most preferred first."""
        return tuple(str(name) for _, name in named_paths(self.__dict__))

    def create_mode(self) -> Mode:
        """Return a new mode object, for one connection."""
        return self.mode_class(self.weights or dict.fromkeys(self.paths, 1))

    def words(self) -> str:
        """Return ``waterfall: wifi, then lte``."""
        if self.weights is None:
            return ": ".join(filter(None, (self.mode, ", then ".join(self.paths))))
        return f"{self.mode}: {', '.join(f'{path} {weight}' for path, weight in self.weights.items())}"

    def role(self, path: str, first: str) -> str:
        """Return the role of *path*, in words, while *first* is the first path with a subflow."""
        if self.weights is None:
            return "first" if path == first else "backup"
        return f"weight {self.weights[path]}"


def named_paths(steer: Mapping[str, object]) -> Iterator[tuple[KeyPath, object]]:
    """Yield key and name of each path in a section ``steer``, validated or not."""
    for key in (key for mode in MODES for key in mode.keys):
        value = steer.get(key)
        if isinstance(value, list):
            yield from (((key, index), name) for index, name in enumerate(value))
        elif isinstance(value, dict):
            yield from (((key, name), name) for name in value)
        elif value is not None:
            yield (key,), value


class Rule(Section):
    """One rule. Rules are tried from top to bottom, for each of throttle, budget and steer, and for each direction; of
    those that have the key, the first that catches a subflow decides."""

    name: Name = Field(examples=["spare-ethernet"])
    """Its name in messages, different from those of other rules."""
    paths: list[Name] | None = Field(default=None, min_length=1, examples=[["ethernet"]])
    """The paths whose subflows the rule catches. Default: all subflows, on a path or not."""
    # After validation, with steer: the paths that its mode names.
    when: When = Field(default_factory=When, examples=[{"min_paths": 2}])
    """Conditions. Default: subflows on two paths."""
    throttle: ThrottleOrNone = Field(default=None, examples=[{"rate": "5 Mbit/s"}, "none"])
    """The cap, or none: later rules do not cap the subflow."""
    always: bool = Field(default=False, examples=[True])
    """true: the cap is never exceeded. It holds from the first subflow on, on the last usable path, and for a
    connection that it harms. Replaces `lift_last: false`, `guard: false` and `min_paths: 1`."""
    plain_tcp: Annotated[str, one_of("pass", "cap")] = Field(default="pass", examples=["pass"])
    """cap: the cap includes downloads over plain TCP. Requires `always: true`, `share: path`, nftables, no `when`, and
    paths with `clients` or `interfaces`. Rules above, exemptions included, do not affect plain TCP."""
    lift_last: bool = Field(default=True, examples=[True])
    """false: the cap of `throttle` holds even on the last usable path. Caps of budgets always do."""
    direction: Annotated[frozenset[Direction], choice(DIRECTIONS)] = Field(
        default=DIRECTIONS["down"], examples=["up"], json_schema_extra={"default": "down"}
    )
    """down: from the proxy to the client; up: from the client to the proxy; both: each separately, with a cap for each.
    Default: `down`; `both` if the rule only exempts."""
    guard: bool = Field(default=True, examples=[False])
    """false: the cap holds even if the other paths degrade. Default: `true` for `throttle`, `false` for `budget`."""
    steer: Annotated[Steer | None, none_or("mode", _parse_mode)] = Field(
        default=None,
        examples=[{"mode": "active-standby", "active": "wifi", "standby": "lte"}, "none"],
        json_schema_extra=allow_also({"const": "none"}),
    )
    """A steering mode, for downloads, or none: later rules do not steer the subflow. The rule is for the paths that the
    mode names."""
    budget: Annotated[Budget | None, WrapValidator(_parse_budget)] = Field(
        default=None,
        examples=[{"period": "month", "steps": [{"after": "5 GB", "throttle": {"rate": "512 kbit/s"}}]}, "none"],
        json_schema_extra=allow_also({"const": NO_BUDGET}, {"type": "string", "pattern": NAME_PATTERN}),
    )
    """Caps that begin after a volume, the name of one of `budgets`, or none: later rules do not meter the subflow."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": [kind]} for kind in ("throttle", "steer", "budget")]}
    )

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if self.steer is not None and self.steer.paths:
            self.__dict__["paths"] = list(self.steer.paths)
        if "direction" not in self.model_fields_set and not self.has_effect:
            self.__dict__["direction"] = DIRECTIONS["both"]
        if self.always:
            redundant: list[str] = [key for key in ("lift_last", "guard") if key in self.model_fields_set]
            redundant += [f"when.{key}" for key in ("min_paths", "min_subflows") if getattr(self.when, key) is not None]
            if self.throttle is None:
                raise ValueError("always: true needs a throttle in the same rule")
            if redundant:
                raise ValueError(f"always: true replaces {' and '.join(redundant)}; leave it out")
            self.__dict__.update(lift_last=False, guard=False)
        if self.caps_plain_tcp and (error := self._plain_tcp_error()):
            raise ValueError(f"plain_tcp: cap {error}")
        return self

    def _plain_tcp_error(self) -> str | None:
        """Return a requirement of ``plain_tcp: cap`` that is not met, or None."""
        if not self.always:
            return "needs always: true in the same rule"
        if self.throttle is None or self.throttle.share is not Share.PATH:
            return "needs a throttle with share: path"
        if self.when.model_fields_set:
            return f"allows no conditions; leave out when, or {' and '.join(sorted(self.when.model_fields_set))} in it"
        if self.direction != DIRECTIONS["down"]:
            return "is for downloads; give uploads a rule of their own"
        return "needs paths" if self.paths is None else None

    @property
    def caps_plain_tcp(self) -> bool:
        return self.plain_tcp == "cap"

    @property
    def has_effect(self) -> bool:
        """Whether the rule does more than exempt."""
        return any(getattr(self, kind.value) is not None for kind in Kind)

    @cached_property
    def exempted_kinds(self) -> frozenset[Kind]:
        """The kinds that the rule sets to ``none``."""
        return frozenset(kind for kind in Kind if self.defines(kind) and getattr(self, kind.value) is None)

    def defines(self, kind: Kind) -> bool:
        """Return whether the rule has the key of *kind*, and so decides for the subflows that it catches."""
        return kind.value in self.model_fields_set

    def decides(self, kind: Kind, direction: Direction) -> bool:
        """Return whether the rule decides about *kind* for packets in *direction*; uploads are not steered."""
        return direction in self.direction and self.defines(kind) and (kind, direction) != (Kind.STEER, Direction.UP)

    @property
    def budget_guard(self) -> bool:
        """Whether the guard may relax the caps of ``budget``: only if the rule allows it, because they limit costs."""
        return self.guard and "guard" in self.model_fields_set

    def required_paths(self, kind: Kind) -> int:
        """Return the number of paths that must have active subflows before the rule decides about *kind*. The default
        is 1 for budgets and exemptions, so that no later rule decides about the first subflow."""
        when = self.when
        if when.min_paths is not None or when.min_subflows is not None:
            return when.min_paths or 1
        leaves_to_kernel = kind is Kind.STEER and self.steer is not None and not self.steer.mode_class.spreads_data
        default = 1 if kind is Kind.BUDGET or kind in self.exempted_kinds or leaves_to_kernel or self.always else 2
        return min(default, when.max_subflows or default)

    def conditions(self, kind: Kind) -> Conditions:
        paths = self.required_paths(kind)
        return Conditions(self.when, max(self.when.min_subflows or 1, paths), paths, kind is Kind.THROTTLE)


class Guard(Section):
    """When caps are relaxed for a connection that gets less than the best of its uncapped paths once gave it."""

    enabled: bool = Field(default=True, examples=[False])
    """false: caps are never relaxed."""
    after: Annotated[float, seconds(0.1, 60)] = Field(default=0.3, examples=[1])
    """Seconds for which the connection must be degraded."""
    retry: Annotated[float, seconds(1, 3600)] = Field(default=5.0, examples=[10])
    """Seconds after which the caps are tried again at the latest; doubled each time."""
    longest_retry: Annotated[float, seconds(1, 86400)] = Field(
        default_factory=lambda data: max(data["retry"], MAX_RETRY_SECONDS),  # pauses never become shorter
        description="The maximum of `retry`. Default: 300, or `retry` if longer.",
        examples=[600],
    )

    @field_validator("longest_retry")
    @classmethod
    def _check_longest_retry(cls, maximum: float, info: ValidationInfo) -> float:
        retry = info.data.get("retry")
        if retry is not None and maximum < retry:
            raise ValueError(f"{maximum:g} is below retry, which is {retry:g}")
        return maximum


def _parse_version(value: object) -> int:
    if type(value) is not int or value != VERSION:
        raise ValueError(f"{shown(value)} is not a version this release reads; write {VERSION}")
    return value


class Policy(Section):
    """A throttling policy of the MPTCP steering proxy: which subflows are capped, when, and to what rate."""

    version: Annotated[int, Parsed(_parse_version, {"const": VERSION})] = Field(examples=[VERSION])
    """The version of this format."""
    time_zone: Zone = Field(default=ZoneInfo("UTC"), examples=["Europe/Athens"], json_schema_extra={"default": "UTC"})
    """A zone of the IANA database, for all days and hours."""
    dry_run: bool = Field(default=False, examples=[True])
    """true: decide, log and show, but cap nothing."""
    anticipate: bool = Field(default=True, examples=[False])
    """false: a cap that needs two paths begins only when there is a subflow on the second."""
    rest_slow_paths: bool = Field(default=False, examples=[True])
    """true: leave out an uncapped path while it slows the others down by more than it carries."""
    paths: dict[Name, PathMatch] = Field(
        default_factory=dict,
        examples=[{"ethernet": {"clients": ["10.77.1.0/24"]}}],
        json_schema_extra={"additionalProperties": False},
    )
    """The paths, by names of your choice."""
    budgets: dict[Name, Budget] = Field(
        default_factory=dict,
        examples=[{"lte-month": {"period": "month", "steps": [{"after": "5 GB", "throttle": {"rate": "512 kbit/s"}}]}}],
        json_schema_extra={"additionalProperties": False},
    )
    """Budgets that several rules share, by names of your choice."""
    # After validation: all budgets that rules use. The budget of a single rule has the name of the rule.
    rules: list[Rule] = Field(
        examples=[[{"name": "spare-ethernet", "paths": ["ethernet"], "throttle": {"rate": "5 Mbit/s"}}]]
    )
    """The rules, the most specific first. An empty list caps nothing."""
    guard: Guard = Field(default_factory=Guard, examples=[{"after": 1, "retry": 10}])
    """When caps are relaxed because other paths degrade."""
    text: ClassVar[str] = ""  # the text of the policy, for what-if requests: the file may have changed since

    @model_validator(mode="after")
    def _resolve_names(self) -> Self:
        """Give paths and budgets their names, and rules the budgets that they name; ``load`` reports unknown names."""
        for name, path in self.paths.items():
            path.__dict__["name"] = name
        for name, budget in self.budgets.items():
            budget.__dict__.update(name=name, is_shared=True)
        budgets: dict[str, Budget] = {}
        for rule in self.rules:
            if isinstance(rule.budget, str):
                rule.__dict__["budget"] = self.budgets.get(rule.budget)
            elif rule.budget is not None:
                rule.budget.__dict__["name"] = rule.name
            if rule.budget is not None:
                budgets[rule.budget.name] = rule.budget
        self.__dict__["budgets"] = budgets
        return self

    @property
    def acts_on_upload(self) -> bool:
        """Whether a rule caps, meters or steers uploads."""
        return any(rule.has_effect and Direction.UP in rule.direction for rule in self.rules)

    @property
    def caps_plain_tcp(self) -> bool:
        return any(rule.caps_plain_tcp for rule in self.rules)

    @property
    def applied(self) -> Policy:
        """The policy that is applied to the kernel: without rules in a dry run."""
        return self.model_copy(update={"rules": []}) if self.dry_run else self

    @property
    def cap_verb(self) -> str:
        """The verb in reasons, for the effect of a rule or budget."""
        return "would cap" if self.dry_run else "caps"

    @property
    def cap_note(self) -> str:
        """The end of a text about a cap."""
        return " (dry run)" if self.dry_run else ""

    def open_rules(self, now: float) -> tuple[bool, ...]:
        """Return for each rule whether *now* is within its hours; always True for a rule without hours."""
        local = datetime.fromtimestamp(now, self.time_zone)
        return tuple(rule.when.windows is None or is_open(rule.when.windows, local) for rule in self.rules)

    def next_change(self, now: float) -> float | None:
        """Return when, after *now*, the hours of a rule next begin or end; None if never."""
        return next_change([each.when.windows for each in self.rules if each.when.windows], self.time_zone, now)
