"""A budget: a volume for each period, and what holds when it is used up. It stands in a rule, or under ``budgets``
with a name by which several rules feed it."""

from __future__ import annotations

import re
from datetime import time
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Any, Final, Self

from pydantic import Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from mptcp_common.fields import NAME_PATTERN, Parsed, Section, one_of, parse_name
from mptcp_common.problems import shown
from mptcp_throttler.policy.fields import DIRECTIONS
from mptcp_throttler.policy.model import Budget, BudgetStep, Period
from mptcp_throttler.policy.schedule import DAYS
from mptcp_throttler.policy.throttle_section import ThrottleOrNone, also_none, throttle_of

VOLUME_UNITS: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30}
VOLUME_PATTERN: Final = rf"^[0-9]+(?:\.[0-9]+)? *(?:{'|'.join(VOLUME_UNITS)})$"
HIGHEST_VOLUME: Final = 10**18
"""Bytes: far more than a link carries, and what everybody can still print, plot and store."""
_VOLUME: Final = re.compile(rf"([0-9]+(?:\.[0-9]+)?) *({'|'.join(VOLUME_UNITS)})", re.ASCII)
_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)


def parse_volume(value: object) -> int:
    """Return a volume in bytes: a whole number, or text with a unit."""
    if type(value) is int and value >= 0:
        exact: Decimal | None = Decimal(value)
    else:
        found = _VOLUME.fullmatch(value.strip()) if isinstance(value, str) else None
        exact = None if found is None else Decimal(found[1]) * VOLUME_UNITS[found[2]]
    if exact is None or exact != exact.to_integral_value():
        raise ValueError(f'{shown(value)} is not a volume; write a number and {", ".join(VOLUME_UNITS)}, as in "5 GB"')
    if exact > HIGHEST_VOLUME:
        raise ValueError(
            f"{shown(value)} is out of range; at most {HIGHEST_VOLUME // VOLUME_UNITS['TB']} TB is allowed"
        )
    return int(exact)


def _reset_time(value: object) -> time:
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f'{shown(value)} is not a time of day; write HH:MM, as in "03:00", in quotes')
    return time(int(found[1]), int(found[2]))


def _reset_day(value: object) -> int | str:
    if (type(value) is int and 1 <= value <= 31) or (isinstance(value, str) and value in DAYS):
        return value
    raise ValueError(f"{shown(value)} is not a day; write 1 to 31 for a month, {', '.join(DAYS)} for a week")


Volume = Annotated[
    int, Parsed(parse_volume, {"anyOf": [{"type": "string", "pattern": VOLUME_PATTERN}, {"type": "integer"}]})
]


class StepSection(Section):
    """What holds once that much is used up."""

    after: Volume = Field(description="From this volume on.", examples=["5 GB", 0])
    throttle: ThrottleOrNone = Field(
        description="The cap, as a rule's, or none.",
        examples=[{"rate": "512 kbit/s"}, "none"],
        json_schema_extra=also_none,
    )


class BudgetSection(Section):
    """A volume for each period. While it is not used up nothing is capped; then the last step reached holds."""

    period: Annotated[str, one_of(*(each.value for each in Period))] = Field(
        description="After what the volume begins anew, in the policy's time zone.", examples=["month"]
    )
    reset_day: Annotated[
        int | str | None,
        Parsed(_reset_day, {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 31}, {"enum": list(DAYS)}]}),
    ] = Field(
        default=None,
        description="The day on which it does: of a month 1 to 31, default 1, the last one of a month without that "
        "day; of a week mon to sun, default mon.",
        examples=[15],
    )
    reset_time: Annotated[
        time, Parsed(_reset_time, {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"})
    ] = Field(
        default=time(0),
        description="The time of day at which it does. Default: 00:00.",
        examples=["03:00"],
        json_schema_extra={"default": "00:00"},
    )
    count: Annotated[str, one_of(*DIRECTIONS)] = Field(
        default="both", description="Which bytes count: down, to the client; up, from it; both.", examples=["down"]
    )
    per: Annotated[str, one_of("client", "path")] = Field(
        default="client",
        description="Whose volume it is. client: each client address has its own; path: all that its rules catch have "
        "one together.",
        examples=["path"],
    )
    steps: list[StepSection] = Field(
        min_length=1,
        description="From which volume on what holds, ascending.",
        examples=[[{"after": "5 GB", "throttle": {"rate": "512 kbit/s"}}]],
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        volumes = [step.after for step in self.steps]
        if any(after <= before for before, after in pairwise(volumes)):
            raise ValueError("the volumes of the steps must ascend")
        named = isinstance(self.reset_day, str)
        if self.reset_day is not None and (self.period == "day" or named != (self.period == "week")):
            what = {"day": "has no reset_day", "week": "needs mon to sun", "month": "needs 1 to 31"}[self.period]
            raise ValueError(f"reset_day: the period {self.period} {what}")
        return self


class _NoneOrName:
    """Annotation for what a rule says of its budget: ``none`` (None), a name (text), or the budget itself."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        section = handler.generate_schema(BudgetSection)
        return core_schema.no_info_wrap_validator_function(self._read, section)

    @staticmethod
    def _read(value: object, section: core_schema.ValidatorFunctionWrapHandler) -> object:
        if isinstance(value, str):
            return None if value == NO_BUDGET else parse_name(value)
        return section(value)


NO_BUDGET: Final = "none"
BudgetOrName = Annotated[BudgetSection | str | None, _NoneOrName()]


def also_name(schema: dict[str, Any]) -> None:
    """Describe to editors what :data:`BudgetOrName` takes."""
    words = [{"const": NO_BUDGET}, {"type": "string", "pattern": NAME_PATTERN}]
    schema["anyOf"] = [*words, {"$ref": schema.pop("$ref")}]


def budget_of(name: str, own_name: bool, given: BudgetSection) -> Budget:
    """Return the checked section *given* as the policy has it."""
    day = given.reset_day
    return Budget(
        name=name,
        own_name=own_name,
        period=Period(given.period),
        reset_day=DAYS.index(day) if isinstance(day, str) else day or (0 if given.period == "week" else 1),
        reset_time=given.reset_time,
        counted=DIRECTIONS[given.count],
        per_client=given.per == "client",
        steps=tuple(
            BudgetStep(step.after, None if step.throttle is None else throttle_of(step.throttle))
            for step in given.steps
        ),
    )
