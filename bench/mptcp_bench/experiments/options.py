"""What ``--set NAME=VALUE`` gives an experiment of ours: read, and what is wrong told in one line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from mptcp_lab.testbed import TestbedError


class OptionError(TestbedError):
    """An option, its value and what is allowed, in one line."""


def given(settings: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the values of *settings*, each ``NAME=VALUE``, by name; *known* says what each name is.

    :raises OptionError: a name that is not known or given twice, or no equals sign
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


def whole(options: Mapping[str, str], name: str, default: int, *, least: int = 1) -> int:
    """Return the whole number *name*, *default* where it is not given.

    :raises OptionError: something else, or a number below *least*
    """
    return _whole(name, options[name], options[name], least) if name in options else default


def wholes(options: Mapping[str, str], name: str, default: Sequence[int], *, least: int = 1) -> list[int]:
    """Return the whole numbers of the list *name*, separated by commas; OptionError as :func:`whole`."""
    if name not in options:
        return list(default)
    return [_whole(name, options[name], word, least) for word in options[name].split(",")]


def positive(options: Mapping[str, str], name: str, default: float, *, above: float = 0) -> float:
    """Return the number *name*, *default* where it is not given.

    :raises OptionError: something else, or a number that is not greater than *above*
    """
    if name not in options:
        return default
    try:
        value = float(options[name])
    except ValueError:
        value = float("nan")
    # Written so that what is no number fails it as well.
    if not above < value < float("inf"):
        raise OptionError(f"--set {name}={options[name]}: allowed is a number greater than {above:g}")
    return value


def words(
    options: Mapping[str, str], name: str, known: Iterable[str], default: Sequence[str] | None = None, *, by: str = ","
) -> list[str]:
    """Return the words of the list *name*, separated by *by*; where it is not given *default*, or all that is *known*.

    :raises OptionError: a word that is not *known*
    """
    there = list(known)
    if name not in options:
        return there if default is None else list(default)
    found = options[name].split(by)
    for word in found:
        if word not in there:
            raise OptionError(f"--set {name}={options[name]}: {word!r} is none of {', '.join(there)}")
    return found


def yes(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Return whether *name* is ``yes``; OptionError where it is neither that nor ``no``."""
    word = options.get(name, "yes" if default else "no")
    if word not in ("yes", "no"):
        raise OptionError(f"--set {name}={word}: allowed are yes and no")
    return word == "yes"


def _whole(name: str, value: str, word: str, least: int) -> int:
    # int() would also take spaces, signs, underscores and the digits of every script, and refuse thousands of digits.
    if not re.fullmatch("[0-9]{1,9}", word) or int(word) < least:
        within = "" if word == value else f": {word!r}"
        raise OptionError(f"--set {name}={value}{within}: allowed are whole numbers from {least} on")
    return int(word)
