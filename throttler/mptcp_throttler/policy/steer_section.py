"""The section ``steer`` of a rule: a mode and what it needs. The modes are those of 3GPP ATSSS, TS 23.501, 5.32.8.

Which keys a mode needs is checked here; that the paths exist, by ``load``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Self

from pydantic import ConfigDict, Field, model_validator

from mptcp_common.fields import Name, Parsed, Section, between, either, one_of
from mptcp_common.problems import KeyPath
from mptcp_throttler.policy.model import Mode, Steer
from mptcp_throttler.policy.throttle_section import none_or

ALIASES: Final = {"waterfall": Mode.PRIORITY_BASED}
"""What operators call the modes of 3GPP."""
_BY_NAME: Final = {mode.value: mode for mode in Mode} | ALIASES
MODES: Final = tuple(_BY_NAME)
MOST_WEIGHT: Final = 1000
_KEYS: Final[dict[Mode, tuple[str, ...]]] = {
    Mode.ACTIVE_STANDBY: ("active", "standby"),
    Mode.PRIORITY_BASED: ("order",),
    Mode.LOAD_BALANCING: ("weights",),
    Mode.SMALLEST_DELAY: (),
}
_mode = one_of(*MODES)


def _parse_mode(value: object) -> object:
    if value == "redundant":
        raise ValueError(
            "redundant is not possible: Linux's MPTCP scheduler sends data on one subflow and cannot "
            f"duplicate them on another; write {either(MODES)}"
        )
    return _mode.parse(value)


class SteerSection(Section):
    """A steering mode and the paths that it steers among."""

    mode: Annotated[str, Parsed(_parse_mode, {"enum": list(MODES)})] = Field(
        description="active-standby: the standby path is used while the active one is unusable; waterfall, which 3GPP "
        "calls priority-based: a path is used while those before it are full or gone; load-balancing: bytes are shared "
        "by weight; smallest-delay: the kernel's own scheduler, without interference.",
        examples=["active-standby"],
    )
    active: Name | None = Field(
        default=None, description="With active-standby: the path that is used.", examples=["wifi"]
    )
    standby: Name | None = Field(
        default=None, description="With active-standby: the path in reserve.", examples=["lte"]
    )
    order: list[Name] | None = Field(
        default=None,
        min_length=2,
        description="With waterfall (priority-based): paths, the cheapest or most preferred first.",
        examples=[["wifi", "lte"]],
    )
    weights: dict[Name, Annotated[int, between(1, MOST_WEIGHT)]] | None = Field(
        default=None,
        description="With load-balancing: each path's share of the bytes; they need not add up to 100.",
        examples=[{"ethernet": 70, "wifi": 30}],
        json_schema_extra={"additionalProperties": {"type": "integer", "minimum": 1, "maximum": MOST_WEIGHT}},
    )

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                {"if": {"properties": {"mode": {"const": name}}}, "then": {"required": list(_KEYS[mode])}}
                for name, mode in _BY_NAME.items()
                if _KEYS[mode]
            ]
        }
    )

    @model_validator(mode="after")
    def _has_what_its_mode_needs(self) -> Self:
        needed = _KEYS[_BY_NAME[self.mode]]
        given = self.model_fields_set - {"mode"}
        missing = [key for key in needed if key not in given]
        foreign = [key for key in type(self).model_fields if key in given and key not in needed]
        if missing:
            raise ValueError(f"mode {self.mode} needs {' and '.join(missing)}")
        if foreign:
            raise ValueError(f"mode {self.mode} has no {' and no '.join(foreign)}")
        named = list(_names(self))
        if len(set(named)) < len(named):
            raise ValueError(f"a path is named twice in {', '.join(named)}")
        if self.weights is not None and len(self.weights) < 2:
            raise ValueError("weights has one path only; there is nothing to balance")
        return self


SteerOrNone = Annotated[SteerSection | None, none_or("mode")]


def steer_of(section: SteerSection) -> Steer:
    """Return the checked *section* as the policy has it."""
    weights = tuple((section.weights or {}).values())
    alias = section.mode if section.mode in ALIASES else None
    return Steer(_BY_NAME[section.mode], tuple(_names(section)), weights, alias)


def _names(section: SteerSection) -> Iterator[str]:
    yield from filter(None, (section.active, section.standby))
    yield from section.order or ()
    yield from section.weights or ()


def named_paths(rule: dict[str, Any]) -> Iterator[tuple[KeyPath, object]]:
    """Yield key and name of each path in the unchecked *rule*'s ``steer``."""
    steer = rule.get("steer")
    if not isinstance(steer, dict):
        return
    for key in ("active", "standby"):
        yield ("steer", key), steer.get(key)
    order, weights = steer.get("order"), steer.get("weights")
    for place, name in enumerate(order if isinstance(order, list) else []):
        yield ("steer", "order", place), name
    for name in weights if isinstance(weights, dict) else ():
        yield ("steer", "weights", name), name
