# SPDX-License-Identifier: GPL-2.0-or-later
"""Adapts a squid.conf to the version of Squid: omits directives that this version no longer has, because Squid exits at
an unknown directive. Pure.

This module knows the directives that the shipped squid.conf needs only for an older Squid, and directives that later
versions have removed (release notes, "Removed directives").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..problem import Problem
from .source import PhysicalLine, Statement

_REMOVED_WITH_FIXED_VALUE = {"request_entities": (6, "on")}
"""For each directive: the first version without it, and the value that this and later versions always use."""

_REMOVED = {
    7: frozenset(
        {"ident_lookup_access", "ident_timeout", "acl ident", "acl ident_regex", "esi_parser", "mcast_miss_addr"}
    ),
    8: frozenset({"acl src_as", "acl dst_as", "as_whois_server"}),
}
"""For each version: directives and types of acl at which this and later versions exit."""


@dataclass(frozen=True, slots=True)
class AdaptedConfiguration:
    """A configuration adapted to one version of Squid."""

    lines: tuple[PhysicalLine, ...]
    """The adapted lines: one for each original line, in the same order."""
    notes: tuple[Problem, ...]
    """Directives that were left out without a change of behaviour."""
    problems: tuple[Problem, ...]
    """Directives that were left out, and whose effect this version cannot provide."""


def adapt(lines: Sequence[PhysicalLine], statements: Sequence[Statement], version: str) -> AdaptedConfiguration:
    """Return *lines*, from which *statements* were read, without the directives that Squid *version* ("6.13") no longer
    has. If the version is not known ("unknown"), all directives stay."""
    major = _major(version)
    notes, problems, removed = [], [], set[int]()
    for statement in statements:
        first_without, value = _REMOVED_WITH_FIXED_VALUE.get(statement.directive, (major + 1, ""))
        if major < first_without:
            continue
        removed.update(range(statement.first, statement.last + 1))
        text = " ".join(statement.words)
        if statement.words[1:] == (value,):
            notes.append(
                Problem(f"{text}: left out, Squid {version} always does this", statement.file, statement.number)
            )
        else:
            always = f"{statement.directive} {value}"
            problems.append(
                Problem(
                    f"{text}: Squid {version} cannot do this; it always behaves as with {always}",
                    statement.file,
                    statement.number,
                    allowed=f"{always}; or omit the line",
                )
            )
    remaining_lines = tuple(replace(line, text="") if index in removed else line for index, line in enumerate(lines))
    return AdaptedConfiguration(remaining_lines, tuple(notes), tuple(problems))


def removed_directive_problems(statements: Sequence[Statement], version: str) -> Iterator[Problem]:
    """Yield a warning for each statement that Squid *version* accepts but a later version will not."""
    for statement in statements:
        kind = f"acl {statement.words[2]}" if statement.directive == "acl" and len(statement.words) > 2 else ""
        for first_without, names in _REMOVED.items():
            found = names & {statement.directive, kind}
            if found and _major(version) < first_without:
                lacks = f"Squid {first_without} and later have no {next(iter(found))}, and do not start"
                yield Problem(f"{' '.join(statement.words)}: {lacks}", statement.file, statement.number, warning=True)


def _major(version: str) -> int:
    number = re.match(r"\d+", version)
    return int(number[0]) if number else 0
