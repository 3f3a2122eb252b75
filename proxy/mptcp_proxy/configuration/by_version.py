"""One squid.conf for all versions of Squid: what a version always does, and has no directive for, it is not told.

Squid ends at a directive that it does not know. Its release notes name those that were removed: of Squid 6, section
"Removed directives". Here are the ones that the shipped squid.conf needs for an older Squid. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..problem import Problem
from .source import PhysicalLine, Statement

_ALWAYS = {"request_entities": (6, "on")}
"""A directive, the first version without it, and the value by which every version from there on acts."""


@dataclass(frozen=True, slots=True)
class Suited:
    """A configuration as one version of Squid takes it."""

    lines: tuple[PhysicalLine, ...]
    """As many as before: the n-th stands for the n-th."""
    notes: tuple[Problem, ...]
    """What was left out and makes no difference."""
    problems: tuple[Problem, ...]
    """What was left out, and asks for what this version does not do."""


def suited(lines: Sequence[PhysicalLine], said: Sequence[Statement], version: str) -> Suited:
    """Leave out of *lines*, which *said* was read from, what Squid *version* ("6.13") does in any case.

    Where the version is not known ("unknown"), everything stays.
    """
    number = re.match(r"\d+", version)
    major = int(number[0]) if number else 0
    notes, problems, gone = [], [], set[int]()
    for statement in said:
        since, value = _ALWAYS.get(statement.directive, (major + 1, ""))
        if major < since:
            continue
        gone.update(range(statement.first, statement.last + 1))
        text = " ".join(statement.words)
        if statement.words[1:] == (value,):
            notes.append(Problem(f"{text}: left out, Squid {version} always does so", statement.file, statement.number))
        else:
            always = f"{statement.directive} {value}"
            problems.append(
                Problem(
                    f"{text}: Squid {version} cannot, it always acts as by {always}",
                    statement.file,
                    statement.number,
                    allowed=f"{always}, or no such line",
                )
            )
    kept = tuple(replace(line, text="") if index in gone else line for index, line in enumerate(lines))
    return Suited(kept, tuple(notes), tuple(problems))
