"""The conditions of a rule: the section ``when`` and the meaning of its keys. Pure.

To add a condition, add a field to :class:`When` and a subclass of :class:`Condition`. A condition on a subflow derives
from :class:`OfSubflow` and tests a :class:`Subject`.
"""

from __future__ import annotations

from collections.abc import Set
from datetime import datetime, tzinfo
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationInfo, field_validator

from mptcp_common.fields import Section, between
from mptcp_common.units import counted
from mptcp_throttler.policy.schedule import EVERY_DAY, MIDNIGHT, Window, hours_text, is_open, may_coincide
from mptcp_throttler.policy.values import Days, Hours, Network, Prefix, Prefixes

MOST_SUBFLOWS = 255
"""An address identifier has one byte (RFC 8684, 3.2)."""
MOST_PREFIXES = 4
"""Client prefixes named in messages; further ones are counted."""


class Subject(NamedTuple):
    """The properties of a subflow that paths and conditions test."""

    remote: bytes
    interface: str | None
    remote_id: int | None
    initial: bool
    backup: bool


class Seen(NamedTuple):
    """The properties of a connection that conditions test. The counts include expected subflows, ``active*`` do not."""

    active: int
    active_paths: int
    subflows: int
    paths: int
    met: Set[Condition]
    """Subflow conditions that any active subflow meets."""
    local: datetime
    """Local time in the policy's time zone."""


class Condition:
    """One condition of a rule."""

    def holds(self, seen: Seen) -> bool:
        raise NotImplementedError

    def why_not(self, seen: Seen) -> str:
        """Return in words why the condition does not hold."""
        raise NotImplementedError

    def words(self, zone: tzinfo) -> list[str]:
        """Return the condition in words, without keys that the policy leaves out. *zone* is the policy's."""
        raise NotImplementedError

    def covers(self, other: Any) -> bool:
        """Return whether it holds whenever *other* does, another rule's condition of the same class, or None."""
        return bool(other == self)

    def excludes(self, other: Any) -> bool:
        """Return whether it never holds together with *other*, another rule's condition of the same class."""
        del other
        return False

    def is_certain(self, expected: int) -> bool:
        """Return whether it holds for every connection on *expected* paths during the hours."""
        del expected
        return False


class OfSubflow(Condition):
    """A condition that a connection meets if any of its active subflows does."""

    def is_met_by(self, subflow: Subject) -> bool:
        raise NotImplementedError

    def holds(self, seen: Seen) -> bool:
        return self in seen.met


class SubflowCount(Condition):
    """The number of active subflows is within limits."""

    def __init__(self, least: int | None, most: int | None, usual: int) -> None:
        """*usual* is the default of *least*, and its lower bound."""
        self._stated, self.most = least, most
        self.least = max(least or 1, usual)

    def holds(self, seen: Seen) -> bool:
        return self.least <= seen.subflows and (self.most is None or seen.active <= self.most)

    def why_not(self, seen: Seen) -> str:
        if seen.subflows < self.least:
            return f"only {counted(seen.active, 'active subflow')} (needs {self.least})"
        return f"{seen.active} active subflows (at most {self.most})"

    def words(self, zone: tzinfo) -> list[str]:
        del zone
        least = [] if self._stated is None else [f"at least {counted(self._stated, 'active subflow')}"]
        return least + ([] if self.most is None else [f"at most {counted(self.most, 'active subflow')}"])

    def covers(self, other: SubflowCount) -> bool:
        return self.least <= other.least and (self.most is None or (other.most is not None and other.most <= self.most))

    def excludes(self, other: SubflowCount) -> bool:
        least = max(self.least, other.least)
        return any(each.most is not None and each.most < least for each in (self, other))

    def is_certain(self, expected: int) -> bool:
        return self.least <= expected and self.most is None


class PathCount(Condition):
    """There are active subflows on enough paths."""

    def __init__(self, least: int | None, usual: int) -> None:
        self._stated, self.least = least, least or usual

    def holds(self, seen: Seen) -> bool:
        return self.least <= seen.paths

    def why_not(self, seen: Seen) -> str:
        on = "one path" if seen.active_paths == 1 else f"{seen.active_paths} paths"
        return f"{seen.active} active subflows on {on} (needs {self.least})"

    def words(self, zone: tzinfo) -> list[str]:
        del zone
        return [] if self._stated is None else [f"active subflows on at least {counted(self._stated, 'path')}"]

    def covers(self, other: PathCount) -> bool:
        return self.least <= other.least

    def is_certain(self, expected: int) -> bool:
        return self.least <= expected


