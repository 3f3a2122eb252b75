# SPDX-License-Identifier: GPL-2.0-or-later
"""Parse options of our experiments (``--set NAME=VALUE``). Error messages are one line. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MOST_RTT = 20_000
"""Largest RTT in milliseconds, because an emulated path delays by at most 10 s each way."""


class OptionError(Exception):
    """An invalid option. The message names option, value and allowed values in one line."""


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
