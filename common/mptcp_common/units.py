# SPDX-License-Identifier: GPL-2.0-or-later
"""Converts rates and sizes with units, such as ``5 Mbit/s``, to and from bits per second and bytes.

Rates: a number and ``bit/s``, ``kbit/s``, ``Mbit/s`` or ``Gbit/s``; powers of 1000. Letter case and ``/s`` do not
matter, so tc(8)'s ``5mbit`` and ``512kbit`` keep their meaning. A plain whole number is bits per second. ``Mbps`` is
refused, because tc(8) reads it as bytes, but most people as bits.

Sizes: a number and ``B``, ``kB`` or ``KB`` (1000), ``MB`` (1000²), ``KiB`` (1024) or ``MiB`` (1024²). Letter case
matters, so that ``kb`` cannot mean bits. A plain whole number is bytes.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal
from typing import Final

from mptcp_common.problems import shown

MIN_RATE: Final = 8_000
"""Minimum rate, bits/s. At a lower rate, one full-sized packet occupies the class for longer than TCP's first
retransmission timeouts."""
MAX_RATE: Final = 1_000_000_000_000
MAX_SIZE: Final = 64 * 1024 * 1024

_RATE_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_SIZE_UNITS: Final = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "KiB": 1024, "MiB": 1024**2}

_NUMBER: Final = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"
RATE_PATTERN: Final = rf"^{_NUMBER} *[kKmMgG]?[bB][iI][tT](?:/[sS])?$"
"""A pattern for editors; :func:`parse_rate` decides what is valid."""
SIZE_PATTERN: Final = rf"^{_NUMBER} *(?:{'|'.join(_SIZE_UNITS)})$"
"""A pattern for editors; :func:`parse_size` decides what is valid."""

_RATE = re.compile(rf"([-+]?{_NUMBER}) *([kmg]?)bit(?:/s)?", re.ASCII | re.IGNORECASE)
_SIZE = re.compile(rf"([-+]?{_NUMBER}) *({'|'.join(_SIZE_UNITS)})", re.ASCII)

_LIKE_A_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([kKmMgG]?)(bits?|b|B)?(p?s|/s(?:ec)?)?", re.ASCII)
_LIKE_A_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([kmgt]?i?)(?:b|bytes?)?", re.ASCII | re.IGNORECASE)

_RATE_ADVICE: Final = 'write a number and one of bit/s, kbit/s, Mbit/s, Gbit/s (e.g. "5 Mbit/s")'
_SIZE_ADVICE: Final = 'write a number and one of B, KB, MB, KiB, MiB (e.g. "15 KB")'


def parse_rate(value: object) -> int:
    """Return *value*, a whole number or text with a unit, in bit/s. Raises ValueError with the allowed values."""
    if type(value) is int:
        exact = Decimal(value)
    else:
        found = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"{shown(value)} is not a rate{_rate_guess(value)}; {_RATE_ADVICE}")
        exact = Decimal(found[1]) * _RATE_UNITS[found[2].lower()]
    if not MIN_RATE <= exact <= MAX_RATE:
        is_without_unit = type(value) is int and 0 < value < MIN_RATE
        guess = f"; without a unit a number is bits per second{_rate_guess(str(value))}" if is_without_unit else ""
        raise ValueError(
            f"{shown(value)} is out of range; a rate is from {format_rate(MIN_RATE)} to {format_rate(MAX_RATE)}{guess}"
        )
    return _whole_number(exact, value, "bits per second")


def parse_size(value: object, lowest: int = 1, highest: int = MAX_SIZE) -> int:
    """Return *value*, a whole number or text with a unit, in bytes. Raises ValueError with the allowed values."""
    if type(value) is int:
        exact = Decimal(value)
    else:
        found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"{shown(value)} is not a size{size_guess(value, _SIZE_UNITS)}; {_SIZE_ADVICE}")
        exact = Decimal(found[1]) * _SIZE_UNITS[found[2]]
    if not lowest <= exact <= highest:
        raise ValueError(
            f"{shown(value)} is out of range; from {format_size(lowest)} to {format_size(highest)} is allowed"
        )
    return _whole_number(exact, value, "bytes")


def format_rate(bits_per_second: int) -> str:
    """Return the exact rate, with at most three decimals, for example ``1.5 Mbit/s``, so that :func:`parse_rate`
    returns the same rate."""
    for factor, unit in ((10**9, "Gbit/s"), (10**6, "Mbit/s"), (10**3, "kbit/s")):
        if bits_per_second >= factor and bits_per_second * 1000 % factor == 0:
            return f"{_without_trailing_zeros(Decimal(bits_per_second) / factor)} {unit}"
    return f"{bits_per_second} bit/s"


def format_size(size: int) -> str:
    """Return the exact size: ``64 KiB``, or ``15 KB`` if powers of 1024 would need decimals."""
    for factor, unit, precision in (
        (1024**2, "MiB", 1),
        (10**6, "MB", 1000),
        (1024, "KiB", 1),
        (10**3, "KB", 1000),
    ):
        if size >= factor and size * precision % factor == 0:
            return f"{_without_trailing_zeros(Decimal(size) / factor)} {unit}"
    return f"{size} B"


def approximate_size(size: float) -> str:
    """Return a measured number of bytes to three digits: ``12.7 MB``."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if size >= factor * 0.9995:
            return f"{_three_digits(size / factor)} {unit}"
    return f"{size:.0f} B"


def _rate_guess(value: object) -> str:
    """Return ``(did you mean "5 Mbit/s"?)`` for text that resembles a rate, with the reason if that is known."""
    found = _LIKE_A_RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return ""
    number, prefix, bits, per_second = Decimal(found[1]), found[2].lower(), found[3], found[4]
    ambiguous = bits is not None and len(bits) == 1 and per_second == "ps"
    if bits == "B" and not ambiguous:
        number *= 8
    if not prefix and bits is None:
        prefix = "m" if number < 1000 else "k"
    if not MIN_RATE <= number * _RATE_UNITS[prefix] <= MAX_RATE:
        return ""
    why = f': "{bits}ps" is bytes to tc(8) and bits to most people' if ambiguous else ""
    return (
        f'{why} (did you mean "{_without_trailing_zeros(number)} {prefix if prefix == "k" else prefix.upper()}bit/s"?)'
    )


def size_guess(value: object, units: Collection[str]) -> str:
    """Return ``(did you mean "20 GB"?)`` for text that resembles a size in one of *units*."""
    found = _LIKE_A_SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    unit_text = "" if found is None else f"{found[2]}b".lower()
    unit = next((each for each in units if each.lower() == unit_text and each != "kB"), None)
    return "" if found is None or unit is None else f' (did you mean "{found[1]} {unit}"?)'


def _whole_number(exact: Decimal, value: object, unit: str) -> int:
    if exact != exact.to_integral_value():
        raise ValueError(f"{shown(value)} is not a whole number of {unit}")
    return int(exact)


def _without_trailing_zeros(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _three_digits(number: float) -> str:
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{decimals}f}"


def counted(number: int, noun: str) -> str:
    """Return ``1 rule``, ``2 rules``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