class FromClients(OfSubflow):
    """The client address is in one of these prefixes."""

    def __init__(self, prefixes: list[Network]) -> None:
        self._prefixes = prefixes
        self._found = Prefixes((each, True) for each in prefixes)

    def is_met_by(self, subflow: Subject) -> bool:
        return self._found.holds(subflow.remote)

    def why_not(self, seen: Seen) -> str:
        del seen
        return "no active subflow comes from its clients"

    def words(self, zone: tzinfo) -> list[str]:
        del zone
        return [clients_text(self._prefixes)]

    def covers(self, other: FromClients | None) -> bool:
        return other is not None and all(any(self._found.around(inner)) for inner in other._prefixes)


class OpenHours(Condition):
    """One of these windows is open."""

    def __init__(self, windows: list[Window]) -> None:
        self.windows = windows

    def holds(self, seen: Seen) -> bool:
        return is_open(self.windows, seen.local)

    def why_not(self, seen: Seen) -> str:
        del seen
        return "outside its hours"

    def words(self, zone: tzinfo) -> list[str]:
        return [f"{hours_text(self.windows)} ({zone})"]

    def covers(self, other: OpenHours | None) -> bool:
        return other is not None and other.windows == self.windows

    def excludes(self, other: OpenHours) -> bool:
        return not may_coincide(self.windows, other.windows)

    def is_certain(self, expected: int) -> bool:
        del expected
        return True


class When(Section):
    """When the rule applies. All conditions must hold."""

    min_paths: Annotated[int | None, between(1, MOST_SUBFLOWS)] = Field(
        default=None,
        description="Minimum number of paths with active subflows, backups included. Default: 2; 1 for budgets and "
        "`none`, and with `always`, `min_subflows` or `max_subflows: 1`.",
        examples=[2],
    )
    min_subflows: Annotated[int | None, between(1, MOST_SUBFLOWS)] = Field(
        default=None,
        description="Minimum number of active subflows, on any paths. Default: 1.",
        examples=[3],
    )
    max_subflows: Annotated[int | None, between(1, MOST_SUBFLOWS)] = Field(
        default=None,
        description="Maximum number of active subflows. Default: any.",
        examples=[4],
    )
    days: list[Days] | None = Field(
        default=None,
        min_length=1,
        description="Days and ranges of days: `mon`, `mon-fri`, `sat-mon`. Default: every day.",
        examples=[["mon-fri", "sun"]],
    )
    hours: list[Hours] | None = Field(
        default=None,
        min_length=1,
        description="Ranges `HH:MM-HH:MM` without their ends; `24:00` is allowed. A range past midnight belongs to "
        "the day on which it begins. Default: the whole day.",
        examples=[["08:00-18:00", "22:00-02:00"]],
    )
    clients: list[Prefix] | None = Field(
        default=None,
        min_length=1,
        description="Prefixes or addresses; one active subflow of the connection from them is enough. Default: any "
        "client.",
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

    def least_paths(self, usual: int) -> int:
        """Return the number of paths that must have active subflows. *usual* is the default."""
        if self.min_paths is not None or self.min_subflows is not None:
            return self.min_paths or 1
        return min(usual, self.max_subflows or usual)

    def conditions(self, usual: int) -> list[Condition]:
        """Return the conditions, in the order in which reasons name them."""
        paths = self.least_paths(usual)
        return [
            SubflowCount(self.min_subflows, self.max_subflows, paths),
            PathCount(self.min_paths, paths),
            *self._others,
        ]

    @cached_property
    def _others(self) -> list[Condition]:
        found: list[Condition] = [] if self.clients is None else [FromClients(self.clients)]
        return found if self.windows is None else [*found, OpenHours(self.windows)]

    @cached_property
    def windows(self) -> list[Window] | None:
        """The hours; None means always."""
        if self.days is None and self.hours is None:
            return None
        days = EVERY_DAY if self.days is None else frozenset[int]().union(*self.days)
        return [Window(days, start, end) for start, end in self.hours or [(MIDNIGHT, MIDNIGHT)]]


def clients_text(prefixes: list[Network]) -> str:
    """Return ``clients 10.0.0.0/8, fd77::/16 and 3 more``."""
    named = ", ".join(str(each) for each in prefixes[:MOST_PREFIXES])
    more = len(prefixes) - MOST_PREFIXES
    return f"clients {named}{f' and {more} more' if more > 0 else ''}"
