# SPDX-License-Identifier: GPL-2.0-or-later
"""Types of single policy values, with parser and JSON Schema (more in ``mptcp_common.fields``); and prefix maps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import time
from decimal import Decimal
from ipaddress import IPv4Network, IPv6Network, ip_interface, ip_network
from typing import Annotated, Any, Final, Generic, TypeVar
from zoneinfo import ZoneInfo, available_timezones

from pydantic import BeforeValidator

from mptcp_common.fields import Parsed
from mptcp_common.problems import did_you_mean, shown
from mptcp_common.units import (
    MAX_RATE,
    MAX_SIZE,
    MIN_RATE,
    RATE_PATTERN,
    SIZE_PATTERN,
    parse_rate,
    parse_size,
    size_guess,
)
from mptcp_throttler.policy.schedule import DAYS, DAYS_PATTERN, HOURS_PATTERN, parse_days, parse_hours

Network = IPv4Network | IPv6Network
T = TypeVar("T")
MIN_BURST: Final = 1600  # bytes: one full-size Ethernet packet with its headers
VOLUME_UNITS: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30}
VOLUME_PATTERN: Final = rf"^[0-9]+(?:\.[0-9]+)? *(?:{'|'.join(VOLUME_UNITS)})$"
MAX_VOLUME: Final = 10**18  # bytes: far more than a link carries, and small enough for all tools
_VOLUME: Final = re.compile(rf"([0-9]+(?:\.[0-9]+)?) *({'|'.join(VOLUME_UNITS)})", re.ASCII)
_VOLUME_LIKE: Final = re.compile("[0-9.]+ *[kmgt]b", re.IGNORECASE)
_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)


def parse_prefix(value: object) -> Network:
    """Return an IPv4 or IPv6 prefix; a single address is a prefix of full length. Raises ValueError."""
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    advice = 'write an address or a prefix (e.g. "10.77.1.0/24" or "fd77:1::/64")'
    if not isinstance(value, str) or "%" in value:
        raise ValueError(f"{shown(value)} is not a prefix; {advice}")
    try:
        network = ip_network(value)
    except ValueError:
        try:
            interface = ip_interface(value)
        except ValueError:
            raise ValueError(f"{shown(value)} is not a prefix; {advice}") from None
        raise ValueError(
            f"{shown(value)} has bits set after its prefix; "
            f'write "{interface.network}" for the network or "{interface.ip}" for the single address'
        ) from None
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if mapped is not None and network.prefixlen >= 96:
        plain = ip_network((mapped, network.prefixlen - 96))
        raise ValueError(f'{shown(value)} is an IPv4 prefix in IPv6 form; write "{plain}"')
    return network


def parse_time_zone(value: object) -> ZoneInfo:
    """Return a zone of the IANA time zone database. Raises ValueError."""
    hint = ""
    try:
        if isinstance(value, str | ZoneInfo):
            return ZoneInfo(value) if isinstance(value, str) else value
    # ZoneInfo opens a file of that name; OSError: for example, it is a directory.
    except (KeyError, ValueError, OSError):
        hint = did_you_mean(str(value), sorted(available_timezones()))
    raise ValueError(
        f"{shown(value)} is not a time zone{hint}; write Region/City as in the IANA database "
        '(e.g. "Europe/Athens"), or UTC'
    )


def parse_volume(value: object) -> int:
    """Return the bytes of a whole number, or of text with a unit. Raises ValueError."""
    if type(value) is int and value >= 0:
        exact: Decimal | None = Decimal(value)
    else:
        match = _VOLUME.fullmatch(value.strip()) if isinstance(value, str) else None
        exact = None if match is None else Decimal(match[1]) * VOLUME_UNITS[match[2]]
    if exact is None or exact != exact.to_integral_value():
        raise ValueError(
            f"{shown(value)} is not a volume{size_guess(value, VOLUME_UNITS)}; write a number and "
            f'{", ".join(VOLUME_UNITS)}, as in "5 GB"'
        )
    if exact > MAX_VOLUME:
        raise ValueError(f"{shown(value)} is out of range; at most {MAX_VOLUME // VOLUME_UNITS['TB']} TB is allowed")
    return int(exact)


def volume_as_budget(value: str) -> str | None:
    """Return the advice for a volume (``20 GB``) in place of a budget; None if *value* is not a volume."""
    if _VOLUME_LIKE.fullmatch(value.strip()) is None:
        return None
    steps = f"[{{after: {value.strip().upper()}, throttle: {{rate: 512 kbit/s}}}}]"
    return f"{shown(value)} is a volume; write also its period and its steps: {{period: month, steps: {steps}}}"


def _parse_reset_time(value: object) -> time:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f'{shown(value)} is not a time of day; write HH:MM, as in "03:00", in quotes')
    return time(int(match[1]), int(match[2]))


def _parse_reset_day(value: object) -> int | str:
    if (type(value) is int and 1 <= value <= 31) or (isinstance(value, str) and value in DAYS):
        return value
    raise ValueError(f"{shown(value)} is not a day; write 1 to 31 for a month, {', '.join(DAYS)} for a week")


def _text_or_integer(pattern: str, **number: int) -> dict[str, Any]:
    return {"anyOf": [{"type": "string", "pattern": pattern}, {"type": "integer", **number}]}


Prefix = Annotated[Network, Parsed(parse_prefix, {"type": "string"})]
Zone = Annotated[ZoneInfo, Parsed(parse_time_zone, {"type": "string"})]
Days = Annotated[frozenset[int], Parsed(parse_days, {"type": "string", "pattern": DAYS_PATTERN})]
Hours = Annotated[tuple[time, time], Parsed(parse_hours, {"type": "string", "pattern": HOURS_PATTERN})]
Rate = Annotated[int, Parsed(parse_rate, _text_or_integer(RATE_PATTERN, minimum=MIN_RATE, maximum=MAX_RATE))]
"""Bits per second."""
Burst = Annotated[
    int,
    Parsed(
        lambda value: parse_size(value, MIN_BURST),
        _text_or_integer(SIZE_PATTERN, minimum=MIN_BURST, maximum=MAX_SIZE),
    ),
]
"""Bytes."""
Volume = Annotated[int, Parsed(parse_volume, _text_or_integer(VOLUME_PATTERN))]  # bytes
ResetTime = Annotated[time, Parsed(_parse_reset_time, {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"})]
ResetDay = Annotated[
    int, Parsed(_parse_reset_day, {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 31}, {"enum": list(DAYS)}]})
]


def none_or(key: str, parse: Callable[[object], object]) -> BeforeValidator:
    """Return a validator that converts ``none`` into None; other values must be mappings with at least *key*. *parse*
    raises ValueError for an invalid value of *key*. ``null`` does not occur: a parsed document has NOTHING instead."""

    def convert_none(value: object) -> object:
        if isinstance(value, str):
            if value == "none":
                return None
            try:
                parse(value)
            except ValueError:
                raise ValueError(
                    f'{shown(value)} is not allowed; write none, or a mapping with at least "{key}"'
                ) from None
            raise ValueError(f"{shown(value)} is not allowed; write {{{key}: {value}}}, with the other required keys")
        return value

    return BeforeValidator(convert_none)


def allow_also(*schemas: dict[str, Any]) -> Any:
    """Return the schema extension that allows one of *schemas* in place of a section."""

    def extend(schema: dict[str, Any]) -> None:
        schema["anyOf"] = [*schemas, {"$ref": schema.pop("$ref")}]

    return extend


class Prefixes(Generic[T]):
    """Longest-prefix map with one hash lookup per prefix length: ten thousand prefixes have only a few lengths. The
    first value of a repeated prefix counts."""

    __slots__ = ("_by_version",)

    def __init__(self, items: Iterable[tuple[Network, T]]) -> None:
        by_version: dict[int, dict[int, dict[int, T]]] = {4: {}, 6: {}}
        for network, value in items:
            shift = network.max_prefixlen - network.prefixlen
            values = by_version[network.version].setdefault(shift, {})
            values.setdefault(int(network.network_address) >> shift, value)
        self._by_version = {version: tuple(sorted(by_shift.items())) for version, by_shift in by_version.items()}
        """By IP version: pairs of a shift (the number of host bits), and the values by shifted network address."""

    def contains(self, address: bytes) -> bool:
        """Return whether any prefix contains the packed *address*. An IPv6 prefix contains no IPv4 address."""
        return any(True for _ in self.values_of(address))

    def values_of(self, address: bytes) -> Iterator[T]:
        """Return the values of the prefixes that contain the packed *address*, the longest first."""
        return self._values_around(4 if len(address) == 4 else 6, int.from_bytes(address, "big"))

    def values_around(self, network: Network) -> Iterator[T]:
        """Return the values of the prefixes that contain all of *network*, the longest first."""
        min_shift = network.max_prefixlen - network.prefixlen
        return self._values_around(network.version, int(network.network_address), min_shift)

    def has(self, network: Network) -> bool:
        """Return whether a prefix contains all of *network*."""
        return any(True for _ in self.values_around(network))

    def _values_around(self, version: int, number: int, min_shift: int = 0) -> Iterator[T]:
        for shift, values in self._by_version[version]:
            if shift >= min_shift and number >> shift in values:
                yield values[number >> shift]
