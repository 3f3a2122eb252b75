# SPDX-License-Identifier: GPL-2.0-or-later
"""The conditions of a rule: the section ``when`` and the meaning of its keys.

To add a condition, add a field to :class:`When`, and its meaning to each method of :class:`Conditions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, tzinfo
from functools import cached_property
from math import inf
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from mptcp_common.fields import Interface, Section, between, one_of
from mptcp_common.units import counted
from mptcp_throttler.mptcp.model import Subflow
from mptcp_throttler.policy.schedule import EVERY_DAY, MIDNIGHT, Window, hours_text, is_open, may_coincide
from mptcp_throttler.policy.values import Days, Hours, Network, Prefix, Prefixes

MAX_SUBFLOWS = 255  # an address identifier has one byte (RFC 8684, 3.2)
MAX_PREFIXES = 4  # maximum number of client prefixes named in a message; the others are counted


class NamedSection(Section):
    """A section that gets its name from the policy: its key there, or the name of the rule that contains it."""

    name: ClassVar[str] = ""  # an instance has its own in ``__dict__``, because sections are frozen


class PathMatch(NamedSection):
    """Which subflows are on this path. At least one key; a subflow must match all that are given."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    clients: list[Prefix] | None = Field(default=None, min_length=1, examples=[["10.77.1.0/24", "fd77:1::/64"]])
    """Prefixes or addresses, IPv4 or IPv6; the subflow's client address must be in one of them."""
    interfaces: list[Interface] | None = Field(default=None, min_length=1, examples=[["eth0"]])
    """The proxy's own interfaces; the subflow must arrive on one of them. The settings file must list them too."""
    remote_ids: list[Annotated[int, between(0, 255)]] | None = Field(default=None, min_length=1, examples=[[1, 2]])
    """Address identifiers (RFC 8684, 3.2) that the client gave the subflow; 0 is the initial subflow's. They do not
    identify an uplink: use `clients`. For a tunnel: the number of the path in its relay's `paths`, from 0."""
    subflow: Annotated[str | None, one_of("initial", "joined")] = Field(default=None, examples=["joined"])
    """initial: the subflow that opened the connection; joined: the later ones."""
    backup: bool | None = Field(default=None, examples=[True])
    """true: only subflows that the client marked as backup; false: only the others."""

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if not self.model_fields_set:
            keys = ", ".join(type(self).model_fields)
            raise ValueError(f"has no key that selects subflows; give at least one of {keys}")
        return self

    @cached_property
    def prefixes(self) -> Prefixes[bool]:
        return Prefixes((each, True) for each in self.clients or ())

    def matches(self, subflow: Subflow) -> bool:
        return (
            (self.interfaces is None or subflow.interface in self.interfaces)
            and (self.remote_ids is None or subflow.remote_id in self.remote_ids)
            and (self.subflow is None or (self.subflow == "initial") is subflow.initial)
            and (self.backup is None or self.backup is subflow.backup)
            and (self.clients is None or self.prefixes.contains(subflow.four_tuple.remote))
        )

    def is_within(self, other: PathMatch) -> bool:
        """Return whether all subflows on this path are on the *other*, too."""
        return other.model_fields_set <= self.model_fields_set and all(
            all(map(other.prefixes.has, self.clients or ())) if key == "clients" else self._set(key) <= other._set(key)
            for key in other.model_fields_set
        )

    def is_disjoint(self, other: PathMatch) -> bool:
        """Return whether no subflow can be on both paths."""
        own_clients, other_clients = self.clients or (), other.clients or ()
        return any(
            not any(map(other.prefixes.has, own_clients)) and not any(map(self.prefixes.has, other_clients))
            if key == "clients"
            else self._set(key).isdisjoint(other._set(key))
            for key in self.model_fields_set & other.model_fields_set
        )

    def _set(self, key: str) -> set[object]:
        value = getattr(self, key)
        return set(value) if isinstance(value, list) else {value}


class Situation(NamedTuple):
    """Everything on which the decisions about a subflow depend, except the clock."""

    path_bits: int  # bit set of the paths that the subflow is on, by position in the policy
    from_clients: int  # bit set of the rules whose ``clients`` include the client of an active subflow
    subflows: int  # number of active subflows
    paths: int  # number of paths with active subflows
    expected: int  # number of paths expected soon, at least ``paths``; caps are decided as for this number
    on_last_path: bool  # whether the subflow is on the last usable path


Unmet = Literal["counts", "clients", "hours"]


