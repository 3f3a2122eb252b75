# SPDX-License-Identifier: GPL-2.0-or-later
"""Problems of a file that an operator wrote, with their line, key and value.

Rules: each problem is one line, which can be understood without the source code; all problems of a file are reported at
once, in the order of its lines; a warning never makes a file unusable.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]
"""A value's place in a document: ``("rules", 0, "throttle", "rate")``."""

_MAX_SHOWN = 60
_PLAIN_KEY = re.compile(r"[\w.<-]{1,60}")


class Severity(enum.Enum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    """An effect of the file that the operator may not expect; shown only by ``check``."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error that the operator must correct, or a warning. ``str()`` is the line for the operator."""

    source: str
    line: int
    """Counted from 1; 0 if the problem belongs to no line."""
    column: int
    """Counted from 1; 0 if the problem belongs to no column."""
    key: str
    """``rules[0].throttle.rate``; empty for the whole document."""
    value: str | None
    """The wrong value, as the message shows it; None if the problem is not about a value."""
    message: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        severity = "" if self.severity is Severity.ERROR else f"{self.severity.value}: "
        return f"{place}: {severity}{self.key + ': ' if self.key else ''}{self.message}"


class DocumentError(Exception):
    """A file cannot be used. The error carries all problems of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = in_order(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Nothing:
    """The value of a key that has no value in the file (YAML null). It is not None, so that such a key differs from a
    missing key."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = Nothing()


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return *problems* in the order of the file."""
    return tuple(sorted(problems, key=lambda p: (p.line, p.column, p.key, p.message)))


def shown(value: object) -> str:
    """Return *value* as in YAML, on one line and short enough for a message."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        short = value if len(value) <= _MAX_SHOWN else value[: _MAX_SHOWN - 1] + "…"
        return json.dumps(short, ensure_ascii=not short.isprintable())
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    return str(value)


def key_text(path: KeyPath) -> str:
    """Return *path* in the usual notation: ``rules[0].throttle.rate``. A key that is not a plain word is quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _PLAIN_KEY.fullmatch(part) else shown(part))
    return text


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """Return the word of *allowed* that is most similar to *word*; None if no word is similar."""
    import difflib  # here, so that a command without problems starts faster

    by_lower_case = {name.lower(): name for name in allowed}
    similar = difflib.get_close_matches(word.lower()[:_MAX_SHOWN], by_lower_case, n=1)
    return by_lower_case[similar[0]] if similar else None


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return `` (did you mean "…"?)`` for the most similar word of *allowed*; "" if no word is similar."""
    similar = nearest(word, allowed)
    return "" if similar is None else f" (did you mean {shown(similar)}?)"
