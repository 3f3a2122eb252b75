# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds parts of a configuration whose effect is uncertain, or which are easily misread. They are refused unless an
option accepts them.

access.py evaluates the rules for clients, on the condition that Squid reads them in the same way. This module finds the
parts that differ from process to process, or that Squid may read differently. Pure, except for lists in files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from ..problem import Problem
from .access import OVERRIDE
from .address_values import FORMS, address_value
from .list_values import ignored_words, list_values, without_flags
from .source import Statement

_ACCESS_DIRECTIVES = ("http_access", "follow_x_forwarded_for", "proxy_protocol_access")
_ADDRESS_TYPES = ("src", "dst", "localip", "myip")
_MAX_NAME_BYTES = 61
"""Maximum length of a list's name. Squid truncates a name of 63 bytes to 62, which may be the name of another list, and
refuses longer names."""
_MAX_REMARKS = 5
"""Maximum number of reported values per list, because more would hardly help the operator."""


def doubts(statements: Sequence[Statement]) -> Iterator[Problem]:
    """Yield the problems of *statements*, which may be in force."""
    for statement in statements:
        yield from _character_problems(statement)
        yield from _macro_problems(statement)
        match statement.words:
            case ("acl", name, kind, *words):
                yield from _name_problems(statement, name)
                if kind in _ADDRESS_TYPES:
                    yield from _address_problems(statement, without_flags(words))


def nested_if_problems(all_statements: Sequence[Statement]) -> Iterator[Problem]:
    """Yield a warning for each ``if`` within another ``if``. *all_statements*: all statements, even if never in
    force."""
    for statement in all_statements:
        if statement.branch and statement.branch[0] == "if" and statement.applies is not True:
            text = f"{statement.text}: within another if: Squid evaluates only this one, and ignores the outer one"
            yield Problem(text, statement.file, statement.number, warning=True)


def _problem(statement: Statement, text: str, allowed: str) -> Problem:
    return Problem(text, statement.file, statement.number, allowed=f"{allowed}; to accept this: {OVERRIDE}")


def _character_problems(statement: Statement) -> Iterator[Problem]:
    """Yield a problem for invisible characters, and for characters that look like blanks but are not blanks for
    Squid."""
    for word in statement.words:
        for character in word:
            # Bytes that are not UTF-8 are allowed, because no program treats them as blanks.
            if not character.isprintable() and not "\udc80" <= character <= "\udcff":
                text = f"{' '.join(statement.words)}: an invisible character, U+{ord(character):04X}"
                yield _problem(statement, text, "printable characters; blanks and tabs between words")
                return


def _macro_problems(statement: Statement) -> Iterator[Problem]:
    is_access_rule = statement.directive == "acl" or statement.directive in _ACCESS_DIRECTIVES
    macros = [word for word in statement.words if "${process_" in word]
    if macros and (is_access_rule or macros[0] == statement.words[0]):
        text = (
            f"{' '.join(statement.words)}: {macros[0]} differs from process to process, so the processes may allow"
            " different clients"
        )
        yield _problem(statement, text, "names and values that are the same for all processes")


def _name_problems(statement: Statement, name: str) -> Iterator[Problem]:
    if len(name.encode("utf-8", "surrogateescape")) > _MAX_NAME_BYTES:
        text = f"acl {name}: the name is so long that Squid truncates it, perhaps to the name of another list"
        yield _problem(statement, text, f"at most {_MAX_NAME_BYTES} bytes")


def _address_problems(statement: Statement, words: Sequence[str]) -> Iterator[Problem]:
    beginning = " ".join(statement.words[:3])
    if ignored := ignored_words(words):
        yield _problem(
            statement,
            f"{beginning}: Squid ignores {' '.join(ignored)!r} after a file",
            "a separate line for the file",
        )
    values = ((value, remark) for value in list_values(words) if (remark := address_value(value.text).remark))
    for value, remark in islice(values, _MAX_REMARKS):
        file, number = (value.file, value.number) if value.file else (statement.file, statement.number)
        yield Problem(
            f"{beginning} {value.text}: {remark}", file, number, allowed=f"{FORMS}; to accept this: {OVERRIDE}"
        )
