# SPDX-License-Identifier: GPL-2.0-or-later
"""Parse options of our experiments (``--set NAME=VALUE``). Error messages are one line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

MOST_RTT = 20_000
"""Largest RTT in milliseconds, because an emulated path delays by at most 10 s each way."""


class OptionError(Exception):
    """An invalid option. The message names option, value and allowed values in one line."""


def refused(options: Mapping[str, str]) -> OptionError:
    """Return an error that lists all *options* with their meanings, for when several values may be wrong."""
    return OptionError("--set takes " + "; ".join(f"{name}=… ({what})" for name, what in options.items()))


def given(settings: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return *settings*, each ``NAME=VALUE``, by name. Raises OptionError for a name not *known*, or a repeated one."""
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


def count(options: Mapping[str, str], name: str, usual: int, *, least: int = 1) -> int:
    """Return option *name*, or *usual*. Raises OptionError if it is no whole number, or below *least*."""
    return _whole(name, options[name], options[name], least) if name in options else usual


def counts(
    options: Mapping[str, str], name: str, usual: Sequence[int], *, least: int = 1, most: int | None = None
) -> list[int]:
    """Return the comma-separated whole numbers of *name*. Raises OptionError like :func:`count` and :func:`listed`."""
    if name not in options:
        return list(usual)
    return [_whole(name, options[name], word, least, most) for word in listed(options, name, "")]


def listed(options: Mapping[str, str], name: str, usual: str, by: str = ",") -> list[str]:
    """Return the words of option *name*, or of *usual*, separated by *by*. Raises OptionError for a repeated word."""
    text = options.get(name, usual)
    found = text.split(by)
    for number, word in enumerate(found):
        if word in found[:number]:
            raise OptionError(f"--set {name}={text}: {word!r} is there twice")
    return found


def rtts(text: str) -> tuple[float, float]:
    """Return the RTTs of two paths in *text*, such as ``20/80``, in milliseconds. Raises ValueError for other text."""
    first, second = (float(word) for word in text.split("/"))
    # The comparison is written so that NaN fails as well.
    if not (0 <= first <= MOST_RTT and 0 <= second <= MOST_RTT):
        raise ValueError(f"{text}: RTTs are 0 to {MOST_RTT} ms")
    return first, second


def positive(options: Mapping[str, str], name: str, usual: float, *, above: float = 0) -> float:
    """Return option *name*, or *usual*. Raises OptionError if it is no number, or not greater than *above*."""
    if name not in options:
        return usual
    try:
        value = float(options[name])
    except ValueError:
        value = float("nan")
    # The comparison is written so that NaN fails as well.
    if not above < value < float("inf"):
        raise OptionError(f"--set {name}={options[name]}: allowed is a number greater than {above:g}")
    return value


def choice(
    options: Mapping[str, str], name: str, known: Iterable[str], usual: Iterable[str] | None = None, *, by: str = ","
) -> list[str]:
    """Return the words of option *name*; by default *usual*, or all *known*. Raises OptionError for other words."""
    there = list(known)
    if name not in options:
        return there if usual is None else list(usual)
    found = listed(options, name, "", by)
    for word in found:
        if word not in there:
            raise OptionError(f"--set {name}={options[name]}: {word!r} is none of {', '.join(there)}")
    return found


def yes(options: Mapping[str, str], name: str, usual: bool) -> bool:
    """Return whether option *name* is ``yes``. Raises OptionError if it is neither ``yes`` nor ``no``."""
    word = options.get(name, "yes" if usual else "no")
    if word not in ("yes", "no"):
        raise OptionError(f"--set {name}={word}: allowed are yes and no")
    return word == "yes"


def _whole(name: str, value: str, word: str, least: int, most: int | None = None) -> int:
    # A regular expression, because int() also accepts spaces, signs, underscores and the digits of every script, and
    # fails for thousands of digits.
    if not re.fullmatch("[0-9]{1,9}", word) or int(word) < least or (most is not None and int(word) > most):
        within = "" if word == value else f": {word!r}"
        end = "on" if most is None else f"to {most}"
        raise OptionError(f"--set {name}={value}{within}: allowed are whole numbers from {least} {end}")
    return int(word)
