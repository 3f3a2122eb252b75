# SPDX-License-Identifier: GPL-2.0-or-later
"""Compares how ``squid -k parse`` and these modules read the same lines. Pure.

Squid prints each statement after "Processing:", with its lines joined and its macros replaced, regardless of any ``if``
(parse of 5.7 and 6.13, src/cache_cf.cc). It also prints the name of each file that it opens. If Squid reads other
statements than these modules, it would not act on the statements that were checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ..problem import Problem
from .source import Statement

_FILE = re.compile(r"Processing Configuration File: (?P<name>.*) \(depth (?P<depth>\d+)\)")
_PROCESSING = re.compile(r"Processing: (?P<text>.*)", re.DOTALL)
_FATAL = re.compile(r"FATAL: ")
_MAX_QUOTED = 100
"""Maximum length of a quoted statement, characters."""
_MACROS = {"${process_name}": "squid", "${process_number}": "0"}
"""The values of macros in the parsing process, which is not a worker."""


def differences(output: Sequence[str], expected: Sequence[Statement], allowed: str = "") -> Iterator[Problem]:
    """Yield the first difference between the statements in Squid's *output*, without timestamps, and *expected*, the
    statements as these modules read them."""
    printed = [found["text"] for line in output if (found := _PROCESSING.match(line))]
    for line in output:
        if (opened := _FILE.match(line)) and opened["depth"] != "0":
            text = f"Squid reads the file {opened['name']}, which this check has not read"
            yield Problem(text, expected[0].file if expected else "", allowed=allowed)
            return
    for index, (printed_text, statement) in enumerate(zip_longest(printed, expected)):
        if statement is not None and printed_text == _as_printed(statement.text):
            continue
        if printed_text is None and any(_FATAL.match(line) for line in output):
            return  # Squid stopped, and its output shows the reason
        place = statement or expected[index - 1] if expected else None
        yield Problem(
            f"Squid reads {_quote(printed_text)} here, this check {_quote(statement.text if statement else None)}:"
            " Squid would not act on the statements that were checked",
            place.file if place else "",
            place.number if place else None,
            allowed=allowed,
        )
        return


def _as_printed(text: str) -> str:
    for macro, value in _MACROS.items():
        text = text.replace(macro, value)
    return text


def _quote(text: str | None) -> str:
    if text is None:
        return "nothing"
    return f'"{text if len(text) <= _MAX_QUOTED else text[: _MAX_QUOTED - 3] + "..."}"'
