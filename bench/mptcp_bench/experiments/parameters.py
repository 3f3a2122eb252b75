# SPDX-License-Identifier: GPL-2.0-or-later
"""Parameters of an experiment: a frozen dataclass, each field of which is one option of ``--set NAME=VALUE``. Pure.

:func:`parameter` creates a field from its meaning, its usual value as text, and its parser, which also parses the usual
value. :func:`settings` parses the given options into the dataclass. A parser takes a text and returns the value, or
raises ValueError with the allowed values. OptionError contains this text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

MAX_RTT = 20_000
"""Maximum RTT in milliseconds, because an emulated path delays by at most 10 s each way."""
T = TypeVar("T")
S = TypeVar("S")
Parser = Callable[[str], T]
_PARAMETER = "parameter"


class OptionError(Exception):
    """An invalid option. The message names option, value and allowed values in one line."""


def given(settings: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the values of *settings*, each ``NAME=VALUE``, by name. *known* has the meanings of the known names.

    Raises OptionError for an unknown or repeated name.
    """
    found: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if name not in known:
            can = "; ".join(f"{each} ({what})" for each, what in known.items()) or "nothing"
            raise OptionError(f"--set {setting}: unknown; it can set {can}")
        if not equals:
            raise OptionError(f"--set {setting}: write {name}=VALUE; {name} is {known[name]}")
        if name in found:
            raise OptionError(f"--set {setting}: {name} is set twice; where a list is allowed, separate by commas")
        found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class Parameter:
    """Meaning and parser of an option, and its value without ``--set``; None if there is no such value."""

    meaning: str
    usual: str | None
    quick: str | None
    parse: Parser[Any]
    name: str | None = None
    """The name of the option, if it differs from the name of the field."""


def parameter(
    meaning: str, usual: str | None, parse: Parser[T], *, quick: str | None = None, name: str | None = None
) -> T:
    """Return a field for an option. *quick* replaces *usual* with ``--quick``; without both, the value is None."""
    option: T = field(metadata={_PARAMETER: Parameter(meaning, usual, quick, parse, name)})
    return option


def parameters(kind: type) -> dict[str, Parameter]:
    """Return the parameters of the settings class *kind* by their options' names."""
    of_fields = {each.name: each.metadata[_PARAMETER] for each in fields(kind)}
    return {each.name or attribute: each for attribute, each in of_fields.items()}


def meanings(kind: type) -> dict[str, str]:
    """Return the meaning of each option, with its usual value."""
    return {
        name: each.meaning if each.usual is None else f"{each.meaning}, default {each.usual or 'none'}"
        for name, each in parameters(kind).items()
    }


def settings(kind: type[S], options: Mapping[str, str], quick: bool) -> S:
    """Return the settings that *options* choose. Raises OptionError for an invalid value, in one line."""
    values = []
    for name, each in parameters(kind).items():
        usual = each.quick if quick and each.quick is not None else each.usual
        text = options.get(name, usual)
        try:
            values.append(None if text is None else each.parse(text))
        except ValueError as error:
            raise OptionError(f"--set {name}={text}: {error}") from None
    return kind(*values)


def _parser(convert: Callable[[str], T | None], allowed: str) -> Parser[T]:
    """Return a parser from *convert*, which returns None or raises ValueError for a value that is not *allowed*."""

    def parse(text: str) -> T:
        with suppress(ValueError):
            if (value := convert(text)) is not None:
                return value
        raise ValueError(f"allowed {allowed}")

    return parse


def whole(least: int = 1, most: int | None = None) -> Parser[int]:
    """Return a parser of a whole number from *least* to *most*."""

    def convert(text: str) -> int | None:
        # A regular expression, because int() also accepts spaces, signs, underscores and the digits of every script,
        # and fails for thousands of digits.
        number = int(text) if re.fullmatch("[0-9]{1,9}", text) else -1
        return number if least <= number and (most is None or number <= most) else None

    return _parser(convert, f"are whole numbers from {least} {'on' if most is None else f'to {most}'}")


def number(above: float = 0) -> Parser[float]:
    """Return a parser of a finite number greater than *above*."""

    def convert(text: str) -> float | None:
        return value if above < (value := float(text)) < math.inf else None

    return _parser(convert, f"is a number greater than {above:g}")


def _rtts(text: str) -> tuple[float, float] | None:
    first, second = map(float, text.split("/"))
    return (first, second) if 0 <= first <= MAX_RTT and 0 <= second <= MAX_RTT else None


rtt_pair = _parser(_rtts, f"are the RTTs of two paths, such as 20/80, each 0 to {MAX_RTT} ms")
"""Parses two RTTs in milliseconds, one for each path."""
yes_or_no = _parser({"yes": True, "no": False}.get, "are yes and no")


def several(parse_one: Parser[T]) -> Parser[tuple[T, ...]]:
    """Return a parser of a list of different values, separated by commas."""

    def parse(text: str) -> tuple[T, ...]:
        found = []
        words = text.split(",")
        for index, each in enumerate(words):
            if each in words[:index]:
                raise ValueError(f"{each!r} occurs twice")
            try:
                found.append(parse_one(each))
            except ValueError as error:
                raise error if each == text else ValueError(f"{each!r}: {error}") from None
        return tuple(found)

    return parse


def words(*known: str) -> Parser[tuple[str, ...]]:
    """Return a parser of a list of different *known* words."""
    return several(_parser({each: each for each in known}.get, f"are {', '.join(known)}"))


def choices(meaning: str, known: Iterable[str], usual: str = "all", *, quick: str | None = None) -> tuple[str, ...]:
    """Return a field for a list of *known* words, or ``all`` of them."""
    names = tuple(known)
    parse = words(*names)
    return parameter(
        f"{meaning}: all, or a list of {', '.join(names)}", usual,
        lambda text: names if text == "all" else parse(text), quick=quick,
    )  # fmt: skip
