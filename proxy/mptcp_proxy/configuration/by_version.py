# SPDX-License-Identifier: GPL-2.0-or-later
"""Adapts one squid.conf to all versions of Squid: omits directives that a version lacks because it always acts as they
say.

Squid exits at an unknown directive. Its release notes list removed directives (Squid 6, "Removed directives"). This
module knows the removed directives that the shipped squid.conf needs for an older Squid. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..problem import Problem
from .source import PhysicalLine, Statement

_ALWAYS = {"request_entities": (6, "on")}
"""By directive: the first version without it, and the value that this version and later ones always use."""

_GONE = {
    7: frozenset(
        {"ident_lookup_access", "ident_timeout", "acl ident", "acl ident_regex", "esi_parser", "mcast_miss_addr"}
    ),
    8: frozenset({"acl src_as", "acl dst_as", "as_whois_server"}),
}
"""By version: directives and types of acl at which this version and later ones exit (release notes, "Removed
directives")."""


@dataclass(frozen=True, slots=True)
class Suited:
    """A configuration adapted to one version of Squid."""

    lines: tuple[PhysicalLine, ...]
    """The adapted lines: one for each original line, in the same order."""
    notes: tuple[Problem, ...]
    """Directives that were left out without a change of behaviour."""
    problems: tuple[Problem, ...]
    """Directives that were left out although this version does not act as they say."""


def suited(lines: Sequence[PhysicalLine], directives: Sequence[Statement], version: str) -> Suited:
    """Leave out of *lines*, from which *directives* were read, the ones that Squid *version* ("6.13") no longer has. If
    the version is not known ("unknown"), everything stays."""
    major = _major(version)
    notes, problems, gone = [], [], set[int]()
    for statement in directives:
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
                    f"{text}: Squid {version} cannot do this, it always acts as with {always}",
                    statement.file,
                    statement.number,
                    allowed=f"{always}, or no such line",
                )
            )
    kept = tuple(replace(line, text="") if index in gone else line for index, line in enumerate(lines))
    return Suited(kept, tuple(notes), tuple(problems))


def gone_problems(directives: Sequence[Statement], version: str) -> Iterator[Problem]:
    """Yield a warning for each statement that Squid *version* accepts but a later version will not."""
    for statement in directives:
        kind = f"acl {statement.words[2]}" if statement.directive == "acl" and len(statement.words) > 2 else ""
        for since, names in _GONE.items():
            found = names & {statement.directive, kind}
            if found and _major(version) < since:
                lacks = f"Squid {since} and later have no {next(iter(found))}, and do not start"
                yield Problem(f"{' '.join(statement.words)}: {lacks}", statement.file, statement.number, warning=True)


def _major(version: str) -> int:
    number = re.match(r"\d+", version)
    return int(number[0]) if number else 0
