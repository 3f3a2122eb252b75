"""The policy file's shape, as pydantic models. Their descriptions and examples are the published JSON Schema.

What a single value may be is in ``fields``, ``units`` and ``schedule``; here is what a section holds and how
its keys depend on each other; what concerns several sections at once is checked in ``load``.
"""

from __future__ import annotations

from datetime import time
from typing import Annotated, Any, Final, Self
from zoneinfo import ZoneInfo

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from mptcp_common.fields import (
    INTERFACE_PATTERN,
    Name,
    Parsed,
    Section,
    between,
    editor_schema,
    one_of,
    parse_interface,
    seconds,
)
from mptcp_common.problems import shown
from mptcp_throttler.policy.budget_section import BudgetOrName, BudgetSection, also_name
from mptcp_throttler.policy.fields import DIRECTIONS, parse_prefix, parse_time_zone
from mptcp_throttler.policy.model import Direction, Guard, Network
from mptcp_throttler.policy.schedule import DAYS_PATTERN, HOURS_PATTERN, parse_days, parse_hours
from mptcp_throttler.policy.steer_section import SteerOrNone
from mptcp_throttler.policy.throttle_section import ThrottleOrNone, also_none

_GUARD: Final = Guard()
VERSION: Final = 1
"""The version of the policy format that this release reads."""
MOST_SUBFLOWS: Final = 255
"""There are no more address identifiers than that (RFC 8684, 3.2: one byte)."""


def _version(value: object) -> int:
    if type(value) is not int or value != VERSION:
        raise ValueError(f"{shown(value)} is not a version this release reads; write {VERSION}")
    return value


Interface = Annotated[str, Parsed(parse_interface, {"type": "string", "pattern": INTERFACE_PATTERN})]
Prefix = Annotated[Network, Parsed(parse_prefix, {"type": "string"})]
Zone = Annotated[ZoneInfo, Parsed(parse_time_zone, {"type": "string"})]
Days = Annotated[frozenset[int], Parsed(parse_days, {"type": "string", "pattern": DAYS_PATTERN})]
Hours = Annotated[tuple[time, time], Parsed(parse_hours, {"type": "string", "pattern": HOURS_PATTERN})]


