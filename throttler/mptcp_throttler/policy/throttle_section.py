"""The section ``throttle`` of a rule, or of a budget's step: a cap, or ``none``."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from mptcp_common.fields import Parsed, Section, one_of
from mptcp_common.problems import shown
from mptcp_common.units import (
    HIGHEST_RATE,
    HIGHEST_SIZE,
    LOWEST_RATE,
    RATE_PATTERN,
    SIZE_PATTERN,
    format_rate,
    format_size,
    parse_rate,
    parse_size,
)
from mptcp_throttler.policy.model import Onset, Share, Throttle

LOWEST_BURST: Final = 1600
"""Bytes: one full-sized Ethernet packet with its headers."""
LONGEST_BURST: Final = 60
"""Seconds at the cap's rate."""


def none_or(key: str) -> BeforeValidator:
    """Let ``none`` through as None; else it is a mapping, which needs at least *key*. ``null`` cannot come here: the
    document has NOTHING in its place."""

    def exempt(value: object) -> object:
        if isinstance(value, str):
            if value == "none":
                return None
            raise ValueError(f'{shown(value)} is not allowed; write none, or a mapping with at least "{key}"')
        return value

    return BeforeValidator(exempt)


def also_none(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"const": "none"}, {"$ref": schema.pop("$ref")}]


def _burst(value: object) -> int:
    return parse_size(value, LOWEST_BURST)


Rate = Annotated[
    int,
    Parsed(
        parse_rate,
        {
            "anyOf": [
                {"type": "string", "pattern": RATE_PATTERN},
                {"type": "integer", "minimum": LOWEST_RATE, "maximum": HIGHEST_RATE},
            ]
        },
    ),
]
Burst = Annotated[
    int,
    Parsed(
        _burst,
        {
            "anyOf": [
                {"type": "string", "pattern": SIZE_PATTERN},
                {"type": "integer", "minimum": LOWEST_BURST, "maximum": HIGHEST_SIZE},
            ]
        },
    ),
]


class ThrottleSection(Section):
    """The cap: an HTB class (tc-htb(8))."""

    rate: Rate = Field(
        description="What the capped subflows may send together: a number and bit/s, kbit/s, Mbit/s or "
        "Gbit/s. A plain number is bits per second.",
        examples=["5 Mbit/s", "512kbit"],
    )
    ceil: Rate | None = Field(
        default=None,
        description="What they may send together while the link has room to spare. Default: the rate.",
        examples=["8 Mbit/s"],
    )
    burst: Burst | None = Field(
        default=None,
        description="How much may pass at once at full speed: a number and B, KB, MB, KiB or MiB. "
        "Default: chosen from the rate.",
        examples=["15 KB"],
    )
    share: Annotated[str, one_of(*(share.value for share in Share))] = Field(
        default=Share.PATH.value,
        description="Among whom one cap is shared. path: all subflows the rule catches; client: a cap for "
        "each client address; connection: a cap for each connection.",
        examples=["client"],
    )
    landing: Annotated[str, one_of(*(kind.value for kind in Onset))] = Field(
        default=Onset.SOFT.value,
        description="How the cap falls on a subflow that is sending. soft: in steps, within a second, so that the "
        "connection's other paths go on; at-once: at once, which stalls them for seconds.",
        examples=["at-once"],
    )

    @field_validator("ceil")
    @classmethod
    def _is_no_floor(cls, ceil: int, info: ValidationInfo) -> int:
        rate = info.data.get("rate")
        if rate is not None and ceil < rate:
            raise ValueError(
                f"{format_rate(ceil)} is below the rate, {format_rate(rate)}; write the rate or more, or leave ceil out"
            )
        return ceil

    @field_validator("burst")
    @classmethod
    def _passes_in_time(cls, burst: int, info: ValidationInfo) -> int:
        rate = info.data.get("rate")
        if rate is not None and burst > (most := rate * LONGEST_BURST // 8):
            raise ValueError(
                f"{format_size(burst)} takes more than {LONGEST_BURST} seconds at {format_rate(rate)}; "
                f"write {format_size(most)} or less"
            )
        return burst


ThrottleOrNone = Annotated[ThrottleSection | None, none_or("rate")]


def throttle_of(section: ThrottleSection) -> Throttle:
    """Return the checked *section* as the policy has it."""
    return Throttle(
        section.rate,
        section.rate if section.ceil is None else section.ceil,
        section.burst,
        Share(section.share),
        Onset(section.landing),
    )