class Conditions(NamedTuple):
    """The conditions under which a rule decides about the cap, the budget or the steering."""

    when: When
    min_subflows: int  # of active subflows
    min_paths: int  # of paths with active subflows
    anticipate: bool  # whether expected subflows count, too

    def unmet(self, situation: Situation, local: datetime, from_clients: bool) -> dict[Unmet, str]:
        """Return texts on the conditions that do not hold at *local* time. *from_clients*: ``clients`` is met."""
        reasons: dict[Unmet, str] = {}
        anticipated = situation.expected - situation.paths if self.anticipate else 0
        maximum = self.when.max_subflows
        if situation.subflows + anticipated < self.min_subflows:
            reasons["counts"] = f"only {counted(situation.subflows, 'active subflow')} (needs {self.min_subflows})"
        elif maximum is not None and situation.subflows > maximum:
            reasons["counts"] = f"{situation.subflows} active subflows (at most {maximum})"
        elif situation.paths + anticipated < self.min_paths:
            paths = "one path" if situation.paths == 1 else f"{situation.paths} paths"
            reasons["counts"] = f"{situation.subflows} active subflows on {paths} (needs {self.min_paths})"
        if not from_clients:
            reasons["clients"] = "no active subflow comes from its clients"
        if self.when.windows is not None and not is_open(self.when.windows, local):
            reasons["hours"] = "outside its hours"
        return reasons

    def covers(self, other: Conditions) -> bool:
        """Return whether these conditions hold whenever the *other* conditions hold."""
        own, others = self.when, other.when
        return (
            self.min_subflows <= other.min_subflows
            and self.min_paths <= other.min_paths
            and (own.max_subflows or inf) >= (others.max_subflows or inf)
            and (own.clients is None or (others.clients is not None and all(map(own.prefixes.has, others.clients))))
            and (own.windows is None or own.windows == others.windows)
        )

    def exclude(self, other: Conditions) -> bool:
        """Return whether these and the *other* conditions never hold at the same time."""
        own, others = self.when, other.when
        maximum = min(own.max_subflows or inf, others.max_subflows or inf)
        return maximum < max(self.min_subflows, other.min_subflows) or (
            own.windows is not None and others.windows is not None and not may_coincide(own.windows, others.windows)
        )

    def hold_always(self, expected: int) -> bool:
        """Return whether the conditions hold for every connection on *expected* paths during the hours."""
        counts = self.min_paths <= expected and self.min_subflows <= expected and self.when.max_subflows is None
        return counts and self.when.clients is None


class When(Section):
    """When the rule applies. All conditions must hold."""

    min_paths: Annotated[int | None, between(1, MAX_SUBFLOWS)] = Field(default=None, examples=[2])
    """Minimum number of paths with active subflows, backups included. Default: 2; 1 for budgets and `none`, and with
    `always`, `min_subflows` or `max_subflows: 1`."""
    min_subflows: Annotated[int | None, between(1, MAX_SUBFLOWS)] = Field(default=None, examples=[3])
    """Minimum number of active subflows, on any paths. Default: 1."""
    max_subflows: Annotated[int | None, between(1, MAX_SUBFLOWS)] = Field(default=None, examples=[4])
    """Maximum number of active subflows. Default: any."""
    days: list[Days] | None = Field(default=None, min_length=1, examples=[["mon-fri", "sun"]])
    """Days and ranges of days: `mon`, `mon-fri`, `sat-mon`. Default: every day."""
    hours: list[Hours] | None = Field(default=None, min_length=1, examples=[["08:00-18:00", "22:00-02:00"]])
    """Ranges `HH:MM-HH:MM`; the end is not included, and may be `24:00`. A range past midnight belongs to the day on
    which it begins. Default: the whole day."""
    clients: list[Prefix] | None = Field(default=None, min_length=1, examples=[["10.0.0.0/8"]])
    """Prefixes or addresses; one active subflow of the connection from them is enough. Default: any client."""

    @field_validator("max_subflows")
    @classmethod
    def _check_max_subflows(cls, maximum: int, info: ValidationInfo) -> int:
        for key in ("min_paths", "min_subflows"):
            minimum = info.data.get(key)
            if minimum is not None and maximum < minimum:
                raise ValueError(f"{maximum} is below {key}, which is {minimum}")
        return maximum

    def words(self, zone: tzinfo) -> Iterator[str]:
        """Yield the conditions in words, without keys that the policy omits. *zone*: the policy's time zone."""
        if self.min_subflows is not None:
            yield f"at least {counted(self.min_subflows, 'active subflow')}"
        if self.max_subflows is not None:
            yield f"at most {counted(self.max_subflows, 'active subflow')}"
        if self.min_paths is not None:
            yield f"active subflows on at least {counted(self.min_paths, 'path')}"
        if self.clients is not None:
            yield clients_text(self.clients)
        if self.windows is not None:
            yield f"{hours_text(self.windows)} ({zone})"

    @cached_property
    def prefixes(self) -> Prefixes[bool]:
        return Prefixes((each, True) for each in self.clients or ())

    @cached_property
    def windows(self) -> list[Window] | None:
        """The hours; None means always."""
        if self.days is None and self.hours is None:
            return None
        days = EVERY_DAY if self.days is None else frozenset[int]().union(*self.days)
        return [Window(days, start, end) for start, end in self.hours or [(MIDNIGHT, MIDNIGHT)]]


def clients_text(prefixes: list[Network]) -> str:
    """Return ``clients 10.0.0.0/8, fd77::/16 and 3 more``."""
    shown = ", ".join(str(each) for each in prefixes[:MAX_PREFIXES])
    omitted = len(prefixes) - MAX_PREFIXES
    return f"clients {shown}{f' and {omitted} more' if omitted > 0 else ''}"