class PathSection(Section):
    """Which subflows are on this path. At least one key; a subflow must match all that are given."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    clients: list[Prefix] | None = Field(
        default=None,
        min_length=1,
        description="Prefixes or addresses; the subflow's client address must be in one of them.",
        examples=[["10.77.1.0/24", "fd77:1::/64"]],
    )
    interfaces: list[Interface] | None = Field(
        default=None,
        min_length=1,
        description="The proxy's own interfaces; the subflow must arrive on one of them.",
        examples=[["eth0"]],
    )
    remote_ids: list[Annotated[int, between(0, 255)]] | None = Field(
        default=None,
        min_length=1,
        description="MPTCP address identifiers (RFC 8684, 3.2) that the client gave this subflow; "
        "0 is that of the initial subflow.",
        examples=[[1, 2]],
    )
    subflow: Annotated[str | None, one_of("initial", "joined")] = Field(
        default=None,
        description="initial: the subflow that opened the connection; joined: those that came later.",
        examples=["joined"],
    )
    backup: bool | None = Field(
        default=None,
        description="true: only subflows that the client marked as backup (RFC 8684, 3.3.8); false: only the others.",
        examples=[True],
    )

    @model_validator(mode="after")
    def _matches_something(self) -> Self:
        if not self.model_fields_set:
            keys = ", ".join(type(self).model_fields)
            raise ValueError(f"says nothing about which subflows are on this path; give at least one of {keys}")
        return self


class WhenSection(Section):
    """When the rule applies. All conditions must hold."""

    min_paths: Annotated[int | None, between(1, MOST_SUBFLOWS)] = Field(
        default=None,
        description="The connection must have active subflows on at least this many of `paths`; all that are on none "
        "are on one more. Without `paths` each subflow counts. Default 2; 1 with `min_subflows`, for budgets, for "
        "`none`, and with `max_subflows: 1`.",
        examples=[2],
    )
    min_subflows: Annotated[int | None, between(1, MOST_SUBFLOWS)] = Field(
        default=None,
        description="The connection must have at least this many active subflows, on whatever paths. Default 1.",
        examples=[3],
    )
    max_subflows: Annotated[int | None, between(1, MOST_SUBFLOWS)] = Field(
        default=None,
        description="The connection must have at most this many active subflows. Default: any number.",
        examples=[4],
    )
    days: list[Days] | None = Field(
        default=None,
        min_length=1,
        description="Days of the week, or ranges of days, in the policy's time zone. Default: every day.",
        examples=[["mon-fri", "sun"]],
    )
    hours: list[Hours] | None = Field(
        default=None,
        min_length=1,
        description="Hours of the day, in the policy's time zone. A range may pass midnight; it then "
        "belongs to the day it starts on. Default: the whole day.",
        examples=[["08:00-18:00", "22:00-02:00"]],
    )
    clients: list[Prefix] | None = Field(
        default=None,
        min_length=1,
        description="Prefixes or addresses; at least one active subflow of the connection must come from "
        "them. Default: any client.",
        examples=[["10.0.0.0/8"]],
    )

    @field_validator("max_subflows")
    @classmethod
    def _leaves_room(cls, most: int, info: ValidationInfo) -> int:
        for key in ("min_paths", "min_subflows"):
            least = info.data.get(key)
            if least is not None and most < least:
                raise ValueError(f"{most} is below {key}, which is {least}")
        return most


ACTIONS = ("throttle", "steer", "budget")
"""What a rule answers: at least one of these. ``load`` checks it, whatever else is wrong with the rule."""


class RuleSection(Section):
    """One rule. Rules are tried from top to bottom, for throttle, budget and steer apart; of those that have the key,
    the first that catches a subflow decides. Each direction is asked for itself."""

    name: Name = Field(
        description="Its name in `status`, in the log and in the plan. Every rule has its own.",
        examples=["spare-ethernet"],
    )
    paths: list[Name] | None = Field(
        default=None,
        min_length=1,
        description="The paths whose subflows the rule catches. Default: all subflows, on a path or not.",
        examples=[["ethernet"]],
    )
    when: WhenSection | None = Field(
        default=None,
        description="When the rule applies. Default: while the connection has active subflows on at least two paths.",
        examples=[{"min_paths": 2}],
    )
    throttle: ThrottleOrNone = Field(
        default=None,
        description="The cap, or none: no later rule caps the subflow.",
        examples=[{"rate": "5 Mbit/s"}, "none"],
        json_schema_extra=also_none,
    )
    lift_last: bool = Field(
        default=True,
        description="Lift the cap from a subflow while it is on the last usable path of its connection.",
        examples=[True],
    )
    direction: Annotated[str, one_of(*DIRECTIONS)] = Field(
        default=Direction.DOWN.value,
        description="Which way the rule works. down: from the proxy to the client; up: from the client to the proxy; "
        "both: each way for itself, so that the cap holds in each.",
        examples=["up"],
    )
    guard: bool = Field(
        default=True,
        description="false: the cap holds even for a connection that it harms. Default: true for a throttle, false "
        "for a budget.",
        examples=[False],
    )
    steer: SteerOrNone = Field(
        default=None,
        description="A steering mode, which spreads a connection's data over paths; the rule is for the subflows on "
        "the paths that it names. Or none: no later rule steers the subflow.",
        examples=[{"mode": "active-standby", "active": "wifi", "standby": "lte"}, "none"],
        json_schema_extra=also_none,
    )

    budget: BudgetOrName = Field(
        default=None,
        description="Caps that begin after a volume, the name of one of the budgets, or none: no later rule meters the "
        "subflow.",
        examples=[{"period": "month", "steps": [{"after": "5 GB", "throttle": {"rate": "512 kbit/s"}}]}, "none"],
        json_schema_extra=also_name,
    )

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": [action]} for action in ACTIONS]})


class GuardSection(Section):
    """When caps are relaxed for a connection that gets less than the best of its uncapped paths once gave it."""

    enabled: bool = Field(default=_GUARD.enabled, description="false: never.", examples=[False])
    after: Annotated[float, seconds(0.1, 60)] = Field(
        default=_GUARD.after, description="Seconds for which it has to be so.", examples=[1]
    )
    retry: Annotated[float, seconds(1, 3600)] = Field(
        default=_GUARD.retry,
        description="Seconds until the cap is tried again at the latest; doubled each time that it is relaxed again.",
        examples=[10],
    )
    longest_retry: Annotated[float, seconds(1, 86400)] | None = Field(
        default=None,
        description=f"The most that retry is doubled to. Default: {_GUARD.longest_retry:g}, or retry where that is "
        "longer.",
        examples=[600],
    )

    @field_validator("longest_retry")
    @classmethod
    def _is_no_shorter(cls, longest: float | None, info: ValidationInfo) -> float | None:
        retry = info.data.get("retry")
        if retry is not None and longest is not None and longest < retry:
            raise ValueError(f"{longest:g} is below retry, which is {retry:g}")
        return longest


class PolicySection(Section):
    """A throttling policy of the MPTCP steering proxy: which subflows are capped, when, and to what rate."""

    version: Annotated[int, Parsed(_version, {"const": VERSION})] = Field(
        description="The version of this format.", examples=[VERSION]
    )
    time_zone: Zone = Field(
        default=ZoneInfo("UTC"),
        description="The time zone of all days and hours, as in the IANA database. Default: UTC.",
        examples=["Europe/Athens"],
        json_schema_extra={"default": "UTC"},
    )
    dry_run: bool = Field(
        default=False,
        description="true: decide, log and show what would be capped, but cap nothing.",
        examples=[True],
    )
    anticipate: bool = Field(
        default=True,
        description="false: caps that ask for two active subflows begin only once the second one stands.",
        examples=[False],
    )
    rest_slow_paths: bool = Field(
        default=False,
        description="true: a path that slows the others down by more than it carries is left out while it does.",
        examples=[True],
    )
    paths: dict[Name, PathSection] = Field(
        default_factory=dict,
        description="The paths that subflows come over, by a name of your choice.",
        examples=[{"ethernet": {"clients": ["10.77.1.0/24"]}}],
        json_schema_extra={"additionalProperties": False},
    )
    budgets: dict[Name, BudgetSection] = Field(
        default_factory=dict,
        description="Budgets that several rules feed, by a name of your choice.",
        examples=[{"lte-month": {"period": "month", "steps": [{"after": "5 GB", "throttle": {"rate": "512 kbit/s"}}]}}],
        json_schema_extra={"additionalProperties": False},
    )
    rules: list[RuleSection] = Field(
        description="The rules, most particular first. An empty list caps nothing.",
        examples=[[{"name": "spare-ethernet", "paths": ["ethernet"], "throttle": {"rate": "5 Mbit/s"}}]],
    )
    guard: GuardSection = Field(
        default_factory=GuardSection,
        description="When caps are relaxed for degraded connections.",
        examples=[{"after": 1, "retry": 10}],
    )


def policy_schema() -> dict[str, Any]:
    """Return the JSON Schema of the policy file."""
    return editor_schema(PolicySection)
